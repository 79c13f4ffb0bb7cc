/* attention_cudnn.c - attention by cuDNN: graphs that cuDNN recognises as fused attention (SDPA)
 * and runs as one kernel each way, planned once per shape. In bfloat16.
 *
 *     forward     S = scale Q K', masked     P = exp(S - max) / sum     O = P V
 *                 lse = max + log(sum)
 *     backward    P = exp(S - lse)           delta = rows of dO O
 *                 dV = P' dO                 dS = scale P (dO V' - delta)
 *                 dK = dS' Q                 dQ = dS K
 *
 * dK and dV of the query heads of a group (GQA) are added in float32, from bfloat16.
 *
 *     cuDNN frontend: SDPA_attributes              here
 *     set_causal_mask_bottom_right()               d9di_cudnn_graph_causal_mask(), has_key_offset()
 *     set_sliding_window_length()                  d9di_cudnn_graph_window_mask()
 *     set_padding_mask(), seq_len_q, seq_len_kv    len_q, len_k (LENGTH, LENGTH_K)
 *     set_ragged_offset()                          offset_q, ... (OFFSET_Q, ...)
 *     generate_stats: Stats                        lse
 *     set_deterministic_algorithm()                plan_key.deterministic
 *     execution plan, workspace                    plan, plan_key; g->workspace
 *
 * How a call is split (attention_dispatch.c decides which calls come here; on Hopper the causal
 * backward goes to attention_bwd_sm90.cu):
 *
 *     whole rows           one call; by rows, then by key heads, if dS exceeds the scratch
 *
 *     context-parallel     keys of the row     0 ............. earlier | own chunk
 *     chunk of a row       forward             |====== causal, bottom right =====|
 *                          backward, slice 1                           |= causal =|
 *                          backward, slice 2   |====== no mask ========|
 *
 *     a part of the keys   each chunk of queries sees none, all, or those under the mask
 *     (ring attention)
 *
 *     packed documents     one plan, with a capacity of b documents of s tokens (varlen)
 *                          deterministic backward: classes of length  (s/2, s], (s/4, s/2], ...
 *
 * Deterministic: dS goes through scratch, 2 A S Z bytes per row, and dQ is one GEMM. Otherwise many
 * blocks add to dQ with atomics, 6 to 14 % faster. Scratch is bounded: larger calls are split by
 * rows, then by key heads, with pointers into the middle of the arrays.
 *
 * Packed documents: a plan has a capacity of documents and tokens, and reads on the GPU where each
 * document begins and how long it is. The deterministic backward allocates scores for all documents
 * at the longest one's length, hence the classes of length.
 *
 * Context-parallel chunks: a chunk of a whole row sees the row's keys up to its own last one. The
 * host knows that number, and the mask's diagonal is aligned to the end. Without a window the
 * backward runs in two slices, which together are a fifth faster: the chunk's own keys, and all
 * earlier keys, which need no mask. Of packed documents, most within chunks have keys elsewhere,
 * and the first of a chunk may have more keys than queries. Two chunks may share keys, and two
 * slices share queries. Since cuDNN overwrites gradients, the calls run one after the other, and
 * results of all but the first are added.
 *
 * Heads of more than 128 features: cuDNN 9.19 computes wrong gradients of documents, of chunks and
 * with a window, for some head sizes. Their backward uses cuDNN for whole rows only, each length
 * with its own plan.
 *
 * cuDNN recognises only what is written here: P and the full dV, dK must be bfloat16, the sum of dQ
 * a real float32 tensor, and the mask as d9di_cudnn_graph_causal_mask() and _window_mask() build
 * it.
 *
 * Measured (docs/benchmarks/kernels.md), one H200, 16 and 8 heads of 128, sequences of 4096:
 * forward 594 TFLOP/s; backward deterministic 430, otherwise 473. Documents of 1024: 417; 158, 266.
 */
#include "cuda/attention/attention_call.h"

#if __has_include(<cudnn.h>)
#include <math.h>
#include <stdlib.h>

#include "cuda/common/cudnn.h"
#include "d9d/base/disk_cache.h"

/* Ids of the graphs' tensors. */
enum {
    Q = 1,
    K,
    V,
    O,
    LSE,
    DOUT,
    DQ,
    DK,
    DV,
    SCALE,
    HIDDEN,
    WINDOW,
    WINDOW_FILL,
    QUERIES,
    KEYS,
    ONE,
    SUM,
    DQ_SUM,
    DK_FULL,
    DV_FULL,
    LENGTH,
    LENGTH_K,
    OFFSET_Q,
    OFFSET_K,
    OFFSET_V,
    OFFSET_O,
    OFFSET_LSE,
    IDS
};

/* Fewest queries of a chunk of a whole row, below which any kernel is fast; and of a prompt, below
 * which building a plan takes longer than the call. */
enum { MIN_CHUNK = 64, MIN_PROMPT = 256 };

/* Head sizes are multiples of 8; in the backward those of values are those of keys.
 * MAX_HEAD_SIZE_PACKED: the largest whose gradients are right for varlen calls too. */
enum { MAX_HEAD_SIZE = 256, MAX_HEAD_SIZE_PACKED = 128 };

/* What selects a plan. Without padding, since its bytes are a hash key. */
typedef struct plan_key {
    int64_t b, s, z, d, dv, a, kv; /* of the call; packed: capacity, b documents of s queries and z
                                      keys */
    int64_t all_a, all_kv;         /* heads of the arrays, */
    int64_t row_s, row_z;          /* and queries and keys of their rows, if not packed */
    int64_t packed, backward, deterministic;
    int64_t longer;  /* packed: documents have more keys than queries */
    int64_t no_mask; /* all keys are visible; then without a window */
    int64_t window;
} plan_key;

typedef struct plan {
    d9di_cudnn_graph graph; /* without a plan: cuDNN refused */
    struct plan *next;
} plan;

struct d9di_cudnn_attention {
    d9di_cudnn lib;
    bool loaded;
    d9d_map plans;
    d9d_disk_cache cache; /* plan_key to a plan as JSON */
    plan *first;
};

