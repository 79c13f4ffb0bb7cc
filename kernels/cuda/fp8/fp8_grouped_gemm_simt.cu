/* fp8_grouped_gemm_simt.cu - products of quantised rows and matrices of experts in SIMT tiles, on
 * any GPU: elements become float32, and scales multiply the sums.
 *
 * A block has a column of tiles of an expert, one after the other.
 */
#include <cuda_fp8.h>

#include "cuda/fp8/fp8_grouped_gemm.h"
#include "cuda/gemm/simt_tile.cuh"

/* An element. */
template <bool E5M2> struct fp8 {
    uint8_t bits;
};
template <bool E5M2> static __device__ __forceinline__ float to_float(fp8<E5M2> x)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, E5M2 ? __NV_E5M2 : __NV_E4M3)));
}

/* An operand's rows from `first` on, elements from `from` on, with their scales. */
template <class T> struct side {
    operand<T> x;
    const float *scale;
    bool by_row;
};
template <class T>
static __device__ __forceinline__ side<T> side_from(const d9d_fp8_operand &x, int64_t first,
                                                    int64_t from)
{
    return {{(const T *)x.data + first * x.row_stride + from, x.row_stride, 1},
            x.scale + (x.scale_by_row ? first : 0),
            x.scale_by_row};
}

/* C [m, n] = A B' + beta C, a column of tiles of it. */
template <class A, class B, class C>
static __device__ __forceinline__ void column_product(C *c, const side<A> &a, const side<B> &b,
                                                      int64_t m, int64_t n, int64_t k, float beta)
{
    __shared__ tile_shared sh;
    const int64_t column = (int64_t)blockIdx.x * SIDE;
    const int ty = threadIdx.x / (SIDE / MICRO), tx = threadIdx.x % (SIDE / MICRO);

    for (int64_t row = 0; row < m; row += SIDE) {
        float sum[MICRO][MICRO] = {};

        for (int64_t k0 = 0; k0 < k; k0 += DEPTH) {
            tile_load(sh.a, a.x, row, m, k0, k);
            tile_load(sh.b, b.x, column, n, k0, k);
            __syncthreads();
            tile_multiply(sum, sh);
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < MICRO; i++)
#pragma unroll
            for (int j = 0; j < MICRO; j++) {
                const int64_t r = row + ty * MICRO + i, q = column + tx * MICRO + j;

                if (r < m && q < n)
                    sum[i][j] *= a.scale[a.by_row ? r : 0] * b.scale[b.by_row ? q : 0];
            }
        tile_store(c, n, sum, row, column, m, n, beta, (const C *)NULL);
    }
}

template <class A, class B, class C>
static __global__ void __launch_bounds__(THREADS)
    fp8_grouped_kernel(d9d_fp8_grouped_dims g, d9d_fp8_operand a, d9d_fp8_operand b, C *c)
{
    const int64_t x = blockIdx.y;
    const int64_t first = d9di_i64_max(0, d9di_i64_min(g.rows, g.offset[x])),
                  n = d9di_i64_max(first, d9di_i64_min(g.rows, g.offset[x + 1])) - first;

    if (g.form == D9D_FP8_GROUPED_FWD)
        column_product(c + first * g.out, side_from<A>(a, first, 0), side_from<B>(b, 0, x * g.in),
                       n, g.out, g.in, g.beta);
    else if (g.form == D9D_FP8_GROUPED_DGRAD)
        column_product(c + first * g.in, side_from<A>(a, first, 0), side_from<B>(b, x * g.in, 0), n,
                       g.in, g.out, g.beta);
    else
        column_product(c + x * g.in * g.out, side_from<A>(a, 0, first), side_from<B>(b, 0, first),
                       g.in, g.out, n, g.beta);
}

template <class A, class B, class C>
static d9d_status launch(d9d_stream s, const d9d_fp8_grouped_dims *g, const d9d_fp8_operand *a,
                         const d9d_fp8_operand *b, void *c)
{
    const int64_t n = g->form == D9D_FP8_GROUPED_DGRAD ? g->in : g->out;
    const dim3 grid((unsigned)d9di_i64_ceil_div(n, SIDE), (unsigned)g->e);

    fp8_grouped_kernel<A, B, C><<<grid, THREADS, 0, d9di_cuda_stream(s)>>>(*g, *a, *b, (C *)c);
    return d9di_cuda_check_launch("fp8_grouped_gemm");
}

template <class A, class B>
static d9d_status by_result(d9d_stream s, const d9d_fp8_grouped_dims *g, const d9d_fp8_operand *a,
                            const d9d_fp8_operand *b, void *c)
{
    return D9DI_DISPATCH_DTYPE(g->ct, C, launch<A, B, C>(s, g, a, b, c));
}

d9d_status d9di_fp8_grouped_gemm_simt(d9d_stream s, const d9d_fp8_grouped_dims *g,
                                      const d9d_fp8_operand *a, const d9d_fp8_operand *b, void *c)
{
    enum { MAX_GRID_Y = 65535 };

    if (g->e > MAX_GRID_Y)
        return D9D_FAIL(D9D_EINVAL, "fp8_grouped_gemm: %lld experts, at most %d", (long long)g->e,
                        MAX_GRID_Y);
    if (a->t == D9D_F8_E5M2)
        return by_result<fp8<true>, fp8<false>>(s, g, a, b, c);
    return b->t == D9D_F8_E5M2 ? by_result<fp8<false>, fp8<true>>(s, g, a, b, c)
                               : by_result<fp8<false>, fp8<false>>(s, g, a, b, c);
}
