/* gemm_glu.c - the GLU half of a feed-forward layer: fused if a kernel supports it, else in
 * parts. */
#include "cuda/gemm/gemm_skinny.h"
#include "cuda/gemm/gemm_swiglu.h"

/* The fused kernels are those of SwiGLU without biases. */
static bool is_swiglu(const d9d_gemm_glu_dims *n, const void *up)
{
    return n->glu.act == D9D_ACT_SILU && up != NULL;
}
static bool has_bias(const d9d_gemm_glu_dims *n)
{
    return n->b_gate != NULL || n->b_up != NULL;
}

d9d_status d9d_k_gemm_glu(d9d_stream s, const d9d_gemm_glu_dims *n, void *y, void *gate, void *up,
                          const void *x, const void *w_gate, const void *w_up)
{
    const bool fused = is_swiglu(n, w_up) && !has_bias(n);

    if (fused && d9di_gemm_skinny_swiglu_supported(n, x, w_gate, w_up))
        return d9di_gemm_skinny_swiglu(s, n, y, gate, up, x, w_gate, w_up);
    return fused && d9di_gemm_swiglu_sm90_supported(s, n)
               ? d9di_gemm_swiglu_sm90(s, n, y, gate, up, x, w_gate, w_up)
               : d9di_gemm_glu_parts(d9d_kernels_cuda(), s, n, y, gate, up, x, w_gate, w_up);
}

d9d_status d9d_k_gemm_glu_bwd(d9d_stream s, const d9d_gemm_glu_dims *n, void *dgate, void *dup,
                              const void *dout, const void *w, const void *gate, const void *up)
{
    return is_swiglu(n, up) && d9di_gemm_swiglu_sm90_supported(s, n)
               ? d9di_gemm_swiglu_bwd_sm90(s, n, dgate, dup, dout, w, gate, up)
               : d9di_gemm_glu_bwd_parts(d9d_kernels_cuda(), s, n, dgate, dup, dout, w, gate, up);
}
