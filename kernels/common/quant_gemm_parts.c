/* quant_gemm_parts.c - checks of products with quantised matrices; several of them, and the GLU
 * half of a feed-forward layer, one after the other. */
#include "common/quant_code.h"

d9d_status d9di_args_check_quant(const char *op, const d9d_quant_matrix *w)
{
    if (w->format != D9D_QUANT_FP8 && w->format != D9D_QUANT_NF4)
        return D9D_FAIL(D9D_EINVAL, "%s: a matrix of format %d, which is unknown", op,
                        (int)w->format);
    if (w->rows < 0 || w->cols < 0 || w->cols % d9d_quant_align(w->format) != 0)
        return D9D_FAIL(
            D9D_EINVAL, "%s: rows of %lld elements, in %s possible are multiples of %lld", op,
            (long long)w->cols, d9d_quant_name(w->format), (long long)d9d_quant_align(w->format));
    return D9D_OK;
}

d9d_status d9di_args_check_quant_gemm(const char *op, const d9d_gemm *g, const d9d_quant_matrix *w)
{
    const int64_t rows = g->trans_b ? g->n : g->k, cols = g->trans_b ? g->k : g->n;

    D9D_TRY(d9di_args_check_float(op, g->t));
    D9D_TRY(d9di_args_check_float(op, g->ct));
    D9D_TRY(d9di_args_check_quant(op, w));
    if (g->trans_a)
        return D9D_FAIL(D9D_EINVAL, "%s: A is transposed, which quantised products do not take",
                        op);
    if (g->bias != NULL)
        return D9D_FAIL(D9D_EINVAL, "%s: a bias, which quantised products do not add", op);
    if (w->rows != rows || w->cols != cols)
        return D9D_FAIL(D9D_EINVAL, "%s: a matrix of %lld x %lld where %lld x %lld is multiplied",
                        op, (long long)w->rows, (long long)w->cols, (long long)rows,
                        (long long)cols);
    return D9D_OK;
}

static d9d_gemm glu_gemm(const d9d_gemm_glu_dims *n)
{
    return (d9d_gemm){.t = n->t,
                      .ct = n->t,
                      .trans_b = true,
                      .m = n->rows,
                      .n = n->i,
                      .k = n->h,
                      .b_constant = n->weights_constant};
}

d9d_status d9di_args_check_quant_glu(const d9d_gemm_glu_dims *n, const d9d_quant_matrix *w,
                                     bool gated)
{
    static const char op[] = "quant_gemm_glu";
    const d9d_gemm g = glu_gemm(n);

    D9D_TRY(d9di_args_check_glu(op, n->t, &n->glu, gated));
    if (n->offset != NULL)
        return D9D_FAIL(D9D_EINVAL, "%s: experts, which it does not take", op);
    for (int i = 0; i < (gated ? 2 : 1); i++)
        D9D_TRY(d9di_args_check_quant_gemm(op, &g, &w[i]));
    return D9D_OK;
}

d9d_status d9di_quant_gemm_each(const d9d_kernels *k, d9d_stream s, int n, const d9d_gemm *g,
                                const void *a, const d9d_quant_matrix *w, void *const *c)
{
    for (int i = 0; i < n; i++)
        D9D_TRY(k->quant->product(s, &g[i], a, &w[i], c[i]));
    return D9D_OK;
}

d9d_status d9di_quant_glu_parts(const d9d_kernels *k, d9d_stream s, const d9d_gemm_glu_dims *n,
                                void *y, void *gate, void *up, const void *x,
                                const d9d_quant_matrix *w)
{
    const d9d_gemm g[] = {glu_gemm(n), glu_gemm(n)};
    void *const read[] = {gate, up};

    D9D_TRY(d9di_args_check_quant_glu(n, w, up != NULL));
    D9D_TRY(k->quant->multi(s, up != NULL ? 2 : 1, g, x, w, read));
    return d9di_glu_finish(k, s, n, false, y, gate, up);
}
