/* op_attention.c - softmax attention.  q [B, S, A, D], k [B, Z, K, D], v [B, Z, K, DV],
 * y [B, S, A, DV], lse [B, A, S].
 *
 * The backward recomputes probabilities from q, k and lse, the log-sum-exp of the scores.  Under
 * context parallelism k and v are gathered in forward and again in backward, or go round block by
 * block (op_cp_ring.h); or heads are exchanged for positions before attention and back after it
 * (op_cp_heads.h).  An attention sink is part of
 * lse, so dgrad needs no further term for it; its wgrad is a kernel of its own.  Dropout is drawn
 * again by Philox.
 */
#include <assert.h>
#include <math.h>

#include "op/attention/op_cp_heads.h"
#include "op/attention/op_cp_ring.h"

/* Saved; the first three are the inputs.  Segments, their prefixes and the tokens' numbers, if any,
 * follow: attr points into them. */
enum { Q, K, V, O, LSE };

/* What an attention computes of that of a rank: `q` has the query heads from `first_head` on, of
 * `heads` that the rank has sinks of. */
typedef struct attention_part {
    int64_t first_head, heads;
    const d9d_tensor *token; /* dropout's numbers of the queries' tokens; NULL: no RNG */
} attention_part;

typedef struct attention_attr {
    d9d_attention_dims dims;
    d9di_op_cp cp;
    bool ring;
    int64_t first_head, heads; /* attention_part */
} attention_attr;

/* Keys and values of whole sequences, or their gradients. */
typedef struct kv_rows {
    d9d_tensor k, v;
} kv_rows;

static void kv_release(kv_rows *r)
{
    d9d_tensor_release(&r->k);
    d9d_tensor_release(&r->v);
}

/* A transfer of keys and values, or of their gradients, in one array. */
typedef struct kv_transfer {
    d9di_op_cp_transfer k, v;
} kv_transfer;

static void kv_transfer_release(kv_transfer *m)
{
    d9di_op_cp_transfer_release(&m->k);
    d9di_op_cp_transfer_release(&m->v);
}

/* A backward leaves one deferred wgrad to overlap with the gradients; a forward has none. */
static d9d_status kv_gather(d9d_tape *t, const d9di_op_cp *p, const d9d_tensor *k,
                            const d9d_tensor *v, kv_rows *out)
{
    kv_transfer m = {{.gathered = {0}}, {.gathered = {0}}};
    d9d_status st;

    D9D_TRY_OR(st, d9di_op_cp_gather_start(t, p, k, &m.k), out);
    D9D_TRY_OR(st, d9di_op_cp_gather_start(t, p, v, &m.v), out);
    if (d9d_comm_size(p->comm) > 1)
        D9D_TRY_OR(st, d9d_tape_run_deferred_keep_one(t), out);
    D9D_TRY_OR(st, d9di_op_cp_gather_wait(t, p, k, &m.k, &out->k), out);
    st = d9di_op_cp_gather_wait(t, p, v, &m.v, &out->v);
out:
    kv_transfer_release(&m);
    return st;
}

static d9d_status kv_reduce_scatter(d9d_tape *t, const d9di_op_cp *p, const kv_rows *d,
                                    d9d_tensor *dk, d9d_tensor *dv)
{
    kv_transfer m = {{.gathered = {0}}, {.gathered = {0}}};
    d9d_status st;

    D9D_TRY_OR(st, d9di_op_cp_reduce_scatter_start(t, p, &d->k, &m.k), out);
    D9D_TRY_OR(st, d9di_op_cp_reduce_scatter_start(t, p, &d->v, &m.v), out);
    if (d9d_comm_size(p->comm) > 1)
        D9D_TRY_OR(st, d9d_tape_run_deferred(t), out);
    D9D_TRY_OR(st, d9di_op_cp_reduce_scatter_wait(t, p, &d->k, &m.k, dk), out);
    st = d9di_op_cp_reduce_scatter_wait(t, p, &d->v, &m.v, dv);
out:
    kv_transfer_release(&m);
    return st;
}

