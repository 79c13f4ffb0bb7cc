/* attention.c - softmax attention by blocks, forward.
 *
 * A block of queries iterates over the blocks of keys with an online softmax: a running maximum m,
 * a running sum l of exp(score - m), and the unscaled output. They are rescaled when m grows
 * (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
 */
#include "cpu/attention.h"
#include "cpu/math.h"

/* Checks that segment i's queries follow those of the last, and that they and its keys lie in one
 * row. */
static d9d_status check_segment_rows(const char *op, const d9d_attention_dims *n, int64_t i,
                                     int64_t end)
{
    const d9di_attention_segment x = d9di_attention_segment_at(n, i);
    const int64_t row = x.nq > 0 ? x.q / n->s : d9di_i64_min(x.q / n->s, n->b - 1);
    const int64_t q_end = (row + 1) * n->s, k_first = row * n->z, k_end = k_first + n->z;
    const int64_t end_of_keys = x.k + d9di_attention_segment_keys(&x);

    if (x.q != end || x.nq < 0 || x.q + x.nq > q_end)
        return D9D_FAIL(D9D_EINVAL,
                        "%s: segment %lld has queries [%lld, %lld), must begin at %lld and end "
                        "within its row of %lld",
                        op, (long long)i, (long long)x.q, (long long)(x.q + x.nq), (long long)end,
                        (long long)n->s);
    if (x.k < k_first || x.nk < 0 || end_of_keys > k_end)
        return D9D_FAIL(D9D_EINVAL,
                        "%s: segment %lld has keys [%lld, %lld), in a row of [%lld, %lld)", op,
                        (long long)i, (long long)x.k, (long long)end_of_keys, (long long)k_first,
                        (long long)k_end);
    return D9D_OK;
}

/* Checks that segment i's keys fit its queries and the last segment's keys. */
static d9d_status check_segment_keys(const char *op, const d9d_attention_dims *n, int64_t i)
{
    const d9di_attention_segment x = d9di_attention_segment_at(n, i);
    const d9di_attention_segment last =
        i > 0 ? d9di_attention_segment_at(n, i - 1) : (d9di_attention_segment){0};
    const int64_t keys = d9di_attention_segment_keys(&x);
    const int64_t last_keys = d9di_attention_segment_keys(&last);
    const bool grows = x.k == last.k && keys >= last_keys, square = x.k == x.q && x.nk == x.nq;

    if ((n->s == n->z && !square) || x.nk < (n->causal || n->window > 0 ? x.nq : x.nq > 0))
        return D9D_FAIL(
            D9D_EINVAL,
            "%s: segment %lld has %lld queries from %lld on and %lld keys from %lld on, "
            "in rows of %lld and %lld",
            op, (long long)i, (long long)x.nq, (long long)x.q, (long long)x.nk, (long long)x.k,
            (long long)n->s, (long long)n->z);
    if (!grows && x.k < last.k + last_keys)
        return D9D_FAIL(D9D_EINVAL,
                        "%s: segment %lld has keys [%lld, %lld), must come after [%lld, %lld) of "
                        "the segment before",
                        op, (long long)i, (long long)x.k, (long long)(x.k + keys),
                        (long long)last.k, (long long)(last.k + last_keys));
    return D9D_OK;
}

/* Checks that segment i's prefix is one of a causal mask, and that of segments with its keys. */
static d9d_status check_segment_prefix(const char *op, const d9d_attention_dims *n, int64_t i)
{
    const d9di_attention_segment x = d9di_attention_segment_at(n, i);
    const d9di_attention_segment last =
        i > 0 ? d9di_attention_segment_at(n, i - 1) : (d9di_attention_segment){.k = -1};

    if (x.prefix < 0 || (x.prefix > 0 && !n->causal))
        return D9D_FAIL(D9D_EINVAL, "%s: segment %lld has a prefix of %lld keys, %s", op,
                        (long long)i, (long long)x.prefix,
                        n->causal ? "at least 0 are allowed" : "which needs a causal mask");
    if (x.k == last.k && last.nq > 0 && x.prefix != last.prefix)
        return D9D_FAIL(D9D_EINVAL,
                        "%s: segments %lld and %lld begin with key %lld and have prefixes of %lld "
                        "and %lld keys",
                        op, (long long)(i - 1), (long long)i, (long long)x.k,
                        (long long)last.prefix, (long long)x.prefix);
    return D9D_OK;
}

