/* causal_conv1d.c - causal depthwise convolution: each channel's sum over the last W tokens of a
 * document, then SiLU.
 *
 *     z[t] = sum_j w[j] x[t - W + 1 + j]        y = z sigmoid(z)
 *     dz = dy s (1 + z (1 - s)),  dx[t] = sum_j w[j] dz[t + W - 1 - j],
 *     dw[j] = sum_t dz[t] x[t - W + 1 + j]
 */
#include "cpu/causal_conv1d.h"
#include "cpu/math.h"

enum { MIN_PART_TOKENS = 64 }; /* fewest tokens of a partial sum of dw */

d9d_status d9di_causal_conv1d_check(const char *op, const d9d_causal_conv1d_dims *n)
{
    D9D_TRY(d9di_args_check_float(op, n->t));
    if (n->w < 1 || n->w > D9D_CAUSAL_CONV1D_MAX_WIDTH)
        return D9D_FAIL(D9D_EINVAL, "%s: a kernel size of %lld, from 1 to %d are supported", op,
                        (long long)n->w, D9D_CAUSAL_CONV1D_MAX_WIDTH);
    return D9D_OK;
}

void d9di_causal_conv1d_transpose_w(const d9d_causal_conv1d_dims *n, float *y, const void *w)
{
    for (int64_t i = 0; i < n->n; i++)
        for (int64_t j = 0; j < n->w; j++)
            d9di_cpu_load(n->t, &y[j * n->n + i], w, i * n->w + j, 1);
}

D9DI_CLONES void d9di_cpu_row_fma(float *restrict y, const float *restrict a,
                                  const float *restrict b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += a[i] * b[i];
}

D9DI_CLONES void d9di_cpu_row_silu(float *restrict y, const float *restrict z, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = z[i] * d9di_cpu_sigmoid(z[i]);
}

/* Arguments of all loops over tokens. */
typedef struct conv {
    const d9d_causal_conv1d_dims *n;
    int64_t tokens, *start; /* start: the first token of each token's document */
    float *w;               /* [W, N] */
    float *rows;            /* two rows per thread */
} conv;

static void conv_fini(conv *c)
{
    free(c->start);
    free(c->w);
    free(c->rows);
}

static d9d_status conv_init(const char *op, const d9d_causal_conv1d_dims *n, const void *w, conv *c)
{
    *c = (conv){.n = n, .tokens = n->docs.b * n->docs.s};
    D9D_TRY(d9di_causal_conv1d_check(op, n));
    D9D_TRY(d9di_varlen_check(op, &n->docs));
    if ((c->start = d9di_varlen_document_starts(op, &n->docs)) == NULL ||
        (c->w = d9di_cpu_scratch_alloc(op, n->w * n->n)) == NULL ||
        (c->rows = d9di_cpu_scratch_alloc_threads(op, 2 * n->n)) == NULL) {
        conv_fini(c);
        return D9D_ENOMEM;
    }
    d9di_causal_conv1d_transpose_w(n, c->w, w);
    return D9D_OK;
}

/* z = dy times the derivative of silu at z. */
D9DI_CLONES static void row_silu_bwd(float *restrict z, const float *restrict dy, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float s = d9di_cpu_sigmoid(z[i]);

        z[i] = dy[i] * (s * (1.0f + z[i] * (1.0f - s)));
    }
}

/* z of token t; `row` is scratch for one row. */
static void token_conv(const conv *c, float *z, const void *x, int64_t t, float *row)
{
    const int64_t n = c->n->n, w = c->n->w;

    memset(z, 0, (size_t)n * sizeof(*z));
    for (int64_t j = d9di_i64_max(0, c->start[t] - (t - w + 1)); j < w; j++)
        d9di_cpu_row_fma(z, c->w + j * n, d9di_cpu_read(c->n->t, x, (t - w + 1 + j) * n, n, row),
                         n);
}

d9d_status d9d_ref_causal_conv1d(d9d_stream s, const d9d_causal_conv1d_dims *n, void *y,
                                 const void *x, const void *w)
{
    conv c;

    (void)s;
    D9D_TRY(conv_init("causal_conv1d", n, w, &c));
#pragma omp parallel for if (c.tokens * n->n > D9DI_MIN_PARALLEL)
    for (int64_t t = 0; t < c.tokens; t++) {
        float *z = d9di_cpu_scratch_of_thread(c.rows, 2 * n->n), *row = z + n->n;

        token_conv(&c, z, x, t, row);
        d9di_cpu_row_silu(row, z, n->n);
        d9di_cpu_store(n->t, y, t * n->n, n->n, row);
    }
    conv_fini(&c);
    return D9D_OK;
}