/* dq, and dk and dv of whole sequences. */
static d9d_status attention_bwd(d9d_node *n, const kv_rows *all, d9d_tensor *dq, kv_rows *d)
{
    const attention_attr *a = n->attr;

    D9D_TRY(d9di_op_grad_alloc(n, Q, dq));
    D9D_TRY(d9d_node_alloc(n, all->k.dtype, all->k.shape, &d->k));
    D9D_TRY(d9d_node_alloc(n, all->v.dtype, all->v.shape, &d->v));
    return D9DI_KERNEL(n->tape, attention->bwd, &a->dims, d9d_tensor_data(dq),
                       d9d_tensor_data(&d->k), d9d_tensor_data(&d->v), d9d_tensor_data(&n->dout[0]),
                       d9d_tensor_data(&n->saved[Q]), d9d_tensor_data(&all->k),
                       d9d_tensor_data(&all->v), d9d_tensor_data(&n->saved[O]),
                       d9d_tensor_data(&n->saved[LSE]));
}

static d9d_status attention_dgrad_gather(d9d_node *n, d9d_tensor d[3])
{
    const attention_attr *a = n->attr;
    kv_rows all = {{0}, {0}}, grads = {{0}, {0}};
    d9d_status st;

    D9D_TRY_OR(st, kv_gather(n->tape, &a->cp, &n->saved[K], &n->saved[V], &all), out);
    D9D_TRY_OR(st, attention_bwd(n, &all, &d[Q], &grads), out);
    kv_release(&all);
    st = kv_reduce_scatter(n->tape, &a->cp, &grads, &d[K], &d[V]);
out:
    kv_release(&all);
    kv_release(&grads);
    return st;
}

static d9d_status attention_dgrad_ring(d9d_node *n, d9d_tensor d[3])
{
    const attention_attr *a = n->attr;
    const d9di_op_ring_in in = {.dims = &a->dims,
                                .q = &n->saved[Q],
                                .k = &n->saved[K],
                                .v = &n->saved[V],
                                .o = &n->saved[O],
                                .dout = &n->dout[0],
                                .lse = &n->saved[LSE]};

    for (int i = Q; i <= V; i++)
        D9D_TRY(d9di_op_grad_alloc(n, i, &d[i]));
    return d9di_op_ring_attention_bwd(n->tape, &a->cp, &in, d);
}

static d9d_status attention_dgrad(d9d_node *n)
{
    const attention_attr *a = n->attr;
    d9d_tensor d[3] = {{0}, {0}, {0}};
    d9d_status st = a->ring ? attention_dgrad_ring(n, d) : attention_dgrad_gather(n, d);

    for (int i = Q; i <= V && st == D9D_OK; i++)
        st = d9d_node_accumulate_grad(n, i, &d[i]);
    for (int i = Q; i <= V; i++)
        d9d_tensor_release(&d[i]);
    return st;
}

/* Wgrad of the attention sinks; those of heads that other ranks compute get 0 from this one. */
static d9d_status attention_sink_wgrad(d9d_node *n)
{
    const attention_attr *a = n->attr;
    d9d_param *w = n->param[0];
    const float beta = d9d_param_grad_beta(&w->local);

    if (beta == 0.0f && a->dims.a < a->heads)
        D9D_TRY(D9DI_KERNEL(n->tape, elementwise->fill, w->local.grad.dtype,
                            d9d_tensor_data(&w->local.grad), a->heads, 0.0f));
    return D9DI_KERNEL(n->tape, attention->sink_wgrad, &a->dims, w->local.grad.dtype,
                       d9di_op_element_ptr(&w->local.grad, a->first_head), beta,
                       d9d_tensor_data(&n->dout[0]), d9d_tensor_data(&n->saved[O]),
                       d9d_tensor_data(&n->saved[LSE]),
                       d9di_op_element_ptr(&w->local.data, a->first_head));
}

static const d9d_node_ops attention_node_ops = {
    .name = "attention", .dgrad = attention_dgrad, .wgrad = attention_sink_wgrad};

