/* gemm_swiglu.c - the SwiGLU half of a feed-forward layer: fused if a kernel supports it, else in
 * parts. */
#include "cuda/gemm/gemm_swiglu.h"
#include "cuda/gemm/gemm_skinny.h"

d9d_status d9d_k_gemm_swiglu(d9d_stream s, const d9d_gemm_swiglu_dims *n, void *y, void *gate,
                             void *up, const void *x, const void *w_gate, const void *w_up)
{
    if (d9di_gemm_skinny_swiglu_supported(n, x, w_gate, w_up))
        return d9di_gemm_skinny_swiglu(s, n, y, gate, up, x, w_gate, w_up);
    return d9di_gemm_swiglu_sm90_supported(s, n)
               ? d9di_gemm_swiglu_sm90(s, n, y, gate, up, x, w_gate, w_up)
               : d9di_gemm_swiglu_parts(d9d_kernels_cuda(), s, n, y, gate, up, x, w_gate, w_up);
}

d9d_status d9d_k_gemm_swiglu_bwd(d9d_stream s, const d9d_gemm_swiglu_dims *n, void *dgate,
                                 void *dup, const void *dout, const void *w, const void *gate,
                                 const void *up)
{
    return d9di_gemm_swiglu_sm90_supported(s, n)
               ? d9di_gemm_swiglu_bwd_sm90(s, n, dgate, dup, dout, w, gate, up)
               : d9di_gemm_swiglu_bwd_parts(d9d_kernels_cuda(), s, n, dgate, dup, dout, w, gate,
                                            up);
}
