/* norm_rows.c - rows of norms, and wgrad of norms: dw = sum over rows of dy x^, db = sum of dy,
 * where x^ = (x - mean) inv. See norm.h. */
#include "cpu/norm.h"

enum { MIN_PART_ROWS = 64 }; /* fewest rows of a partial sum */

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

D9DI_CLONES void d9di_cpu_norm_centre_row(float *y, const float *x, float mean, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] - mean;
}

/* Gradients of the rows of this backward pass. */
typedef struct wgrad_rows {
    d9d_dtype t;
    const void *dy, *x;
    const float *mean, *inv;
    int64_t n;
} wgrad_rows;

/* Sums of a block of rows; db may be NULL, buf has 2 n floats. */
static void wgrad_partial(const wgrad_rows *w, float *dw, float *db, int64_t first, int64_t end,
                          float *buf)
{
    const int64_t n = w->n;

    memset(dw, 0, (size_t)n * sizeof(float));
    if (db != NULL)
        memset(db, 0, (size_t)n * sizeof(float));
    for (int64_t r = first; r < end; r++) {
        const float *dy = d9di_cpu_read(w->t, w->dy, r * n, n, buf);
        const float *x = d9di_cpu_read(w->t, w->x, r * n, n, buf + n);

        if (w->mean != NULL) {
            d9di_cpu_norm_centre_row(buf + n, x, w->mean[r], n);
            x = buf + n;
        }
        d9di_cpu_norm_dw_row(dw, dy, x, w->inv[r], n);
        if (db != NULL)
            d9di_cpu_row_axpy(db, 1.0f, dy, n);
    }
}

d9d_status d9di_cpu_norm_wgrad(const char *op, d9d_dtype t, const d9d_layer_norm_grads *of,
                               const void *dy, const void *x, const float *mean, const float *inv,
                               int64_t m, int64_t n)
{
    const wgrad_rows w = {t, dy, x, mean, inv, n};
    const int64_t rows = d9di_i64_max(MIN_PART_ROWS, d9di_i64_ceil_div(m, D9DI_MAX_PARTS)),
                  parts = d9di_i64_ceil_div(m, rows), size = (of->db != NULL ? 4 : 3) * n;
    float *scratch = NULL; /* per block: its sum of dw, two rows, its sum of db */

    if ((scratch = d9di_cpu_scratch_alloc(op, d9di_i64_max(parts, 1) * size)) == NULL)
        return D9D_ENOMEM;
    if (parts == 0)
        memset(scratch, 0, (size_t)size * sizeof(float));
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t p = 0; p < parts; p++) {
        float *part = scratch + p * size;

        wgrad_partial(&w, part, of->db != NULL ? part + 3 * n : NULL, p * rows,
                      d9di_i64_min(m, (p + 1) * rows), part + n);
    }
    for (int64_t p = 1; p < parts; p++) {
        d9di_cpu_row_axpy(scratch, 1.0f, scratch + p * size, n);
        if (of->db != NULL)
            d9di_cpu_row_axpy(scratch + 3 * n, 1.0f, scratch + p * size + 3 * n, n);
    }
    if (of->dw != NULL)
        d9di_cpu_store_add(of->wt, of->dw, 0, n, of->beta_w, scratch);
    if (of->db != NULL)
        d9di_cpu_store_add(of->bt, of->db, 0, n, of->beta_b, scratch + 3 * n);
    free(scratch);
    return D9D_OK;
}