static d9d_status check_heads(const d9d_tensor *q, const d9d_tensor *k, const d9d_tensor *v)
{
    const d9d_shape *s = &q->shape, *r = &k->shape;
    d9d_shape keys = v->shape;

    if (s->ndim != 4 || r->ndim != 4 || s->dim[0] != r->dim[0] || s->dim[3] != r->dim[3])
        return d9di_op_misfit("attention", "k", r, "q", s, "q is [B, S, A, D], k [B, Z, K, D]");
    if (keys.ndim == 4 && keys.dim[3] > 0)
        keys.dim[3] = r->dim[3];
    if (!d9d_shape_equal(&keys, r))
        return d9di_op_misfit("attention", "v", &v->shape, "k", r,
                              "k is [B, Z, K, D], v [B, Z, K, DV]");
    if (r->dim[2] == 0 ? s->dim[2] != 0 : s->dim[2] % r->dim[2] != 0)
        return d9di_op_misfit("attention", "k", r, "q", s,
                              "query heads must be a multiple of key-value heads");
    if (r->dim[1] < s->dim[1])
        return d9di_op_misfit("attention", "k", r, "q", s,
                              "a row must have at least as many keys as queries");
    return D9D_OK;
}

static d9d_status check_segments(const d9d_tensor *q, const d9d_op_attention_opts *opts)
{
    const d9d_tensor *segments = opts->segments;

    if (segments == NULL)
        return D9D_OK;
    D9D_TRY(d9di_op_check("attention", "segments", segments, D9D_I32));
    if (segments->shape.ndim != 2 || segments->shape.dim[1] != 4)
        return d9di_op_misfit("attention", "segments", &segments->shape, "q", &q->shape,
                              "segments are [N, 4]");
    return D9D_OK;
}

/* Chunks of bidirectional attention are causal ones whose prefixes are whole documents. */
static bool mask_is_causal(const d9d_op_attention_opts *opts)
{
    return opts->causal || d9d_comm_size(opts->cp) > 1;
}

static d9d_status check_prefix(const d9d_tensor *q, const d9d_op_attention_opts *opts)
{
    const d9d_tensor *prefix = opts->prefix, *segments = opts->segments;

    if (prefix == NULL)
        return D9D_OK;
    if (segments == NULL || !mask_is_causal(opts))
        return D9D_FAIL(D9D_EINVAL, "attention: a prefix needs %s",
                        segments == NULL ? "segments" : "a causal mask");
    D9D_TRY(d9di_op_check("attention", "prefix", prefix, D9D_I32));
    if (!d9d_shape_equal(&prefix->shape, &D9D_SHAPE(segments->shape.dim[0])))
        return d9di_op_misfit("attention", "prefix", &prefix->shape, "q", &q->shape,
                              "prefixes are [N], one for each segment");
    return D9D_OK;
}

static d9d_status check_scores(const d9d_op_attention_opts *opts)
{
    if (opts->window < 0)
        return D9D_FAIL(D9D_EINVAL, "attention: a window of %lld keys", (long long)opts->window);
    if (!(opts->softcap >= 0.0f && opts->softcap < INFINITY))
        return D9D_FAIL(D9D_EINVAL, "attention: a softcap of %g", (double)opts->softcap);
    if (!opts->causal && d9d_comm_size(opts->cp) > 1 && opts->prefix == NULL)
        return D9D_FAIL(D9D_EINVAL,
                        "attention: bidirectional attention over %d ranks of context parallelism "
                        "without prefixes, which are whole documents",
                        d9d_comm_size(opts->cp));
    return D9D_OK;
}

/* The queries are all tokens of the RNG. */
static d9d_status check_dropout(const d9d_tape *t, const d9d_tensor *q,
                                const d9d_op_attention_opts *opts, const attention_part *part)
{
    const d9d_op_dropout_opts *o = &opts->dropout;
    const int64_t queries = q->shape.dim[0] * q->shape.dim[1];
    int64_t tokens;

    if (!d9d_op_dropout_is_active(t, o->p))
        return D9D_OK;
    if (!(o->p >= 0.0f && o->p < 1.0f))
        return D9D_FAIL(D9D_EINVAL, "attention: dropout with a probability of %g, not in [0, 1)",
                        (double)o->p);
    if (opts->cached)
        return D9D_FAIL(D9D_EINVAL, "attention: dropout with a KV cache");
    tokens = d9d_tensor_numel(part->token);
    if (queries != tokens)
        return D9D_FAIL(D9D_EINVAL, "attention: dropout of %lld queries, of %lld tokens",
                        (long long)queries, (long long)tokens);
    return D9D_OK;
}

