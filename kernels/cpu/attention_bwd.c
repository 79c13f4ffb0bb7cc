/* attention_bwd.c - softmax attention by blocks, backward.
 *
 * With P = exp(scale Q K' - lse) recomputed and delta = sum over features of dO O:
 *     dV = P' dO,  dP = dO V',  dS = scale P (dP - delta),  dQ = dS K,  dK = dS' Q.
 *
 * With a softcap c, score = c t with t = tanh(scale Q K' / c), and dS has the factor 1 - t^2.
 *
 * With dropout, M the matrix of its factors 0 and 1 / (1 - p): dV = (M P)' dO, dP = M (dO V').
 *
 * One thread has a key head of the segments that begin with the same key, and its query heads. So
 * sums over heads, segments and blocks have one order.
 */
#include "cpu/attention.h"
#include "cpu/math.h"

typedef struct attention_bwd_args {
    const d9d_attention_dims *n;
    void *dq, *dk, *dv;
    const void *dout, *q, *k, *v, *o;
    const float *lse;
} attention_bwd_args;

/* A thread's scratch. */
typedef struct attention_bwd_scratch {
    float *p, *dp;            /* a block of probabilities, of their gradients */
    float *q, *dq, *dout, *o; /* a block of queries */
    float *k, *v, *dk, *dv;   /* all keys of the segments' head that k and v have, */
    int64_t first;            /* of which the first has this number in its segment */
    float *gemm_scratch;      /* of d9di_sgemm() */
    float delta[D9DI_Q_BLOCK];
} attention_bwd_scratch;

static int64_t scratch_floats(const d9d_attention_dims *n, int64_t keys)
{
    return 2 * D9DI_Q_BLOCK * D9DI_K_BLOCK + D9DI_Q_BLOCK * (2 * n->d + 2 * n->dv) +
           2 * keys * (n->d + n->dv) + d9di_attention_gemm_scratch(n);
}

static void scratch_init(attention_bwd_scratch *w, float *p, const d9d_attention_dims *n,
                         int64_t keys)
{
    const int64_t score = D9DI_Q_BLOCK * D9DI_K_BLOCK;
    const struct {
        float **at;
        int64_t size;
    } parts[] = {{&w->p, score},
                 {&w->dp, score},
                 {&w->q, D9DI_Q_BLOCK * n->d},
                 {&w->dq, D9DI_Q_BLOCK * n->d},
                 {&w->dout, D9DI_Q_BLOCK * n->dv},
                 {&w->o, D9DI_Q_BLOCK * n->dv},
                 {&w->k, keys * n->d},
                 {&w->dk, keys * n->d},
                 {&w->v, keys * n->dv},
                 {&w->dv, keys * n->dv}};

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        *parts[i].at = p;
        p += parts[i].size;
    }
    w->gemm_scratch = p;
}

/* For query i of a tile: P from scores, and dS = scale P (dP - delta) in place of dP. */
D9DI_CLONES static void softmax_bwd_row(float *p, float *dp, float lse, float delta, float scale,
                                        int64_t n)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        p[j] = d9di_cpu_expf(p[j] - lse);
        dp[j] = scale * p[j] * (dp[j] - delta);
    }
}

/* The same with a softcap. */
D9DI_CLONES static void softmax_softcap_bwd_row(float *p, float *dp, float lse, float delta,
                                                float scale, float cap, int64_t n)
{
    const float by = 1.0f / cap;

#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float t = d9di_cpu_tanhf(by * p[j]);

        p[j] = d9di_cpu_expf(cap * t - lse);
        dp[j] = scale * p[j] * (dp[j] - delta) * (1.0f - t * t);
    }
}

static void row_dscore(const attention_bwd_args *g, const d9di_attention_tile *t, int64_t i,
                       float lse, attention_bwd_scratch *w)
{
    float *p = w->p + i * t->nk, *dp = w->dp + i * t->nk;
    const d9di_attention_key_range seen = d9di_attention_tile_visible(g->n, t, i);
    const size_t before = (size_t)seen.first * sizeof(float);
    const size_t behind = (size_t)(t->nk - seen.end) * sizeof(float);

    if (g->n->softcap > 0.0f)
        softmax_softcap_bwd_row(p + seen.first, dp + seen.first, lse, w->delta[i], g->n->scale,
                                g->n->softcap, seen.end - seen.first);
    else
        softmax_bwd_row(p + seen.first, dp + seen.first, lse, w->delta[i], g->n->scale,
                        seen.end - seen.first);
    memset(p, 0, before);
    memset(dp, 0, before);
    memset(p + seen.end, 0, behind);
    memset(dp + seen.end, 0, behind);
}

