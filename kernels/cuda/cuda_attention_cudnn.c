/* cuda_attention_cudnn.c - attention by cuDNN: graphs that it knows as attention and runs as one
 * kernel each way, planned once a shape.
 *
 *     forward     S = scale Q K', masked     P = exp(S - max) / sum     O = P V
 *                 lse = max + log(sum)
 *     backward    P = exp(S - lse)           sum = rows of dO O
 *                 dV = P' dO                 dS = scale P (dO V' - sum)
 *                 dK = dS' Q                 dQ = dS K
 *
 * with dK and dV of the query heads of a group added, in float32 from bfloat16.
 *
 * Deterministic: dS goes through scratch, 2 A S^2 bytes a row, and dQ is one product.  Otherwise
 * dQ is added to by many blocks in no order, 6 to 14 % faster.  Scratch is bounded: what would
 * need more is done in pieces, of rows and then of key heads; an array of heads is entered in its
 * middle.
 *
 * cuDNN takes what is written here and nothing like it: P and the full dV, dK must be bfloat16,
 * the sum of dQ a real float32 tensor, and the mask as d9di_graph_causal() has it.
 */
#include "cuda_attention.h"

#if __has_include(<cudnn.h>)
#include <math.h>
#include <stdlib.h>

#include "cuda_cudnn.h"
#include "d9d/base/mem.h"

/* Of the tensors of a graph. */
enum { Q = 1, K, V, O, LSE, DOUT, DQ, DK, DV, SCALE, HIDDEN, ONE, SUM, DQ_SUM, IDS };

/* The most scratch for dS, where the options do not say. */
#define MOST_SCORES ((int64_t)4 << 30)

/* What decides about a plan; no padding, since it is a key of bytes. */
typedef struct plan_key {
    int64_t b, s, d, a, kv; /* of the piece */
    int64_t all_a, all_kv;  /* heads of the arrays */
    int64_t causal, backward, exact;
} plan_key;

typedef struct plan {
    d9di_graph graph; /* without a plan: refused */
    struct plan *next;
} plan;

struct d9di_sdpa {
    d9di_cudnn lib;
    bool loaded;
    d9d_map plans;
    plan *first;
};

/* --- graphs ------------------------------------------------------------------------------- */

/* Heads of [B, S, heads, D] as [B, heads, S, D], or as [B, heads, D, S]. */
static d9di_shape4 heads_of(const plan_key *n, int64_t heads, int64_t all)
{
    return (d9di_shape4){{n->b, heads, n->s, n->d}, {n->s * all * n->d, n->d, all * n->d, 1}};
}
static d9di_shape4 turned(d9di_shape4 x)
{
    return (d9di_shape4){{x.dim[0], x.dim[1], x.dim[3], x.dim[2]},
                         {x.stride[0], x.stride[1], x.stride[3], x.stride[2]}};
}

static d9di_node4 array(d9di_graph *g, int64_t id, d9di_shape4 shape)
{
    return d9di_graph_tensor(g, id, CUDNN_DATA_BFLOAT16, shape, NULL);
}

static d9di_node4 row_numbers(d9di_graph *g, const plan_key *n, int64_t id, int64_t all)
{
    const d9di_shape4 shape = {{n->b, n->a, n->s, 1}, {all * n->s, n->s, 1, 1}};

    return d9di_graph_tensor(g, id, CUDNN_DATA_FLOAT, shape, NULL);
}

/* scale Q K' */
static d9di_node4 scores(d9di_graph *g, const plan_key *n, const d9di_node4 *q, const d9di_node4 *k,
                         const d9di_node4 *scale)
{
    d9di_node4 x =
        d9di_graph_virtual(g, CUDNN_DATA_FLOAT, d9di_shape4_dense(n->b, n->a, n->s, n->s));

    d9di_graph_multiply(g, q, k, &x, (d9di_extent){0});
    return d9di_graph_apply(g, CUDNN_POINTWISE_MUL, &x, scale);
}

