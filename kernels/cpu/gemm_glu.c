/* gemm_glu.c - GLU half of a feed-forward layer, unfused. */
#include "cpu/common.h"

d9d_status d9d_ref_gemm_glu(d9d_stream s, const d9d_gemm_glu_dims *n, void *y, void *gate, void *up,
                            const void *x, const void *w_gate, const void *w_up)
{
    return d9di_gemm_glu_parts(d9d_kernels_cpu(), s, n, y, gate, up, x, w_gate, w_up);
}

d9d_status d9d_ref_gemm_glu_bwd(d9d_stream s, const d9d_gemm_glu_dims *n, void *dgate, void *dup,
                                const void *dout, const void *w, const void *gate, const void *up)
{
    return d9di_gemm_glu_bwd_parts(d9d_kernels_cpu(), s, n, dgate, dup, dout, w, gate, up);
}
