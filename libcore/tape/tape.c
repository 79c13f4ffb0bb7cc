/* tape.c - recording: vars, nodes, and what they save.  See d9d/tape/tape.h. */
#include "d9d/tape/tape.h"

#include <assert.h>
#include <stdlib.h>

#include "d9d/device/trace.h"
#include "tape/record.h"

d9d_status d9d_tape_create(d9d_device *dev, d9d_tape **out)
{
    d9d_tape *t = calloc(1, sizeof(*t));

    if (t == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a tape");
    t->dev = dev;
    t->recording = D9DI_RECORD_ON;
    *out = t;
    return D9D_OK;
}

void d9d_tape_reset(d9d_tape *t)
{
    for (size_t i = 0; i < t->nodes.len; i++)
        d9di_node_release(t->nodes.data[i]);
    for (size_t i = 0; i < t->vars.len; i++) {
        d9d_tensor_release(&t->vars.data[i]->value);
        d9d_tensor_release(&t->vars.data[i]->grad);
    }
    t->nodes.len = 0;
    t->vars.len = 0;
    t->deferred.len = 0;
    t->parts.len = 0;
    t->offload = NULL;
    t->can_defer_wgrad = t->hook_deferred = false;
    d9d_arena_release(&t->arena);
    d9d_tensor_release(&t->dropout_rng.token);
    d9d_tensor_release(&t->dropout_rng.query_token);
    d9d_tensor_release(&t->rows_rng.token);
    d9d_tensor_release(&t->token_weights.weight);
    d9d_tensor_release(&t->token_weights.lane);
    d9d_tensor_release(&t->prefix);
    d9d_tensor_release(&t->prefill.segments);
    t->phase = D9DI_PHASE_FORWARD;
}

void d9d_tape_free(d9d_tape *t)
{
    if (t == NULL)
        return;
    d9d_tape_reset(t);
    D9D_VEC_RELEASE(&t->nodes);
    D9D_VEC_RELEASE(&t->vars);
    D9D_VEC_RELEASE(&t->deferred);
    D9D_VEC_RELEASE(&t->parts);
    free(t);
}

void d9d_tape_set_recording(d9d_tape *t, bool on)
{
    t->recording = on ? D9DI_RECORD_ON : D9DI_RECORD_OFF;
}

void d9d_tape_begin_reference(d9d_tape *t)
{
    t->before_reference = t->recording;
    t->recording = D9DI_RECORD_OFF;
    t->is_reference = true;
}

void d9d_tape_end_reference(d9d_tape *t)
{
    t->recording = t->before_reference;
    t->is_reference = false;
}

const d9d_param_adapter *d9d_tape_adapter(const d9d_tape *t, const d9d_param *w)
{
    return t->is_reference ? NULL : w->peft.adapter;
}

void d9d_tape_set_weights_constant(d9d_tape *t, bool on)
{
    t->weights_constant = on;
}

bool d9d_tape_is_weight_constant(const d9d_tape *t, const d9d_param *p)
{
    return t->weights_constant && p->placement.shard_group == NULL;
}

void d9d_tape_set_dropout_rng(d9d_tape *t, const d9d_dropout_rng *rng)
{
    const d9d_tensor token = d9d_tensor_ref(&rng->token),
                     query_token = d9d_tensor_ref(&rng->query_token);

    d9d_tensor_release(&t->dropout_rng.token);
    d9d_tensor_release(&t->dropout_rng.query_token);
    t->dropout_rng = *rng;
    t->dropout_rng.token = token;
    t->dropout_rng.query_token = query_token;
}

const d9d_dropout_rng *d9d_tape_dropout_rng(const d9d_tape *t)
{
    if (t->dropout_rng.token.storage == NULL || t->is_reference)
        return NULL;
    return t->rows_rng.token.storage != NULL ? &t->rows_rng : &t->dropout_rng;
}

void d9d_tape_begin_rows(d9d_tape *t, const d9d_tensor *number)
{
    t->rows_rng = t->dropout_rng;
    t->rows_rng.token = d9d_tensor_ref(number);
    t->rows_rng.query_token = (d9d_tensor){0};
    t->rows_rng.first = t->rows_rng.part = 0;
}

void d9d_tape_end_rows(d9d_tape *t)
{
    d9d_tensor_release(&t->rows_rng.token);
}

void d9d_tape_set_token_weights(d9d_tape *t, const d9d_token_weights *weights)
{
    const d9d_tensor weight = d9d_tensor_ref(&weights->weight),
                     lane = d9d_tensor_ref(&weights->lane);

    d9d_tensor_release(&t->token_weights.weight);
    d9d_tensor_release(&t->token_weights.lane);
    t->token_weights = *weights;
    t->token_weights.weight = weight;
    t->token_weights.lane = lane;
}

const d9d_token_weights *d9d_tape_token_weights(const d9d_tape *t)
{
    return t->token_weights.weight.storage != NULL && !t->is_reference ? &t->token_weights : NULL;
}

void d9d_tape_set_prefix(d9d_tape *t, const d9d_tensor *prefix)
{
    const d9d_tensor own = d9d_tensor_ref(prefix);

    d9d_tensor_release(&t->prefix);
    t->prefix = own;
}

const d9d_tensor *d9d_tape_prefix(const d9d_tape *t)
{
    return t->prefix.storage != NULL ? &t->prefix : NULL;
}

void d9d_tape_set_prefill(d9d_tape *t, const d9d_tape_prefill *prefill)
{
    const d9d_tape_prefill own = {prefill->first, prefill->n, d9d_tensor_ref(&prefill->segments)};

    d9d_tensor_release(&t->prefill.segments);
    t->prefill = own;
}

const d9d_tape_prefill *d9d_tape_get_prefill(const d9d_tape *t)
{
    return t->prefill.segments.storage != NULL ? &t->prefill : NULL;
}

bool d9d_tape_is_recompute(const d9d_tape *t)
{
    return t->is_recompute || t->is_reference;
}

d9d_device *d9d_tape_device(const d9d_tape *t)
{
    return t->dev;
}

/* --- vars ------------------------------------------------------------------------------------- */

/* Takes the reference over on success. */
static d9d_status add_var(d9d_tape *t, d9d_tensor *x, bool needs_grad, d9d_var **out)
{
    d9d_var *v = d9d_arena_alloc(&t->arena, sizeof(*v));

    if (v == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the record of a var");
    v->needs_grad = needs_grad;
    v->number = t->vars.len;
    D9D_TRY(D9D_VEC_PUSH(&t->vars, v));
    v->value = *x;
    x->storage = NULL;
    *out = v;
    return D9D_OK;
}

d9d_status d9d_tape_output_take(d9d_tape *t, d9d_tensor *x, d9d_var **out)
{
    d9d_tensor value = *x;
    d9d_status st = add_var(t, &value, false, out);

    d9d_tensor_release(&value); /* if add_var() failed */
    *x = (d9d_tensor){0};
    return st;
}

d9d_status d9d_tape_output(d9d_tape *t, d9d_dtype dtype, d9d_shape shape, d9d_var **out)
{
    d9d_tensor x;

    D9D_TRY(d9d_tensor_alloc(t->dev, dtype, shape, &x));
    return d9d_tape_output_take(t, &x, out);
}

d9d_status d9d_tape_leaf(d9d_tape *t, const d9d_tensor *x, bool needs_grad, d9d_var **out)
{
    d9d_tensor value = d9d_tensor_ref(x);
    d9d_status st = add_var(t, &value, needs_grad, out);

    d9d_tensor_release(&value);
    return st;
}

const d9d_tensor *d9d_var_tensor(const d9d_var *v)
{
    return &v->value;
}

bool d9d_var_needs_grad(const d9d_var *v)
{
    return v->needs_grad;
}

void d9d_var_grad(const d9d_var *v, d9d_tensor *out)
{
    *out = d9d_tensor_ref(&v->grad);
}

void d9d_var_move_grad(d9d_var *v, d9d_tensor *out)
{
    *out = v->grad;
    v->grad = (d9d_tensor){0};
}

size_t d9d_tape_mark(const d9d_tape *t)
{
    return t->vars.len;
}

void d9di_var_release_value(d9d_var *v)
{
    const d9d_tensor released = v->value;

    d9d_tensor_release(&v->value);
    v->value.dtype = released.dtype;
    v->value.shape = released.shape;
}

void d9d_tape_release_since(d9d_tape *t, size_t mark, d9d_var *const *keep, size_t n)
{
    for (size_t i = mark; i < t->vars.len; i++) {
        bool is_excluded = false;

        for (size_t k = 0; k < n; k++)
            is_excluded = is_excluded || keep[k] == t->vars.data[i];
        if (!is_excluded)
            d9di_var_release_value(t->vars.data[i]);
    }
}

/* --- nodes ------------------------------------------------------------------------------------ */

static unsigned needed_halves(d9d_var *const *in, size_t n_in, d9d_param *const *param,
                              size_t n_param)
{
    unsigned halves = 0;

    for (size_t i = 0; i < n_in; i++)
        halves |= in[i]->needs_grad ? D9D_NEED_DGRAD : 0;
    for (size_t i = 0; i < n_param; i++)
        halves |= d9d_param_needs_grad(param[i]) ? D9D_NEED_WGRAD : 0;
    return halves;
}

bool d9d_tape_should_record(d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_param *const *param,
                            size_t n_param)
{
    const unsigned halves = needed_halves(in, n_in, param, n_param);

    if (t->recording == D9DI_RECORD_PROBE)
        t->probed |= halves;
    return t->recording == D9DI_RECORD_ON && halves != 0;
}

d9d_status d9di_tape_record(d9d_tape *t, const d9d_node_ops *ops, unsigned halves,
                            d9d_var *const *in, size_t n_in, d9d_var *const *out, size_t n_out,
                            size_t attr_size, d9d_node **node)
{
    d9d_node *n;

    if (t->phase != D9DI_PHASE_FORWARD)
        return D9D_FAIL(D9D_EINVAL, "%s: the tape went backward; reset it before recording again",
                        ops->name);
    if (n_out > 0)
        D9D_TRY(d9di_tape_check_simulated(t, ops, &t->launches));
    if (n_in > D9D_NODE_MAX || n_out > D9D_NODE_MAX)
        return D9D_FAIL(D9D_EINVAL, "%s: %zu inputs and %zu outputs, at most %d of each", ops->name,
                        n_in, n_out, D9D_NODE_MAX);
    n = d9d_arena_alloc(&t->arena, sizeof(*n));
    if (n == NULL || (attr_size > 0 && (n->attr = d9d_arena_alloc(&t->arena, attr_size)) == NULL))
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for its record", ops->name);
    n->ops = ops;
    n->tape = t;
    n->n_in = (int)n_in;
    n->n_out = (int)n_out;
    n->halves = halves;
    for (size_t i = 0; i < n_in; i++)
        n->in[i] = in[i];
    D9D_TRY(D9D_VEC_PUSH(&t->nodes, n));
    for (size_t i = 0; i < n_out; i++) {
        assert(out[i]->producer == NULL && out[i]->number < t->vars.len);
        out[i]->producer = n;
        out[i]->output = (int)i;
        out[i]->needs_grad = true;
    }
    d9d_trace_mark(t->dev, ops->name, "");
    *node = n;
    return D9D_OK;
}

d9d_status d9d_tape_record(d9d_tape *t, const d9d_node_ops *ops, d9d_var *const *in, size_t n_in,
                           d9d_var *const *out, size_t n_out, d9d_param *const *param,
                           size_t n_param, size_t attr_size, d9d_node **node)
{
    unsigned halves = needed_halves(in, n_in, param, n_param);

    if (n_param > D9D_NODE_MAX)
        return D9D_FAIL(D9D_EINVAL, "%s: %zu parameters, at most %d", ops->name, n_param,
                        D9D_NODE_MAX);
    halves &=
        (ops->dgrad != NULL ? D9D_NEED_DGRAD : 0u) | (ops->wgrad != NULL ? D9D_NEED_WGRAD : 0u);
    D9D_TRY(d9di_tape_record(t, ops, halves, in, n_in, out, n_out, attr_size, node));
    (*node)->n_param = (int)n_param;
    for (size_t i = 0; i < n_param; i++)
        (*node)->param[i] = param[i];
    return D9D_OK;
}

d9d_status d9d_tape_record_hook(d9d_tape *t, const d9d_node_ops *ops, size_t attr_size,
                                d9d_node **node)
{
    *node = NULL;
    if (t->recording != D9DI_RECORD_ON)
        return D9D_OK;
    D9D_TRY(d9di_tape_record(t, ops, D9D_NEED_BOTH, NULL, 0, NULL, 0, attr_size, node));
    (*node)->reached = true;
    return D9D_OK;
}

int d9d_node_save(d9d_node *n, const d9d_tensor *x, d9d_node_need need)
{
    const int i = n->n_saved++;

    assert(i < D9D_NODE_MAX);
    n->need[i] = need & n->halves;
    n->saved[i] =
        n->need[i] != 0 ? d9d_tensor_ref(x) : (d9d_tensor){.dtype = x->dtype, .shape = x->shape};
    return i;
}

void d9d_node_make_root(d9d_node *n)
{
    n->is_root = true;
}

bool d9d_var_is_root(const d9d_var *v)
{
    return v->producer != NULL && v->producer->is_root;
}

d9d_status d9d_tape_check_root(const d9d_tape *t, const char *op)
{
    if (t->recording == D9DI_RECORD_PROBE)
        return D9D_FAIL(D9D_EINVAL, "%s: a root of the backward cannot be inside a checkpoint", op);
    return D9D_OK;
}

bool d9d_node_input_needs_grad(const d9d_node *n, int i)
{
    return n->in[i]->needs_grad;
}

d9d_status d9d_node_alloc(d9d_node *n, d9d_dtype t, d9d_shape s, d9d_tensor *out)
{
    return d9d_tensor_alloc(n->tape->dev, t, s, out);
}

void d9di_node_release(d9d_node *n)
{
    for (int i = 0; i < n->n_out; i++)
        d9d_tensor_release(&n->dout[i]);
    for (int i = 0; i < n->n_saved; i++)
        d9d_tensor_release(&n->saved[i]);
    if (n->ops->release != NULL)
        n->ops->release(n);
}
