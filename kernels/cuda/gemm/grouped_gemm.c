/* grouped_gemm.c - grouped GEMM: runs the first kernel that supports the call. */
#include "cuda/gemm/grouped_gemm.h"

static const struct grouped_impl {
    bool (*is_supported)(d9d_stream s, const d9di_grouped_gemm_call *g);
    d9d_status (*grouped_launch)(d9d_stream s, const d9di_grouped_gemm_call *g);
} grouped_impls[] = {
    {d9di_grouped_gemm_skinny_supported, d9di_grouped_gemm_skinny},
    {d9di_grouped_gemm_sm90_supported, d9di_grouped_gemm_sm90},
    {d9di_grouped_gemm_simt_supported, d9di_grouped_gemm_simt},
};

static d9d_status grouped_launch(d9d_stream s, const d9di_grouped_gemm_call *g)
{
    const struct grouped_impl *grouped_impl = grouped_impls;

    D9D_TRY(d9di_args_check_float(g->op, g->t));
    D9D_TRY(d9di_args_check_float(g->op, g->ct));
    if (g->e == 0)
        return D9D_OK;
    while (!grouped_impl->is_supported(s, g)) /* the last one supports everything */
        grouped_impl++;
    return grouped_impl->grouped_launch(s, g);
}

d9d_status d9d_k_grouped_gemm(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *w,
                              const int32_t *offset, int64_t rows, int64_t e, int64_t in,
                              int64_t out)
{
    const d9di_grouped_gemm_call g = {"grouped_gemm",
                                      D9DI_GROUPED_GEMM_FWD,
                                      t,
                                      t,
                                      0.0f,
                                      y,
                                      x,
                                      w,
                                      offset,
                                      rows,
                                      e,
                                      in,
                                      out,
                                      NULL,
                                      NULL};

    return grouped_launch(s, &g);
}

d9d_status d9d_k_grouped_gemm_dgrad(d9d_stream s, d9d_dtype t, void *dx, float beta, int n,
                                    const void *const *dy, const void *const *w,
                                    const int32_t *offset, int64_t rows, int64_t e, int64_t in,
                                    int64_t out)
{
    const d9di_grouped_gemm_call g = {"grouped_gemm_dgrad",
                                      D9DI_GROUPED_GEMM_DGRAD,
                                      t,
                                      t,
                                      beta,
                                      dx,
                                      dy[0],
                                      w[0],
                                      offset,
                                      rows,
                                      e,
                                      in,
                                      out,
                                      n > 1 ? dy[1] : NULL,
                                      n > 1 ? w[1] : NULL};

    return grouped_launch(s, &g);
}

d9d_status d9d_k_grouped_gemm_wgrad(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dw, float beta,
                                    const void *x, const void *dy, const int32_t *offset,
                                    int64_t rows, int64_t e, int64_t in, int64_t out)
{
    const d9di_grouped_gemm_call g = {"grouped_gemm_wgrad",
                                      D9DI_GROUPED_GEMM_WGRAD,
                                      t,
                                      gt,
                                      beta,
                                      dw,
                                      x,
                                      dy,
                                      offset,
                                      rows,
                                      e,
                                      in,
                                      out,
                                      NULL,
                                      NULL};

    return grouped_launch(s, &g);
}
