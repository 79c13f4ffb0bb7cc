/* attention_cudnn.c - attention by cuDNN: graphs that it knows as attention and runs as one
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
 * Deterministic: dS goes through scratch, 2 A S Z bytes a row, and dQ is one product.  Otherwise
 * dQ is added to by many blocks in no order, 6 to 14 % faster.  Scratch is bounded: what would
 * need more is done in pieces, of rows and then of key heads; an array of heads is entered in its
 * middle.
 *
 * Packed documents: a plan has room for so many documents of so many tokens, and reads on the GPU
 * where each begins and how long it is.  Deterministic, room for scores is room for all
 * documents at the longest, so that they are done by classes of length, halving.
 *
 * Pieces of rows, which ranks share.  A piece of a whole row sees the row's keys up to its own, a
 * number that the host knows: the mask's diagonal ends where both do.  Backward that is done in two
 * slices where there is no window: with the piece's own keys, and with all before them, which need
 * no mask; together they are a fifth faster.  Of packed documents, most in pieces are ones whose
 * keys lie elsewhere; the first of a piece may have more keys than queries.  Two pieces of a row
 * may see the same keys, and two slices have the same queries, and gradients are written: each has
 * its turn, and what all but the first give is added to what is there.
 *
 * Other rows with more keys than queries go to slower kernels.
 *
 * Heads of more than 128 features: gradients of documents, of pieces and under a window come out
 * wrong (cuDNN 9.19, some by their own size), so cuDNN has those of whole rows alone, each length
 * by a plan of its own.
 *
 * cuDNN takes what is written here and nothing like it: P and the full dV, dK must be bfloat16,
 * the sum of dQ a real float32 tensor, and the mask as d9di_graph_causal() and _window() have it.
 */
#include "cuda/attention/attention_simt.h"

#if __has_include(<cudnn.h>)
#include <math.h>
#include <stdlib.h>

#include "cuda/common/cudnn.h"
#include "d9d/base/mem.h"

extern __typeof__(*((d9d_kernels *)0)->accumulate) d9d_k_accumulate;

/* Of the tensors of a graph. */
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
    BEFORE,
    QUERIES,
    KEYS,
    ONE,
    SUM,
    DQ_SUM,
    DK_FULL,
    DV_FULL,
    LENGTH,
    LENGTH_K,
    AT_Q,
    AT_K,
    AT_V,
    AT_O,
    AT_LSE,
    IDS
};

/* Queries of a piece of a whole row: fewer are quick in any way; and of a prompt, which may be the
 * only one: fewer are there before a plan is. */
enum { LEAST_SLICE = 64, LEAST_PROMPT = 256 };

/* Of a head, which are a multiple of 8; and of one whose gradient is right however rows lie. */
enum { MOST_FEATURES = 256, MOST_PLACED = 128 };

