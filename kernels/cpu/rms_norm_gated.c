/* rms_norm_gated.c - RMSNormGated: y = x inv w silu(z), a norm, then a gate. See rms_norm.c.
 *
 * With u = x inv w, s = sigmoid(z): dz = dy u s (1 + z (1 - s)), and the norm's gradients are those
 * at dy z s.
 */
#include "cpu/math.h"
#include "cpu/norm.h"

enum { MIN_PART_ROWS = 64 }; /* fewest rows of a partial sum of dw */

/* y = x silu(z) */
D9DI_CLONES static void row_gate(float *y, const float *x, const float *z, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * (z[i] * d9di_cpu_sigmoid(z[i]));
}

/* dz = dy x inv w times the derivative of silu at z */
D9DI_CLONES static void row_dgate(float *dz, const float *dy, const float *x, const float *z,
                                  const float *w, float inv, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float s = d9di_cpu_sigmoid(z[i]);

        dz[i] = dy[i] * (x[i] * inv * w[i]) * (s * (1.0f + z[i] * (1.0f - s)));
    }
}

d9d_status d9d_ref_rms_norm_gated(d9d_stream s, d9d_dtype t, void *y, float *inv, const void *x,
                                  const void *z, const void *w, int64_t m, int64_t n, float eps)
{
    float *wf = NULL, *rows = NULL;
    d9d_status st = D9D_ENOMEM;

    (void)s;
    D9D_TRY(d9di_args_check_float("rms_norm_gated", t));
    if ((wf = d9di_cpu_norm_weights("rms_norm_gated", t, w, n, false)) == NULL ||
        (rows = d9di_cpu_scratch_alloc_threads("rms_norm_gated", 3 * n)) == NULL)
        goto out;
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < m; r++) {
        float *a = d9di_cpu_scratch_of_thread(rows, 3 * n), *b = a + n, *c = b + n;
        const float *row = d9di_cpu_read(t, x, r * n, n, a);

        inv[r] = 1.0f / sqrtf(d9di_cpu_row_dot(row, row, n) / (float)n + eps);
        d9di_cpu_norm_scale_row(b, row, wf, inv[r], n);
        row_gate(c, b, d9di_cpu_read(t, z, r * n, n, a), n);
        d9di_cpu_store(t, y, r * n, n, c);
    }
    st = D9D_OK;
out:
    free(rows);
    free(wf);
    return st;
}

/* Arguments of the loops over rows. */
typedef struct rms_norm_gated_bwd_args {
    d9d_dtype t;
    void *dx, *dz;
    const void *dy, *x, *z;
    const float *w, *inv;
    int64_t n;
} rms_norm_gated_bwd_args;

/* Backward of a row; `scratch` has 5 rows of scratch. */
static void row_bwd(const rms_norm_gated_bwd_args *g, int64_t r, float *dw, float *workspace)
{
    const int64_t n = g->n;
    float *gated = workspace + 3 * n, *out = workspace + 4 * n;
    const float *dy = d9di_cpu_read(g->t, g->dy, r * n, n, workspace);
    const float *x = d9di_cpu_read(g->t, g->x, r * n, n, workspace + n);
    const float *z = d9di_cpu_read(g->t, g->z, r * n, n, workspace + 2 * n);
    const float inv = g->inv[r];

    row_gate(gated, dy, z, n);
    if (dw != NULL)
        d9di_cpu_norm_dw_row(dw, gated, x, inv, n);
    if (g->dx == NULL)
        return;
    row_dgate(out, dy, x, z, g->w, inv, n);
    d9di_cpu_store(g->t, g->dz, r * n, n, out);
    d9di_cpu_norm_mul_row(gated, gated, g->w, n);
    d9di_cpu_norm_dx_row(out, gated, x, inv, inv * inv * d9di_cpu_row_dot(gated, x, n) / (float)n,
                         n);
    d9di_cpu_store(g->t, g->dx, r * n, n, out);
}

d9d_status d9d_ref_rms_norm_gated_bwd(d9d_stream s, d9d_dtype t, void *dx, void *dz, d9d_dtype gt,
                                      void *dw, float beta, const void *dy, const void *x,
                                      const void *z, const void *w, const float *inv, int64_t m,
                                      int64_t n)
{
    const int64_t rows = d9di_i64_max(MIN_PART_ROWS, d9di_i64_ceil_div(m, D9DI_MAX_PARTS));
    const int64_t parts = d9di_i64_ceil_div(m, rows);
    float *wf = NULL, *sums = NULL, *workspace = NULL;
    d9d_status st = D9D_ENOMEM;

    (void)s;
    D9D_TRY(d9di_args_check_float("rms_norm_gated_bwd", t));
    D9D_TRY(d9di_args_check_float("rms_norm_gated_bwd", gt));
    if ((wf = d9di_cpu_norm_weights("rms_norm_gated_bwd", t, w, n, false)) == NULL ||
        (sums = d9di_cpu_scratch_alloc("rms_norm_gated_bwd", d9di_i64_max(parts, 1) * n)) == NULL ||
        (workspace = d9di_cpu_scratch_alloc_threads("rms_norm_gated_bwd", 5 * n)) == NULL)
        goto out;
    memset(sums, 0, (size_t)(d9di_i64_max(parts, 1) * n) * sizeof(*sums));
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t p = 0; p < parts; p++) {
        const rms_norm_gated_bwd_args g = {t, dx, dz, dy, x, z, wf, inv, n};

        for (int64_t r = p * rows; r < d9di_i64_min(m, (p + 1) * rows); r++)
            row_bwd(&g, r, dw != NULL ? sums + p * n : NULL,
                    d9di_cpu_scratch_of_thread(workspace, 5 * n));
    }
    for (int64_t p = 1; p < parts; p++)
        d9di_cpu_row_axpy(sums, 1.0f, sums + p * n, n);
    if (dw != NULL)
        d9di_cpu_store_add(gt, dw, 0, n, beta, sums);
    st = D9D_OK;
out:
    free(workspace);
    free(sums);
    free(wf);
    return st;
}