/* --- graphs ------------------------------------------------------------------------------- */

/* A graph under construction, and its varlen tensors; NULLs for whole rows. */
typedef struct graph_builder {
    d9di_cudnn_graph *g;
    const plan_key *n;
    d9di_cudnn_tensor len_q, len_k, offset_q, offset_k, offset_v, offset_o, offset_lse;
} graph_builder;

static const d9di_cudnn_tensor *packed_only(const graph_builder *w, const d9di_cudnn_tensor *x)
{
    return w->n->packed ? x : NULL;
}

static void graph_documents(graph_builder *w)
{
    const d9di_cudnn_shape one = {{w->n->b, 1, 1, 1}, {1, 1, 1, 1}};
    const d9di_cudnn_shape bounds = {{w->n->b + 1, 1, 1, 1}, {1, 1, 1, 1}};
    const struct {
        d9di_cudnn_tensor *x;
        int64_t id;
    } at[] = {{&w->offset_q, OFFSET_Q},
              {&w->offset_k, OFFSET_K},
              {&w->offset_v, OFFSET_V},
              {&w->offset_o, OFFSET_O},
              {&w->offset_lse, OFFSET_LSE}};

    if (!w->n->packed)
        return;
    w->len_q = w->len_k = d9di_cudnn_graph_tensor(w->g, LENGTH, CUDNN_DATA_INT32, one, NULL);
    if (w->n->longer)
        w->len_k = d9di_cudnn_graph_tensor(w->g, LENGTH_K, CUDNN_DATA_INT32, one, NULL);
    for (size_t i = 0; i < sizeof(at) / sizeof(*at); i++)
        *at[i].x = d9di_cudnn_graph_tensor(w->g, at[i].id, CUDNN_DATA_INT64, bounds, NULL);
}

/* Shape of heads of [B, tokens, heads, D], seen as [B, heads, tokens, D] or [B, heads, D, tokens].
 * d: features of a key or of a value. */
static d9di_cudnn_shape heads_shape(const plan_key *n, int64_t tokens, int64_t row, int64_t heads,
                                    int64_t all, int64_t d)
{
    return (d9di_cudnn_shape){{n->b, heads, tokens, d}, {row * all * d, d, all * d, 1}};
}
static d9di_cudnn_shape queries_shape(const plan_key *n, int64_t d)
{
    return heads_shape(n, n->s, n->row_s, n->a, n->all_a, d);
}
static d9di_cudnn_shape keys_shape(const plan_key *n, int64_t d)
{
    return heads_shape(n, n->z, n->row_z, n->kv, n->all_kv, d);
}
static d9di_cudnn_shape transposed_shape(d9di_cudnn_shape x)
{
    return (d9di_cudnn_shape){{x.dim[0], x.dim[1], x.dim[3], x.dim[2]},
                              {x.stride[0], x.stride[1], x.stride[3], x.stride[2]}};
}

static d9di_cudnn_tensor heads_tensor(graph_builder *w, int64_t id, d9di_cudnn_shape shape,
                                      const d9di_cudnn_tensor *at)
{
    return d9di_cudnn_graph_tensor(w->g, id, CUDNN_DATA_BFLOAT16, shape, packed_only(w, at));
}

/* A float32 per query: [B, heads, S], packed [T, heads]. */
static d9di_cudnn_tensor row_stats_tensor(graph_builder *w, int64_t id, int64_t all, int64_t row)
{
    const plan_key *n = w->n;
    const d9di_cudnn_shape rows = {{n->b, n->a, n->s, 1}, {all * row, row, 1, 1}};
    const d9di_cudnn_shape packed = {{n->b, n->a, n->s, 1}, {n->all_a * n->s, 1, n->all_a, 1}};

    return d9di_cudnn_graph_tensor(w->g, id, CUDNN_DATA_FLOAT, n->packed ? packed : rows,
                                   packed_only(w, &w->offset_lse));
}

/* The GEMMs C = A B: queries by keys; queries, summed over keys; keys, summed over queries. */
typedef enum matmul_kind { SCORES, OVER_KEYS, OVER_QUERIES, N_MATMULS } matmul_kind;

static void graph_matmul(graph_builder *w, const d9di_cudnn_tensor *a, const d9di_cudnn_tensor *b,
                         const d9di_cudnn_tensor *c, matmul_kind what)
{
    const d9di_cudnn_tensor *q = packed_only(w, &w->len_q), *k = packed_only(w, &w->len_k);
    const d9di_cudnn_extent extent[N_MATMULS] = {[SCORES] = {.m = q, .n = k},
                                                 [OVER_KEYS] = {.m = q, .k = k},
                                                 [OVER_QUERIES] = {.m = k, .k = q}};

    d9di_cudnn_graph_matmul(w->g, a, b, c, extent[what]);
}

/* scale Q K' */
static d9di_cudnn_tensor graph_scores(graph_builder *w, const d9di_cudnn_tensor *q,
                                      const d9di_cudnn_tensor *k, const d9di_cudnn_tensor *scale)
{
    const plan_key *n = w->n;
    d9di_cudnn_tensor x = d9di_cudnn_graph_virtual(w->g, CUDNN_DATA_FLOAT,
                                                   d9di_cudnn_shape_dense(n->b, n->a, n->s, n->z));

    graph_matmul(w, q, k, &x, SCORES);
    return d9di_cudnn_graph_pointwise(w->g, CUDNN_POINTWISE_MUL, &x, scale);
}

/* True if a row's number of keys differs from its queries and the host knows it. */
static bool has_key_offset(const plan_key *n)
{
    return !n->packed && !n->no_mask && n->s != n->z;
}

