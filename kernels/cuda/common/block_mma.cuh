/* block_mma.cuh - GEMM of small matrices by a thread block, with operands of any strides and scale
 * factors.
 *
 *     C[r, c] = sum_k A[r, k] B[k, c]        r < 64, c < N of 64 or 32, k < depth
 *
 * Operands are given by strides, one of which is 1. Rows, columns and whole operands may be scaled
 * as they are loaded, so that a diagonal matrix in a formula costs nothing. They are loaded into
 * shared memory STEP of k at a time, double-buffered in registers.
 *
 *     tile_sum<TENSOR, 64> c;                  // a block of THREADS has one
 *     c.clear();
 *     c.add(sh, a, b, rows, columns, depth);   // once per product
 *     c.store(out);                            // to shared memory, [64][N + PAD]; c is unchanged
 *
 * TENSOR uses tensor cores: operands are rounded to ten bits (TF32), sums are float32. Every thread
 * of the block makes each call; the calls end with a block barrier.
 */
#ifndef D9DI_CUDA_COMMON_BLOCK_MMA_CUH
#define D9DI_CUDA_COMMON_BLOCK_MMA_CUH

#include <mma.h>

#include "cuda/common/common.cuh"

enum { TILE = 64, STEP = 32, PAD = 4, ROW = STEP + PAD };

/* Element (i, k) is p[i * side + k * along] * by * by_side[i] * by_along[k]; NULL: 1. */
template <class T> struct scaled_matrix {
    const T *p;
    int64_t side, along;
    const float *by_side, *by_along;
    float by;
};
template <class T>
static __device__ __forceinline__ scaled_matrix<T> scaled_matrix_make(const T *p, int64_t side,
                                                                      int64_t along,
                                                                      const float *by_side = NULL,
                                                                      const float *by_along = NULL,
                                                                      float by = 1.0f)
{
    return {p, side, along, by_side, by_along, by};
}

template <int N> struct smem_operands {
    float a[TILE][ROW], b[N][ROW];
};

/* A thread's eight elements of SIDE x STEP; in large blocks some threads have none. */
template <int SIDE, class T> struct operand_loader {
    raw8<T> raw;
    int i, k; /* of the first element; i < 0: none */

    __device__ __forceinline__ void fetch(const scaled_matrix<T> &x, int64_t i0, int64_t n,
                                          int64_t k0, int64_t depth)
    {
        const int e = threadIdx.x;

        i = -1;
        if (e >= SIDE * STEP / 8)
            return;
        /* Each lane writes to a bank of its own. */
        i = x.along == 1 ? e / (STEP / 8) : e / STEP * 8;
        k = x.along == 1 ? e % (STEP / 8) * 8 : e % STEP;
        const bool inside = x.along == 1 ? i0 + i < n : k0 + k < depth;
        const int64_t left = x.along == 1 ? depth - k0 - k : n - i0 - i;

        fetch8(raw, x.p + (inside ? (i0 + i) * x.side + (k0 + k) * x.along : 0), inside ? left : 0);
    }

    __device__ __forceinline__ void store_scaled(float (*to)[ROW], const scaled_matrix<T> &x,
                                                 int64_t i0, int64_t n, int64_t k0, int64_t depth)
    {
        float v[8];

        if (i < 0)
            return;
        unpack8(v, raw);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int si = x.along == 1 ? i : i + j, sk = x.along == 1 ? k + j : k;
            float f = x.by;

            if (x.by_side != NULL)
                f *= i0 + si < n ? x.by_side[i0 + si] : 0.0f;
            if (x.by_along != NULL)
                f *= k0 + sk < depth ? x.by_along[k0 + sk] : 0.0f;
            v[j] *= f;
        }
        if (x.along == 1) {
            ((float4 *)&to[i][k])[0] = make_float4(v[0], v[1], v[2], v[3]);
            ((float4 *)&to[i][k])[1] = make_float4(v[4], v[5], v[6], v[7]);
            return;
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            to[i + j][k] = v[j];
    }
};

/* The two kinds of accumulator: what a thread holds of a sum. */
template <bool TENSOR, int N> struct thread_acc;