/* Checks that segment i lies in one chunk of a row, and shares keys only as the first of it. */
static d9d_status check_segment_chunk(const char *op, const d9d_attention_dims *n, int64_t i)
{
    const d9di_attention_segment x = d9di_attention_segment_at(n, i);
    const d9di_attention_segment last =
        i > 0 ? d9di_attention_segment_at(n, i - 1) : (d9di_attention_segment){.k = -1};
    const int64_t size = n->chunks > 0 ? n->s / n->chunks : 0, at = size > 0 ? x.q % size : 0;
    const bool longer = x.nk > x.nq, again = x.k == last.k && last.nq > 0;

    if (size > 0 && x.nq > 0 && (at + x.nq > size || (longer && at > 0) || (again && !longer)))
        return D9D_FAIL(D9D_EINVAL,
                        "%s: segment %lld has %lld queries from %lld on and %lld keys, which do "
                        "not fit a chunk of %lld",
                        op, (long long)i, (long long)x.nq, (long long)x.q, (long long)x.nk,
                        (long long)size);
    return D9D_OK;
}

/* Checks that k and v have keys of a row. */
static d9d_status check_part(const char *op, const d9d_attention_dims *n)
{
    const d9d_attention_key_part *x = &n->part;

    if (x->n == 0 || (x->n > 0 && x->first >= 0 && x->first <= n->z - x->n))
        return D9D_OK;
    return D9D_FAIL(D9D_EINVAL, "%s: keys [%lld, %lld) of a row of %lld", op, (long long)x->first,
                    (long long)(x->first + x->n), (long long)n->z);
}

d9d_status d9di_attention_check_segments(const char *op, const d9d_attention_dims *n,
                                         int64_t *max_keys)
{
    int64_t end = 0;

    *max_keys = 0;
    D9D_TRY(check_part(op, n));
    for (int64_t i = 0; i < d9di_attention_n_segments(n); i++) {
        const d9di_attention_segment x = d9di_attention_segment_at(n, i);

        D9D_TRY(check_segment_rows(op, n, i, end));
        D9D_TRY(check_segment_keys(op, n, i));
        D9D_TRY(check_segment_prefix(op, n, i));
        D9D_TRY(check_segment_chunk(op, n, i));
        end += x.nq;
        *max_keys = d9di_i64_max(
            *max_keys, d9di_i64_min(d9di_attention_segment_keys(&x), d9d_attention_array_keys(n)));
    }
    if (end != n->b * n->s)
        return D9D_FAIL(D9D_EINVAL, "%s: segments end at query %lld of %lld", op, (long long)end,
                        (long long)(n->b * n->s));
    return D9D_OK;
}

/* A thread's scratch. */
typedef struct attention_scratch {
    float *score, *out, *q, *k, *v; /* blocks; q, k, v if they are converted to float32 */
    float *gemm_scratch;            /* of d9di_sgemm() */
    float m[D9DI_Q_BLOCK], l[D9DI_Q_BLOCK];
} attention_scratch;

static int64_t scratch_floats(const d9d_attention_dims *n)
{
    return D9DI_Q_BLOCK * D9DI_K_BLOCK + (D9DI_Q_BLOCK + D9DI_K_BLOCK) * (n->d + n->dv) +
           d9di_attention_gemm_scratch(n);
}

static void scratch_init(attention_scratch *w, float *p, const d9d_attention_dims *n)
{
    w->score = p;
    w->out = w->score + D9DI_Q_BLOCK * D9DI_K_BLOCK;
    w->q = w->out + D9DI_Q_BLOCK * n->dv;
    w->k = w->q + D9DI_Q_BLOCK * n->d;
    w->v = w->k + D9DI_K_BLOCK * n->d;
    w->gemm_scratch = w->v + D9DI_K_BLOCK * n->dv;
    for (int i = 0; i < D9DI_Q_BLOCK; i++) {
        w->m[i] = -INFINITY;
        w->l[i] = 0.0f;
    }
}

/* Scores of query i become probabilities relative to the running maximum. */
static void row_online_softmax(const d9d_attention_dims *n, const d9di_attention_tile *t, int64_t i,
                               attention_scratch *w)
{
    const d9di_attention_key_range seen = d9di_attention_tile_visible(n, t, i);
    const int64_t count = seen.end - seen.first;
    float *row = w->score + i * t->nk, *p = row + seen.first, m, keep;

    d9di_cpu_row_softcap(p, n->softcap, p, count);
    m = d9di_cpu_row_max(p, count);
    m = w->m[i] > m ? w->m[i] : m;
    if (m == -INFINITY) { /* nothing visible yet, or only NaN, which the sum propagates */
        keep = 0.0f;
        for (int64_t j = 0; j < count; j++) {
            p[j] = p[j] == p[j] ? 0.0f : p[j];
            w->l[i] += p[j];
        }
    } else {
        keep = d9di_cpu_expf(w->m[i] - m);
        w->l[i] = w->l[i] * keep + d9di_cpu_row_exp(p, p, m, count);
        w->m[i] = m;
    }
    memset(row, 0, (size_t)seen.first * sizeof(*p));
    memset(row + seen.end, 0, (size_t)(t->nk - seen.end) * sizeof(*p));
    if (keep != 1.0f)
        d9di_cpu_row_scale(w->out + i * n->dv, keep, w->out + i * n->dv, n->dv);
}