/* Sets masked scores to -infinity. */
static d9di_cudnn_tensor graph_mask(graph_builder *w, const d9di_cudnn_tensor *x)
{
    const d9di_cudnn_extent lengths =
        w->n->longer ? (d9di_cudnn_extent){.m = &w->len_q, .n = &w->len_k} : (d9di_cudnn_extent){0};
    d9di_cudnn_tensor hidden, queries, keys, y, window, before;

    if (w->n->no_mask)
        return *x;
    hidden = d9di_cudnn_graph_scalar_f32(w->g, HIDDEN);
    if (has_key_offset(w->n)) {
        queries = d9di_cudnn_graph_scalar_i32(w->g, QUERIES);
        keys = d9di_cudnn_graph_scalar_i32(w->g, KEYS);
        y = d9di_cudnn_graph_causal_mask(w->g, x, &hidden,
                                         (d9di_cudnn_extent){.m = &queries, .n = &keys});
    } else {
        y = d9di_cudnn_graph_causal_mask(w->g, x, &hidden, lengths);
    }
    if (w->n->window == 0)
        return y;
    window = d9di_cudnn_graph_scalar_f32(w->g, WINDOW);
    before = d9di_cudnn_graph_scalar_f32(w->g, WINDOW_FILL);
    return d9di_cudnn_graph_window_mask(w->g, &y, &window, &before, lengths);
}

static void graph_forward(graph_builder *w)
{
    const plan_key *n = w->n;
    d9di_cudnn_graph *g = w->g;
    d9di_cudnn_tensor q = heads_tensor(w, Q, queries_shape(n, n->d), &w->offset_q),
                      k = heads_tensor(w, K, transposed_shape(keys_shape(n, n->d)), &w->offset_k);
    d9di_cudnn_tensor v = heads_tensor(w, V, keys_shape(n, n->dv), &w->offset_v),
                      o = heads_tensor(w, O, queries_shape(n, n->dv), &w->offset_o);
    d9di_cudnn_tensor lse = row_stats_tensor(w, LSE, n->all_a, n->row_s),
                      scale = d9di_cudnn_graph_scalar_f32(g, SCALE);
    d9di_cudnn_tensor x = graph_scores(w, &q, &k, &scale), row_max, sum, log, p;

    x = graph_mask(w, &x);
    row_max = d9di_cudnn_graph_reduce_row(g, CUDNN_REDUCE_TENSOR_MAX, &x);
    x = d9di_cudnn_graph_pointwise(g, CUDNN_POINTWISE_SUB, &x, &row_max);
    x = d9di_cudnn_graph_pointwise(g, CUDNN_POINTWISE_EXP, &x, NULL);
    sum = d9di_cudnn_graph_reduce_row(g, CUDNN_REDUCE_TENSOR_ADD, &x);
    log = d9di_cudnn_graph_pointwise(g, CUDNN_POINTWISE_LOG, &sum, NULL);
    d9di_cudnn_graph_pointwise_to(g, CUDNN_POINTWISE_ADD, &row_max, &log, &lse);
    p = d9di_cudnn_graph_virtual(g, CUDNN_DATA_BFLOAT16, x.shape);
    d9di_cudnn_graph_pointwise_to(g, CUDNN_POINTWISE_DIV, &x, &sum, &p);
    graph_matmul(w, &p, &v, &o, OVER_KEYS);
}

/* dX = W' Y, added over the query heads of a group. Packed, the full one must be a real tensor. */
static void graph_dkv(graph_builder *w, const d9di_cudnn_tensor *x, const d9di_cudnn_tensor *y,
                      const d9di_cudnn_tensor *dx, int64_t id, const d9di_cudnn_tensor *at)
{
    const plan_key *n = w->n;
    const int64_t group = n->a / n->kv;
    d9di_cudnn_tensor t = d9di_cudnn_graph_transpose(w->g, x, NULL), full;
    d9di_cudnn_shape shape = d9di_cudnn_shape_dense(n->b, n->a, n->z, n->d);

    if (group == 1) {
        graph_matmul(w, &t, y, dx, OVER_QUERIES);
        return;
    }
    if (n->packed) {
        shape = heads_shape(n, n->z, n->z, n->a, n->all_kv * group, n->d);
        full = heads_tensor(w, id, shape, at);
    } else {
        full = d9di_cudnn_graph_virtual(w->g, CUDNN_DATA_BFLOAT16, shape);
    }
    graph_matmul(w, &t, y, &full, OVER_QUERIES);
    d9di_cudnn_graph_reduce_to(w->g, CUDNN_REDUCE_TENSOR_ADD, &full, dx);
}

/* dQ = dS K */
static void graph_dq(graph_builder *w, const d9di_cudnn_tensor *ds, const d9di_cudnn_tensor *k,
                     const d9di_cudnn_tensor *dq)
{
    const plan_key *n = w->n;
    d9di_cudnn_tensor t = d9di_cudnn_graph_transpose(w->g, k, packed_only(w, &w->offset_k)), sum;

    if (n->deterministic) {
        graph_matmul(w, ds, &t, dq, OVER_KEYS);
        return;
    }
    sum = d9di_cudnn_graph_tensor(w->g, DQ_SUM, CUDNN_DATA_FLOAT,
                                  n->packed ? dq->shape
                                            : d9di_cudnn_shape_dense(n->b, n->a, n->s, n->d),
                                  packed_only(w, &w->offset_q));
    graph_matmul(w, ds, &t, &sum, OVER_KEYS);
    d9di_cudnn_graph_pointwise_to(w->g, CUDNN_POINTWISE_IDENTITY, &sum, NULL, dq);
}

/* delta = rows of dO O */
static d9di_cudnn_tensor graph_delta(graph_builder *w, const d9di_cudnn_tensor *dout,
                                     const d9di_cudnn_tensor *o)
{
    const plan_key *n = w->n;
    d9di_cudnn_tensor sum = row_stats_tensor(w, SUM, n->a, n->s),
                      one = d9di_cudnn_graph_scalar_f32(w->g, ONE);
    d9di_cudnn_tensor x = d9di_cudnn_graph_virtual(w->g, CUDNN_DATA_FLOAT,
                                                   d9di_cudnn_shape_dense(n->b, n->a, n->s, n->d));

    d9di_cudnn_graph_pointwise_to(w->g, CUDNN_POINTWISE_MUL, dout, o, &x);
    x = d9di_cudnn_graph_reduce_row(w->g, CUDNN_REDUCE_TENSOR_ADD, &x);
    d9di_cudnn_graph_pointwise_to(w->g, CUDNN_POINTWISE_MUL, &x, &one, &sum);
    return sum;
}

