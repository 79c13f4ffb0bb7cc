/* recompute.c - activation checkpointing, d9d_tape_recompute(): forward now without saving
 * activations, and again when backward comes.  See d9d/tape/tape.h.
 *
 * The node saves the inputs.  Backward records the function on an inner tape and runs that in the
 * same mode; after a DGRAD backward the inner tape stays for WGRAD.
 */
#include <stdlib.h>

#include "tape/record.h"

typedef struct recompute {
    d9d_tape_forward_fn fn;
    void *self;
    d9d_tape *inner;               /* NULL before and after the recomputation */
    d9d_var *leaf[D9D_NODE_MAX];   /* on the inner tape, one for each distinct input */
    d9d_var *result[D9D_NODE_MAX]; /* on the inner tape, one for each output */
} recompute;

/* Same var, same leaf: its gradient is one sum, as it is without recomputation. */
static d9d_status make_leaf(d9d_node *n, int i)
{
    recompute *r = n->attr;

    for (int j = 0; j < i; j++) {
        if (n->in[j] == n->in[i]) {
            r->leaf[i] = r->leaf[j];
            return D9D_OK;
        }
    }
    return d9d_tape_leaf(r->inner, &n->saved[i], n->in[i]->needs_grad, &r->leaf[i]);
}

static d9d_status rerecord_forward(d9d_node *n)
{
    recompute *r = n->attr;

    D9D_TRY(d9d_tape_create(n->tape->dev, &r->inner));
    r->inner->is_recompute = true;
    if (d9d_tape_dropout_rng(n->tape) != NULL)
        d9d_tape_set_dropout_rng(r->inner, d9d_tape_dropout_rng(n->tape));
    if (d9d_tape_token_weights(n->tape) != NULL)
        d9d_tape_set_token_weights(r->inner, d9d_tape_token_weights(n->tape));
    if (d9d_tape_prefix(n->tape) != NULL)
        d9d_tape_set_prefix(r->inner, d9d_tape_prefix(n->tape));
    for (int i = 0; i < n->n_in; i++)
        D9D_TRY(make_leaf(n, i));
    D9D_TRY(r->fn(r->self, r->inner, r->leaf, (size_t)n->n_in, r->result, (size_t)n->n_out));
    /* Keep only what inner nodes saved. */
    d9d_tape_release_since(r->inner, 0, NULL, 0);
    for (int i = 0; i < n->n_saved; i++)
        d9d_tensor_release(&n->saved[i]);
    return D9D_OK;
}

static void swap_tensors(d9d_tensor *a, d9d_tensor *b)
{
    const d9d_tensor c = *a;

    *a = *b;
    *b = c;
}

/* Swap the gradient sums of the inputs between the outer vars and the leaves. */
static void swap_grads(d9d_node *n)
{
    recompute *r = n->attr;

    for (int i = 0; i < n->n_in; i++) {
        bool first = true;

        for (int j = 0; j < i; j++)
            first = first && r->leaf[j] != r->leaf[i];
        if (first)
            swap_tensors(d9di_var_grad_slot(n->in[i]), &r->leaf[i]->grad);
    }
}

static d9d_status run_recompute(d9d_node *n, d9d_tape_backward_mode mode)
{
    recompute *r = n->attr;

    D9D_TRY(rerecord_forward(n));
    swap_grads(n);
    for (int i = 0; i < n->n_out; i++) {
        d9d_tensor grad = n->dout[i];

        n->dout[i] = (d9d_tensor){0};
        if (grad.storage != NULL)
            D9D_TRY(d9di_var_accumulate_grad(r->inner, r->result[i], &grad));
    }
    D9D_TRY(d9di_tape_run_backward(r->inner, mode));
    swap_grads(n);
    return D9D_OK;
}

static void recompute_release(d9d_node *n)
{
    recompute *r = n->attr;

    d9d_tape_free(r->inner);
    r->inner = NULL;
}

static d9d_status recompute_dgrad(d9d_node *n)
{
    return run_recompute(n, D9D_BACKWARD_DGRAD);
}

static d9d_status recompute_bwd(d9d_node *n)
{
    return run_recompute(n, D9D_BACKWARD_FULL);
}

/* If no input needs a gradient, the dgrad half never ran. */
static d9d_status recompute_wgrad(d9d_node *n)
{
    recompute *r = n->attr;

    return r->inner != NULL ? d9di_tape_run_backward(r->inner, D9D_BACKWARD_WGRAD)
                            : recompute_bwd(n);
}

static const d9d_node_ops recompute_ops = {
    .name = "recompute",
    .dgrad = recompute_dgrad,
    .wgrad = recompute_wgrad,
    .bwd = recompute_bwd,
    .release = recompute_release,
};

/* Run without recording; *halves are those that recording would have needed. */
static d9d_status run_probe(d9d_tape *t, d9d_tape_forward_fn fn, void *self, d9d_var *const *in,
                            size_t n_in, d9d_var **out, size_t n_out, unsigned *halves)
{
    d9d_status st;

    t->probed = 0;
    t->recording = D9DI_RECORD_PROBE;
    st = fn(self, t, in, n_in, out, n_out);
    t->recording = D9DI_RECORD_ON;
    *halves = t->probed;
    return st;
}

/* Give an output that existed before, or that is named twice, a var of its own. */
static d9d_status make_outputs_unique(d9d_tape *t, size_t mark, d9d_var **out, size_t n_out)
{
    for (size_t i = 0; i < n_out; i++) {
        bool shared = out[i]->number < mark;
        d9d_tensor x;

        for (size_t j = 0; j < i; j++)
            shared = shared || out[j] == out[i];
        if (!shared)
            continue;
        x = d9d_tensor_ref(&out[i]->value);
        D9D_TRY(d9d_tape_output_take(t, &x, &out[i]));
    }
    return D9D_OK;
}

d9d_status d9d_tape_recompute(d9d_tape *t, d9d_tape_forward_fn fn, void *self, d9d_var *const *in,
                              size_t n_in, d9d_var **out, size_t n_out)
{
    const size_t mark = d9d_tape_mark(t);
    const bool record = t->recording == D9DI_RECORD_ON;
    d9d_var *made[D9D_NODE_MAX];
    unsigned halves = 0;
    d9d_node *n;
    recompute *r;

    if ((record && n_in > D9D_NODE_MAX) || n_out > D9D_NODE_MAX)
        return D9D_FAIL(D9D_EINVAL, "recompute: %zu inputs and %zu outputs, at most %d of each",
                        n_in, n_out, D9D_NODE_MAX);
    D9D_TRY(record ? run_probe(t, fn, self, in, n_in, made, n_out, &halves)
                   : fn(self, t, in, n_in, made, n_out));
    d9d_tape_release_since(t, mark, made, n_out);
    if (halves != 0) {
        D9D_TRY(make_outputs_unique(t, mark, made, n_out));
        D9D_TRY(d9di_tape_record(t, &recompute_ops, halves, in, n_in, made, n_out, sizeof(*r), &n));
        r = n->attr;
        r->fn = fn;
        r->self = self;
        for (size_t i = 0; i < n_in; i++)
            (void)d9d_node_save(n, d9d_var_tensor(in[i]),
                                halves & D9D_NEED_DGRAD ? D9D_NEED_DGRAD : D9D_NEED_WGRAD);
    }
    for (size_t i = 0; i < n_out; i++)
        out[i] = made[i];
    return D9D_OK;
}
