/* gemm_per_head.cu - a product for each head, whose matrices are some rows of one. */
#include "cuda/common/block_mma.cuh"

template <class T> struct heads {
    d9d_heads_dims n;
    T *y;
    const T *x, *w;
};

/* A block has a tile of a head's rows and columns. */
template <bool TENSOR, class T>
static __global__ void __launch_bounds__(THREADS) heads_kernel(heads<T> v)
{
    __shared__ staging<TILE> sh;
    __shared__ float out[TILE][TILE + PAD];
    const int64_t h = blockIdx.y, c0 = (int64_t)blockIdx.x * TILE, r0 = (int64_t)blockIdx.z * TILE;
    const int64_t wide = v.n.turned ? v.n.in : v.n.out, row = v.n.heads * v.n.in;
    const T *w = v.w + (h * v.n.step + v.n.first) * wide;
    tile_sum<TENSOR, TILE> sum;

    sum.clear();
    sum.add(sh, plain(v.x + h * v.n.in, row, 1), r0, v.n.m,
            v.n.turned ? plain(w, wide, 1) : plain(w, 1, wide), c0, v.n.out, v.n.in);
    sum.give(out);
    for (int e = threadIdx.x; e < TILE * TILE; e += THREADS) {
        const int64_t i = r0 + e / TILE, j = c0 + e % TILE;

        if (i < v.n.m && j < v.n.out)
            put(v.y + (i * v.n.heads + h) * v.n.out + j, out[e / TILE][e % TILE]);
    }
}

template <class T>
static d9d_status run(d9d_stream s, const d9d_heads_dims *n, void *y, const void *x, const void *w)
{
    const dim3 grid((unsigned)d9di_ceil_div(n->out, TILE), (unsigned)n->heads,
                    (unsigned)d9di_ceil_div(n->m, TILE));

    heads_kernel<std::is_same_v<T, bf16>>
        <<<grid, THREADS, 0, d9di_queue(s)>>>(heads<T>{*n, (T *)y, (const T *)x, (const T *)w});
    return d9di_launched("heads_gemm");
}

d9d_status d9d_k_heads_gemm(d9d_stream s, const d9d_heads_dims *n, void *y, const void *x,
                            const void *w)
{
    D9D_TRY(d9di_check_float("heads_gemm", n->t));
    if (n->m * n->heads * n->out == 0)
        return D9D_OK;
    return D9DI_TYPED(n->t, T, run<T>(s, n, y, x, w));
}
