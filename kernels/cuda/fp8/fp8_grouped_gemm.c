/* fp8_grouped_gemm.c - products of quantised rows and matrices of experts: the first kernel that
 * supports the call. */
#include "cuda/fp8/fp8_grouped_gemm.h"

d9d_status d9d_k_fp8_grouped_gemm(d9d_stream s, const d9d_fp8_grouped_dims *g,
                                  const d9d_fp8_operand *a, const d9d_fp8_operand *b, void *c)
{
    D9D_TRY(d9di_args_check_fp8_grouped_gemm(g, a, b));
    if (g->e == 0 || g->in == 0 || g->out == 0 ||
        (g->rows == 0 && g->form != D9D_FP8_GROUPED_WGRAD))
        return D9D_OK;
    return d9di_fp8_grouped_gemm_sm90_supported(s, g) ? d9di_fp8_grouped_gemm_sm90(s, g, a, b, c)
                                                      : d9di_fp8_grouped_gemm_simt(s, g, a, b, c);
}
