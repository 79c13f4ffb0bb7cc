/* gemm.c - C = op(A) op(B) + beta C + bias: skinny kernels for a few rows, else cuBLASLt, else SIMT
 * tiles.
 */
#include "cuda/gemm/gemm_skinny.h"

/* C = addend, for kernels that add to C in place. */
static d9d_status copy_addend(d9d_stream s, const char *op, const d9d_gemm *g, int64_t count,
                              void *c)
{
    cudaError_t e = cudaSuccess;

    if (g->addend != NULL && g->addend != c && g->beta != 0.0f)
        e = cudaMemcpyAsync(c, g->addend, (size_t)(count * g->m * g->n) * d9d_dtype_size(g->ct),
                            cudaMemcpyDeviceToDevice, d9di_cuda_stream(s));
    return e == cudaSuccess ? D9D_OK : d9di_cuda_fail(op, e);
}

/* C += bias */
static d9d_status add_bias(d9d_stream s, const d9d_gemm *g, void *c)
{
    return g->bias == NULL ? D9D_OK : d9d_k_add_bias(s, g->ct, c, c, g->bias, NULL, g->m, 1, g->n);
}

/* An empty sum: C = beta C + bias. */
static d9d_status scale_result(d9d_stream s, const d9d_gemm *g, int64_t count, void *c)
{
    if (g->beta == 0.0f)
        D9D_TRY(d9d_k_fill(s, g->ct, c, count * g->m * g->n, 0.0f));
    else if (g->beta != 1.0f)
        D9D_TRY(d9d_k_accumulate(s, g->ct, c, g->beta - 1.0f, g->ct, c, count * g->m * g->n));
    return add_bias(s, g, c);
}

/* A product by cuBLASLt, whose bias is an addition of its own where no algorithm has it. */
static d9d_status dense_cublaslt(d9d_stream s, const char *op, const d9d_gemm *g, const void *a,
                                 const void *b, void *c, bool *done)
{
    const d9di_gemm_strides strides = d9di_gemm_strides_dense(g);
    d9d_gemm_batched one = {.gemm = *g, .count = 1, .alpha = 1.0f};

    D9D_TRY(d9di_cublaslt_gemm(s, op, &one, &strides, NULL, a, b, c, done));
    if (*done || g->bias == NULL)
        return D9D_OK;
    one.gemm.bias = NULL;
    D9D_TRY(d9di_cublaslt_gemm(s, op, &one, &strides, NULL, a, b, c, done));
    return *done ? add_bias(s, g, c) : D9D_OK;
}

d9d_status d9di_gemm(d9d_stream s, const char *op, const d9d_gemm *g, const void *a, const void *b,
                     void *c)
{
    bool done;

    D9D_TRY(d9di_args_check_float(op, g->t));
    D9D_TRY(d9di_args_check_float(op, g->ct));
    if (g->m == 0 || g->n == 0)
        return D9D_OK;
    if (g->k == 0) {
        D9D_TRY(copy_addend(s, op, g, 1, c));
        return scale_result(s, g, 1, c);
    }
    if (d9di_gemm_skinny_supported(g, a, b))
        return d9di_gemm_skinny(s, g, a, b, c);
    D9D_TRY(dense_cublaslt(s, op, g, a, b, c, &done));
    if (done)
        return D9D_OK;
    D9D_TRY(copy_addend(s, op, g, 1, c));
    return d9di_gemm_simt(s, op, g, a, b, c);
}

/* One SIMT product after another: C = alpha (A B + beta / alpha C). */
static d9d_status batched_simt(d9d_stream s, const d9d_gemm_batched *n, const void *a,
                               const void *b, void *c)
{
    d9d_gemm g = n->gemm;

    g.beta /= n->alpha;
    for (int64_t i = 0; i < n->count; i++)
        D9D_TRY(d9di_gemm_simt(s, "gemm_batched", &g, d9di_elem_cat(g.t, a, i * g.m * g.k),
                               d9di_elem_cat(g.t, b, i * g.k * g.n),
                               d9di_elem_at(g.ct, c, i * g.m * g.n)));
    return n->alpha == 1.0f
               ? D9D_OK
               : d9d_k_accumulate(s, g.ct, c, n->alpha - 1.0f, g.ct, c, n->count * g.m * g.n);
}