static void graph_backward(graph_builder *w)
{
    const plan_key *n = w->n;
    d9di_cudnn_graph *g = w->g;
    const d9di_cudnn_shape queries = queries_shape(n, n->d), keys = keys_shape(n, n->d);
    d9di_cudnn_tensor q = heads_tensor(w, Q, queries, &w->offset_q),
                      k = heads_tensor(w, K, transposed_shape(keys), &w->offset_k);
    d9di_cudnn_tensor v = heads_tensor(w, V, transposed_shape(keys), &w->offset_v),
                      o = heads_tensor(w, O, queries, &w->offset_o);
    d9di_cudnn_tensor dout = heads_tensor(w, DOUT, queries, &w->offset_o),
                      dq = heads_tensor(w, DQ, queries, &w->offset_q);
    d9di_cudnn_tensor dk = heads_tensor(w, DK, keys, &w->offset_k),
                      dv = heads_tensor(w, DV, keys, &w->offset_v);
    d9di_cudnn_tensor lse = row_stats_tensor(w, LSE, n->all_a, n->row_s),
                      scale = d9di_cudnn_graph_scalar_f32(g, SCALE);
    d9di_cudnn_tensor sum = graph_delta(w, &dout, &o), p = graph_scores(w, &q, &k, &scale), ds;

    p = d9di_cudnn_graph_pointwise(g, CUDNN_POINTWISE_SUB, &p, &lse);
    p = graph_mask(w, &p);
    p = d9di_cudnn_graph_pointwise(g, CUDNN_POINTWISE_EXP, &p, NULL);
    graph_dkv(w, &p, &dout, &dv, DV_FULL, &w->offset_v);
    ds = d9di_cudnn_graph_virtual(g, CUDNN_DATA_FLOAT, p.shape);
    graph_matmul(w, &dout, &v, &ds, SCORES);
    ds = d9di_cudnn_graph_pointwise(g, CUDNN_POINTWISE_SUB, &ds, &sum);
    ds = d9di_cudnn_graph_pointwise(g, CUDNN_POINTWISE_MUL, &ds, &p);
    ds = d9di_cudnn_graph_pointwise(g, CUDNN_POINTWISE_MUL, &ds, &scale);
    graph_dkv(w, &ds, &q, &dk, DK_FULL, &w->offset_k);
    graph_dq(w, &ds, &k, &dq);
}

/* --- plans ---------------------------------------------------------------------------------- */

/* Loads cuDNN at the first call that it may support; logs once why it is unavailable. */
static d9d_status cudnn_attention_get(d9d_stream s, d9di_cudnn_attention **out)
{
    d9di_cudnn_attention *x = s->cudnn_attention;

    *out = x;
    if (x != NULL)
        return D9D_OK;
    x = calloc(1, sizeof(*x));
    if (x == NULL)
        return D9D_FAIL(D9D_ENOMEM, "cuda: no memory for cuDNN's attention plans");
    *out = s->cudnn_attention = x;
    if (d9di_cudnn_open(s, &x->lib) == D9D_OK) {
        x->loaded = true;
        d9di_cuda_open_cache(s, "cudnn", x->lib.cudnnGetVersion(), &x->cache);
        d9di_cuda_log(s, D9D_LOG_INFO, "attention: cuDNN %zu, %s", x->lib.cudnnGetVersion(),
                      s->opts.nondeterministic ? "nondeterministic gradients" : "deterministic");
    } else {
        d9di_cuda_log(s, D9D_LOG_WARN,
                      "attention: built-in kernels, many times slower than cuDNN: %s",
                      d9d_err_message());
    }
    return D9D_OK;
}

void d9di_cudnn_attention_free(d9di_cudnn_attention *x)
{
    if (x == NULL)
        return;
    for (plan *p = x->first, *next; p != NULL; p = next) {
        next = p->next;
        d9di_cudnn_graph_release(&p->graph);
        free(p);
    }
    d9d_map_release(&x->plans);
    d9d_disk_cache_close(&x->cache);
    d9di_cudnn_close(&x->lib);
    free(x);
}

/* An earlier run's plan, or one that is built and kept; none if cuDNN refuses it, which is logged.
 */
static void plan_make(d9d_stream s, d9di_cudnn_attention *x, const char *op, const plan_key *key,
                      d9di_cudnn_graph *g)
{
    graph_builder w = {.g = g, .n = key};
    size_t size;
    const void *const kept = d9d_disk_cache_get(&x->cache, key, sizeof(*key), &size);
    d9d_buf json = {0};

    if (kept != NULL && d9di_cudnn_graph_restore(g, kept, size))
        return;
    graph_documents(&w);
    (key->backward ? graph_backward : graph_forward)(&w);
    if (d9di_cudnn_graph_build(g, op) != D9D_OK)
        d9di_cuda_log(
            s, D9D_LOG_WARN,
            "%s; %lld x %lld tokens of %lld and %lld heads of %lld, values of %lld, go to "
            "slower kernels",
            d9d_err_message(), (long long)key->b, (long long)key->s, (long long)key->all_a,
            (long long)key->all_kv, (long long)key->d, (long long)key->dv);
    else if (d9di_cudnn_graph_serialize(g, &json))
        d9d_disk_cache_put(&x->cache, key, sizeof(*key), json.data, json.len);
    d9d_buf_release(&json);
}

/* A refused plan is cached too, so that cuDNN is asked once. */
static d9d_status plan_find(d9d_stream s, d9di_cudnn_attention *x, const char *op,
                            const plan_key *key, plan **out)
{
    plan *p = d9d_map_get(&x->plans, (const char *)key, sizeof(*key));
    d9d_status st;

    d9d_disk_cache_flush_idle(&x->cache, D9DI_CUDA_CACHE_IDLE_S);
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
    plan_make(s, x, op, key, &p->graph);
    *out = p;
    return D9D_OK;
}