/* What decides about a plan; no padding, since it is a key of bytes. */
typedef struct plan_key {
    int64_t b, s, z, d, a, kv; /* of the piece; packed: room for b documents of s queries, z keys */
    int64_t all_a, all_kv;     /* heads of the arrays, */
    int64_t row_s, row_z;      /* and their rows of queries and keys, where they are not packed */
    int64_t packed, backward, exact;
    int64_t longer; /* packed: documents have more keys than queries */
    int64_t open;   /* no mask */
    int64_t window;
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

/* A graph, and where documents lie; NULLs for whole rows. */
typedef struct drawing {
    d9di_graph *g;
    const plan_key *n;
    d9di_node4 length, length_k, at_q, at_k, at_v, at_o, at_lse;
} drawing;

static const d9di_node4 *if_packed(const drawing *w, const d9di_node4 *x)
{
    return w->n->packed ? x : NULL;
}

static void draw_documents(drawing *w)
{
    const d9di_shape4 one = {{w->n->b, 1, 1, 1}, {1, 1, 1, 1}};
    const d9di_shape4 bounds = {{w->n->b + 1, 1, 1, 1}, {1, 1, 1, 1}};
    const struct {
        d9di_node4 *x;
        int64_t id;
    } at[] = {{&w->at_q, AT_Q},
              {&w->at_k, AT_K},
              {&w->at_v, AT_V},
              {&w->at_o, AT_O},
              {&w->at_lse, AT_LSE}};

    if (!w->n->packed)
        return;
    w->length = w->length_k = d9di_graph_tensor(w->g, LENGTH, CUDNN_DATA_INT32, one, NULL);
    if (w->n->longer)
        w->length_k = d9di_graph_tensor(w->g, LENGTH_K, CUDNN_DATA_INT32, one, NULL);
    for (size_t i = 0; i < sizeof(at) / sizeof(*at); i++)
        *at[i].x = d9di_graph_tensor(w->g, at[i].id, CUDNN_DATA_INT64, bounds, NULL);
}

/* Heads of [B, cells, heads, D] as [B, heads, cells, D], or as [B, heads, D, cells]. */
static d9di_shape4 heads_of(const plan_key *n, int64_t cells, int64_t row, int64_t heads,
                            int64_t all)
{
    return (d9di_shape4){{n->b, heads, cells, n->d}, {row * all * n->d, n->d, all * n->d, 1}};
}
static d9di_shape4 queries_of(const plan_key *n)
{
    return heads_of(n, n->s, n->row_s, n->a, n->all_a);
}
static d9di_shape4 keys_of(const plan_key *n)
{
    return heads_of(n, n->z, n->row_z, n->kv, n->all_kv);
}
static d9di_shape4 turned(d9di_shape4 x)
{
    return (d9di_shape4){{x.dim[0], x.dim[1], x.dim[3], x.dim[2]},
                         {x.stride[0], x.stride[1], x.stride[3], x.stride[2]}};
}

static d9di_node4 array(drawing *w, int64_t id, d9di_shape4 shape, const d9di_node4 *at)
{
    return d9di_graph_tensor(w->g, id, CUDNN_DATA_BFLOAT16, shape, if_packed(w, at));
}

/* A float32 a row: [B, heads, S], packed [T, heads]. */
static d9di_node4 row_numbers(drawing *w, int64_t id, int64_t all, int64_t row)
{
    const plan_key *n = w->n;
    const d9di_shape4 rows = {{n->b, n->a, n->s, 1}, {all * row, row, 1, 1}};
    const d9di_shape4 packed = {{n->b, n->a, n->s, 1}, {n->all_a * n->s, 1, n->all_a, 1}};

    return d9di_graph_tensor(w->g, id, CUDNN_DATA_FLOAT, n->packed ? packed : rows,
                             if_packed(w, &w->at_lse));
}

/* C = A B: of queries by keys, of queries summed over keys, of keys summed over queries. */
typedef enum product { SCORES, OVER_KEYS, OVER_QUERIES, PRODUCTS } product;

static void multiply(drawing *w, const d9di_node4 *a, const d9di_node4 *b, const d9di_node4 *c,
                     product what)
{
    const d9di_node4 *q = if_packed(w, &w->length), *k = if_packed(w, &w->length_k);
    const d9di_extent extent[PRODUCTS] = {[SCORES] = {.m = q, .n = k},
                                          [OVER_KEYS] = {.m = q, .k = k},
                                          [OVER_QUERIES] = {.m = k, .k = q}};

    d9di_graph_multiply(w->g, a, b, c, extent[what]);
}

/* scale Q K' */
static d9di_node4 scores(drawing *w, const d9di_node4 *q, const d9di_node4 *k,
                         const d9di_node4 *scale)
{
    const plan_key *n = w->n;
    d9di_node4 x =
        d9di_graph_virtual(w->g, CUDNN_DATA_FLOAT, d9di_shape4_dense(n->b, n->a, n->s, n->z));

    multiply(w, q, k, &x, SCORES);
    return d9di_graph_apply(w->g, CUDNN_POINTWISE_MUL, &x, scale);
}

/* A row with other than its own keys, whose number the host knows? */
static bool is_shifted(const plan_key *n)
{
    return !n->packed && !n->open && n->s != n->z;
}

/* What the mask and the window hide is -infinity. */
static d9di_node4 masked(drawing *w, const d9di_node4 *x)
{
    const d9di_extent lengths =
        w->n->longer ? (d9di_extent){.m = &w->length, .n = &w->length_k} : (d9di_extent){0};
    d9di_node4 hidden, queries, keys, y, window, before;

    if (w->n->open)
        return *x;
    hidden = d9di_graph_value(w->g, HIDDEN);
    if (is_shifted(w->n)) {
        queries = d9di_graph_count(w->g, QUERIES);
        keys = d9di_graph_count(w->g, KEYS);
        y = d9di_graph_causal(w->g, x, &hidden, (d9di_extent){.m = &queries, .n = &keys});
    } else {
        y = d9di_graph_causal(w->g, x, &hidden, lengths);
    }
    if (w->n->window == 0)
        return y;
    window = d9di_graph_value(w->g, WINDOW);
    before = d9di_graph_value(w->g, BEFORE);
    return d9di_graph_window(w->g, &y, &window, &before, lengths);
}

static void forward_graph(drawing *w)
{
    const plan_key *n = w->n;
    d9di_graph *g = w->g;
    const d9di_shape4 queries = queries_of(n), keys = keys_of(n);
    d9di_node4 q = array(w, Q, queries, &w->at_q), k = array(w, K, turned(keys), &w->at_k);
    d9di_node4 v = array(w, V, keys, &w->at_v), o = array(w, O, queries, &w->at_o);
    d9di_node4 lse = row_numbers(w, LSE, n->all_a, n->row_s), scale = d9di_graph_value(g, SCALE);
    d9di_node4 x = scores(w, &q, &k, &scale), most, sum, log, p;

    x = masked(w, &x);
    most = d9di_graph_reduce_row(g, CUDNN_REDUCE_TENSOR_MAX, &x);
    x = d9di_graph_apply(g, CUDNN_POINTWISE_SUB, &x, &most);
    x = d9di_graph_apply(g, CUDNN_POINTWISE_EXP, &x, NULL);
    sum = d9di_graph_reduce_row(g, CUDNN_REDUCE_TENSOR_ADD, &x);
    log = d9di_graph_apply(g, CUDNN_POINTWISE_LOG, &sum, NULL);
    d9di_graph_apply_to(g, CUDNN_POINTWISE_ADD, &most, &log, &lse);
    p = d9di_graph_virtual(g, CUDNN_DATA_BFLOAT16, x.shape);
    d9di_graph_apply_to(g, CUDNN_POINTWISE_DIV, &x, &sum, &p);
    multiply(w, &p, &v, &o, OVER_KEYS);
}

/* dX = W' Y, added over the query heads of a group.  Packed, the full one must be in memory. */
static void group_product(drawing *w, const d9di_node4 *x, const d9di_node4 *y,
                          const d9di_node4 *dx, int64_t id, const d9di_node4 *at)
{
    const plan_key *n = w->n;
    const int64_t group = n->a / n->kv;
    d9di_node4 t = d9di_graph_transpose(w->g, x, NULL), full;
    d9di_shape4 shape = d9di_shape4_dense(n->b, n->a, n->z, n->d);

    if (group == 1) {
        multiply(w, &t, y, dx, OVER_QUERIES);
        return;
    }
    if (n->packed) {
        shape = heads_of(n, n->z, n->z, n->a, n->all_kv * group);
        full = array(w, id, shape, at);
    } else {
        full = d9di_graph_virtual(w->g, CUDNN_DATA_BFLOAT16, shape);
    }
    multiply(w, &t, y, &full, OVER_QUERIES);
    d9di_graph_reduce_to(w->g, CUDNN_REDUCE_TENSOR_ADD, &full, dx);
}

/* dQ = dS K */
static void query_product(drawing *w, const d9di_node4 *ds, const d9di_node4 *k,
                          const d9di_node4 *dq)
{
    const plan_key *n = w->n;
    d9di_node4 t = d9di_graph_transpose(w->g, k, if_packed(w, &w->at_k)), sum;

    if (n->exact) {
        multiply(w, ds, &t, dq, OVER_KEYS);
        return;
    }
    sum = d9di_graph_tensor(w->g, DQ_SUM, CUDNN_DATA_FLOAT,
                            n->packed ? dq->shape : d9di_shape4_dense(n->b, n->a, n->s, n->d),
                            if_packed(w, &w->at_q));
    multiply(w, ds, &t, &sum, OVER_KEYS);
    d9di_graph_apply_to(w->g, CUDNN_POINTWISE_IDENTITY, &sum, NULL, dq);
}

/* sum = rows of dO O */
static d9di_node4 output_product(drawing *w, const d9di_node4 *dout, const d9di_node4 *o)
{
    const plan_key *n = w->n;
    d9di_node4 sum = row_numbers(w, SUM, n->a, n->s), one = d9di_graph_value(w->g, ONE);
    d9di_node4 x =
        d9di_graph_virtual(w->g, CUDNN_DATA_FLOAT, d9di_shape4_dense(n->b, n->a, n->s, n->d));

    d9di_graph_apply_to(w->g, CUDNN_POINTWISE_MUL, dout, o, &x);
    x = d9di_graph_reduce_row(w->g, CUDNN_REDUCE_TENSOR_ADD, &x);
    d9di_graph_apply_to(w->g, CUDNN_POINTWISE_MUL, &x, &one, &sum);
    return sum;
}

static void backward_graph(drawing *w)
{
    const plan_key *n = w->n;
    d9di_graph *g = w->g;
    const d9di_shape4 queries = queries_of(n), keys = keys_of(n);
    d9di_node4 q = array(w, Q, queries, &w->at_q), k = array(w, K, turned(keys), &w->at_k);
    d9di_node4 v = array(w, V, turned(keys), &w->at_v), o = array(w, O, queries, &w->at_o);
    d9di_node4 dout = array(w, DOUT, queries, &w->at_o), dq = array(w, DQ, queries, &w->at_q);
    d9di_node4 dk = array(w, DK, keys, &w->at_k), dv = array(w, DV, keys, &w->at_v);
    d9di_node4 lse = row_numbers(w, LSE, n->all_a, n->row_s), scale = d9di_graph_value(g, SCALE);
    d9di_node4 sum = output_product(w, &dout, &o), p = scores(w, &q, &k, &scale), ds;

    p = d9di_graph_apply(g, CUDNN_POINTWISE_SUB, &p, &lse);
    p = masked(w, &p);
    p = d9di_graph_apply(g, CUDNN_POINTWISE_EXP, &p, NULL);
    group_product(w, &p, &dout, &dv, DV_FULL, &w->at_v);
    ds = d9di_graph_virtual(g, CUDNN_DATA_FLOAT, p.shape);
    multiply(w, &dout, &v, &ds, SCORES);
    ds = d9di_graph_apply(g, CUDNN_POINTWISE_SUB, &ds, &sum);
    ds = d9di_graph_apply(g, CUDNN_POINTWISE_MUL, &ds, &p);
    ds = d9di_graph_apply(g, CUDNN_POINTWISE_MUL, &ds, &scale);
    group_product(w, &ds, &q, &dk, DK_FULL, &w->at_k);
    query_product(w, &ds, &k, &dq);
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
    drawing w;
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
    w = (drawing){.g = &p->graph, .n = key};
    draw_documents(&w);
    (key->backward ? backward_graph : forward_graph)(&w);
    if (d9di_graph_plan(&p->graph, op) != D9D_OK)
        d9di_say(s, D9D_LOG_WARN,
                 "%s; %lld x %lld tokens of %lld and %lld heads of %lld go to slower kernels",
                 d9d_err_message(), (long long)key->b, (long long)key->s, (long long)key->all_a,
                 (long long)key->all_kv, (long long)key->d);
    *out = p;
    return D9D_OK;
}

/* --- calls ------------------------------------------------------------------------------------ */

static plan_key key_of(d9d_stream s, const d9di_attention *c)
{
    const d9d_attention_dims *n = &c->n;
    const bool backward = c->dout != NULL;

    return (plan_key){.b = n->b,
                      .s = n->s,
                      .z = n->z,
                      .d = n->d,
                      .a = n->a,
                      .kv = n->kv,
                      .all_a = n->a,
                      .all_kv = n->kv,
                      .row_s = n->s,
                      .row_z = n->z,
                      .packed = n->segment != NULL,
                      .backward = backward,
                      .exact = backward && !s->options.inexact,
                      .window = n->window};
}

/* The largest divisor of n that is at most `most`, and 1 at least. */
static int64_t divisor(int64_t n, int64_t most)
{
    int64_t d = d9di_max(1, d9di_min(n, most));

    while (n % d != 0)
        d--;
    return d;
}

/* Cut to a piece whose scores fit: rows, which documents that may lie in one are not cut to, then
 * key heads. */
static void cut(d9d_stream s, plan_key *key)
{
    const int64_t most = d9di_attention_scratch(s);
    const int64_t group = key->a / key->kv, head = 2 * group * key->s * key->z;

    if (!key->exact)
        return;
    if (!key->packed || key->longer)
        key->b = divisor(key->b, most / head / key->kv);
    key->kv = divisor(key->kv, most / head / key->b);
    key->a = key->kv * group;
}

/* What the graphs want in memory besides the call's arrays. */
typedef struct extras {
    float *lse; /* packed: [T, heads] */
    float *sum, *dq_sum;
    void *dk_full, *dv_full;
    void *dk, *dv; /* where keys have gradients already: what is added to those */
    void *dq;      /* of a second slice, with other keys */
} extras;

/* Are pieces of rows done in two slices? */
static bool has_slices(const d9di_attention *c)
{
    return c->dout != NULL && c->n.segment == NULL && c->n.pieces > 0 && c->n.window == 0;
}

static extras extras_take(const d9di_attention *c, const plan_key *key, d9di_room *r)
{
    const d9d_attention_dims *n = &c->n;
    const int64_t rows = d9di_round_up(n->b * n->s, 64) * n->a;
    const int64_t cells = d9di_round_up(n->b * n->z, 64) * n->d;
    extras x = {0};

    if (key->packed)
        x.lse = d9di_room_take(r, rows * 4);
    if (key->backward)
        x.sum = d9di_room_take(r, rows * 4);
    if (key->backward && !key->exact)
        x.dq_sum = d9di_room_take(r, rows * n->d * 4);
    if (key->backward && key->packed && n->a != n->kv) {
        x.dk_full = d9di_room_take(r, cells * n->a * 2);
        x.dv_full = d9di_room_take(r, cells * n->a * 2);
    }
    if (key->backward && n->s != n->z && n->pieces > 1) {
        x.dk = d9di_room_take(r, cells * n->kv * 2);
        x.dv = d9di_room_take(r, cells * n->kv * 2);
    }
    if (has_slices(c))
        x.dq = d9di_room_take(r, rows * n->d * 2);
    return x;
}

static void *shifted(const void *p, int64_t bytes)
{
    return (void *)((uintptr_t)p + (uintptr_t)bytes);
}

/* Where a piece lies: rows from b on, key heads from kv on, of a row queries from q and keys from k
 * on; and where its documents do, if it is packed.  `more`: keys may have gradients of pieces
 * before it; `second`: queries have been with other keys. */
typedef struct spot {
    int64_t b, kv, q, k;
    bool more, second;
    d9di_places at;
} spot;

static d9d_status run_piece(d9d_stream s, const d9di_attention *c, const plan_key *key,
                            const plan *p, const spot *here, const extras *x)
{
    const d9di_places *at = &here->at;
    const int64_t h = here->kv * (key->all_a / key->all_kv);
    const int64_t first_q = here->b * key->row_s + here->q,
                  first_k = here->b * key->row_z + here->k;
    const int64_t q = (first_q * key->all_a + h) * key->d * 2;
    const int64_t k = (first_k * key->all_kv + here->kv) * key->d * 2;
    const int64_t lse = ((here->b * key->all_a + h) * key->row_s + here->q) * 4;
    const bool back = key->backward, packed = key->packed, full = packed && key->a != key->kv;
    const bool shift = is_shifted(key), more = here->more;
    int32_t queries = (int32_t)key->s, keys = (int32_t)key->z;
    float scale = c->n.scale, hidden = -INFINITY, one = 1.0f;
    float window = (float)(key->window - (shift ? key->z - key->s : 0));
    const struct {
        int64_t id;
        void *at;
        bool used;
    } all[] = {
        {Q, shifted(c->q, q), true},
        {K, shifted(c->k, k), true},
        {V, shifted(c->v, k), true},
        {O, shifted(c->o, q), true},
        {LSE, packed ? shifted(x->lse, h * 4) : shifted(c->lse, lse), true},
        {SCALE, &scale, true},
        {HIDDEN, &hidden, !key->open},
        {WINDOW, &window, key->window > 0},
        {BEFORE, &hidden, key->window > 0},
        {QUERIES, &queries, shift},
        {KEYS, &keys, shift},
        {ONE, &one, back},
        {DOUT, shifted(c->dout, q), back},
        {DQ, shifted(here->second ? x->dq : c->dq, q), back},
        {DK, shifted(more ? x->dk : c->dk, k), back},
        {DV, shifted(more ? x->dv : c->dv, k), back},
        {SUM, x->sum, back},
        {DQ_SUM, x->dq_sum, back && !key->exact},
        {DK_FULL, x->dk_full, back && full},
        {DV_FULL, x->dv_full, back && full},
        {LENGTH, at->length, packed},
        {LENGTH_K, at->length_k, key->longer != 0},
        {AT_Q, at->at_q, packed},
        {AT_K, at->at_k, packed},
        {AT_V, at->at_k, packed},
        {AT_O, at->at_q, packed},
        {AT_LSE, at->at_lse, packed},
    };
    int64_t id[IDS];
    void *where[IDS];
    int n = 0;

    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        if (all[i].used) {
            id[n] = all[i].id;
            where[n++] = all[i].at;
        }
    return d9di_graph_run(&p->graph, c->op, s, id, where, n);
}

/* Queries of every row, and keys: from q and k on. */
typedef struct slice {
    plan_key key;
    plan *plan;
    int64_t q, k;
    bool more, second;
} slice;

enum { MOST_SLICES = 2 * D9D_PIECES };

static slice *slice_add(d9d_stream s, const d9di_attention *c, slice *x, int64_t q, int64_t k,
                        int64_t n, int64_t keys)
{
    *x = (slice){.key = key_of(s, c), .q = q, .k = k};
    x->key.s = n;
    x->key.z = keys;
    cut(s, &x->key);
    return x + 1;
}

/* The last piece sees the most keys, and goes first. */
static int slices_of(d9d_stream s, const d9di_attention *c, slice *out)
{
    const d9d_attention_dims *n = &c->n;
    const int64_t pieces = d9di_max(1, n->pieces), size = n->s / pieces;
    slice *x = out;

    for (int64_t i = pieces - 1; i >= 0; i--) {
        const int64_t end = n->pieces > 0 ? n->end[i] : n->z;
        const int64_t own = has_slices(c) ? end - size : 0;
        slice *const first = x;

        x = slice_add(s, c, x, i * size, own, size, end - own);
        if (own > 0) {
            x = slice_add(s, c, x, i * size, 0, size, own);
            x[-1].second = true;
            x[-1].key.open = 1;
        }
        for (slice *y = first; y < x; y++)
            y->more = i + 1 < pieces;
    }
    return (int)(x - out);
}

/* y += x, cells [from, from + n) of each row of `row`, of `heads` heads. */
static d9d_status add_cells(d9d_stream s, const d9di_attention *c, void *y, const void *x,
                            int64_t row, int64_t from, int64_t n, int64_t heads)
{
    const int64_t cell = heads * c->n.d;

    for (int64_t b = 0; b < c->n.b; b++) {
        const int64_t at = (b * row + from) * cell * 2;

        D9D_TRY(d9d_k_accumulate(s, D9D_BF16, shifted(y, at), 1.0f, D9D_BF16, shifted(x, at),
                                 n * cell));
    }
    return D9D_OK;
}

/* What a slice gives beside others. */
static d9d_status add_slice(d9d_stream s, const d9di_attention *c, const slice *of, const extras *x)
{
    const d9d_attention_dims *n = &c->n;

    if (of->second)
        D9D_TRY(add_cells(s, c, c->dq, x->dq, n->s, of->q, of->key.s, n->a));
    if (!of->more)
        return D9D_OK;
    D9D_TRY(add_cells(s, c, c->dk, x->dk, n->z, of->k, of->key.z, n->kv));
    return add_cells(s, c, c->dv, x->dv, n->z, of->k, of->key.z, n->kv);
}

static d9d_status run_slice(d9d_stream s, const d9di_attention *c, const slice *of, const extras *x)
{
    spot i = {.q = of->q, .k = of->k, .more = of->more, .second = of->second};

    for (i.b = 0; i.b < c->n.b; i.b += of->key.b)
        for (i.kv = 0; i.kv < c->n.kv; i.kv += of->key.kv)
            D9D_TRY(run_piece(s, c, &of->key, of->plan, &i, x));
    return of->key.backward ? add_slice(s, c, of, x) : D9D_OK;
}

static d9d_status run_rows(d9d_stream s, d9di_sdpa *x, const d9di_attention *c, bool *done)
{
    slice of[MOST_SLICES];
    const int n = slices_of(s, c, of);
    d9di_room r = {0};
    extras extra;
    void *scratch;
    d9d_status st = D9D_OK;

    for (int i = 0; i < n; i++) {
        D9D_TRY(plan_find(s, x, c->op, &of[i].key, &of[i].plan));
        if (of[i].plan->graph.plan == NULL)
            return D9D_OK;
    }
    *done = true;
    (void)extras_take(c, &of[0].key, &r);
    D9D_TRY(d9di_take(s, r.used, &scratch));
    extra = extras_take(c, &of[0].key, &(d9di_room){.at = scratch});
    for (int i = 0; i < n && st == D9D_OK; i++)
        st = run_slice(s, c, &of[i], &extra);
    d9di_give(s, scratch, r.used);
    return st;
}

/* --- packed documents, and pieces of them ------------------------------------------------------
 */

enum { MOST_CLASSES = 32 };

static int64_t power_of_two(int64_t least, int64_t n)
{
    while (least < n)
        least *= 2;
    return least;
}

/* Documents that one plan is for. */
typedef struct class
{
    plan_key key;
    plan *plan;
    d9di_documents docs; /* its rows and positions at a time */
} class;

/* As many keys as queries: all lengths at once unless the plan needs room for scores. */
static int classes_square(d9d_stream s, const d9di_attention *c, class *out)
{
    const d9d_attention_dims *x = &c->n;
    const int64_t piece = d9di_piece_of(x);
    const bool whole = x->segments == x->b * x->s / piece; /* each is a piece */
    const plan_key key = key_of(s, c);
    int64_t longest = whole ? d9di_plan_length(piece) : power_of_two(D9DI_PLAN_SHORTEST, piece);
    int n = 0;

    for (;; longest /= 2, n++) {
        const bool last = !key.exact || whole || longest == D9DI_PLAN_SHORTEST;
        const int64_t shortest = last ? 1 : longest / 2 + 1;

        out[n] = (class){.key = key};
        out[n].key.s = out[n].key.z = out[n].key.row_s = out[n].key.row_z = longest;
        out[n].key.b = whole  ? x->segments
                       : last ? power_of_two(16, x->segments)
                              : d9di_round_up(x->b * x->s / shortest, 8);
        out[n].docs = (d9di_documents){.shortest = shortest,
                                       .longest = longest,
                                       .rows = x->b,
                                       .positions = x->s,
                                       .room = out[n].key.b};
        cut(s, &out[n].key);
        if (last)
            return n + 1;
    }
}

/* More keys than queries: one at most in a piece of a row, and each piece has its turn. */
static class class_longer(d9d_stream s, const d9di_attention *c)
{
    const d9d_attention_dims *x = &c->n;
    const int64_t piece = d9di_piece_of(x);
    class k = {.key = key_of(s, c)};

    k.key.longer = 1;
    k.key.s = k.key.row_s = d9di_plan_length(piece);
    k.key.z = k.key.row_z = d9di_plan_length(x->z);
    cut(s, &k.key);
    k.docs = (d9di_documents){.longer = true,
                              .shortest = 1,
                              .longest = piece,
                              .room = k.key.b,
                              .rows = k.key.b,
                              .positions = piece};
    return k;
}

static int classes_of(d9d_stream s, const d9di_attention *c, class *out)
{
    const int n = classes_square(s, c, out);

    if (c->n.s == c->n.z)
        return n;
    out[n] = class_longer(s, c);
    return n + 1;
}

static d9di_places places_take(int64_t most, d9di_room *r)
{
    d9di_places x = {0};

    x.length = d9di_room_take(r, most * 4);
    x.length_k = d9di_room_take(r, most * 4);
    x.at_q = d9di_room_take(r, (most + 1) * 8);
    x.at_k = d9di_room_take(r, (most + 1) * 8);
    x.at_lse = d9di_room_take(r, (most + 1) * 8);
    return x;
}

/* Those that `docs` says. */
static d9d_status run_documents(d9d_stream s, const d9di_attention *c, const class *k,
                                const extras *x, const d9di_documents *docs)
{
    spot i = {.more = docs->from > 0, .at = docs->at};

    D9D_TRY(d9di_documents_find(s, c, docs));
    for (; i.kv < c->n.kv; i.kv += k->key.kv)
        D9D_TRY(run_piece(s, c, &k->key, k->plan, &i, x));
    return k->key.backward && docs->from > 0 ? d9di_documents_add(s, c, docs, x->dk, x->dv)
                                             : D9D_OK;
}

static d9d_status run_class(d9d_stream s, const d9di_attention *c, const class *k, const extras *x,
                            const d9di_places *at)
{
    d9di_documents docs = k->docs;

    docs.at = *at;
    for (docs.from = 0; docs.from < c->n.s; docs.from += docs.positions)
        for (docs.row = 0; docs.row < c->n.b; docs.row += docs.rows)
            D9D_TRY(run_documents(s, c, k, x, &docs));
    return D9D_OK;
}

static d9d_status run_classes(d9d_stream s, const d9di_attention *c, const class *k, int n,
                              const extras *x, const d9di_places *at)
{
    if (k->key.backward)
        D9D_TRY(d9di_lse_turn(s, c, x->lse, true));
    for (int i = 0; i < n; i++)
        D9D_TRY(run_class(s, c, &k[i], x, at));
    return k->key.backward ? D9D_OK : d9di_lse_turn(s, c, x->lse, false);
}

static d9d_status run_packed(d9d_stream s, d9di_sdpa *x, const d9di_attention *c, bool *done)
{
    class k[MOST_CLASSES];
    const int n = classes_of(s, c, k);
    int64_t most = 0;
    d9di_places at;
    extras extra;
    d9di_room r = {0};
    void *scratch;
    d9d_status st;

    for (int i = 0; i < n; i++) {
        D9D_TRY(plan_find(s, x, c->op, &k[i].key, &k[i].plan));
        if (k[i].plan->graph.plan == NULL)
            return D9D_OK;
        most = d9di_max(most, k[i].key.b);
    }
    *done = true;
    (void)places_take(most, &r);
    (void)extras_take(c, &k->key, &r);
    D9D_TRY(d9di_take(s, r.used, &scratch));
    r = (d9di_room){.at = scratch};
    at = places_take(most, &r);
    extra = extras_take(c, &k->key, &r);
    st = run_classes(s, c, k, n, &extra, &at);
    d9di_give(s, scratch, r.used);
    return st;
}

/* Whole rows, or known pieces of them, as a list of segments. */
static d9d_status run_listed(d9d_stream s, d9di_sdpa *x, const d9di_attention *c, bool *done)
{
    const int64_t pieces = d9di_max(1, c->n.pieces);
    const int64_t bytes = c->n.b * pieces * (int64_t)sizeof(d9d_segment);
    d9di_attention listed = *c;
    void *list;
    d9d_status st;

    D9D_TRY(d9di_take(s, bytes, &list));
    listed.n.segments = c->n.b * pieces;
    listed.n.segment = list;
    st = d9di_documents_list(s, c, list);
    if (st == D9D_OK)
        st = run_packed(s, x, &listed, done);
    d9di_give(s, list, bytes);
    return st;
}

/* What it takes besides sizes: rows with their keys, or known pieces of them. */
static bool has_keys(const d9d_attention_dims *n)
{
    if (n->pieces == 0)
        return n->s == n->z;
    if (n->cached)
        return n->s >= LEAST_PROMPT;
    return n->s % n->pieces == 0 && (n->segment != NULL || n->s / n->pieces >= LEAST_SLICE);
}

/* A gradient that is right for whole rows alone? */
static bool is_whole_only(const d9di_attention *c)
{
    return c->dout != NULL && c->n.d > MOST_PLACED;
}

static bool takes(const d9di_attention *c)
{
    const d9d_attention_dims *n = &c->n;

    if (n->t != D9D_BF16 || n->d % 8 != 0 || n->d > MOST_FEATURES || !n->causal || !has_keys(n))
        return false;
    return !is_whole_only(c) || (n->segment == NULL && n->pieces == 0 && n->window == 0);
}

d9d_status d9di_attention_cudnn(d9d_stream s, const d9di_attention *c, bool *done)
{
    d9di_sdpa *x;

    *done = false;
    if (!takes(c))
        return D9D_OK;
    D9D_TRY(sdpa_of(s, &x));
    if (!x->loaded)
        return D9D_OK;
    if (c->n.segment != NULL)
        return run_packed(s, x, c, done);
    return is_whole_only(c) || d9di_plan_is_for(&c->n) ? run_rows(s, x, c, done)
                                                       : run_listed(s, x, c, done);
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
