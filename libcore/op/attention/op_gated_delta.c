/* op_gated_delta.c - the gated delta rule, chunked.  q k [B, S, K, D], v y [B, S, A, F], g
 * b [B, S, A].
 *
 * The node saves its inputs and the state at the start of each chunk of tokens; backward recomputes
 * the states inside a chunk.
 */
#include "op/attention/op_documents.h"

/* Inputs, which are saved first; the states follow, then segments, if any: attr points into them.
 */
enum { Q, K, V, G, B, INPUTS, STATES = INPUTS };

typedef struct gated_delta_attr {
    d9d_gated_delta_dims dims;
} gated_delta_attr;

static d9d_status gated_delta_dgrad(d9d_node *n)
{
    const d9d_gated_delta_dims *dims = &((const gated_delta_attr *)n->attr)->dims;
    d9d_tensor d[INPUTS] = {{0}};
    d9d_status st;

    for (int i = 0; i < INPUTS; i++)
        D9D_TRY_OR(st, d9di_op_grad_alloc(n, i, &d[i]), out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(n->tape, gdn->gated_delta_bwd, dims, d9d_tensor_data(&d[Q]),
                           d9d_tensor_data(&d[K]), d9d_tensor_data(&d[V]), d9d_tensor_data(&d[G]),
                           d9d_tensor_data(&d[B]), d9d_tensor_data(&n->dout[0]),
                           d9d_tensor_data(&n->saved[Q]), d9d_tensor_data(&n->saved[K]),
                           d9d_tensor_data(&n->saved[V]), d9d_tensor_data(&n->saved[G]),
                           d9d_tensor_data(&n->saved[B]), d9d_tensor_data(&n->saved[STATES])),
               out);
    for (int i = 0; i < INPUTS; i++)
        D9D_TRY_OR(st, d9d_node_accumulate_grad(n, i, &d[i]), out);
out:
    for (int i = 0; i < INPUTS; i++)
        d9d_tensor_release(&d[i]);
    return st;
}

static const d9d_node_ops gated_delta_node_ops = {.name = "gated_delta",
                                                  .dgrad = gated_delta_dgrad};

static d9d_status check_heads(const d9d_tensor *q, const d9d_tensor *v)
{
    const d9d_shape *s = &q->shape, *r = &v->shape;

    if (s->ndim != 4 || r->ndim != 4 || s->dim[0] != r->dim[0] || s->dim[1] != r->dim[1])
        return d9di_op_misfit("gated_delta", "v", r, "q", s,
                              "q and k are [B, S, K, D], v [B, S, A, F]");
    if (s->dim[2] == 0 ? r->dim[2] != 0 : r->dim[2] % s->dim[2] != 0)
        return d9di_op_misfit("gated_delta", "v", r, "q", s,
                              "value heads must be a multiple of key heads");
    return D9D_OK;
}

/* Check an array with one number for each value head. */
static d9d_status check_gate(const char *name, const d9d_tensor *x, d9d_dtype t,
                             const d9d_tensor *v)
{
    const d9d_shape *s = &v->shape;

    D9D_TRY(d9di_op_check("gated_delta", name, x, t));
    if (!d9d_shape_equal(&x->shape, &D9D_SHAPE(s->dim[0], s->dim[1], s->dim[2])))
        return d9di_op_misfit("gated_delta", name, &x->shape, "v", s,
                              "v is [B, S, A, F], a gate [B, S, A]");
    return D9D_OK;
}

static d9d_status gated_delta_check(d9d_var *const in[INPUTS], const d9d_tensor *segments)
{
    const d9d_tensor *q = d9d_var_tensor(in[Q]), *k = d9d_var_tensor(in[K]);
    const d9d_tensor *v = d9d_var_tensor(in[V]);

    D9D_TRY(d9di_op_check_real("gated_delta", "q", q));
    D9D_TRY(d9di_op_check("gated_delta", "k", k, q->dtype));
    D9D_TRY(d9di_op_check("gated_delta", "v", v, q->dtype));
    D9D_TRY(d9di_op_check_same("gated_delta", "q", q, "k", k));
    D9D_TRY(check_heads(q, v));
    D9D_TRY(check_gate("g", d9d_var_tensor(in[G]), D9D_F32, v));
    D9D_TRY(check_gate("b", d9d_var_tensor(in[B]), q->dtype, v));
    return d9di_op_documents_check_segments("gated_delta", q, segments);
}