/* --- calls ------------------------------------------------------------------------------------ */

static plan_key plan_key_make(d9d_stream s, const d9di_attention_call *c)
{
    const d9d_attention_dims *n = &c->n;
    const bool backward = c->dout != NULL;

    return (plan_key){.b = n->b,
                      .s = n->s,
                      .z = n->z,
                      .d = n->d,
                      .dv = n->dv,
                      .a = n->a,
                      .kv = n->kv,
                      .all_a = n->a,
                      .all_kv = n->kv,
                      .row_s = n->s,
                      .row_z = n->z,
                      .packed = n->segment != NULL,
                      .backward = backward,
                      .deterministic = backward && !s->opts.nondeterministic,
                      .window = n->window};
}

/* The largest divisor of n that is at most `limit`; at least 1. */
static int64_t largest_divisor(int64_t n, int64_t limit)
{
    int64_t d = d9di_i64_max(1, d9di_i64_min(n, limit));

    while (n % d != 0)
        d--;
    return d;
}

/* Splits the call until its scores fit: first by rows, unless documents may lie in any row; then by
 * key heads. */
static void split_to_fit(d9d_stream s, plan_key *key)
{
    const int64_t max_bytes = d9di_attention_max_score_bytes(s);
    const int64_t group = key->a / key->kv, head = 2 * group * key->s * key->z;

    if (!key->deterministic)
        return;
    if (!key->packed || key->longer)
        key->b = largest_divisor(key->b, max_bytes / head / key->kv);
    key->kv = largest_divisor(key->kv, max_bytes / head / key->b);
    key->a = key->kv * group;
}

/* What the graphs need in memory besides the call's arrays. */
typedef struct extra_arrays {
    float *lse; /* packed: [T, heads] */
    float *sum, *dq_sum;
    void *dk_full, *dv_full;
    void *dk, *dv; /* results to be added to existing gradients of keys */
    void *dq;      /* of a second slice, with other keys */
} extra_arrays;

/* True if chunks of rows run as two slices in backward. */
static bool splits_bwd(const d9di_attention_call *c)
{
    return c->dout != NULL && c->n.segment == NULL && c->n.chunks > 0 && c->n.window == 0;
}

static extra_arrays extra_arrays_alloc(const d9di_attention_call *c, const plan_key *key,
                                       d9di_cuda_arena *r)
{
    const d9d_attention_dims *n = &c->n;
    const int64_t rows = d9di_i64_round_up(n->b * n->s, 64) * n->a;
    const int64_t elements = d9di_i64_round_up(n->b * n->z, 64) * n->d;
    extra_arrays x = {0};

    if (key->packed)
        x.lse = d9di_cuda_arena_alloc(r, rows * 4);
    if (key->backward)
        x.sum = d9di_cuda_arena_alloc(r, rows * 4);
    if (key->backward && !key->deterministic)
        x.dq_sum = d9di_cuda_arena_alloc(r, rows * n->d * 4);
    if (key->backward && key->packed && n->a != n->kv) {
        x.dk_full = d9di_cuda_arena_alloc(r, elements * n->a * 2);
        x.dv_full = d9di_cuda_arena_alloc(r, elements * n->a * 2);
    }
    if (key->backward && n->chunks > 1) {
        x.dk = d9di_cuda_arena_alloc(r, elements * n->kv * 2);
        x.dv = d9di_cuda_arena_alloc(r, elements * n->kv * 2);
    }
    if (splits_bwd(c))
        x.dq = d9di_cuda_arena_alloc(r, rows * n->d * 2);
    return x;
}

static void *ptr_offset(const void *p, int64_t bytes)
{
    return (void *)((uintptr_t)p + (uintptr_t)bytes);
}

/* Where a call's part lies: rows from b on, key heads from kv on, in a row queries from q and keys
 * from k on; and its documents, if packed. `more`: keys may have gradients of earlier parts;
 * `second`: these queries ran with other keys before. */
typedef struct subcall_offset {
    int64_t b, kv, q, k;
    bool more, second;
    d9di_attention_varlen_offsets at;
} subcall_offset;

static d9d_status subcall_run(d9d_stream s, const d9di_attention_call *c, const plan_key *key,
                              const plan *p, const subcall_offset *here, const extra_arrays *x)
{
    const d9di_attention_varlen_offsets *at = &here->at;
    const int64_t h = here->kv * (key->all_a / key->all_kv);
    const int64_t first_q = here->b * key->row_s + here->q,
                  first_k = here->b * key->row_z + here->k;
    const int64_t q_head = (first_q * key->all_a + h) * 2,
                  k_head = (first_k * key->all_kv + here->kv) * 2;
    const int64_t q = q_head * key->d, k = k_head * key->d;
    const int64_t o = q_head * key->dv, v = k_head * key->dv;
    const int64_t lse = ((here->b * key->all_a + h) * key->row_s + here->q) * 4;
    const bool back = key->backward, packed = key->packed, full = packed && key->a != key->kv;
    const bool shift = has_key_offset(key), more = here->more;
    int32_t queries = (int32_t)key->s, keys = (int32_t)key->z;
    float scale = c->n.scale, hidden = -INFINITY, one = 1.0f;
    float window = (float)(key->window - (shift ? key->z - key->s : 0));
    const struct {
        int64_t id;
        void *at;
        bool used;
    } all[] = {
        {Q, ptr_offset(c->q, q), true},
        {K, ptr_offset(c->k, k), true},
        {V, ptr_offset(c->v, v), true},
        {O, ptr_offset(c->o, o), true},
        {LSE, packed ? ptr_offset(x->lse, h * 4) : ptr_offset(c->lse, lse), true},
        {SCALE, &scale, true},
        {HIDDEN, &hidden, !key->no_mask},
        {WINDOW, &window, key->window > 0},
        {WINDOW_FILL, &hidden, key->window > 0},
        {QUERIES, &queries, shift},
        {KEYS, &keys, shift},
        {ONE, &one, back},
        {DOUT, ptr_offset(c->dout, o), back},
        {DQ, ptr_offset(here->second ? x->dq : c->dq, q), back},
        {DK, ptr_offset(more ? x->dk : c->dk, k), back},
        {DV, ptr_offset(more ? x->dv : c->dv, v), back},
        {SUM, x->sum, back},
        {DQ_SUM, x->dq_sum, back && !key->deterministic},
        {DK_FULL, x->dk_full, back && full},
        {DV_FULL, x->dv_full, back && full},
        {LENGTH, at->len_q, packed},
        {LENGTH_K, at->len_k, key->longer != 0},
        {OFFSET_Q, at->offset_q, packed},
        {OFFSET_K, at->offset_k, packed},
        {OFFSET_V, at->offset_v, packed},
        {OFFSET_O, at->offset_o, packed},
        {OFFSET_LSE, at->offset_lse, packed},
    };
    int64_t id[IDS];
    void *where[IDS];
    int n = 0;

    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        if (all[i].used) {
            id[n] = all[i].id;
            where[n++] = all[i].at;
        }
    return d9di_cudnn_graph_run(&p->graph, c->op, s, id, where, n);
}

