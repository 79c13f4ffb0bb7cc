/* op_attention.c - softmax attention.  q y [B, S, A, D], k v [B, Z, K, D], lse [B, A, S].
 *
 * The backward recomputes probabilities from q, k and the log of the sum of exponentials.  Where
 * ranks have pieces of rows, k and v are gathered for the forward, and again for the backward.  A
 * sink is in that log, so that the input half knows nothing of it; the weight half is its own.
 */
#include "op/attention/op_cp_gather.h"

/* Saved; the first three are the inputs.  Segments, where given, follow: attr points into them. */
enum { Q, K, V, O, LSE };

typedef struct attention_attr {
    d9d_attention_dims dims;
    d9di_cp_pieces pieces;
} attention_attr;

/* Keys and values of whole rows, or their gradients. */
typedef struct rows {
    d9d_tensor k, v;
} rows;

static void rows_release(rows *r)
{
    d9d_tensor_release(&r->k);
    d9d_tensor_release(&r->v);
}

/* Keys and values on their way, or their gradients: both at once, one behind the other. */
typedef struct rows_move {
    d9di_pieces_move k, v;
} rows_move;

static void rows_move_release(rows_move *m)
{
    d9di_pieces_move_release(&m->k);
    d9di_pieces_move_release(&m->v);
}

/* A backward leaves one weight half for the gradients; a forward has put none off. */
static d9d_status rows_gather(d9d_tape *t, const d9di_cp_pieces *p, const d9d_tensor *k,
                              const d9d_tensor *v, rows *out)
{
    rows_move m = {{.dealt = {0}}, {.dealt = {0}}};
    d9d_status st;

    D9D_TRY_OR(st, d9di_pieces_gather_go(t, p, k, &m.k), out);
    D9D_TRY_OR(st, d9di_pieces_gather_go(t, p, v, &m.v), out);
    if (d9d_comm_size(p->comm) > 1)
        D9D_TRY_OR(st, d9d_tape_catch_up_but_one(t), out);
    D9D_TRY_OR(st, d9di_pieces_gather_end(t, p, k, &m.k, &out->k), out);
    st = d9di_pieces_gather_end(t, p, v, &m.v, &out->v);
out:
    rows_move_release(&m);
    return st;
}

static d9d_status rows_scatter(d9d_tape *t, const d9di_cp_pieces *p, const rows *d, d9d_tensor *dk,
                               d9d_tensor *dv)
{
    rows_move m = {{.dealt = {0}}, {.dealt = {0}}};
    d9d_status st;

    D9D_TRY_OR(st, d9di_pieces_scatter_go(t, p, &d->k, &m.k), out);
    D9D_TRY_OR(st, d9di_pieces_scatter_go(t, p, &d->v, &m.v), out);
    if (d9d_comm_size(p->comm) > 1)
        D9D_TRY_OR(st, d9d_tape_catch_up(t), out);
    D9D_TRY_OR(st, d9di_pieces_scatter_end(t, p, &d->k, &m.k, dk), out);
    st = d9di_pieces_scatter_end(t, p, &d->v, &m.v, dv);
out:
    rows_move_release(&m);
    return st;
}

/* dq, and dk, dv of whole rows. */
static d9d_status rows_grad(d9d_node *n, const rows *all, d9d_tensor *dq, rows *d)
{
    const attention_attr *a = n->attr;

    D9D_TRY(d9di_node_grad(n, Q, dq));
    D9D_TRY(d9d_node_alloc(n, all->k.dtype, all->k.shape, &d->k));
    D9D_TRY(d9d_node_alloc(n, all->v.dtype, all->v.shape, &d->v));
    return D9DI_KERNEL(n->tape, attention_din, &a->dims, d9d_tensor_data(dq),
                       d9d_tensor_data(&d->k), d9d_tensor_data(&d->v), d9d_tensor_data(&n->dout[0]),
                       d9d_tensor_data(&n->saved[Q]), d9d_tensor_data(&all->k),
                       d9d_tensor_data(&all->v), d9d_tensor_data(&n->saved[O]),
                       d9d_tensor_data(&n->saved[LSE]));
}