static d9d_status gated_delta_record(d9d_tape *t, d9d_var *const in[INPUTS], d9d_var *out,
                                     const d9d_tensor *states, const d9d_tensor *segments,
                                     const d9d_gated_delta_dims *dims)
{
    d9d_node *n;

    if (!d9d_tape_should_record(t, in, INPUTS, NULL, 0))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &gated_delta_node_ops, in, INPUTS, &out, 1, NULL, 0,
                            sizeof(gated_delta_attr), &n));
    ((gated_delta_attr *)n->attr)->dims = *dims;
    for (int i = 0; i < INPUTS; i++)
        (void)d9d_node_save(n, d9d_var_tensor(in[i]), D9D_NEED_DGRAD);
    (void)d9d_node_save(n, states, D9D_NEED_DGRAD);
    if (segments != NULL)
        (void)d9d_node_save(n, segments, D9D_NEED_DGRAD);
    return D9D_OK;
}

static const void *var_data(d9d_var *v)
{
    return d9d_tensor_data(d9d_var_tensor(v));
}

/* Generation, from the state cache: no states are saved for a backward. */
static d9d_status gated_delta_step(d9d_tape *t, const d9d_op_gated_delta_args *x,
                                   const d9d_gated_delta_dims *n, d9d_var *out)
{
    const d9d_state_slots past = d9di_op_state_slots(x->cache);

    return D9DI_KERNEL(t, gdn->gated_delta_step, n, &past, d9d_tensor_data(d9d_var_tensor(out)),
                       var_data(x->q), var_data(x->k), var_data(x->v), var_data(x->g),
                       var_data(x->b));
}

static d9d_status gated_delta_chunks(d9d_tape *t, const d9d_op_gated_delta_args *x,
                                     const d9d_gated_delta_dims *n, d9d_var *out,
                                     d9d_tensor *states)
{
    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), D9D_F32,
                             D9D_SHAPE(d9d_gated_delta_states(&n->docs), n->a, n->d, n->f),
                             states));
    return D9DI_KERNEL(t, gdn->gated_delta, n, d9d_tensor_data(d9d_var_tensor(out)),
                       d9d_tensor_data(states), var_data(x->q), var_data(x->k), var_data(x->v),
                       var_data(x->g), var_data(x->b));
}

d9d_status d9d_op_gated_delta(d9d_tape *t, const d9d_op_gated_delta_args *x, d9d_var **y)
{
    d9d_var *const in[INPUTS] = {x->q, x->k, x->v, x->g, x->b};
    const d9d_tensor *q = d9d_var_tensor(x->q), *v = d9d_var_tensor(x->v);
    d9d_tensor states = {0};
    d9d_gated_delta_dims n;
    d9d_var *out;
    d9d_status st;

    D9D_TRY(gated_delta_check(in, x->segments));
    n = (d9d_gated_delta_dims){q->dtype,        d9di_op_documents(q, x->segments),
                               q->shape.dim[2], v->shape.dim[2],
                               q->shape.dim[3], v->shape.dim[3],
                               x->scale};
    D9D_TRY(d9di_op_documents_check_state("gated_delta", x->segments, x->cache, D9D_F32,
                                          D9D_SHAPE(n.a, n.d, n.f),
                                          d9d_tape_should_record(t, in, INPUTS, NULL, 0)));
    D9D_TRY(d9d_tape_output(t, v->dtype, v->shape, &out));
    st = x->cache != NULL ? gated_delta_step(t, x, &n, out)
                          : gated_delta_chunks(t, x, &n, out, &states);
    if (st == D9D_OK && x->cache == NULL)
        st = gated_delta_record(t, in, out, &states, x->segments, &n);
    if (st == D9D_OK)
        *y = out;
    d9d_tensor_release(&states);
    return st;
}