template <int N> struct thread_acc<false, N> {
    enum { SIDE = 16, R = TILE / SIDE, C = N / SIDE };
    float v[R][C];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int c = 0; c < C; c++)
                v[r][c] = 0.0f;
    }
    __device__ __forceinline__ void multiply(const smem_operands<N> &sh)
    {
        const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;

        for (int k = 0; k < STEP; k++)
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int c = 0; c < C; c++)
                    v[r][c] = fmaf(sh.a[ty * R + r][k], sh.b[tx + c * SIDE][k], v[r][c]);
    }
    __device__ __forceinline__ void store(float (*out)[N + PAD]) const
    {
        const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;

#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int c = 0; c < C; c++)
                out[ty * R + r][tx + c * SIDE] = v[r][c];
    }
};

template <int N> struct thread_acc<true, N> {
    enum { SIDE = 16, DEEP = 8, C = N / 2 / SIDE };
    nvcuda::wmma::fragment<nvcuda::wmma::accumulator, SIDE, SIDE, DEEP, float> v[C];

    /* A warp has 16 rows and half of the columns. */
    static __device__ __forceinline__ int row() { return threadIdx.x / WARP / 2 * SIDE; }
    static __device__ __forceinline__ int col(int c)
    {
        return threadIdx.x / WARP % 2 * (N / 2) + c * SIDE;
    }
    template <class F> static __device__ __forceinline__ void round(F &f)
    {
#pragma unroll
        for (int i = 0; i < f.num_elements; i++)
            f.x[i] = nvcuda::wmma::__float_to_tf32(f.x[i]);
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int c = 0; c < C; c++)
            nvcuda::wmma::fill_fragment(v[c], 0.0f);
    }
    __device__ __forceinline__ void multiply(const smem_operands<N> &sh)
    {
        using namespace nvcuda::wmma;
        typedef precision::tf32 tf32;

#pragma unroll
        for (int k = 0; k < STEP; k += DEEP) {
            fragment<matrix_a, SIDE, SIDE, DEEP, tf32, row_major> a;

            load_matrix_sync(a, &sh.a[row()][k], ROW);
            round(a);
#pragma unroll
            for (int c = 0; c < C; c++) {
                fragment<matrix_b, SIDE, SIDE, DEEP, tf32, col_major> b;

                load_matrix_sync(b, &sh.b[col(c)][k], ROW);
                round(b);
                mma_sync(v[c], a, b, v[c]);
            }
        }
    }
    __device__ __forceinline__ void store(float (*out)[N + PAD]) const
    {
#pragma unroll
        for (int c = 0; c < C; c++)
            nvcuda::wmma::store_matrix_sync(&out[row()][col(c)], v[c], N + PAD,
                                            nvcuda::wmma::mem_row_major);
    }
};

template <bool TENSOR, int N> struct tile_sum {
    thread_acc<TENSOR, N> v;

    __device__ __forceinline__ void clear() { v.clear(); }

    /* Adds the product from row r0 of A, of m, and column c0 of B, of n, on. */
    template <class A, class B>
    __device__ __forceinline__ void add(smem_operands<N> &sh, const scaled_matrix<A> &a, int64_t r0,
                                        int64_t m, const scaled_matrix<B> &b, int64_t c0, int64_t n,
                                        int64_t depth)
    {
        operand_loader<TILE, A> sa;
        operand_loader<N, B> sb;

        sa.fetch(a, r0, m, 0, depth);
        sb.fetch(b, c0, n, 0, depth);
        for (int64_t k = 0; k < depth; k += STEP) {
            sa.store_scaled(sh.a, a, r0, m, k, depth);
            sb.store_scaled(sh.b, b, c0, n, k, depth);
            __syncthreads();
            if (k + STEP < depth) {
                sa.fetch(a, r0, m, k + STEP, depth);
                sb.fetch(b, c0, n, k + STEP, depth);
            }
            v.multiply(sh);
            __syncthreads();
        }
    }

    __device__ __forceinline__ void store(float (*out)[N + PAD]) const
    {
        v.store(out);
        __syncthreads();
    }
};

#endif /* D9DI_CUDA_COMMON_BLOCK_MMA_CUH */
