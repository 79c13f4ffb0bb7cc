/* recompute.c - d9d_tape_checkpoint(): forward now, again when backward comes.  See
 * d9d/tape/tape.h.
 *
 * The node keeps the inputs.  Backward makes a tape inside the tape, replays the function on it
 * and runs it in the same mode; after an INPUT backward the inner tape waits for WEIGHT.
 */
#include <stdlib.h>

#include "tape/record.h"

typedef struct replay {
    d9d_forward_fn fn;
    void *self;
    d9d_tape *inner;               /* NULL before the replay and after its end */
    d9d_var *leaf[D9D_NODE_MAX];   /* on it, one a distinct input */
    d9d_var *result[D9D_NODE_MAX]; /* on it, one an output */
} replay;

/* Same var, same leaf: its gradient is one sum, as it is without replay. */
static d9d_status make_leaf(d9d_node *n, int i)
{
    replay *r = n->attr;

    for (int j = 0; j < i; j++) {
        if (n->in[j] == n->in[i]) {
            r->leaf[i] = r->leaf[j];
            return D9D_OK;
        }
    }
    return d9d_tape_leaf(r->inner, &n->saved[i], n->in[i]->needs_grad, &r->leaf[i]);
}

static d9d_status record_again(d9d_node *n)
{
    replay *r = n->attr;

    D9D_TRY(d9d_tape_create(n->tape->dev, &r->inner));
    r->inner->is_replay = true;
    if (d9d_tape_draws(n->tape) != NULL)
        d9d_tape_set_draws(r->inner, d9d_tape_draws(n->tape));
    if (d9d_tape_shares(n->tape) != NULL)
        d9d_tape_set_shares(r->inner, d9d_tape_shares(n->tape));
    for (int i = 0; i < n->n_in; i++)
        D9D_TRY(make_leaf(n, i));
    D9D_TRY(r->fn(r->self, r->inner, r->leaf, (size_t)n->n_in, r->result, (size_t)n->n_out));
    /* Only what inner nodes saved stays. */
    d9d_tape_release_since(r->inner, 0, NULL, 0);
    for (int i = 0; i < n->n_saved; i++)
        d9d_tensor_release(&n->saved[i]);
    return D9D_OK;
}

static void swap(d9d_tensor *a, d9d_tensor *b)
{
    const d9d_tensor c = *a;

    *a = *b;
    *b = c;
}

/* The sums of the inputs' gradients move between the outer vars and the leaves. */
static void swap_sums(d9d_node *n)
{
    replay *r = n->attr;

    for (int i = 0; i < n->n_in; i++) {
        bool first = true;

        for (int j = 0; j < i; j++)
            first = first && r->leaf[j] != r->leaf[i];
        if (first)
            swap(d9di_var_slot(n->in[i]), &r->leaf[i]->grad);
    }
}

static d9d_status run_replay(d9d_node *n, d9d_backward_mode mode)
{
    replay *r = n->attr;

    D9D_TRY(record_again(n));
    swap_sums(n);
    for (int i = 0; i < n->n_out; i++) {
        d9d_tensor grad = n->dout[i];

        n->dout[i] = (d9d_tensor){0};
        if (grad.storage != NULL)
            D9D_TRY(d9di_var_give(r->inner, r->result[i], &grad));
    }
    D9D_TRY(d9di_tape_run(r->inner, mode));
    swap_sums(n);
    return D9D_OK;
}

static void replay_forget(d9d_node *n)
{
    replay *r = n->attr;

    d9d_tape_free(r->inner);
    r->inner = NULL;
}

static d9d_status replay_input(d9d_node *n)
{
    return run_replay(n, D9D_BACKWARD_INPUT);
}

static d9d_status replay_full(d9d_node *n)
{
    return run_replay(n, D9D_BACKWARD_FULL);
}

/* Without inputs that need a gradient the input half never ran. */
static d9d_status replay_weight(d9d_node *n)
{
    replay *r = n->attr;

    return r->inner != NULL ? d9di_tape_run(r->inner, D9D_BACKWARD_WEIGHT) : replay_full(n);
}

static const d9d_node_ops replay_ops = {
    .name = "checkpoint",
    .input = replay_input,
    .weight = replay_weight,
    .full = replay_full,
    .forget = replay_forget,
};

/* Without recording; `halves` says what recording would have wanted. */
static d9d_status run_probe(d9d_tape *t, d9d_forward_fn fn, void *self, d9d_var *const *in,
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

/* An output that was there before, or that is named twice, becomes a var of its own. */
static d9d_status own_outputs(d9d_tape *t, size_t mark, d9d_var **out, size_t n_out)
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

d9d_status d9d_tape_checkpoint(d9d_tape *t, d9d_forward_fn fn, void *self, d9d_var *const *in,
                               size_t n_in, d9d_var **out, size_t n_out)
{
    const size_t mark = d9d_tape_mark(t);
    const bool record = t->recording == D9DI_RECORD_ON;
    d9d_var *made[D9D_NODE_MAX];
    unsigned halves = 0;
    d9d_node *n;
    replay *r;

    if ((record && n_in > D9D_NODE_MAX) || n_out > D9D_NODE_MAX)
        return D9D_FAIL(D9D_EINVAL, "checkpoint: %zu inputs and %zu outputs, at most %d of each",
                        n_in, n_out, D9D_NODE_MAX);
    D9D_TRY(record ? run_probe(t, fn, self, in, n_in, made, n_out, &halves)
                   : fn(self, t, in, n_in, made, n_out));
    d9d_tape_release_since(t, mark, made, n_out);
    if (halves != 0) {
        D9D_TRY(own_outputs(t, mark, made, n_out));
        D9D_TRY(d9di_tape_record(t, &replay_ops, halves, in, n_in, made, n_out, sizeof(*r), &n));
        r = n->attr;
        r->fn = fn;
        r->self = self;
        for (size_t i = 0; i < n_in; i++)
            (void)d9d_node_save(n, d9d_var_tensor(in[i]),
                                halves & D9D_NEED_INPUT ? D9D_NEED_INPUT : D9D_NEED_WEIGHT);
    }
    for (size_t i = 0; i < n_out; i++)
        out[i] = made[i];
    return D9D_OK;
}
