/* rms_norm_parallel.c - RMSNorm of rows that several ranks have in parts: sums of this rank's part,
 * and the norm by sums of all; see rms_norm.c. */
#include "cpu/norm.h"

/* w or 1 + w in float32; 1 everywhere if it is NULL. NULL if memory is out. */
static float *weights_load(const d9d_rms_norm_parallel_dims *d, const char *op, const void *w)
{
    float *f;

    if (w != NULL)
        return d9di_cpu_norm_weights(op, d->t, w, d->n, d->zero_centred);
    f = d9di_cpu_scratch_alloc(op, d->n);
    for (int64_t i = 0; i < d->n && f != NULL; i++)
        f[i] = 1.0f;
    return f;
}

d9d_status d9d_ref_rms_norm_dot(d9d_stream s, const d9d_rms_norm_parallel_dims *d, float *dot,
                                const void *x, const void *y, const void *w)
{
    const int64_t n = d->n, counted = n - d->first;
    float *wf = NULL, *rows = NULL;
    d9d_status st = D9D_ENOMEM;

    (void)s;
    D9D_TRY(d9di_args_check_float("rms_norm_dot", d->t));
    if ((wf = weights_load(d, "rms_norm_dot", w)) == NULL ||
        (rows = d9di_cpu_scratch_alloc_threads("rms_norm_dot", 2 * n)) == NULL)
        goto out;
#pragma omp parallel for if (d->m * n > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < d->m; r++) {
        float *a = d9di_cpu_scratch_of_thread(rows, 2 * n), *b = a + n;
        const float *ys = d9di_cpu_read(d->t, y, r * n + d->first, counted, b);

        d9di_cpu_norm_mul_row(a, d9di_cpu_read(d->t, x, r * n + d->first, counted, a),
                              wf + d->first, counted);
        dot[r] = d9di_cpu_row_dot(a, ys, counted);
    }
    st = D9D_OK;
out:
    free(rows);
    free(wf);
    return st;
}

d9d_status d9d_ref_rms_norm_parallel(d9d_stream s, const d9d_rms_norm_parallel_dims *d, void *y,
                                     float *inv, const float *sum, const void *x, const void *w)
{
    const int64_t n = d->n;
    float *wf = NULL, *rows = NULL;
    d9d_status st = D9D_ENOMEM;

    (void)s;
    D9D_TRY(d9di_args_check_float("rms_norm_parallel", d->t));
    if ((wf = weights_load(d, "rms_norm_parallel", w)) == NULL ||
        (rows = d9di_cpu_scratch_alloc_threads("rms_norm_parallel", n)) == NULL)
        goto out;
#pragma omp parallel for if (d->m * n > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < d->m; r++) {
        float *buf = d9di_cpu_scratch_of_thread(rows, n);
        float *o = d9di_cpu_write_ptr(d->t, y, r * n, buf);

        inv[r] = 1.0f / sqrtf(sum[r] / (float)d->total + d->eps);
        d9di_cpu_norm_scale_row(o, d9di_cpu_read(d->t, x, r * n, n, buf), wf, inv[r], n);
        d9di_cpu_write(d->t, y, r * n, n, o);
    }
    st = D9D_OK;
out:
    free(rows);
    free(wf);
    return st;
}

/* dx = inv (g - x c), g = dy w', c = inv^2 dot / total, and 0 before `first`. buf has 3 n floats.
 */
static void row_dgrad(const d9d_rms_norm_parallel_dims *d, void *dx, int64_t r, const void *dy,
                      const void *x, const float *w, float inv, float dot, float *buf)
{
    const int64_t n = d->n, first = d->first;
    float *g = buf, *o = buf + 2 * n;
    const float *row = d9di_cpu_read(d->t, x, r * n, n, buf + n);

    d9di_cpu_norm_mul_row(g, d9di_cpu_read(d->t, dy, r * n, n, g), w, n);
    d9di_cpu_norm_dx_row(o, g, row, inv, 0.0f, first);
    d9di_cpu_norm_dx_row(o + first, g + first, row + first, inv, inv * inv * dot / (float)d->total,
                         n - first);
    d9di_cpu_store(d->t, dx, r * n, n, o);
}

d9d_status d9d_ref_rms_norm_parallel_bwd(d9d_stream s, const d9d_rms_norm_parallel_dims *d,
                                         void *dx, d9d_dtype gt, void *dw, float beta,
                                         const void *dy, const void *x, const void *w,
                                         const float *inv, const float *dot)
{
    static const char op[] = "rms_norm_parallel_bwd";
    float *wf = NULL, *rows = NULL;
    d9d_status st = D9D_ENOMEM;

    (void)s;
    D9D_TRY(d9di_args_check_float(op, d->t));
    D9D_TRY(d9di_args_check_float(op, gt));
    if (dw != NULL)
        D9D_TRY(d9di_cpu_norm_wgrad(op, d->t,
                                    &(d9d_layer_norm_grads){.wt = gt, .dw = dw, .beta_w = beta}, dy,
                                    x, NULL, inv, d->m, d->n));
    if (dx == NULL)
        return D9D_OK;
    if ((wf = weights_load(d, op, w)) == NULL ||
        (rows = d9di_cpu_scratch_alloc_threads(op, 3 * d->n)) == NULL)
        goto out;
#pragma omp parallel for if (d->m * d->n > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < d->m; r++)
        row_dgrad(d, dx, r, dy, x, wf, inv[r], dot[r], d9di_cpu_scratch_of_thread(rows, 3 * d->n));
    st = D9D_OK;
out:
    free(rows);
    free(wf);
    return st;
}
