/* gemm_each.c - gemm_multi() as a loop: one matrix times each of several. */
#include "common/kernel_common.h"

d9d_status d9di_gemm_each(const d9d_kernels *k, d9d_stream s, int n, const d9d_gemm *g,
                          const void *a, const void *const *b, void *const *c)
{
    for (int i = 0; i < n; i++)
        D9D_TRY(k->gemm->dense(s, &g[i], a, b[i], c[i]));
    return D9D_OK;
}
