/* gemm_glu_parts.c - GLU half of a feed-forward layer, unfused: GEMMs, biases, the unit. */
#include "common/kernel_common.h"

enum { PROJECTIONS = 2 }; /* gate and up */

/* y_i = x W_i', plus their biases, but those of experts */
static d9d_status projection_gemms(const d9d_kernels *k, d9d_stream s, const d9d_gemm_glu_dims *n,
                                   int count, void *const *y, const void *x, const void *const *w)
{
    const d9d_gemm g = {.t = n->t,
                        .ct = n->t,
                        .trans_b = true,
                        .m = n->rows,
                        .n = n->i,
                        .k = n->h,
                        .b_constant = n->weights_constant};
    d9d_gemm both[PROJECTIONS] = {g, g};

    both[0].bias = n->b_gate;
    both[1].bias = n->b_up;
    if (n->offset == NULL)
        return k->gemm->multi(s, count, both, x, w, y);
    for (int i = 0; i < count; i++)
        D9D_TRY(k->gemm->grouped(s, n->t, y[i], x, w[i], n->offset, n->rows, n->e, n->h, n->i));
    return D9D_OK;
}

/* y += b; b NULL: nothing */
static d9d_status bias_add(const d9d_kernels *k, d9d_stream s, const d9d_gemm_glu_dims *n, void *y,
                           const void *b)
{
    return b == NULL ? D9D_OK
                     : k->elementwise->add_bias(s, n->t, y, y, b, n->offset, n->rows, n->e, n->i);
}

d9d_status d9di_glu_finish(const d9d_kernels *k, d9d_stream s, const d9d_gemm_glu_dims *n,
                           bool biased, void *y, void *gate, void *up)
{
    if (!biased)
        D9D_TRY(bias_add(k, s, n, gate, n->b_gate));
    if (!biased && up != NULL)
        D9D_TRY(bias_add(k, s, n, up, n->b_up));
    return k->elementwise->glu(s, &n->glu, n->t, y, gate, up, n->rows * n->i);
}

d9d_status d9di_gemm_glu_parts(const d9d_kernels *k, d9d_stream s, const d9d_gemm_glu_dims *n,
                               void *y, void *gate, void *up, const void *x, const void *w_gate,
                               const void *w_up)
{
    void *const read[PROJECTIONS] = {gate, up};
    const void *const w[PROJECTIONS] = {w_gate, w_up};

    D9D_TRY(d9di_args_check_glu("gemm_glu", n->t, &n->glu, w_up != NULL));
    D9D_TRY(projection_gemms(k, s, n, w_up != NULL ? 2 : 1, read, x, w));
    return d9di_glu_finish(k, s, n, n->offset == NULL, y, gate, w_up != NULL ? up : NULL);
}

d9d_status d9di_gemm_glu_bwd_parts(const d9d_kernels *k, d9d_stream s, const d9d_gemm_glu_dims *n,
                                   void *dgate, void *dup, const void *dout, const void *w,
                                   const void *gate, const void *up)
{
    const d9d_gemm g = {.t = n->t, .ct = n->t, .m = n->rows, .n = n->i, .k = n->h};

    D9D_TRY(n->offset == NULL ? k->gemm->dense(s, &g, dout, w, dgate)
                              : k->gemm->grouped_dgrad(s, n->t, dgate, 0.0f, 1, &dout, &w,
                                                       n->offset, n->rows, n->e, n->i, n->h));
    return k->elementwise->glu_bwd(s, &n->glu, n->t, dgate, dup, dgate, gate, up, n->rows * n->i);
}