static d9d_status check_sinks(const d9d_tensor *q, const d9d_param *sinks,
                              const attention_part *part)
{
    if (sinks == NULL)
        return D9D_OK;
    D9D_TRY(d9di_op_check_param("attention", sinks, q->dtype));
    if (!d9d_shape_equal(&sinks->local.data.shape, &D9D_SHAPE(part->heads)))
        return d9di_op_misfit("attention", d9di_op_param_name(sinks), &sinks->local.data.shape, "q",
                              &q->shape, "q is [B, S, A, D], sinks are [A]");
    return D9D_OK;
}

static d9d_status check_ring(const d9d_op_attention_opts *opts)
{
    if (opts->cp_ring && opts->cached && d9d_comm_size(opts->cp) > 1)
        return D9D_FAIL(D9D_EINVAL, "attention: ring attention over %d ranks with a KV cache",
                        d9d_comm_size(opts->cp));
    return D9D_OK;
}

/* Keys and values: of q's type, or a cache in 8 bits. */
static d9d_status check_cached(const d9d_tensor *q, const d9d_tensor *k, const d9d_tensor *v,
                               const d9d_op_attention_opts *opts)
{
    const d9d_tensor *const scales[] = {opts->k_scale, opts->v_scale};
    const bool narrow = opts->k_scale != NULL || opts->v_scale != NULL;
    const d9d_dtype stored = narrow ? D9D_F8_E4M3 : q->dtype;

    D9D_TRY(d9di_op_check("attention", "k", k, stored));
    D9D_TRY(d9di_op_check("attention", "v", v, stored));
    D9D_TRY(check_heads(q, k, v));
    for (int i = 0; i < 2 && narrow; i++) {
        if (scales[i] == NULL || !opts->cached)
            return D9D_FAIL(D9D_EINVAL, "attention: keys and values in 8 bits %s",
                            opts->cached ? "need scales of both" : "are those of a KV cache");
        D9D_TRY(d9di_op_check("attention", "the scales", scales[i], D9D_F32));
        if (!d9d_shape_equal(&scales[i]->shape, &D9D_SHAPE(k->shape.dim[1], k->shape.dim[2])))
            return d9di_op_misfit("attention", "the scales", &scales[i]->shape, "k", &k->shape,
                                  "k is [1, Z, K, D], scales are [Z, K]");
    }
    if (narrow && d9d_comm_size(opts->cp) * d9d_comm_size(opts->cp_heads) > 1)
        return D9D_FAIL(D9D_EINVAL, "attention: context parallelism with a KV cache in 8 bits");
    return D9D_OK;
}

static d9d_status attention_check(const d9d_tape *t, const d9d_tensor *q, const d9d_tensor *k,
                                  const d9d_tensor *v, const d9d_op_attention_opts *opts,
                                  const d9di_op_cp *chunks, const attention_part *part)
{
    D9D_TRY(d9di_op_check_real("attention", "q", q));
    D9D_TRY(check_cached(q, k, v, opts));
    D9D_TRY(d9di_op_cp_check("attention", "k", chunks, k));
    D9D_TRY(check_scores(opts));
    D9D_TRY(check_ring(opts));
    D9D_TRY(check_sinks(q, opts->sinks, part));
    D9D_TRY(check_dropout(t, q, opts, part));
    D9D_TRY(check_segments(q, opts));
    return check_prefix(q, opts);
}

static d9d_status attention_record(d9d_tape *t, d9d_var *const in[3], d9d_var *out,
                                   const d9d_tensor *lse, const d9d_op_attention_opts *opts,
                                   const attention_part *part, const attention_attr *attr)
{
    d9d_param *sinks = opts->sinks;
    const size_t n_param = sinks != NULL ? 1 : 0;
    d9d_node *n;

    if (!d9d_tape_should_record(t, in, 3, &sinks, n_param))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &attention_node_ops, in, 3, &out, 1, &sinks, n_param, sizeof(*attr),
                            &n));
    *(attention_attr *)n->attr = *attr;
    for (int i = Q; i <= V; i++)
        (void)d9d_node_save(n, d9d_var_tensor(in[i]), D9D_NEED_DGRAD);
    (void)d9d_node_save(n, d9d_var_tensor(out), D9D_NEED_BOTH);
    (void)d9d_node_save(n, lse, D9D_NEED_BOTH);
    if (opts->segments != NULL)
        (void)d9d_node_save(n, opts->segments, D9D_NEED_DGRAD);
    if (attr->dims.dropout.p > 0.0f)
        (void)d9d_node_save(n, part->token, D9D_NEED_DGRAD);
    if (opts->prefix != NULL)
        (void)d9d_node_save(n, opts->prefix, D9D_NEED_DGRAD);
    if (d9d_comm_size(opts->cp) > 1) /* with or without symmetric memory: see op_tp_overlap.c */
        d9d_tape_defer_wgrad(t);
    return D9D_OK;
}

