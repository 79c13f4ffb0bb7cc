/* mirror_lower.cu - completes symmetric matrices of which the part up to the diagonal is there. */
#include "cuda/common/common.cuh"

enum { TILE = 32, TILE_ROWS = THREADS / TILE };

/* A block copies the tile right of or on the diagonal at (blockIdx.y, blockIdx.x) from its mirror
 * image. */
template <class T> static __global__ void mirror_lower_kernel(T *x, int64_t m)
{
    __shared__ T tile[TILE][TILE + 1];
    const int64_t row = (int64_t)blockIdx.y * TILE, col = (int64_t)blockIdx.x * TILE;
    const int across = (int)threadIdx.x % TILE, down = (int)threadIdx.x / TILE;

    if (col < row)
        return;
    x += (int64_t)blockIdx.z * m * m;
    for (int i = down; i < TILE; i += TILE_ROWS)
        if (col + i < m && row + across < m)
            tile[i][across] = x[(col + i) * m + row + across];
    __syncthreads();
    for (int i = down; i < TILE; i += TILE_ROWS)
        if (row + i < m && col + across < m && col + across > row + i)
            x[(row + i) * m + col + across] = tile[across][i];
}

template <class T>
static d9d_status launch_mirror(d9d_stream s, const char *op, T *x, int64_t count, int64_t m)
{
    enum { MAX_GRID_Z = 65535 };
    const unsigned tiles = (unsigned)d9di_i64_ceil_div(m, TILE);

    for (int64_t i = 0; i < count && m > 0; i += MAX_GRID_Z) {
        const dim3 grid(tiles, tiles, (unsigned)d9di_i64_min(count - i, MAX_GRID_Z));

        mirror_lower_kernel<<<grid, THREADS, 0, d9di_cuda_stream(s)>>>(x + i * m * m, m);
    }
    return d9di_cuda_check_launch(op);
}

d9d_status d9di_mirror_lower(d9d_stream s, const char *op, d9d_dtype t, void *x, int64_t count,
                             int64_t m)
{
    return D9DI_DISPATCH_DTYPE(t, T, launch_mirror<T>(s, op, (T *)x, count, m));
}
