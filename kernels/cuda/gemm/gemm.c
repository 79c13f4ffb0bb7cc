/* gemm.c - C = op(A) op(B) + beta C: skinny kernels for a few rows, else cuBLASLt, else SIMT tiles.
 */
#include "cuda/gemm/gemm_skinny.h"

/* C = addend, for kernels that add to C in place. */
static d9d_status copy_addend(d9d_stream s, const char *op, const d9d_gemm *g, void *c)
{
    cudaError_t e = cudaSuccess;

    if (g->addend != NULL && g->addend != c && g->beta != 0.0f)
        e = cudaMemcpyAsync(c, g->addend, (size_t)(g->m * g->n) * d9d_dtype_size(g->ct),
                            cudaMemcpyDeviceToDevice, d9di_cuda_stream(s));
    return e == cudaSuccess ? D9D_OK : d9di_cuda_fail(op, e);
}

/* An empty sum: C = beta C. */
static d9d_status scale_result(d9d_stream s, const d9d_gemm *g, void *c)
{
    if (g->beta == 0.0f)
        return d9d_k_fill(s, g->ct, c, g->m * g->n, 0.0f);
    if (g->beta == 1.0f)
        return D9D_OK;
    return d9d_k_accumulate(s, g->ct, c, g->beta - 1.0f, g->ct, c, g->m * g->n);
}

d9d_status d9di_gemm(d9d_stream s, const char *op, const d9d_gemm *g, const void *a, const void *b,
                     void *c)
{
    bool done;

    D9D_TRY(d9di_args_check_float(op, g->t));
    D9D_TRY(d9di_args_check_float(op, g->ct));
    if (g->m == 0 || g->n == 0)
        return D9D_OK;
    if (g->k == 0) {
        D9D_TRY(copy_addend(s, op, g, c));
        return scale_result(s, g, c);
    }
    if (d9di_gemm_skinny_supported(g, a, b))
        return d9di_gemm_skinny(s, g, a, b, c);
    D9D_TRY(d9di_cublaslt_gemm(s, op, g, a, b, c, &done));
    if (done)
        return D9D_OK;
    D9D_TRY(copy_addend(s, op, g, c));
    return d9di_gemm_simt(s, op, g, a, b, c);
}

d9d_status d9d_k_gemm(d9d_stream s, const d9d_gemm *g, const void *a, const void *b, void *c)
{
    return d9di_gemm(s, "gemm", g, a, b, c);
}

d9d_status d9d_k_gemm_multi(d9d_stream s, int n, const d9d_gemm *g, const void *a,
                            const void *const *b, void *const *c)
{
    bool few = d9di_gemm_skinny_mma_supported(n, g) && g->m > 0 && g->k > 0;

    for (int i = 0; i < n && few; i++)
        few = d9di_gemm_skinny_supported(&g[i], a, b[i]);
    return few ? d9di_gemm_skinny_mma(s, n, g, a, b, c)
               : d9di_gemm_each(d9d_kernels_cuda(), s, n, g, a, b, c);
}