static void conv_dgrad(const conv *c, void *dx, const float *dz)
{
    const int64_t n = c->n->n, w = c->n->w;

#pragma omp parallel for if (c->tokens * n > D9DI_MIN_PARALLEL)
    for (int64_t t = 0; t < c->tokens; t++) {
        float *sum = d9di_cpu_scratch_of_thread(c->rows, 2 * n);

        memset(sum, 0, (size_t)n * sizeof(*sum));
        for (int64_t u = t; u < d9di_i64_min(t + w, c->tokens) && c->start[u] <= t; u++)
            d9di_cpu_row_fma(sum, c->w + (t + w - 1 - u) * n, dz + u * n, n);
        d9di_cpu_store(c->n->t, dx, t * n, n, sum);
    }
}

/* dw of some tokens, [W, N]. */
static void wgrad_partial(const conv *c, float *dw, const float *dz, const void *x, int64_t first,
                          int64_t end, float *row)
{
    const int64_t n = c->n->n, w = c->n->w;

    memset(dw, 0, (size_t)(w * n) * sizeof(*dw));
    for (int64_t t = first; t < end; t++)
        for (int64_t j = d9di_i64_max(0, c->start[t] - (t - w + 1)); j < w; j++)
            d9di_cpu_row_fma(dw + j * n, dz + t * n,
                             d9di_cpu_read(c->n->t, x, (t - w + 1 + j) * n, n, row), n);
}

static d9d_status conv_wgrad(const conv *c, d9d_dtype gt, void *dw, float beta, const float *dz,
                             const void *x)
{
    const int64_t n = c->n->n, w = c->n->w;
    const int64_t each =
        d9di_i64_max(MIN_PART_TOKENS, d9di_i64_ceil_div(c->tokens, D9DI_MAX_PARTS));
    const int64_t parts = d9di_i64_ceil_div(c->tokens, each);
    float *sums = d9di_cpu_scratch_alloc("causal_conv1d_bwd", d9di_i64_max(parts, 1) * w * n);

    if (sums == NULL)
        return D9D_ENOMEM;
    memset(sums, 0, (size_t)(w * n) * sizeof(*sums));
#pragma omp parallel for if (c->tokens * n > D9DI_MIN_PARALLEL)
    for (int64_t p = 0; p < parts; p++)
        wgrad_partial(c, sums + p * w * n, dz, x, p * each, d9di_i64_min(c->tokens, (p + 1) * each),
                      d9di_cpu_scratch_of_thread(c->rows, 2 * n));
    for (int64_t p = 1; p < parts; p++)
        d9di_cpu_row_axpy(sums, 1.0f, sums + p * w * n, w * n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < w; j++)
            d9di_cpu_store_add(gt, dw, i * w + j, 1, beta, &sums[j * n + i]);
    free(sums);
    return D9D_OK;
}

d9d_status d9d_ref_causal_conv1d_bwd(d9d_stream s, const d9d_causal_conv1d_dims *n, void *dx,
                                     d9d_dtype gt, void *dw, float beta, const void *dy,
                                     const void *x, const void *w)
{
    d9d_status st = D9D_ENOMEM;
    float *dz = NULL;
    conv c;

    (void)s;
    D9D_TRY(d9di_args_check_float("causal_conv1d_bwd", gt));
    D9D_TRY(conv_init("causal_conv1d_bwd", n, w, &c));
    if ((dz = d9di_cpu_scratch_alloc("causal_conv1d_bwd", c.tokens * n->n)) == NULL)
        goto out;
#pragma omp parallel for if (c.tokens * n->n > D9DI_MIN_PARALLEL)
    for (int64_t t = 0; t < c.tokens; t++) {
        float *row = d9di_cpu_scratch_of_thread(c.rows, 2 * n->n);

        token_conv(&c, dz + t * n->n, x, t, row);
        row_silu_bwd(dz + t * n->n, d9di_cpu_read(n->t, dy, t * n->n, n->n, row), n->n);
    }
    if (dx != NULL)
        conv_dgrad(&c, dx, dz);
    st = dw != NULL ? conv_wgrad(&c, gt, dw, beta, dz, x) : D9D_OK;
out:
    free(dz);
    conv_fini(&c);
    return st;
}
