/* layer_norm.c - LayerNorm: y = x^ w + b, x^ = (x - mean) inv, inv = 1/sqrt(mean((x - mean)^2) +
 * eps). With g = dy w: dx = inv (g - mean(g) - x^ mean(g x^)), dw = sum over rows of dy x^, db =
 * sum of dy. */
#include "cpu/norm.h"

/* y = x inv w + b */
D9DI_CLONES static void affine_row(float *y, const float *x, float inv, const float *w,
                                   const float *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * inv * w[i] + b[i];
}

/* dx = inv (g - a - x c) */
D9DI_CLONES static void dgrad_row(float *dx, const float *g, const float *x, float inv, float a,
                                  float c, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dx[i] = inv * (g[i] - a - x[i] * c);
}

/* w in float32, or `otherwise` everywhere if it is NULL; NULL if memory is out. */
static float *weights_load(const char *op, d9d_dtype t, const void *w, int64_t n, float otherwise)
{
    float *f = d9di_cpu_scratch_alloc(op, n);

    if (f == NULL)
        return NULL;
    if (w != NULL)
        d9di_cpu_load(t, f, w, 0, n);
    for (int64_t i = 0; i < n && w == NULL; i++)
        f[i] = otherwise;
    return f;
}

d9d_status d9d_ref_layer_norm(d9d_stream s, d9d_dtype t, void *y, float *mean, float *inv,
                              const void *x, const void *w, const void *b, int64_t m, int64_t n,
                              float eps)
{
    float *wf = NULL, *bf = NULL, *rows = NULL;
    d9d_status st = D9D_ENOMEM;

    (void)s;
    D9D_TRY(d9di_args_check_float("layer_norm", t));
    if ((wf = weights_load("layer_norm", t, w, n, 1.0f)) == NULL ||
        (bf = weights_load("layer_norm", t, b, n, 0.0f)) == NULL ||
        (rows = d9di_cpu_scratch_alloc_threads("layer_norm", 2 * n)) == NULL)
        goto out;
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < m; r++) {
        float *buf = d9di_cpu_scratch_of_thread(rows, 2 * n), *centred = buf + n;
        const float *row = d9di_cpu_read(t, x, r * n, n, buf);
        float *o = d9di_cpu_write_ptr(t, y, r * n, buf);

        mean[r] = d9di_cpu_row_sum(row, n) / (float)n;
        d9di_cpu_norm_centre_row(centred, row, mean[r], n);
        inv[r] = 1.0f / sqrtf(d9di_cpu_row_dot(centred, centred, n) / (float)n + eps);
        affine_row(o, centred, inv[r], wf, bf, n);
        d9di_cpu_write(t, y, r * n, n, o);
    }
    st = D9D_OK;
out:
    free(rows);
    free(bf);
    free(wf);
    return st;
}

/* What the rows of a backward pass have in common. */
typedef struct dgrad_rows {
    d9d_dtype t;
    const void *plus, *dy, *x;
    const float *w, *mean, *inv;
    int64_t n;
} dgrad_rows;

/* buf has 3 n floats. */
static void row_dgrad(const dgrad_rows *p, void *dx, int64_t r, float *buf)
{
    const int64_t n = p->n;
    float *g = buf, *x = buf + n, *o = buf + 2 * n, inv = p->inv[r];

    d9di_cpu_norm_centre_row(x, d9di_cpu_read(p->t, p->x, r * n, n, x), p->mean[r], n);
    d9di_cpu_norm_mul_row(g, d9di_cpu_read(p->t, p->dy, r * n, n, g), p->w, n);
    dgrad_row(o, g, x, inv, d9di_cpu_row_sum(g, n) / (float)n,
              inv * inv * d9di_cpu_row_dot(g, x, n) / (float)n, n);
    if (p->plus != NULL)
        d9di_cpu_row_axpy(o, 1.0f, d9di_cpu_read(p->t, p->plus, r * n, n, g), n);
    d9di_cpu_store(p->t, dx, r * n, n, o);
}

d9d_status d9d_ref_layer_norm_bwd(d9d_stream s, d9d_dtype t, void *dx, const void *plus,
                                  const d9d_layer_norm_grads *of, const void *dy, const void *x,
                                  const void *w, const float *mean, const float *inv, int64_t m,
                                  int64_t n)
{
    dgrad_rows p = {t, plus, dy, x, NULL, mean, inv, n};
    float *wf = NULL, *rows = NULL;
    d9d_status st = D9D_ENOMEM;

    (void)s;
    D9D_TRY(d9di_args_check_float("layer_norm_bwd", t));
    if (of->dw != NULL)
        D9D_TRY(d9di_args_check_float("layer_norm_bwd", of->wt));
    if (of->db != NULL)
        D9D_TRY(d9di_args_check_float("layer_norm_bwd", of->bt));
    if (of->dw != NULL || of->db != NULL)
        D9D_TRY(d9di_cpu_norm_wgrad("layer_norm_bwd", t, of, dy, x, mean, inv, m, n));
    if (dx == NULL)
        return D9D_OK;
    if ((wf = weights_load("layer_norm_bwd", t, w, n, 1.0f)) == NULL ||
        (rows = d9di_cpu_scratch_alloc_threads("layer_norm_bwd", 3 * n)) == NULL)
        goto out;
    p.w = wf;
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < m; r++)
        row_dgrad(&p, dx, r, d9di_cpu_scratch_of_thread(rows, 3 * n));
    st = D9D_OK;
out:
    free(rows);
    free(wf);
    return st;
}