static void forward_graph(d9di_graph *g, const plan_key *n)
{
    const d9di_shape4 queries = heads_of(n, n->a, n->all_a), keys = heads_of(n, n->kv, n->all_kv);
    d9di_node4 q = array(g, Q, queries), k = array(g, K, turned(keys)), v = array(g, V, keys);
    d9di_node4 o = array(g, O, queries), lse = row_numbers(g, n, LSE, n->all_a);
    d9di_node4 scale = d9di_graph_value(g, SCALE), hidden = d9di_graph_value(g, HIDDEN);
    d9di_node4 x = scores(g, n, &q, &k, &scale), most, sum, log, p;

    if (n->causal)
        x = d9di_graph_causal(g, &x, &hidden);
    most = d9di_graph_reduce_row(g, CUDNN_REDUCE_TENSOR_MAX, &x);
    x = d9di_graph_apply(g, CUDNN_POINTWISE_SUB, &x, &most);
    x = d9di_graph_apply(g, CUDNN_POINTWISE_EXP, &x, NULL);
    sum = d9di_graph_reduce_row(g, CUDNN_REDUCE_TENSOR_ADD, &x);
    log = d9di_graph_apply(g, CUDNN_POINTWISE_LOG, &sum, NULL);
    d9di_graph_apply_to(g, CUDNN_POINTWISE_ADD, &most, &log, &lse);
    p = d9di_graph_virtual(g, CUDNN_DATA_BFLOAT16, x.shape);
    d9di_graph_apply_to(g, CUDNN_POINTWISE_DIV, &x, &sum, &p);
    d9di_graph_multiply(g, &p, &v, &o, (d9di_extent){0});
}

/* dX = W' Y, added over the query heads of a group. */
static void group_product(d9di_graph *g, const plan_key *n, const d9di_node4 *w,
                          const d9di_node4 *y, const d9di_node4 *dx)
{
    d9di_node4 t = d9di_graph_transpose(g, w, NULL), full;

    if (n->a == n->kv) {
        d9di_graph_multiply(g, &t, y, dx, (d9di_extent){0});
        return;
    }
    full = d9di_graph_virtual(g, CUDNN_DATA_BFLOAT16, d9di_shape4_dense(n->b, n->a, n->s, n->d));
    d9di_graph_multiply(g, &t, y, &full, (d9di_extent){0});
    d9di_graph_reduce_to(g, CUDNN_REDUCE_TENSOR_ADD, &full, dx);
}

/* dQ = dS K */
static void query_product(d9di_graph *g, const plan_key *n, const d9di_node4 *ds,
                          const d9di_node4 *k, const d9di_node4 *dq)
{
    d9di_node4 t = d9di_graph_transpose(g, k, NULL), sum;

    if (n->exact) {
        d9di_graph_multiply(g, ds, &t, dq, (d9di_extent){0});
        return;
    }
    sum = d9di_graph_tensor(g, DQ_SUM, CUDNN_DATA_FLOAT, d9di_shape4_dense(n->b, n->a, n->s, n->d),
                            NULL);
    d9di_graph_multiply(g, ds, &t, &sum, (d9di_extent){0});
    d9di_graph_apply_to(g, CUDNN_POINTWISE_IDENTITY, &sum, NULL, dq);
}

/* sum = rows of dO O */
static d9di_node4 output_product(d9di_graph *g, const plan_key *n, const d9di_node4 *dout,
                                 const d9di_node4 *o)
{
    d9di_node4 sum = row_numbers(g, n, SUM, n->a), one = d9di_graph_value(g, ONE);
    d9di_node4 x =
        d9di_graph_virtual(g, CUDNN_DATA_FLOAT, d9di_shape4_dense(n->b, n->a, n->s, n->d));

    d9di_graph_apply_to(g, CUDNN_POINTWISE_MUL, dout, o, &x);
    x = d9di_graph_reduce_row(g, CUDNN_REDUCE_TENSOR_ADD, &x);
    d9di_graph_apply_to(g, CUDNN_POINTWISE_MUL, &x, &one, &sum);
    return sum;
}

