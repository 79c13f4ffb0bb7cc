/* cpu_route.c - which expert: softmax and top-k of the router, and the permuted order. */
#include "cpu_common.h"

enum { ROWS = 64 }; /* handed to a thread at once */

/* The index after (value, index) `last` in falling order of key, ties to the lower index; a NaN
 * key counts as -inf, so there is always one while fewer than n were taken. */
static int32_t next_best(const float *key, int64_t n, float last_key, int32_t last)
{
    int32_t best = -1;
    float best_key = 0.0f;

    for (int32_t i = 0; i < n; i++) {
        float v = key[i] == key[i] ? key[i] : -INFINITY;

        if (last >= 0 && (v > last_key || (v == last_key && i <= last)))
            continue;
        if (best < 0 || v > best_key) {
            best = i;
            best_key = v;
        }
    }
    return best;
}

static void top_k(const float *key, int64_t n, int32_t *out, int64_t k)
{
    int32_t last = -1;
    float last_key = 0.0f;

    for (int64_t j = 0; j < k; j++) {
        last = next_best(key, n, last_key, last);
        last_key = key[last] == key[last] ? key[last] : -INFINITY;
        out[j] = last;
    }
}

/* Softmax of one row in place. */
static void softmax(float *p, int64_t n)
{
    float sum = d9di_row_exp(p, p, d9di_row_max(p, n), n);

    d9di_row_scale(p, 1.0f / sum, p, n);
}

/* prob = p of the chosen, divided by their sum + 1e-20 when renormalised. */
static void gather(float *prob, const float *p, const int32_t *expert, int64_t k, bool renormalise)
{
    float sum = 0.0f;

    for (int64_t j = 0; j < k; j++) {
        prob[j] = p[expert[j]];
        sum += prob[j];
    }
    for (int64_t j = 0; j < k && renormalise; j++)
        prob[j] /= sum + 1e-20f;
}

d9d_status d9d_ref_router(d9d_stream s, d9d_dtype t, float *p, float *prob, int32_t *expert,
                          const void *logits, const float *bias, int64_t rows, int64_t e, int64_t k,
                          bool renormalise)
{
    float *scratch;

    (void)s;
    D9D_TRY(d9di_check_float("router", t));
    if (k > e)
        return D9D_FAIL(D9D_EINVAL, "router: %lld experts a token, but there are %lld",
                        (long long)k, (long long)e);
    if ((scratch = d9di_scratch_threads("router", e)) == NULL)
        return D9D_ENOMEM;
#pragma omp parallel for schedule(static, ROWS) if (rows * e > D9DI_SERIAL)
    for (int64_t r = 0; r < rows; r++) {
        float *row = p + r * e, *key = d9di_mine(scratch, e);

        d9di_load(t, row, logits, r * e, e);
        softmax(row, e);
        memcpy(key, row, (size_t)e * sizeof(*key));
        if (bias != NULL)
            d9di_row_axpy(key, 1.0f, bias, e);
        top_k(key, e, expert + r * k, k);
        gather(prob + r * k, row, expert + r * k, k, renormalise);
    }
    free(scratch);
    return D9D_OK;
}

/* dp from the gradient of the chosen: with S = sum + 1e-20 and q = p / S,
 * dp_j = (dprob_j - sum_i dprob_i q_i) / S; then dlogits = p (dp - sum_j p_j dp_j). */
static void router_din_row(float *d, const float *dprob, const float *p, const float *prob,
                           const int32_t *expert, int64_t e, int64_t k, bool renormalise)
{
    float sum = 0.0f, mean = 0.0f, dot = 0.0f, dp;

    for (int64_t j = 0; j < k; j++) {
        sum += p[expert[j]];
        mean += dprob[j] * prob[j];
    }
    memset(d, 0, (size_t)e * sizeof(*d));
    for (int64_t j = 0; j < k; j++) {
        dp = renormalise ? (dprob[j] - mean) / (sum + 1e-20f) : dprob[j];
        d[expert[j]] = dp;
        dot += dp * p[expert[j]];
    }
    for (int64_t i = 0; i < e; i++)
        d[i] = p[i] * (d[i] - dot);
}