/* d9d_attention_dims.chunks: two on cp ranks; one for a KV cache with one segment; else 0. */
static int64_t cache_splits(const d9d_op_attention_opts *opts)
{
    if (d9d_comm_size(opts->cp) > 1)
        return 2;
    return opts->cached && opts->segments != NULL && opts->segments->shape.dim[0] == 1 ? 1 : 0;
}

static d9d_attention_dropout dropout_of(const d9d_tape *t, const d9d_op_dropout_opts *opts,
                                        const attention_part *part)
{
    const d9d_dropout_rng *rng = d9d_tape_dropout_rng(t);

    if (!d9d_op_dropout_is_active(t, opts->p))
        return (d9d_attention_dropout){0};
    assert(rng->max_positions > 0);
    return (d9d_attention_dropout){
        .p = opts->p,
        .rng = {rng->seed,
                d9d_op_dropout_stream(opts->site) + (uint64_t)(opts->first + part->first_head)},
        .token = d9d_tensor_data(part->token),
        .width = rng->max_positions};
}

static d9d_attention_dims attention_dims_of(const d9d_tape *t, const d9d_tensor *q,
                                            const d9d_tensor *k, const d9d_tensor *v,
                                            const d9d_op_attention_opts *opts, const d9di_op_cp *p,
                                            const attention_part *part)
{
    const int64_t s = q->shape.dim[1];

    return (d9d_attention_dims){
        .t = q->dtype,
        .b = q->shape.dim[0],
        .s = s,
        .z = k->shape.dim[1] * d9d_comm_size(opts->cp),
        .a = q->shape.dim[2],
        .kv = k->shape.dim[2],
        .d = q->shape.dim[3],
        .dv = v->shape.dim[3],
        .scale = opts->scale,
        .softcap = opts->softcap,
        .causal = mask_is_causal(opts),
        .segments = opts->segments != NULL ? opts->segments->shape.dim[0] : 0,
        .segment = opts->segments != NULL ? d9d_tensor_data(opts->segments) : NULL,
        .prefix = opts->prefix != NULL ? d9d_tensor_data(opts->prefix) : NULL,
        .decode = opts->cached,
        .window = opts->window,
        .chunks = cache_splits(opts),
        .chunk_end = {d9di_op_cp_chunk_end(p, s, 0), d9di_op_cp_chunk_end(p, s, 1)},
        .dropout = dropout_of(t, &opts->dropout, part),
        .k_scale = opts->k_scale != NULL ? d9d_tensor_data(opts->k_scale) : NULL,
        .v_scale = opts->v_scale != NULL ? d9d_tensor_data(opts->v_scale) : NULL,
    };
}

/* Over the keys of all ranks, gathered. */
static d9d_status attention_gather(d9d_tape *t, const attention_attr *a, const d9d_tensor *y,
                                   const d9d_tensor *lse, const d9d_tensor *q, const d9d_tensor *k,
                                   const d9d_tensor *v)
{
    kv_rows all = {{0}, {0}};
    d9d_status st = kv_gather(t, &a->cp, k, v, &all);

    if (st == D9D_OK)
        st = D9DI_KERNEL(t, attention->fwd, &a->dims, d9d_tensor_data(y), d9d_tensor_data(lse),
                         d9d_tensor_data(q), d9d_tensor_data(&all.k), d9d_tensor_data(&all.v));
    kv_release(&all);
    return st;
}

static d9d_status attention_run(d9d_tape *t, const attention_attr *a, const d9d_param *sinks,
                                const d9d_tensor *y, const d9d_tensor *lse, const d9d_tensor *q,
                                const d9d_tensor *k, const d9d_tensor *v)
{
    const d9di_op_ring_in in = {.dims = &a->dims, .q = q, .k = k, .v = v};

    D9D_TRY(a->ring ? d9di_op_ring_attention(t, &a->cp, &in, y, lse)
                    : attention_gather(t, a, y, lse, q, k, v));
    return sinks == NULL
               ? D9D_OK
               : D9DI_KERNEL(t, attention->sink, &a->dims, d9d_tensor_data(y), d9d_tensor_data(lse),
                             d9di_op_element_ptr(&sinks->local.data, a->first_head));
}

