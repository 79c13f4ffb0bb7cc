/* gemm_simt.cu - GEMM in SIMT tiles, for what cuBLASLt does not support. */
#include "cuda/gemm/simt_tile.cuh"

template <class T, class C>
static __global__ void __launch_bounds__(THREADS)
    gemm_kernel(C *c, operand<T> a, operand<T> b, int64_t m, int64_t n, int64_t k, float beta,
                const C *bias)
{
    const int64_t across = d9di_i64_ceil_div(n, SIDE);

    for (int64_t t = blockIdx.x; t < across * d9di_i64_ceil_div(m, SIDE); t += gridDim.x)
        tile_product(c, n, a, b, t / across * SIDE, t % across * SIDE, m, n, k, beta, bias);
}

template <class T, class C>
static d9d_status launch_gemm(d9d_stream s, const char *op, const d9d_gemm *g, const void *a,
                              const void *b, void *c)
{
    const int64_t tiles = d9di_i64_ceil_div(g->m, SIDE) * d9di_i64_ceil_div(g->n, SIDE);
    const operand<T> x = {(const T *)a, g->trans_a ? 1 : g->k, g->trans_a ? g->m : 1};
    const operand<T> y = {(const T *)b, g->trans_b ? g->k : 1, g->trans_b ? 1 : g->n};

    gemm_kernel<<<(unsigned)d9di_i64_min(tiles, 1 << 20), THREADS, 0, d9di_cuda_stream(s)>>>(
        (C *)c, x, y, g->m, g->n, g->k, g->beta, (const C *)g->bias);
    return d9di_cuda_check_launch(op);
}

d9d_status d9di_gemm_simt(d9d_stream s, const char *op, const d9d_gemm *g, const void *a,
                          const void *b, void *c)
{
    return D9DI_DISPATCH_DTYPE(g->t, T,
                               D9DI_DISPATCH_DTYPE(g->ct, C, launch_gemm<T, C>(s, op, g, a, b, c)));
}