/* A block of queries, their lse, and the number of the first, counted over B and S. */
typedef struct query_block_rows {
    d9di_attention_rows q, dout;
    const float *lse;
    int64_t h, first;
} query_block_rows;

/* Backward of one tile: adds to dk, dv and to the block of dq. */
static void tile_bwd(const attention_bwd_args *g, const d9di_attention_tile *t,
                     const query_block_rows *b, attention_bwd_scratch *w)
{
    const d9di_attention_rows q = b->q, dout = b->dout;
    const int64_t d = g->n->d, dv = g->n->dv;
    const int64_t at = t->k - w->first;
    const float *k = w->k + at * d, *v = w->v + at * dv;

    d9di_sgemm(false, true, t->nq, t->nk, d, g->n->scale, q.x, q.ld, k, d, 0.0f, w->p, t->nk,
               w->gemm_scratch);
    d9di_sgemm(false, true, t->nq, t->nk, dv, 1.0f, dout.x, dout.ld, v, dv, 0.0f, w->dp, t->nk,
               w->gemm_scratch);
    for (int64_t i = 0; i < t->nq; i++) {
        d9di_attention_dropout(g->n, t, b->h, b->first + i, w->dp + i * t->nk);
        row_dscore(g, t, i, b->lse[i], w);
        d9di_attention_dropout(g->n, t, b->h, b->first + i, w->p + i * t->nk);
    }
    d9di_sgemm(true, false, t->nk, dv, t->nq, 1.0f, w->p, t->nk, dout.x, dout.ld, 1.0f,
               w->dv + at * dv, dv, w->gemm_scratch);
    d9di_sgemm(true, false, t->nk, d, t->nq, 1.0f, w->dp, t->nk, q.x, q.ld, 1.0f, w->dk + at * d, d,
               w->gemm_scratch);
    d9di_sgemm(false, false, t->nq, d, t->nk, 1.0f, w->dp, t->nk, k, d, 1.0f, w->dq, d,
               w->gemm_scratch);
}

/* Backward of queries [q0, q0 + nq) of a segment's query head h. */
static void query_block_bwd(const attention_bwd_args *g, const d9di_attention_segment *x, int64_t h,
                            int64_t q0, attention_bwd_scratch *w)
{
    const d9d_attention_dims *n = g->n;
    const int64_t d = n->d, dv = n->dv, row = x->q + q0;
    const int64_t nq = d9di_i64_min(x->nq - q0, D9DI_Q_BLOCK);
    const d9di_attention_tile all = d9di_attention_tile_make(n, x, q0, nq);
    const d9di_attention_rows o = d9di_attention_rows_load(n->t, g->o, row, nq, n->a, h, dv, w->o);
    const query_block_rows b = {
        .q = d9di_attention_rows_load(n->t, g->q, row, nq, n->a, h, d, w->q),
        .dout = d9di_attention_rows_load(n->t, g->dout, row, nq, n->a, h, dv, w->dout),
        .lse = g->lse + d9di_attention_lse_index(n, h, row),
        .h = h,
        .first = row};

    for (int64_t i = 0; i < nq; i++)
        w->delta[i] = d9di_cpu_row_dot(b.dout.x + i * b.dout.ld, o.x + i * o.ld, dv);
    memset(w->dq, 0, (size_t)(nq * d) * sizeof(float));
    for (int64_t k0 = all.k; k0 < all.k + all.nk; k0 += D9DI_K_BLOCK) {
        int64_t nk = d9di_i64_min(all.k + all.nk - k0, D9DI_K_BLOCK);
        d9di_attention_tile t = {.q = all.q, .nq = nq, .k = k0, .nk = nk, .prefix = all.prefix};

        tile_bwd(g, &t, &b, w);
    }
    for (int64_t i = 0; i < nq; i++)
        d9di_cpu_store(n->t, g->dq, ((row + i) * n->a + h) * d, d, w->dq + i * d);
}

/* Segments [i, end) that begin with the same key; the last of them has all the keys. */
typedef struct key_segments {
    int64_t i, end;
} key_segments;