/* A part of every row: queries from q on, keys from k on. */
typedef struct slice {
    plan_key key;
    plan *plan;
    int64_t q, k;
    bool more, second;
} slice;

enum { MAX_SLICES = 2 * D9D_ATTENTION_MAX_CHUNKS };

static slice *slice_add(d9d_stream s, const d9di_attention_call *c, slice *x, int64_t q, int64_t k,
                        int64_t n, int64_t keys)
{
    *x = (slice){.key = plan_key_make(s, c), .q = q, .k = k};
    x->key.s = n;
    x->key.z = keys;
    split_to_fit(s, &x->key);
    return x + 1;
}

/* A slice without a mask. */
static slice *slice_add_full(d9d_stream s, const d9di_attention_call *c, slice *x, int64_t q,
                             int64_t n, int64_t keys)
{
    slice *const next = slice_add(s, c, x, q, 0, n, keys);

    x->key.no_mask = 1;
    x->key.window = 0;
    return next;
}

/* Chunk i of `size` queries. */
static slice *slices_add_chunk(d9d_stream s, const d9di_attention_call *c, slice *x, int64_t i,
                               int64_t size)
{
    const d9d_attention_dims *n = &c->n;
    const int64_t end = n->chunks > 0 ? n->chunk_end[i] : n->z;
    const int64_t own = splits_bwd(c) ? end - size : 0;
    const d9di_attention_chunk_mask mask =
        c->part ? d9di_attention_chunk_mask_of(n, i) : D9DI_CHUNK_CAUSAL;

    if (mask == D9DI_CHUNK_HIDDEN)
        return x;
    if (mask == D9DI_CHUNK_FULL)
        return slice_add_full(s, c, x, i * size, size, n->z);
    x = slice_add(s, c, x, i * size, own, size, end - own);
    if (own > 0) {
        x = slice_add_full(s, c, x, i * size, size, own);
        x[-1].second = true;
    }
    return x;
}

/* The last chunk sees the most keys, and goes first. */
static int slices_list(d9d_stream s, const d9di_attention_call *c, slice *out)
{
    const int64_t chunks = d9di_i64_max(1, c->n.chunks), size = c->n.s / chunks;
    slice *x = out;

    for (int64_t i = chunks - 1; i >= 0; i--) {
        slice *const first = x;

        x = slices_add_chunk(s, c, x, i, size);
        for (slice *y = first; y < x; y++)
            y->more = first > out;
    }
    return (int)(x - out);
}

/* Zeroes chunk i of the queries of x [B, S, heads of d features]. */
static d9d_status chunk_clear(d9d_stream s, const d9d_attention_dims *n, void *x, int64_t i,
                              int64_t d)
{
    const int64_t size = n->s / n->chunks * n->a * d;

    for (int64_t b = 0; b < n->b; b++)
        D9D_TRY(d9d_k_fill(s, n->t, ptr_offset(x, (b * n->chunks + i) * size * 2), size, 0.0f));
    return D9D_OK;
}

/* What queries get from a part whose keys they do not see. */
static d9d_status hidden_fill(d9d_stream s, const d9di_attention_call *c)
{
    const d9d_attention_dims *n = &c->n;
    bool any = false;

    for (int64_t i = 0; i < n->chunks && c->part; i++) {
        if (d9di_attention_chunk_mask_of(n, i) != D9DI_CHUNK_HIDDEN)
            continue;
        D9D_TRY(c->dout != NULL ? chunk_clear(s, n, c->dq, i, n->d)
                                : chunk_clear(s, n, c->o, i, n->dv));
        any = true;
    }
    return any && c->dout == NULL ? d9d_k_fill(s, D9D_F32, c->lse, n->b * n->s * n->a, -INFINITY)
                                  : D9D_OK;
}

/* y += x, for tokens [from, from + n) of each row of `row` tokens, of `heads` heads. */
static d9d_status rows_accumulate(d9d_stream s, const d9di_attention_call *c, void *y,
                                  const void *x, int64_t row, int64_t from, int64_t n,
                                  int64_t heads)
{
    const int64_t width = heads * c->n.d;

    for (int64_t b = 0; b < c->n.b; b++) {
        const int64_t at = (b * row + from) * width * 2;

        D9D_TRY(d9d_k_accumulate(s, D9D_BF16, ptr_offset(y, at), 1.0f, D9D_BF16, ptr_offset(x, at),
                                 n * width));
    }
    return D9D_OK;
}

/* Adds a slice's results to those of earlier slices. */
static d9d_status slice_accumulate(d9d_stream s, const d9di_attention_call *c, const slice *of,
                                   const extra_arrays *x)
{
    const d9d_attention_dims *n = &c->n;

    if (of->second)
        D9D_TRY(rows_accumulate(s, c, c->dq, x->dq, n->s, of->q, of->key.s, n->a));
    if (!of->more)
        return D9D_OK;
    D9D_TRY(rows_accumulate(s, c, c->dk, x->dk, n->z, of->k, of->key.z, n->kv));
    return rows_accumulate(s, c, c->dv, x->dv, n->z, of->k, of->key.z, n->kv);
}