static d9d_status attention_input(d9d_node *n)
{
    const attention_attr *a = n->attr;
    d9d_tensor d[3] = {{0}, {0}, {0}};
    rows all = {{0}, {0}}, grads = {{0}, {0}};
    d9d_status st;

    D9D_TRY_OR(st, rows_gather(n->tape, &a->pieces, &n->saved[K], &n->saved[V], &all), out);
    D9D_TRY_OR(st, rows_grad(n, &all, &d[Q], &grads), out);
    rows_release(&all);
    D9D_TRY_OR(st, rows_scatter(n->tape, &a->pieces, &grads, &d[K], &d[V]), out);
    rows_release(&grads);
    for (int i = Q; i <= V; i++)
        D9D_TRY_OR(st, d9d_node_give(n, i, &d[i]), out);
out:
    rows_release(&all);
    rows_release(&grads);
    for (int i = Q; i <= V; i++)
        d9d_tensor_release(&d[i]);
    return st;
}

/* Of the sinks. */
static d9d_status attention_weight(d9d_node *n)
{
    const attention_attr *a = n->attr;
    d9d_param *w = n->param[0];

    return D9DI_KERNEL(n->tape, attention_sink_dw, &a->dims, w->grad.dtype,
                       d9d_tensor_data(&w->grad), d9d_param_grad_beta(w),
                       d9d_tensor_data(&n->dout[0]), d9d_tensor_data(&n->saved[O]),
                       d9d_tensor_data(&n->saved[LSE]), d9d_tensor_data(&w->data));
}

static const d9d_node_ops attention_ops = {
    .name = "attention", .input = attention_input, .weight = attention_weight};

static d9d_status check_heads(const d9d_tensor *q, const d9d_tensor *k)
{
    const d9d_shape *s = &q->shape, *r = &k->shape;

    if (s->ndim != 4 || r->ndim != 4 || s->dim[0] != r->dim[0] || s->dim[3] != r->dim[3])
        return d9di_op_misfit("attention", "k", r, "q", s,
                              "q is [B, S, A, D], k and v [B, Z, K, D]");
    if (r->dim[2] == 0 ? s->dim[2] != 0 : s->dim[2] % r->dim[2] != 0)
        return d9di_op_misfit("attention", "k", r, "q", s,
                              "query heads must be a multiple of key-value heads");
    if (r->dim[1] < s->dim[1])
        return d9di_op_misfit("attention", "k", r, "q", s,
                              "a row must have at least as many keys as queries");
    return D9D_OK;
}

static d9d_status check_segments(const d9d_tensor *q, const d9d_attention *how)
{
    const d9d_tensor *segments = how->segments;

    if (segments == NULL)
        return D9D_OK;
    D9D_TRY(d9di_op_check("attention", "segments", segments, D9D_I32));
    if (segments->shape.ndim != 2 || segments->shape.dim[1] != 4)
        return d9di_op_misfit("attention", "segments", &segments->shape, "q", &q->shape,
                              "segments are [N, 4]");
    return D9D_OK;
}

static d9d_status check_window(const d9d_attention *how)
{
    if (how->window < 0 || (how->window > 0 && !how->causal))
        return D9D_FAIL(D9D_EINVAL, "attention: a window of %lld keys%s", (long long)how->window,
                        how->causal ? "" : " needs a causal mask");
    return D9D_OK;
}

static d9d_status check_sinks(const d9d_tensor *q, const d9d_param *sinks)
{
    if (sinks == NULL)
        return D9D_OK;
    D9D_TRY(d9di_op_check_param("attention", sinks, q->dtype));
    if (!d9d_shape_equal(&sinks->data.shape, &D9D_SHAPE(q->shape.dim[2])))
        return d9di_op_misfit("attention", d9di_param_name(sinks), &sinks->data.shape, "q",
                              &q->shape, "q is [B, S, A, D], sinks are [A]");
    return D9D_OK;
}

static d9d_status check(const d9d_tensor *q, const d9d_tensor *k, const d9d_tensor *v,
                        const d9d_attention *how, const d9di_cp_pieces *pieces)
{
    D9D_TRY(d9di_op_check_real("attention", "q", q));
    D9D_TRY(d9di_op_check("attention", "k", k, q->dtype));
    D9D_TRY(d9di_op_check("attention", "v", v, q->dtype));
    D9D_TRY(check_heads(q, k));
    D9D_TRY(d9di_op_check_same("attention", "k", k, "v", v));
    D9D_TRY(d9di_pieces_check("attention", "k", pieces, k));
    D9D_TRY(check_window(how));
    D9D_TRY(check_sinks(q, how->sinks));
    return check_segments(q, how);
}

