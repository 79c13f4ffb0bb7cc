/* rms_norm.c - RMSNorm: y = x inv w', inv = 1/sqrt(mean(x^2) + eps), w' = w or 1 + w. With x^ = x
 * inv: dx = inv (dy w' - x^ mean(dy w' x^)), dw = sum over rows of dy x^. */
#include "cpu/norm.h"

enum { MIN_PART_ROWS = 64 }; /* fewest rows of a partial sum of dw */

D9DI_CLONES void d9di_cpu_norm_scale_row(float *y, const float *x, const float *w, float inv,
                                         int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * inv * w[i];
}

D9DI_CLONES void d9di_cpu_norm_mul_row(float *y, const float *a, const float *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] * b[i];
}

/* dx = inv (g - x c), g = dy w', c = inv^2 mean(g x). */
D9DI_CLONES void d9di_cpu_norm_dx_row(float *dx, const float *g, const float *x, float inv, float c,
                                      int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dx[i] = inv * (g[i] - x[i] * c);
}

D9DI_CLONES void d9di_cpu_norm_dw_row(float *dw, const float *dy, const float *x, float inv,
                                      int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dw[i] += dy[i] * (x[i] * inv);
}

/* w' in float32; NULL if memory is out. */
float *d9di_cpu_norm_weights(const char *op, d9d_dtype t, const void *w, int64_t n,
                             bool zero_centred)
{
    float *f = d9di_cpu_scratch_alloc(op, n);

    if (f == NULL)
        return NULL;
    d9di_cpu_load(t, f, w, 0, n);
    if (zero_centred)
        for (int64_t i = 0; i < n; i++)
            f[i] += 1.0f;
    return f;
}

d9d_status d9d_ref_rms_norm(d9d_stream s, d9d_dtype t, void *y, float *inv, const void *x,
                            const void *w, int64_t m, int64_t n, float eps, bool zero_centred)
{
    float *wf = NULL, *rows = NULL;
    d9d_status st = D9D_ENOMEM;

    (void)s;
    D9D_TRY(d9di_args_check_float("rms_norm", t));
    if ((wf = d9di_cpu_norm_weights("rms_norm", t, w, n, zero_centred)) == NULL ||
        (rows = d9di_cpu_scratch_alloc_threads("rms_norm", n)) == NULL)
        goto out;
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < m; r++) {
        float *buf = d9di_cpu_scratch_of_thread(rows, n), *o = d9di_cpu_write_ptr(t, y, r * n, buf);
        const float *row = d9di_cpu_read(t, x, r * n, n, buf);

        inv[r] = 1.0f / sqrtf(d9di_cpu_row_dot(row, row, n) / (float)n + eps);
        d9di_cpu_norm_scale_row(o, row, wf, inv[r], n);
        d9di_cpu_write(t, y, r * n, n, o);
    }
    st = D9D_OK;
out:
    free(rows);
    free(wf);
    return st;
}

/* dx of each row, plus `plus` if not NULL. */
static d9d_status rows_dgrad(d9d_dtype t, void *dx, const void *plus, const void *dy, const void *x,
                             const void *w, const float *inv, int64_t m, int64_t n,
                             bool zero_centred)
{
    float *wf = NULL, *rows = NULL;
    d9d_status st = D9D_ENOMEM;

    if ((wf = d9di_cpu_norm_weights("rms_norm_bwd", t, w, n, zero_centred)) == NULL ||
        (rows = d9di_cpu_scratch_alloc_threads("rms_norm_bwd", 3 * n)) == NULL)
        goto out;
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < m; r++) {
        float *g = d9di_cpu_scratch_of_thread(rows, 3 * n), *bx = g + n, *o = g + 2 * n;
        const float *row = d9di_cpu_read(t, x, r * n, n, bx);

        d9di_cpu_norm_mul_row(g, d9di_cpu_read(t, dy, r * n, n, g), wf, n);
        d9di_cpu_norm_dx_row(o, g, row, inv[r],
                             inv[r] * inv[r] * d9di_cpu_row_dot(g, row, n) / (float)n, n);
        if (plus != NULL)
            d9di_cpu_row_axpy(o, 1.0f, d9di_cpu_read(t, plus, r * n, n, g), n);
        d9di_cpu_store(t, dx, r * n, n, o);
    }
    st = D9D_OK;
out:
    free(rows);
    free(wf);
    return st;
}

/* dw of a block of rows; buf has 2 n floats. */
static void wgrad_partial(d9d_dtype t, float *part, const void *dy, const void *x, const float *inv,
                          int64_t first, int64_t end, int64_t n, float *buf)
{
    memset(part, 0, (size_t)n * sizeof(float));
    for (int64_t r = first; r < end; r++)
        d9di_cpu_norm_dw_row(part, d9di_cpu_read(t, dy, r * n, n, buf),
                             d9di_cpu_read(t, x, r * n, n, buf + n), inv[r], n);
}

static d9d_status rows_wgrad(d9d_dtype t, d9d_dtype gt, void *dw, float beta, const void *dy,
                             const void *x, const float *inv, int64_t m, int64_t n)
{
    int64_t rows = d9di_i64_max(MIN_PART_ROWS, d9di_i64_ceil_div(m, D9DI_MAX_PARTS)),
            parts = d9di_i64_ceil_div(m, rows);
    float *scratch = NULL; /* per block: its sum, then two rows */

    if ((scratch = d9di_cpu_scratch_alloc("rms_norm_bwd", d9di_i64_max(parts, 1) * 3 * n)) == NULL)
        return D9D_ENOMEM;
    if (parts == 0)
        memset(scratch, 0, (size_t)n * sizeof(float));
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t p = 0; p < parts; p++) {
        float *part = scratch + p * 3 * n;

        wgrad_partial(t, part, dy, x, inv, p * rows, d9di_i64_min(m, (p + 1) * rows), n, part + n);
    }
    for (int64_t p = 1; p < parts; p++)
        d9di_cpu_row_axpy(scratch, 1.0f, scratch + p * 3 * n, n);
    d9di_cpu_store_add(gt, dw, 0, n, beta, scratch);
    free(scratch);
    return D9D_OK;
}

d9d_status d9d_ref_rms_norm_bwd(d9d_stream s, d9d_dtype t, void *dx, const void *plus, d9d_dtype gt,
                                void *dw, float beta, const void *dy, const void *x, const void *w,
                                const float *inv, int64_t m, int64_t n, bool zero_centred)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("rms_norm_bwd", t));
    D9D_TRY(d9di_args_check_float("rms_norm_bwd", gt));
    if (dw != NULL)
        D9D_TRY(rows_wgrad(t, gt, dw, beta, dy, x, inv, m, n));
    return dx == NULL ? D9D_OK : rows_dgrad(t, dx, plus, dy, x, w, inv, m, n, zero_centred);
}