/* A block of queries of a segment. */
typedef struct query_block {
    d9di_attention_segment of;
    int64_t q;
} query_block;

static void query_block_forward(const d9d_attention_dims *n, const query_block *x, int64_t h,
                                void *o, float *lse, const void *q, const void *k, const void *v,
                                float *scratch)
{
    const int64_t d = n->d, dv = n->dv, kh = h / (n->a / n->kv), first = x->of.q + x->q;
    const int64_t nq = d9di_i64_min(x->of.nq - x->q, D9DI_Q_BLOCK);
    const d9di_attention_tile all = d9di_attention_tile_make(n, &x->of, x->q, nq);
    attention_scratch w;
    d9di_attention_rows qr;

    scratch_init(&w, scratch, n);
    memset(w.out, 0, (size_t)(nq * dv) * sizeof(float));
    qr = d9di_attention_rows_load(n->t, q, first, nq, n->a, h, d, w.q);
    for (int64_t k0 = all.k; k0 < all.k + all.nk; k0 += D9DI_K_BLOCK) {
        int64_t nk = d9di_i64_min(all.k + all.nk - k0, D9DI_K_BLOCK);
        const int64_t at = d9di_attention_key_at(n, &x->of, k0);
        d9di_attention_tile t = {.q = all.q, .nq = nq, .k = k0, .nk = nk, .prefix = all.prefix};
        d9di_attention_rows kr =
            d9di_attention_cached_load(n->t, k, n->k_scale, at, nk, n->kv, kh, d, w.k);
        d9di_attention_rows vr =
            d9di_attention_cached_load(n->t, v, n->v_scale, at, nk, n->kv, kh, dv, w.v);

        d9di_sgemm(false, true, nq, nk, d, n->scale, qr.x, qr.ld, kr.x, kr.ld, 0.0f, w.score, nk,
                   w.gemm_scratch);
        for (int64_t i = 0; i < nq; i++) {
            row_online_softmax(n, &t, i, &w);
            d9di_attention_dropout(n, &t, h, first + i, w.score + i * nk);
        }
        d9di_sgemm(false, false, nq, dv, nk, 1.0f, w.score, nk, vr.x, vr.ld, 1.0f, w.out, dv,
                   w.gemm_scratch);
    }
    for (int64_t i = 0; i < nq; i++) {
        const float by = n->part.n > 0 && w.l[i] == 0.0f ? 0.0f : 1.0f / w.l[i];

        d9di_cpu_row_scale(w.out + i * dv, by, w.out + i * dv, dv);
        d9di_cpu_store(n->t, o, ((first + i) * n->a + h) * dv, dv, w.out + i * dv);
        lse[d9di_attention_lse_index(n, h, first + i)] = w.m[i] + logf(w.l[i]);
    }
}

/* The blocks of all segments. Late queries see more keys, so they start first. */
static int64_t query_blocks_list(const d9d_attention_dims *n, query_block *out)
{
    int64_t count = 0;

    for (int64_t i = 0; i < d9di_attention_n_segments(n); i++) {
        const d9di_attention_segment x = d9di_attention_segment_at(n, i);

        for (int64_t b = d9di_i64_ceil_div(x.nq, D9DI_Q_BLOCK); b > 0; b--)
            out[count++] = (query_block){x, (b - 1) * D9DI_Q_BLOCK};
    }
    return count;
}

d9d_status d9d_ref_attention(d9d_stream s, const d9d_attention_dims *dims, void *o, float *lse,
                             const void *q, const void *k, const void *v)
{
    const d9d_attention_dims resolved = d9d_attention_dims_resolve(dims), *n = &resolved;
    int64_t floats = scratch_floats(n), keys, max_blocks, count;
    float *scratch = NULL;
    query_block *blocks = NULL;
    d9d_status st;

    (void)s;
    D9D_TRY(d9di_args_check_float("attention", n->t));
    D9D_TRY(d9di_args_check_attention_cache("attention", n));
    if (n->b * n->s * n->a * n->d == 0)
        return D9D_OK;
    D9D_TRY(d9di_attention_check_segments("attention", n, &keys));
    max_blocks = d9di_attention_n_segments(n) + n->b * n->s / D9DI_Q_BLOCK;
    if ((blocks = malloc((size_t)max_blocks * sizeof(*blocks))) == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "attention: no memory for %lld blocks", (long long)max_blocks);
        goto out;
    }
    D9D_TRY_OR(
        st, (scratch = d9di_cpu_scratch_alloc_threads("attention", floats)) ? D9D_OK : D9D_ENOMEM,
        out);
    count = query_blocks_list(n, blocks);
#pragma omp parallel for schedule(dynamic) if (n->b * n->a * n->s * keys * n->d > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < count * n->a; i++)
        query_block_forward(n, &blocks[i / n->a], i % n->a, o, lse, q, k, v,
                            d9di_cpu_scratch_of_thread(scratch, floats));
out:
    free(scratch);
    free(blocks);
    return st;
}