static d9d_status record(d9d_tape *t, d9d_var *const in[3], d9d_var *out, const d9d_tensor *lse,
                         const d9d_attention *how, const attention_attr *attr)
{
    d9d_param *sinks = how->sinks;
    const size_t n_param = sinks != NULL ? 1 : 0;
    d9d_node *n;

    if (!d9d_tape_wants(t, in, 3, &sinks, n_param))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &attention_ops, in, 3, &out, 1, &sinks, n_param, sizeof(*attr), &n));
    *(attention_attr *)n->attr = *attr;
    for (int i = Q; i <= V; i++)
        (void)d9d_node_save(n, d9d_var_tensor(in[i]), D9D_NEED_INPUT);
    (void)d9d_node_save(n, d9d_var_tensor(out), D9D_NEED_BOTH);
    (void)d9d_node_save(n, lse, D9D_NEED_BOTH);
    if (how->segments != NULL)
        (void)d9d_node_save(n, how->segments, D9D_NEED_INPUT);
    if (d9d_comm_size(how->cp) > 1) /* with rooms or without: op_tp_overlap.c */
        d9d_tape_may_put_off(t);
    return D9D_OK;
}

/* On ranks a row of queries is two; the tokens of one row of a cache are one. */
static int64_t pieces_of(const d9d_attention *how)
{
    if (d9d_comm_size(how->cp) > 1)
        return 2;
    return how->cached && how->segments != NULL && how->segments->shape.dim[0] == 1 ? 1 : 0;
}

static d9d_attention_dims dims_of(const d9d_tensor *q, const d9d_tensor *k,
                                  const d9d_attention *how, const d9di_cp_pieces *p)
{
    const int64_t s = q->shape.dim[1];

    return (d9d_attention_dims){
        .t = q->dtype,
        .b = q->shape.dim[0],
        .s = s,
        .z = k->shape.dim[1] * d9d_comm_size(how->cp),
        .a = q->shape.dim[2],
        .kv = k->shape.dim[2],
        .d = q->shape.dim[3],
        .scale = how->scale,
        .causal = how->causal,
        .segments = how->segments != NULL ? how->segments->shape.dim[0] : 0,
        .segment = how->segments != NULL ? d9d_tensor_data(how->segments) : NULL,
        .cached = how->cached,
        .window = how->window,
        .pieces = pieces_of(how),
        .end = {d9di_pieces_end(p, s, 0), d9di_pieces_end(p, s, 1)},
    };
}

static d9d_status run(d9d_tape *t, const d9d_attention_dims *n, const d9d_param *sinks,
                      const d9d_tensor *y, const d9d_tensor *lse, const d9d_tensor *q,
                      const rows *all)
{
    D9D_TRY(D9DI_KERNEL(t, attention, n, d9d_tensor_data(y), d9d_tensor_data(lse),
                        d9d_tensor_data(q), d9d_tensor_data(&all->k), d9d_tensor_data(&all->v)));
    return sinks == NULL ? D9D_OK
                         : D9DI_KERNEL(t, attention_sink, n, d9d_tensor_data(y),
                                       d9d_tensor_data(lse), d9d_tensor_data(&sinks->data));
}

d9d_status d9d_op_attention(d9d_tape *t, d9d_var *q, d9d_var *k, d9d_var *v,
                            const d9d_attention *how, d9d_var **y)
{
    const d9d_tensor *tq = d9d_var_tensor(q), *tk = d9d_var_tensor(k), *tv = d9d_var_tensor(v);
    attention_attr attr = {.pieces = {how->cp, how->what}};
    const d9d_attention_dims *n = &attr.dims;
    d9d_var *in[] = {q, k, v}, *out;
    rows all = {{0}, {0}};
    d9d_tensor lse = {0};
    d9d_status st;

    D9D_TRY_OR(st, check(tq, tk, tv, how, &attr.pieces), out);
    attr.dims = dims_of(tq, tk, how, &attr.pieces);
    D9D_TRY_OR(st, d9d_tape_output(t, tq->dtype, tq->shape, &out), out);
    D9D_TRY_OR(st, d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, D9D_SHAPE(n->b, n->a, n->s), &lse),
               out);
    D9D_TRY_OR(st, rows_gather(t, &attr.pieces, tk, tv, &all), out);
    D9D_TRY_OR(st, run(t, n, how->sinks, d9d_var_tensor(out), &lse, tq, &all), out);
    D9D_TRY_OR(st, record(t, in, out, &lse, how, &attr), out);
    *y = out;
out:
    rows_release(&all);
    d9d_tensor_release(&lse);
    return st;
}