static void backward_graph(d9di_graph *g, const plan_key *n)
{
    const d9di_shape4 queries = heads_of(n, n->a, n->all_a), keys = heads_of(n, n->kv, n->all_kv);
    d9di_node4 q = array(g, Q, queries), k = array(g, K, turned(keys));
    d9di_node4 v = array(g, V, turned(keys)), o = array(g, O, queries);
    d9di_node4 dout = array(g, DOUT, queries), lse = row_numbers(g, n, LSE, n->all_a);
    d9di_node4 dq = array(g, DQ, queries), dk = array(g, DK, keys), dv = array(g, DV, keys);
    d9di_node4 scale = d9di_graph_value(g, SCALE), hidden = d9di_graph_value(g, HIDDEN);
    d9di_node4 sum = output_product(g, n, &dout, &o), p = scores(g, n, &q, &k, &scale), ds;

    p = d9di_graph_apply(g, CUDNN_POINTWISE_SUB, &p, &lse);
    if (n->causal)
        p = d9di_graph_causal(g, &p, &hidden);
    p = d9di_graph_apply(g, CUDNN_POINTWISE_EXP, &p, NULL);
    group_product(g, n, &p, &dout, &dv);
    ds = d9di_graph_virtual(g, CUDNN_DATA_FLOAT, p.shape);
    d9di_graph_multiply(g, &dout, &v, &ds, (d9di_extent){0});
    ds = d9di_graph_apply(g, CUDNN_POINTWISE_SUB, &ds, &sum);
    ds = d9di_graph_apply(g, CUDNN_POINTWISE_MUL, &ds, &p);
    ds = d9di_graph_apply(g, CUDNN_POINTWISE_MUL, &ds, &scale);
    group_product(g, n, &ds, &q, &dk);
    query_product(g, n, &ds, &k, &dq);
}

/* --- plans ---------------------------------------------------------------------------------- */

/* Loaded when the first call comes that it could take; why it is not is said once. */
static d9d_status sdpa_of(d9d_stream s, d9di_sdpa **out)
{
    d9di_sdpa *x = s->sdpa;

    *out = x;
    if (x != NULL)
        return D9D_OK;
    x = calloc(1, sizeof(*x));
    if (x == NULL)
        return D9D_FAIL(D9D_ENOMEM, "cuda: no memory for plans of attention");
    *out = s->sdpa = x;
    if (d9di_cudnn_open(s, &x->lib) == D9D_OK) {
        x->loaded = true;
        d9di_say(s, D9D_LOG_INFO, "attention: cuDNN %zu, %s", x->lib.cudnnGetVersion(),
                 s->options.inexact ? "gradients in any order" : "deterministic");
    } else {
        d9di_say(s, D9D_LOG_WARN, "attention: kernels of our own, many times slower than cuDNN: %s",
                 d9d_err_message());
    }
    return D9D_OK;
}

void d9di_sdpa_free(d9di_sdpa *x)
{
    if (x == NULL)
        return;
    for (plan *p = x->first, *next; p != NULL; p = next) {
        next = p->next;
        d9di_graph_release(&p->graph);
        free(p);
    }
    d9d_map_release(&x->plans);
    d9di_cudnn_close(&x->lib);
    free(x);
}

