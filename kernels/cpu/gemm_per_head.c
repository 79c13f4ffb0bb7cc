/* gemm_per_head.c - per-head linear layer (block-diagonal): a GEMM per head, whose matrix is some
 * rows of w. */
#include "cpu/common.h"

static void rows_load_strided(d9d_dtype t, float *y, const void *x, int64_t first, int64_t step,
                              int64_t m, int64_t n)
{
    for (int64_t i = 0; i < m; i++)
        d9di_cpu_load(t, y + i * n, x, first + i * step, n);
}

d9d_status d9d_ref_gemm_per_head(d9d_stream s, const d9d_gemm_per_head_dims *n, void *y,
                                 const void *x, const void *w)
{
    const int64_t rows = n->trans_w ? n->out : n->in, wide = n->trans_w ? n->in : n->out;
    const int64_t mx = n->m * n->in, my = n->m * n->out, mw = rows * wide;
    const int64_t floats = mx + my + mw + d9di_sgemm_scratch(n->m, n->out, n->in);
    float *workspace;

    (void)s;
    D9D_TRY(d9di_args_check_float("gemm_per_head", n->t));
    if ((workspace = d9di_cpu_scratch_alloc_threads("gemm_per_head", floats)) == NULL)
        return D9D_ENOMEM;
#pragma omp parallel for schedule(dynamic) if (n->heads * n->m * mw > D9DI_MIN_PARALLEL)
    for (int64_t h = 0; h < n->heads; h++) {
        float *a = d9di_cpu_scratch_of_thread(workspace, floats), *c = a + mx, *b = c + my;

        rows_load_strided(n->t, a, x, h * n->x_cols + n->x_first, n->heads * n->x_cols, n->m,
                          n->in);
        rows_load_strided(n->t, b, w, (h * n->w_head_rows + n->w_first) * wide, wide, rows, wide);
        d9di_sgemm(false, n->trans_w, n->m, n->out, n->in, 1.0f, a, n->in, b, wide, 0.0f, c, n->out,
                   b + mw);
        for (int64_t i = 0; i < n->m; i++)
            d9di_cpu_store(n->t, y, (i * n->heads + h) * n->y_cols, n->out, c + i * n->out);
    }
    free(workspace);
    return D9D_OK;
}