d9d_status d9d_ref_router_din(d9d_stream s, d9d_dtype t, void *dlogits, const float *dprob,
                              const float *p, const float *prob, const int32_t *expert,
                              int64_t rows, int64_t e, int64_t k, bool renormalise)
{
    float *scratch;

    (void)s;
    D9D_TRY(d9di_check_float("router_din", t));
    if ((scratch = d9di_scratch_threads("router_din", e)) == NULL)
        return D9D_ENOMEM;
#pragma omp parallel for schedule(static, ROWS) if (rows * e > D9DI_SERIAL)
    for (int64_t r = 0; r < rows; r++) {
        float *d = d9di_out(t, dlogits, r * e, d9di_mine(scratch, e));

        router_din_row(d, dprob + r * k, p + r * e, prob + r * k, expert + r * k, e, k,
                       renormalise);
        d9di_put(t, dlogits, r * e, e, d);
    }
    free(scratch);
    return D9D_OK;
}

/* A counting sort: stable, so tokens ascend inside an expert. */
d9d_status d9d_ref_route(d9d_stream s, int32_t *offset, int32_t *row, int32_t *source,
                         const int32_t *expert, int64_t rows, int64_t e, int64_t k)
{
    int64_t n = rows * k;

    (void)s;
    if (n > INT32_MAX)
        return D9D_FAIL(D9D_EINVAL, "route: %lld tokens of %lld experts are over %d rows",
                        (long long)rows, (long long)k, INT32_MAX);
    memset(offset, 0, (size_t)(e + 1) * sizeof(*offset));
    for (int64_t i = 0; i < n; i++) {
        if (expert[i] < -1 || expert[i] >= e)
            return D9D_FAIL(D9D_EINVAL, "route: token %lld goes to expert %d of %lld",
                            (long long)(i / k), (int)expert[i], (long long)e);
        if (expert[i] >= 0)
            offset[expert[i] + 1]++;
    }
    for (int64_t x = 0; x < e; x++)
        offset[x + 1] += offset[x];
    for (int64_t i = offset[e]; i < n; i++)
        source[i] = -1;
    for (int64_t i = 0; i < n; i++) {
        row[i] = expert[i] < 0 ? -1 : offset[expert[i]]++;
        if (row[i] >= 0)
            source[row[i]] = (int32_t)i;
    }
    /* Filling moved each offset to the next one's place. */
    memmove(offset + 1, offset, (size_t)e * sizeof(*offset));
    offset[0] = 0;
    return D9D_OK;
}

d9d_status d9d_ref_route_ranks(d9d_stream s, int32_t *rank, const int32_t *expert, int64_t rows,
                               int64_t k, int64_t ranks, int64_t per)
{
    (void)s;
    for (int64_t i = 0; i < rows * ranks; i++)
        rank[i] = -1;
    for (int64_t i = 0; i < rows * k; i++) {
        int32_t d = (int32_t)(expert[i] / per);

        if (expert[i] < 0 || d >= ranks)
            return D9D_FAIL(D9D_EINVAL, "route_ranks: token %lld goes to expert %d of %lld",
                            (long long)(i / k), (int)expert[i], (long long)(ranks * per));
        rank[i / k * ranks + d] = d;
    }
    return D9D_OK;
}

d9d_status d9d_ref_route_local(d9d_stream s, int32_t *local, const int32_t *source,
                               const int32_t *expert, int64_t n, int64_t rows, int64_t k,
                               int64_t ranks, int64_t per)
{
    (void)s, (void)rows;
    for (int64_t i = 0; i < n * k; i++) {
        int64_t from = source[i / k], e = -1;

        if (from >= 0)
            e = expert[from / ranks * k + i % k] - from % ranks * per;
        local[i] = e >= 0 && e < per ? (int32_t)e : -1;
    }
    return D9D_OK;
}