static d9d_status slice_run(d9d_stream s, const d9di_attention_call *c, const slice *of,
                            const extra_arrays *x)
{
    subcall_offset i = {.q = of->q, .k = of->k, .more = of->more, .second = of->second};

    for (i.b = 0; i.b < c->n.b; i.b += of->key.b)
        for (i.kv = 0; i.kv < c->n.kv; i.kv += of->key.kv)
            D9D_TRY(subcall_run(s, c, &of->key, of->plan, &i, x));
    return of->key.backward ? slice_accumulate(s, c, of, x) : D9D_OK;
}

static d9d_status rows_run(d9d_stream s, d9di_cudnn_attention *x, const d9di_attention_call *c,
                           bool *done)
{
    slice of[MAX_SLICES];
    const int n = slices_list(s, c, of);
    d9di_cuda_arena r = {0};
    extra_arrays extra;
    void *scratch;
    d9d_status st = D9D_OK;

    for (int i = 0; i < n; i++) {
        D9D_TRY(plan_find(s, x, c->op, &of[i].key, &of[i].plan));
        if (of[i].plan->graph.plan == NULL)
            return D9D_OK;
    }
    *done = true;
    D9D_TRY(hidden_fill(s, c));
    if (n == 0)
        return D9D_OK;
    (void)extra_arrays_alloc(c, &of[0].key, &r);
    D9D_TRY(d9di_cuda_scratch_alloc(s, r.used, &scratch));
    extra = extra_arrays_alloc(c, &of[0].key, &(d9di_cuda_arena){.base = scratch});
    for (int i = 0; i < n && st == D9D_OK; i++)
        st = slice_run(s, c, &of[i], &extra);
    d9di_cuda_scratch_free(s, scratch, r.used);
    return st;
}

/* --- packed documents, and their chunks ------------------------------------------------------- */

enum { MAX_LEN_CLASSES = 32 };

static int64_t round_up_pow2(int64_t least, int64_t n)
{
    while (least < n)
        least *= 2;
    return least;
}

/* A class of documents that share a plan. */
typedef struct len_class {
    plan_key key;
    plan *plan;
    d9di_attention_varlen docs; /* per call: rows and positions */
} len_class;

/* As many keys as queries: one class for all lengths, unless the plan needs scratch for scores. */
static int len_classes_square(d9d_stream s, const d9di_attention_call *c, len_class *out)
{
    const d9d_attention_dims *x = &c->n;
    const int64_t chunk_len = d9di_attention_chunk_len(x);
    const bool whole = x->segments == x->b * x->s / chunk_len; /* each segment is a chunk */
    const plan_key key = plan_key_make(s, c);
    int64_t longest = whole ? d9di_attention_plan_len(chunk_len)
                            : round_up_pow2(D9DI_ATTENTION_PLAN_MIN_LEN, chunk_len);
    int n = 0;

    for (;; longest /= 2, n++) {
        const bool last = !key.deterministic || whole || longest == D9DI_ATTENTION_PLAN_MIN_LEN;
        const int64_t shortest = last ? 1 : longest / 2 + 1;

        out[n] = (len_class){.key = key};
        out[n].key.s = out[n].key.z = out[n].key.row_s = out[n].key.row_z = longest;
        out[n].key.b = whole  ? x->segments
                       : last ? round_up_pow2(16, x->segments)
                              : d9di_i64_round_up(x->b * x->s / shortest, 8);
        out[n].docs = (d9di_attention_varlen){.min_len = shortest,
                                              .max_len = longest,
                                              .rows = x->b,
                                              .positions = x->s,
                                              .capacity = out[n].key.b};
        split_to_fit(s, &out[n].key);
        if (last)
            return n + 1;
    }
}

/* More keys than queries: at most one per chunk of a row; each chunk is a call. */
static len_class len_class_longer(d9d_stream s, const d9di_attention_call *c)
{
    const d9d_attention_dims *x = &c->n;
    const int64_t chunk_len = d9di_attention_chunk_len(x);
    len_class k = {.key = plan_key_make(s, c)};

    k.key.longer = 1;
    k.key.s = k.key.row_s = d9di_attention_plan_len(chunk_len);
    k.key.z = k.key.row_z = d9di_attention_plan_len(x->z);
    split_to_fit(s, &k.key);
    k.docs = (d9di_attention_varlen){.longer = true,
                                     .min_len = 1,
                                     .max_len = chunk_len,
                                     .capacity = k.key.b,
                                     .rows = k.key.b,
                                     .positions = chunk_len};
    return k;
}

static int len_classes_list(d9d_stream s, const d9di_attention_call *c, len_class *out)
{
    const int n = len_classes_square(s, c, out);

    if (c->n.s == c->n.z)
        return n;
    out[n] = len_class_longer(s, c);
    return n + 1;
}

static d9di_attention_varlen_offsets varlen_offsets_alloc(int64_t max_batch, d9di_cuda_arena *r)
{
    d9di_attention_varlen_offsets x = {0};

    x.len_q = d9di_cuda_arena_alloc(r, max_batch * 4);
    x.len_k = d9di_cuda_arena_alloc(r, max_batch * 4);
    x.offset_q = d9di_cuda_arena_alloc(r, (max_batch + 1) * 8);
    x.offset_k = d9di_cuda_arena_alloc(r, (max_batch + 1) * 8);
    x.offset_v = d9di_cuda_arena_alloc(r, (max_batch + 1) * 8);
    x.offset_o = d9di_cuda_arena_alloc(r, (max_batch + 1) * 8);
    x.offset_lse = d9di_cuda_arena_alloc(r, (max_batch + 1) * 8);
    return x;
}

/* Runs the documents that `docs` selects. */
static d9d_status documents_run(d9d_stream s, const d9di_attention_call *c, const len_class *k,
                                const extra_arrays *x, const d9di_attention_varlen *docs)
{
    subcall_offset i = {.more = docs->from > 0, .at = docs->at};

    D9D_TRY(d9di_attention_varlen_find(s, c, docs));
    for (; i.kv < c->n.kv; i.kv += k->key.kv)
        D9D_TRY(subcall_run(s, c, &k->key, k->plan, &i, x));
    return k->key.backward && docs->from > 0
               ? d9di_attention_varlen_add_dkv(s, c, docs, x->dk, x->dv)
               : D9D_OK;
}

