/* gemm_swiglu.c - the gated half of a feed-forward layer: at once where that is possible. */
#include "cuda/gemm/gemm_swiglu.h"
#include "cuda/gemm/gemm_skinny.h"

extern __typeof__(*((d9d_kernels *)0)->gated_gemm) d9d_k_gated_gemm;
extern __typeof__(*((d9d_kernels *)0)->gated_gemm_din) d9d_k_gated_gemm_din;

d9d_status d9d_k_gated_gemm(d9d_stream s, const d9d_gated_dims *n, void *y, void *gate, void *up,
                            const void *x, const void *w_gate, const void *w_up)
{
    if (d9di_few_gated_takes(n, x, w_gate, w_up))
        return d9di_few_gated(s, n, y, gate, up, x, w_gate, w_up);
    return d9di_gated_wgmma_takes(s, n)
               ? d9di_gated_wgmma(s, n, y, gate, up, x, w_gate, w_up)
               : d9di_gated_parts(d9d_kernels_cuda(), s, n, y, gate, up, x, w_gate, w_up);
}

d9d_status d9d_k_gated_gemm_din(d9d_stream s, const d9d_gated_dims *n, void *dgate, void *dup,
                                const void *dout, const void *w, const void *gate, const void *up)
{
    return d9di_gated_wgmma_takes(s, n)
               ? d9di_gated_din_wgmma(s, n, dgate, dup, dout, w, gate, up)
               : d9di_gated_din_parts(d9d_kernels_cuda(), s, n, dgate, dup, dout, w, gate, up);
}