static key_segments key_segments_at(const d9d_attention_dims *n, int64_t i)
{
    const int64_t k = d9di_attention_segment_at(n, i).k;
    int64_t end = i + 1;

    while (end < d9di_attention_n_segments(n) && d9di_attention_segment_at(n, end).k == k)
        end++;
    return (key_segments){i, end};
}

/* Backward of key head kh of some segments, and the query heads that read it. */
static void key_head_bwd(const attention_bwd_args *g, key_segments s, int64_t kh, float *scratch)
{
    const d9d_attention_dims *n = g->n;
    const d9di_attention_segment last = d9di_attention_segment_at(n, s.end - 1);
    const d9di_attention_key_range part =
        d9di_attention_segment_part(n, &last, d9di_attention_segment_keys(&last));
    const int64_t keys = part.end - part.first, at0 = d9di_attention_key_at(n, &last, part.first);
    const int64_t group = n->a / n->kv, d = n->d, dv = n->dv;
    attention_bwd_scratch w;

    scratch_init(&w, scratch, n, keys);
    w.first = part.first;
    memset(w.dk, 0, (size_t)(keys * d) * sizeof(float));
    memset(w.dv, 0, (size_t)(keys * dv) * sizeof(float));
    for (int64_t i = 0; i < keys; i++) {
        const int64_t at = (at0 + i) * n->kv + kh;

        d9di_cpu_load(n->t, w.k + i * d, g->k, at * d, d);
        d9di_cpu_load(n->t, w.v + i * dv, g->v, at * dv, dv);
    }
    for (int64_t h = kh * group; h < (kh + 1) * group; h++)
        for (int64_t i = s.i; i < s.end; i++) {
            const d9di_attention_segment x = d9di_attention_segment_at(n, i);

            for (int64_t q0 = 0; q0 < x.nq; q0 += D9DI_Q_BLOCK)
                query_block_bwd(g, &x, h, q0, &w);
        }
    for (int64_t i = 0; i < keys; i++) {
        const int64_t at = (at0 + i) * n->kv + kh;

        d9di_cpu_store(n->t, g->dk, at * d, d, w.dk + i * d);
        d9di_cpu_store(n->t, g->dv, at * dv, dv, w.dv + i * dv);
    }
}

/* Zeroes dK and dV of keys that no segment has, where there are more keys than queries. */
static void dkv_clear(const attention_bwd_args *g)
{
    const d9d_attention_dims *n = g->n;
    const int64_t keys = n->b * d9d_attention_array_keys(n);
    const size_t bytes = (size_t)(keys * n->kv) * d9d_dtype_size(n->t);

    if (n->s == n->z || bytes == 0)
        return;
    memset(g->dk, 0, bytes * (size_t)n->d);
    memset(g->dv, 0, bytes * (size_t)n->dv);
}

d9d_status d9d_ref_attention_bwd(d9d_stream s, const d9d_attention_dims *dims, void *dq, void *dk,
                                 void *dv, const void *dout, const void *q, const void *k,
                                 const void *v, const void *o, const float *lse)
{
    const d9d_attention_dims resolved = d9d_attention_dims_resolve(dims), *n = &resolved;
    const attention_bwd_args g = {.n = n,
                                  .dq = dq,
                                  .dk = dk,
                                  .dv = dv,
                                  .dout = dout,
                                  .q = q,
                                  .k = k,
                                  .v = v,
                                  .o = o,
                                  .lse = lse};
    int64_t floats, keys;
    float *scratch;

    (void)s;
    D9D_TRY(d9di_args_check_float("attention_bwd", n->t));
    dkv_clear(&g);
    if (n->b * n->s * n->a * n->d == 0)
        return D9D_OK;
    D9D_TRY(d9di_attention_check_segments("attention_bwd", n, &keys));
    floats = scratch_floats(n, keys);
    if ((scratch = d9di_cpu_scratch_alloc_threads("attention_bwd", floats)) == NULL)
        return D9D_ENOMEM;
#pragma omp parallel for schedule(dynamic) if (n->b * n->a * n->s * keys * n->d > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < d9di_attention_n_segments(n) * n->kv; i++) {
        const int64_t first = i / n->kv;

        if (first == 0 ||
            d9di_attention_segment_at(n, first - 1).k != d9di_attention_segment_at(n, first).k)
            key_head_bwd(&g, key_segments_at(n, first), i % n->kv,
                         d9di_cpu_scratch_of_thread(scratch, floats));
    }
    free(scratch);
    return D9D_OK;
}