static d9d_status len_class_run(d9d_stream s, const d9di_attention_call *c, const len_class *k,
                                const extra_arrays *x, const d9di_attention_varlen_offsets *at)
{
    d9di_attention_varlen docs = k->docs;

    docs.at = *at;
    for (docs.from = 0; docs.from < c->n.s; docs.from += docs.positions)
        for (docs.row = 0; docs.row < c->n.b; docs.row += docs.rows)
            D9D_TRY(documents_run(s, c, k, x, &docs));
    return D9D_OK;
}

static d9d_status len_classes_run(d9d_stream s, const d9di_attention_call *c, const len_class *k,
                                  int n, const extra_arrays *x,
                                  const d9di_attention_varlen_offsets *at)
{
    if (k->key.backward)
        D9D_TRY(d9di_attention_lse_transpose(s, c, x->lse, true));
    for (int i = 0; i < n; i++)
        D9D_TRY(len_class_run(s, c, &k[i], x, at));
    return k->key.backward ? D9D_OK : d9di_attention_lse_transpose(s, c, x->lse, false);
}

static d9d_status packed_run(d9d_stream s, d9di_cudnn_attention *x, const d9di_attention_call *c,
                             bool *done)
{
    len_class k[MAX_LEN_CLASSES];
    const int n = len_classes_list(s, c, k);
    int64_t max_batch = 0;
    d9di_attention_varlen_offsets at;
    extra_arrays extra;
    d9di_cuda_arena r = {0};
    void *scratch;
    d9d_status st;

    for (int i = 0; i < n; i++) {
        D9D_TRY(plan_find(s, x, c->op, &k[i].key, &k[i].plan));
        if (k[i].plan->graph.plan == NULL)
            return D9D_OK;
        max_batch = d9di_i64_max(max_batch, k[i].key.b);
    }
    *done = true;
    (void)varlen_offsets_alloc(max_batch, &r);
    (void)extra_arrays_alloc(c, &k->key, &r);
    D9D_TRY(d9di_cuda_scratch_alloc(s, r.used, &scratch));
    r = (d9di_cuda_arena){.base = scratch};
    at = varlen_offsets_alloc(max_batch, &r);
    extra = extra_arrays_alloc(c, &k->key, &r);
    st = len_classes_run(s, c, k, n, &extra, &at);
    d9di_cuda_scratch_free(s, scratch, r.used);
    return st;
}

/* Runs whole rows, or known chunks of them, as a list of segments. */
static d9d_status rows_run_as_list(d9d_stream s, d9di_cudnn_attention *x,
                                   const d9di_attention_call *c, bool *done)
{
    const int64_t chunks = d9di_i64_max(1, c->n.chunks);
    const int64_t bytes = c->n.b * chunks * (int64_t)sizeof(d9d_segment);
    d9di_attention_call listed = *c;
    void *list;
    d9d_status st;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &list));
    listed.n.segments = c->n.b * chunks;
    listed.n.segment = list;
    st = d9di_attention_varlen_list(s, c, list);
    if (st == D9D_OK)
        st = packed_run(s, x, &listed, done);
    d9di_cuda_scratch_free(s, list, bytes);
    return st;
}

/* True if the rows have as many keys as queries, or consist of known chunks. */
static bool keys_supported(const d9d_attention_dims *n)
{
    if (n->chunks == 0)
        return n->s == n->z;
    if (n->decode)
        return n->s >= MIN_PROMPT;
    return n->s % n->chunks == 0 && (n->segment != NULL || n->s / n->chunks >= MIN_CHUNK);
}

/* True if cuDNN's gradient is right for whole rows only. */
static bool needs_whole_rows(const d9di_attention_call *c)
{
    return c->dout != NULL && c->n.d > MAX_HEAD_SIZE_PACKED;
}

/* Values may be narrower than keys in the forward only. */
static bool head_size_supported(const d9di_attention_call *c)
{
    const d9d_attention_dims *n = &c->n;

    return n->d % 8 == 0 && n->dv % 8 == 0 && n->d <= MAX_HEAD_SIZE &&
           (c->dout != NULL ? n->dv == n->d : n->dv <= n->d);
}

bool d9di_attention_cudnn_supported(const d9di_attention_call *c)
{
    const d9d_attention_dims *n = &c->n;

    if (n->t != D9D_BF16 || !head_size_supported(c) || !n->causal || n->prefix != NULL ||
        n->softcap > 0.0f || !keys_supported(n) || (c->part && !d9di_attention_part_is_blocks(n)))
        return false;
    return !needs_whole_rows(c) || (n->segment == NULL && n->chunks == 0 && n->window == 0);
}

d9d_status d9di_attention_cudnn(d9d_stream s, const d9di_attention_call *c, bool *done)
{
    d9di_cudnn_attention *x;

    *done = false;
    if (!d9di_attention_cudnn_supported(c))
        return D9D_OK;
    D9D_TRY(cudnn_attention_get(s, &x));
    if (!x->loaded)
        return D9D_OK;
    if (c->n.segment != NULL)
        return packed_run(s, x, c, done);
    return needs_whole_rows(c) || c->part || d9di_attention_plan_fits(&c->n)
               ? rows_run(s, x, c, done)
               : rows_run_as_list(s, x, c, done);
}
#else
struct d9di_cudnn_attention {
    int none;
};

void d9di_cudnn_attention_free(d9di_cudnn_attention *x)
{
    (void)x;
}

bool d9di_attention_cudnn_supported(const d9di_attention_call *c)
{
    (void)c;
    return false;
}

d9d_status d9di_attention_cudnn(d9d_stream s, const d9di_attention_call *c, bool *done)
{
    (void)s, (void)c;
    *done = false;
    return D9D_OK;
}
#endif
