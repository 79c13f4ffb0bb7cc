/* rms_norm.c - RMSNorm: y = x inv w', inv = 1/sqrt(mean(x^2) + eps), w' = w or 1 + w. With x^ = x
 * inv: dx = inv (dy w' - x^ mean(dy w' x^)), dw = sum over rows of dy x^. */
#include "cpu/norm.h"

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

d9d_status d9d_ref_rms_norm_bwd(d9d_stream s, d9d_dtype t, void *dx, const void *plus, d9d_dtype gt,
                                void *dw, float beta, const void *dy, const void *x, const void *w,
                                const float *inv, int64_t m, int64_t n, bool zero_centred)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("rms_norm_bwd", t));
    D9D_TRY(d9di_args_check_float("rms_norm_bwd", gt));
    if (dw != NULL)
        D9D_TRY(d9di_cpu_norm_wgrad("rms_norm_bwd", t,
                                    &(d9d_layer_norm_grads){.wt = gt, .dw = dw, .beta_w = beta}, dy,
                                    x, NULL, inv, m, n));
    return dx == NULL ? D9D_OK : rows_dgrad(t, dx, plus, dy, x, w, inv, m, n, zero_centred);
}