/* The attention of a part. */
static d9d_status attention(d9d_tape *t, d9d_var *const in[3], const d9d_op_attention_opts *opts,
                            const attention_part *part, d9d_var **y)
{
    const d9d_tensor *tq = d9d_var_tensor(in[Q]), *tk = d9d_var_tensor(in[K]),
                     *tv = d9d_var_tensor(in[V]);
    attention_attr attr = {.cp = {opts->cp, opts->label},
                           .ring = opts->cp_ring && d9d_comm_size(opts->cp) > 1,
                           .first_head = part->first_head,
                           .heads = part->heads};
    const d9d_attention_dims *n = &attr.dims;
    d9d_shape shape = tq->shape;
    d9d_tensor lse = {0};
    d9d_var *out;
    d9d_status st;

    D9D_TRY_OR(st, attention_check(t, tq, tk, tv, opts, &attr.cp, part), out);
    attr.dims = attention_dims_of(t, tq, tk, tv, opts, &attr.cp, part);
    shape.dim[3] = n->dv;
    D9D_TRY_OR(st, d9d_tape_output(t, tq->dtype, shape, &out), out);
    D9D_TRY_OR(st, d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, D9D_SHAPE(n->b, n->a, n->s), &lse),
               out);
    D9D_TRY_OR(st, attention_run(t, &attr, opts->sinks, d9d_var_tensor(out), &lse, tq, tk, tv),
               out);
    D9D_TRY_OR(st, attention_record(t, in, out, &lse, opts, part, &attr), out);
    *y = out;
out:
    d9d_tensor_release(&lse);
    return st;
}

/* --- all-to-all of context parallelism -------------------------------------------------------- */

static d9d_status heads_check(const d9d_tensor *q, const d9d_tensor *k, const d9d_tensor *v,
                              const d9di_op_cp *p)
{
    D9D_TRY(d9di_op_check_real("attention", "q", q));
    D9D_TRY(d9di_op_check("attention", "k", k, q->dtype));
    D9D_TRY(d9di_op_check("attention", "v", v, q->dtype));
    D9D_TRY(check_heads(q, k, v));
    D9D_TRY(d9di_op_cp_heads_check("attention", "q", p, q, false));
    return d9di_op_cp_heads_check("attention", "k", p, k, true);
}

/* This rank's share of the heads, for the positions of all ranks of cp_heads. */
static d9d_status attention_all_to_all(d9d_tape *t, d9d_var *const in[3],
                                       const d9d_op_attention_opts *opts, d9d_var **y)
{
    const d9di_op_cp p = {opts->cp_heads, opts->label};
    const d9d_tensor *q = d9d_var_tensor(in[Q]);
    const d9d_dropout_rng *rng = d9d_tape_dropout_rng(t);
    attention_part part = {.token = rng != NULL ? &rng->query_token : NULL};
    d9d_var *heads[3], *o;

    D9D_TRY(heads_check(q, d9d_var_tensor(in[K]), d9d_var_tensor(in[V]), &p));
    part.heads = q->shape.dim[2];
    part.first_head = part.heads / d9d_comm_size(p.comm) * d9d_comm_rank(p.comm);
    D9D_TRY(d9di_op_cp_heads_scatter(t, &p, in, 3, heads));
    D9D_TRY(attention(t, heads, opts, &part, &o));
    return d9di_op_cp_heads_gather(t, &p, o, part.heads, y);
}

d9d_status d9d_op_attention(d9d_tape *t, d9d_var *q, d9d_var *k, d9d_var *v,
                            const d9d_op_attention_opts *opts, d9d_var **y)
{
    const d9d_dropout_rng *rng = d9d_tape_dropout_rng(t);
    const d9d_shape *s = &d9d_var_tensor(q)->shape;
    const attention_part all = {.heads = s->ndim == 4 ? s->dim[2] : 0,
                                .token = rng != NULL ? &rng->token : NULL};
    d9d_var *const in[] = {q, k, v};

    return d9d_comm_size(opts->cp_heads) > 1 ? attention_all_to_all(t, in, opts, y)
                                             : attention(t, in, opts, &all, y);
}
