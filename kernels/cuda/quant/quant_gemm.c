/* quant_gemm.c - products with frozen matrices in 8 or 4 bits: a few rows read them as they are
 * stored; for more, the matrix is dequantised to scratch and multiplied as any other.
 *
 * A kernel takes 16 rows.  Dequantising writes and reads two bytes an element, so that reading the
 * codes once more for the next 16 rows is less. */
#include "common/quant_code.h"
#include "cuda/quant/quant.h"

static d9d_status product_dequantised(d9d_stream s, const char *op, const d9d_gemm *g,
                                      const void *a, const d9d_quant_matrix *w, void *c)
{
    const int64_t bytes = w->rows * w->cols * (int64_t)d9d_dtype_size(g->t);
    d9d_gemm plain = *g;
    void *panel;
    d9d_status st;

    plain.b_constant = false;
    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &panel));
    st = d9d_k_quant_dequantise(s, g->t, panel, w);
    if (st == D9D_OK)
        st = d9di_gemm(s, op, &plain, a, panel, c);
    d9di_cuda_scratch_free(s, panel, bytes);
    return st;
}

/* Rows [first, first + pass) of A and C. */
static d9d_gemm pass_of(const d9d_gemm *g, int64_t first, const void **a, void **c)
{
    const int64_t a_at = first * g->k * (int64_t)d9d_dtype_size(g->t),
                  c_at = first * g->n * (int64_t)d9d_dtype_size(g->ct);
    d9d_gemm part = *g;

    part.m = d9di_i64_min(g->m - first, D9DI_QUANT_SKINNY_ROWS);
    part.addend = g->addend != NULL ? (const char *)g->addend + c_at : NULL;
    *a = (const char *)*a + a_at;
    *c = (char *)*c + c_at;
    return part;
}

static d9d_status product_in_passes(d9d_stream s, const d9d_gemm *g, const void *a,
                                    const d9d_quant_matrix *w, void *c)
{
    for (int64_t first = 0; first < g->m; first += D9DI_QUANT_SKINNY_ROWS) {
        const void *x = a;
        void *y = c;
        const d9d_gemm part = pass_of(g, first, &x, &y);

        D9D_TRY(d9di_quant_gemm_skinny(s, 1, &part, x, w, &y));
    }
    return D9D_OK;
}

/* Each pass of a few rows is one of the kernel's. */
static bool is_in_passes(const d9d_gemm *g, const void *a, const d9d_quant_matrix *w)
{
    const void *x = a;
    void *y = NULL;
    d9d_gemm part;

    if (g->m > D9D_QUANT_FEW_ROWS)
        return false;
    part = pass_of(g, 0, &x, &y);
    return d9di_quant_gemm_skinny_supported(1, &part, x, w);
}

d9d_status d9d_k_quant_gemm(d9d_stream s, const d9d_gemm *g, const void *a,
                            const d9d_quant_matrix *w, void *c)
{
    static const char op[] = "quant_gemm";

    D9D_TRY(d9di_args_check_quant_gemm(op, g, w));
    return is_in_passes(g, a, w) ? product_in_passes(s, g, a, w, c)
                                 : product_dequantised(s, op, g, a, w, c);
}

d9d_status d9d_k_quant_gemm_multi(d9d_stream s, int n, const d9d_gemm *g, const void *a,
                                  const d9d_quant_matrix *w, void *const *c)
{
    for (int i = 0; i < n; i++)
        D9D_TRY(d9di_args_check_quant_gemm("quant_gemm_multi", &g[i], &w[i]));
    return d9di_quant_gemm_skinny_supported(n, g, a, w)
               ? d9di_quant_gemm_skinny(s, n, g, a, w, c)
               : d9di_quant_gemm_each(d9d_kernels_cuda(), s, n, g, a, w, c);
}

d9d_status d9d_k_quant_gemm_glu(d9d_stream s, const d9d_gemm_glu_dims *n, void *y, void *gate,
                                void *up, const void *x, const d9d_quant_matrix *w)
{
    const bool fused =
        n->glu.act == D9D_ACT_SILU && up != NULL && n->b_gate == NULL && n->b_up == NULL;

    D9D_TRY(d9di_args_check_quant_glu(n, w, up != NULL));
    return fused && d9di_quant_swiglu_skinny_supported(n, x, w)
               ? d9di_quant_swiglu_skinny(s, n, y, gate, up, x, w)
               : d9di_quant_glu_parts(d9d_kernels_cuda(), s, n, y, gate, up, x, w);
}