/* A plan that is refused is kept too, so that it is asked for once. */
static d9d_status plan_find(d9d_stream s, d9di_sdpa *x, const char *op, const plan_key *key,
                            plan **out)
{
    plan *p = d9d_map_get(&x->plans, (const char *)key, sizeof(*key));
    d9d_status st;

    *out = p;
    if (p != NULL)
        return D9D_OK;
    p = calloc(1, sizeof(*p));
    if (p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a plan", op);
    st = d9d_map_put(&x->plans, (const char *)key, sizeof(*key), p);
    if (st != D9D_OK) {
        free(p);
        return st;
    }
    p->next = x->first;
    x->first = p;
    p->graph.lib = &x->lib;
    (key->backward ? backward_graph : forward_graph)(&p->graph, key);
    if (d9di_graph_plan(&p->graph, op) != D9D_OK)
        d9di_say(s, D9D_LOG_WARN,
                 "%s; %lld x %lld tokens of %lld and %lld heads of %lld go to slower kernels",
                 d9d_err_message(), (long long)key->b, (long long)key->s, (long long)key->all_a,
                 (long long)key->all_kv, (long long)key->d);
    *out = p;
    return D9D_OK;
}

/* --- calls ------------------------------------------------------------------------------------ */

/* The piece of a call that is done at a time: the most rows, then key heads, that divide and whose
 * scores fit. */
static plan_key piece_of(d9d_stream s, const d9di_attention *c)
{
    const d9d_attention_dims *n = &c->n;
    plan_key key = {.b = n->b,
                    .s = n->s,
                    .d = n->d,
                    .a = n->a,
                    .kv = n->kv,
                    .all_a = n->a,
                    .all_kv = n->kv,
                    .causal = n->causal,
                    .backward = c->dout != NULL,
                    .exact = !s->options.inexact};
    const int64_t group = n->a / n->kv, row = 2 * group * n->s * n->s; /* of one key head */
    const int64_t most = s->options.scratch > 0 ? s->options.scratch : MOST_SCORES;

    if (!key.backward)
        key.exact = 0;
    while (key.exact && key.b > 1 && key.b * key.kv * row > most)
        do
            key.b--;
        while (n->b % key.b != 0);
    while (key.exact && key.kv > 1 && key.b * key.kv * row > most)
        do
            key.kv--;
        while (n->kv % key.kv != 0);
    key.a = key.kv * group;
    return key;
}

/* Scratch that the graph wants in memory: the rows' sums, then dQ's. */
static int64_t sum_bytes(const plan_key *key)
{
    return key->backward ? d9di_ceil_div(key->b * key->a * key->s * 4, 256) * 256 : 0;
}
static int64_t scratch_bytes(const plan_key *key)
{
    return sum_bytes(key) +
           (key->backward && !key->exact ? key->b * key->a * key->s * key->d * 4 : 0);
}

static void *shifted(const void *p, int64_t bytes)
{
    return (void *)((uintptr_t)p + (uintptr_t)bytes);
}

static d9d_status run_piece(d9d_stream s, const d9di_attention *c, const plan_key *key,
                            const plan *p, int64_t b, int64_t kv, char *scratch)
{
    const int64_t h = kv * (key->all_a / key->all_kv), s_d = key->s * key->d;
    const int64_t q = (b * s_d * key->all_a + h * key->d) * 2;
    const int64_t k = (b * s_d * key->all_kv + kv * key->d) * 2;
    const int64_t lse = (b * key->all_a + h) * key->s * 4;
    float scale = c->n.scale, hidden = -INFINITY, one = 1.0f;
    const struct {
        int64_t id;
        void *at;
        bool backward, forward;
    } all[] = {
        {Q, shifted(c->q, q), true, true},
        {K, shifted(c->k, k), true, true},
        {V, shifted(c->v, k), true, true},
        {O, shifted(c->o, q), true, true},
        {LSE, shifted(c->lse, lse), true, true},
        {SCALE, &scale, true, true},
        {HIDDEN, &hidden, key->causal != 0, key->causal != 0},
        {ONE, &one, true, false},
        {DOUT, shifted(c->dout, q), true, false},
        {DQ, shifted(c->dq, q), true, false},
        {DK, shifted(c->dk, k), true, false},
        {DV, shifted(c->dv, k), true, false},
        {SUM, scratch, true, false},
        {DQ_SUM, shifted(scratch, sum_bytes(key)), !key->exact, false},
    };
    int64_t id[IDS];
    void *at[IDS];
    int n = 0;

    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        if (key->backward ? all[i].backward : all[i].forward) {
            id[n] = all[i].id;
            at[n++] = all[i].at;
        }
    return d9di_graph_run(&p->graph, c->op, s, id, at, n);
}

static d9d_status run(d9d_stream s, const d9di_attention *c, const plan_key *key, const plan *p)
{
    const int64_t bytes = scratch_bytes(key);
    void *scratch = NULL;
    d9d_status st = D9D_OK;

    if (bytes > 0)
        D9D_TRY(d9di_take(s, bytes, &scratch));
    for (int64_t b = 0; b < c->n.b && st == D9D_OK; b += key->b)
        for (int64_t kv = 0; kv < c->n.kv && st == D9D_OK; kv += key->kv)
            st = run_piece(s, c, key, p, b, kv, scratch);
    if (bytes > 0)
        d9di_give(s, scratch, bytes);
    return st;
}

d9d_status d9di_attention_cudnn(d9d_stream s, const d9di_attention *c, bool *done)
{
    const d9d_attention_dims *n = &c->n;
    d9di_sdpa *x;
    plan_key key;
    plan *p;

    *done = false;
    if (n->t != D9D_BF16 || (n->d != 64 && n->d != 128) || n->bounds != NULL)
        return D9D_OK;
    D9D_TRY(sdpa_of(s, &x));
    if (!x->loaded)
        return D9D_OK;
    key = piece_of(s, c);
    D9D_TRY(plan_find(s, x, c->op, &key, &p));
    *done = p->graph.plan != NULL;
    return *done ? run(s, c, &key, p) : D9D_OK;
}
#else
struct d9di_sdpa {
    int none;
};

void d9di_sdpa_free(d9di_sdpa *x)
{
    (void)x;
}

d9d_status d9di_attention_cudnn(d9d_stream s, const d9di_attention *c, bool *done)
{
    (void)s, (void)c;
    *done = false;
    return D9D_OK;
}
#endif
