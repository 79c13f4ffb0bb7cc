/* op_gated_delta.c - the gated delta rule.  q k [B, S, K, D], v y [B, S, A, F], g b [B, S, A].
 *
 * The node keeps its inputs and the state that each chunk of tokens starts with; what lies inside a
 * chunk is made again in backward.
 */
#include "op/attention/op_documents.h"

/* Inputs, and saved first; the states follow, and segments where given: attr points into them. */
enum { Q, K, V, G, B, INPUTS, STATES = INPUTS };

typedef struct delta_attr {
    d9d_delta_dims dims;
} delta_attr;

static d9d_status input(d9d_node *n)
{
    const d9d_delta_dims *dims = &((const delta_attr *)n->attr)->dims;
    d9d_tensor d[INPUTS] = {{0}};
    d9d_status st;

    for (int i = 0; i < INPUTS; i++)
        D9D_TRY_OR(st, d9di_node_grad(n, i, &d[i]), out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(n->tape, delta_din, dims, d9d_tensor_data(&d[Q]), d9d_tensor_data(&d[K]),
                           d9d_tensor_data(&d[V]), d9d_tensor_data(&d[G]), d9d_tensor_data(&d[B]),
                           d9d_tensor_data(&n->dout[0]), d9d_tensor_data(&n->saved[Q]),
                           d9d_tensor_data(&n->saved[K]), d9d_tensor_data(&n->saved[V]),
                           d9d_tensor_data(&n->saved[G]), d9d_tensor_data(&n->saved[B]),
                           d9d_tensor_data(&n->saved[STATES])),
               out);
    for (int i = 0; i < INPUTS; i++)
        D9D_TRY_OR(st, d9d_node_give(n, i, &d[i]), out);
out:
    for (int i = 0; i < INPUTS; i++)
        d9d_tensor_release(&d[i]);
    return st;
}

static const d9d_node_ops ops = {.name = "delta", .input = input};

static d9d_status check_heads(const d9d_tensor *q, const d9d_tensor *v)
{
    const d9d_shape *s = &q->shape, *r = &v->shape;

    if (s->ndim != 4 || r->ndim != 4 || s->dim[0] != r->dim[0] || s->dim[1] != r->dim[1])
        return d9di_op_misfit("delta", "v", r, "q", s, "q and k are [B, S, K, D], v [B, S, A, F]");
    if (s->dim[2] == 0 ? r->dim[2] != 0 : r->dim[2] % s->dim[2] != 0)
        return d9di_op_misfit("delta", "v", r, "q", s,
                              "heads of values must be a multiple of those of keys");
    return D9D_OK;
}

/* One number of each head of values. */
static d9d_status check_gate(const char *name, const d9d_tensor *x, d9d_dtype t,
                             const d9d_tensor *v)
{
    const d9d_shape *s = &v->shape;

    D9D_TRY(d9di_op_check("delta", name, x, t));
    if (!d9d_shape_equal(&x->shape, &D9D_SHAPE(s->dim[0], s->dim[1], s->dim[2])))
        return d9di_op_misfit("delta", name, &x->shape, "v", s,
                              "v is [B, S, A, F], a gate [B, S, A]");
    return D9D_OK;
}

static d9d_status check(d9d_var *const in[INPUTS], const d9d_tensor *segments)
{
    const d9d_tensor *q = d9d_var_tensor(in[Q]), *k = d9d_var_tensor(in[K]);
    const d9d_tensor *v = d9d_var_tensor(in[V]);

    D9D_TRY(d9di_op_check_real("delta", "q", q));
    D9D_TRY(d9di_op_check("delta", "k", k, q->dtype));
    D9D_TRY(d9di_op_check("delta", "v", v, q->dtype));
    D9D_TRY(d9di_op_check_same("delta", "q", q, "k", k));
    D9D_TRY(check_heads(q, v));
    D9D_TRY(check_gate("g", d9d_var_tensor(in[G]), D9D_F32, v));
    D9D_TRY(check_gate("b", d9d_var_tensor(in[B]), q->dtype, v));
    return d9di_documents_check_list("delta", q, segments);
}

static d9d_status record(d9d_tape *t, d9d_var *const in[INPUTS], d9d_var *out,
                         const d9d_tensor *states, const d9d_tensor *segments,
                         const d9d_delta_dims *dims)
{
    d9d_node *n;

    if (!d9d_tape_wants(t, in, INPUTS, NULL, 0))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &ops, in, INPUTS, &out, 1, NULL, 0, sizeof(delta_attr), &n));
    ((delta_attr *)n->attr)->dims = *dims;
    for (int i = 0; i < INPUTS; i++)
        (void)d9d_node_save(n, d9d_var_tensor(in[i]), D9D_NEED_INPUT);
    (void)d9d_node_save(n, states, D9D_NEED_INPUT);
    if (segments != NULL)
        (void)d9d_node_save(n, segments, D9D_NEED_INPUT);
    return D9D_OK;
}

static const void *data(d9d_var *v)
{
    return d9d_tensor_data(d9d_var_tensor(v));
}

/* From what is kept: there is no state to be remembered for a backward. */
static d9d_status go_on(d9d_tape *t, const d9d_delta *x, const d9d_delta_dims *n, d9d_var *out)
{
    const d9d_past past = d9di_past(x->kept);

    return D9DI_KERNEL(t, delta_on, n, &past, d9d_tensor_data(d9d_var_tensor(out)), data(x->q),
                       data(x->k), data(x->v), data(x->g), data(x->b));
}

static d9d_status compute(d9d_tape *t, const d9d_delta *x, const d9d_delta_dims *n, d9d_var *out,
                          d9d_tensor *states)
{
    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), D9D_F32,
                             D9D_SHAPE(d9d_delta_slots(&n->of), n->a, n->d, n->f), states));
    return D9DI_KERNEL(t, delta, n, d9d_tensor_data(d9d_var_tensor(out)), d9d_tensor_data(states),
                       data(x->q), data(x->k), data(x->v), data(x->g), data(x->b));
}

d9d_status d9d_op_delta(d9d_tape *t, const d9d_delta *x, d9d_var **y)
{
    d9d_var *const in[INPUTS] = {x->q, x->k, x->v, x->g, x->b};
    const d9d_tensor *q = d9d_var_tensor(x->q), *v = d9d_var_tensor(x->v);
    d9d_tensor states = {0};
    d9d_delta_dims n;
    d9d_var *out;
    d9d_status st;

    D9D_TRY(check(in, x->segments));
    n = (d9d_delta_dims){q->dtype,        d9di_documents_of(q, x->segments),
                         q->shape.dim[2], v->shape.dim[2],
                         q->shape.dim[3], v->shape.dim[3],
                         x->scale};
    D9D_TRY(d9di_documents_check_kept("delta", x->segments, x->kept, D9D_F32,
                                      D9D_SHAPE(n.a, n.d, n.f),
                                      d9d_tape_wants(t, in, INPUTS, NULL, 0)));
    D9D_TRY(d9d_tape_output(t, v->dtype, v->shape, &out));
    st = x->kept != NULL ? go_on(t, x, &n, out) : compute(t, x, &n, out, &states);
    if (st == D9D_OK && x->kept == NULL)
        st = record(t, in, out, &states, x->segments, &n);
    if (st == D9D_OK)
        *y = out;
    d9d_tensor_release(&states);
    return st;
}
