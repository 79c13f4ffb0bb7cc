/* gemm_swiglu_parts.c - SwiGLU half of a feed-forward layer, unfused. */
#include "common/kernel_common.h"

static d9d_status projection_gemm(const d9d_kernels *k, d9d_stream s, const d9d_gemm_swiglu_dims *n,
                                  void *y, const void *x, const void *w)
{
    const d9d_gemm g = {.t = n->t, .ct = n->t, .trans_b = true, .m = n->rows, .n = n->i, .k = n->h};

    return n->offset == NULL
               ? k->gemm->dense(s, &g, x, w, y)
               : k->gemm->grouped(s, n->t, y, x, w, n->offset, n->rows, n->e, n->h, n->i);
}

d9d_status d9di_gemm_swiglu_parts(const d9d_kernels *k, d9d_stream s, const d9d_gemm_swiglu_dims *n,
                                  void *y, void *gate, void *up, const void *x, const void *w_gate,
                                  const void *w_up)
{
    D9D_TRY(projection_gemm(k, s, n, gate, x, w_gate));
    D9D_TRY(projection_gemm(k, s, n, up, x, w_up));
    return k->elementwise->swiglu(s, n->t, y, gate, up, n->rows * n->i);
}

d9d_status d9di_gemm_swiglu_bwd_parts(const d9d_kernels *k, d9d_stream s,
                                      const d9d_gemm_swiglu_dims *n, void *dgate, void *dup,
                                      const void *dout, const void *w, const void *gate,
                                      const void *up)
{
    const d9d_gemm g = {.t = n->t, .ct = n->t, .m = n->rows, .n = n->i, .k = n->h};

    D9D_TRY(n->offset == NULL ? k->gemm->dense(s, &g, dout, w, dgate)
                              : k->gemm->grouped_dgrad(s, n->t, dgate, 0.0f, 1, &dout, &w,
                                                       n->offset, n->rows, n->e, n->i, n->h));
    return k->elementwise->swiglu_bwd(s, n->t, dgate, dup, dgate, gate, up, n->rows * n->i);
}