/* The panels of symmetric products up to the diagonal, from whose other side the rest is mirrored:
 * three quarters of the work with two panels, 5/8 with four. */
static d9d_status symmetric_panels(d9d_stream s, const char *op, const d9d_gemm_batched *n,
                                   const void *a, const void *b, void *c, bool *done)
{
    const d9d_gemm *g = &n->gemm;
    const int64_t h = d9di_gemm_symmetric_panel(g->m);
    const d9di_gemm_strides strides = d9di_gemm_strides_dense(g);

    for (int64_t row = 0; row < g->m; row += h) {
        d9d_gemm_batched part = *n;

        part.gemm.m = d9di_i64_min(h, g->m - row);
        part.gemm.n = row + part.gemm.m;
        if (g->addend != NULL)
            part.gemm.addend = d9di_elem_cat(g->ct, g->addend, row * g->n);
        D9D_TRY(d9di_cublaslt_gemm(s, op, &part, &strides, NULL,
                                   d9di_elem_cat(g->t, a, g->trans_a ? row : row * strides.a_row),
                                   b, d9di_elem_at(g->ct, c, row * g->n), done));
        if (!*done)
            return D9D_OK;
    }
    return d9di_mirror_lower(s, op, g->ct, c, n->count, g->m);
}

/* All products at once, or panels; a product that adds to C in place is not begun twice. */
static d9d_status batched_cublaslt(d9d_stream s, const char *op, const d9d_gemm_batched *n,
                                   const void *a, const void *b, void *c, bool *done)
{
    const d9d_gemm *g = &n->gemm;
    const d9di_gemm_strides strides = d9di_gemm_strides_dense(g);
    const bool in_place = g->beta != 0.0f && (g->addend == NULL || g->addend == c);

    *done = false;
    if (n->symmetric && !in_place && d9di_gemm_symmetric_panel(g->m) < g->m)
        D9D_TRY(symmetric_panels(s, op, n, a, b, c, done));
    return *done ? D9D_OK : d9di_cublaslt_gemm(s, op, n, &strides, NULL, a, b, c, done);
}

d9d_status d9d_k_gemm_batched(d9d_stream s, const d9d_gemm_batched *n, const void *a, const void *b,
                              void *c)
{
    static const char op[] = "gemm_batched";
    const d9d_gemm *g = &n->gemm;
    bool done;

    D9D_TRY(d9di_args_check_float(op, g->t));
    D9D_TRY(d9di_args_check_float(op, g->ct));
    if (n->count == 0 || g->m == 0 || g->n == 0)
        return D9D_OK;
    if (g->k == 0 || n->alpha == 0.0f) {
        D9D_TRY(copy_addend(s, op, g, n->count, c));
        return scale_result(s, g, n->count, c);
    }
    D9D_TRY(batched_cublaslt(s, op, n, a, b, c, &done));
    if (done)
        return D9D_OK;
    D9D_TRY(copy_addend(s, op, g, n->count, c));
    return batched_simt(s, n, a, b, c);
}

d9d_status d9d_k_gemm(d9d_stream s, const d9d_gemm *g, const void *a, const void *b, void *c)
{
    return d9di_gemm(s, "gemm", g, a, b, c);
}

d9d_status d9d_k_gemm_multi(d9d_stream s, int n, const d9d_gemm *g, const void *a,
                            const void *const *b, void *const *c)
{
    bool few = d9di_gemm_skinny_mma_supported(n, g) && g->m > 0 && g->k > 0;

    for (int i = 0; i < n && few; i++)
        few = d9di_gemm_skinny_supported(&g[i], a, b[i]);
    return few ? d9di_gemm_skinny_mma(s, n, g, a, b, c)
               : d9di_gemm_each(d9d_kernels_cuda(), s, n, g, a, b, c);
}
