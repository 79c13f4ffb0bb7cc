/* fp8_parts.cu - the steps of a quantisation, for an array of which ranks have parts.
 *
 * encode: a thread has 8 elements, 16 bytes of bfloat16 to 8 of e4m3.  transpose: a tile of TILE x
 * TILE bytes passes through shared memory, read by words of a row and written by words of a column.
 */
#include "cuda/fp8/fp8_steps.cuh"

enum {
    TILE = 64,
    WORD = 4,               /* bytes */
    PITCH = TILE / WORD + 1 /* words of a row of a tile */
};

template <class T>
static d9d_status launch_amax(d9d_stream s, const void *x, int64_t m, int64_t n,
                              const d9d_fp8_maxima *to)
{
    uint32_t *all = (uint32_t *)to->all, *rows = (uint32_t *)to->rows, *cols = (uint32_t *)to->cols;

    if (to->group == 0)
        amax_kernel<T, false><<<amax_grid(m, n), THREADS, 0, d9di_cuda_stream(s)>>>(
            (const T *)x, m, n, all, rows, cols, 0, 0);
    else
        amax_kernel<T, true><<<amax_grid(m, n), THREADS, 0, d9di_cuda_stream(s)>>>(
            (const T *)x, m, n, all, rows, cols, to->group, to->skip);
    return d9di_cuda_check_launch("fp8_amax");
}

d9d_status d9d_k_fp8_amax(d9d_stream s, d9d_dtype t, const void *x, int64_t m, int64_t n,
                          const d9d_fp8_maxima *to)
{
    D9D_TRY(d9di_args_check_fp8_amax(t, n, to));
    return m == 0 || n == 0 ? D9D_OK : D9DI_DISPATCH_DTYPE(t, T, launch_amax<T>(s, x, m, n, to));
}

static __device__ __forceinline__ float power(int32_t amax, d9d_dtype f, int sign)
{
    return __uint_as_float(d9di_fp8_power_bits(
        sign * d9di_fp8_scale_exponent((uint32_t)amax, d9di_fp8_max_exponent(f))));
}

template <class T>
static __global__ void encode_kernel(uint8_t *y, const T *x, int64_t m, int64_t n,
                                     d9d_fp8_maxima by, d9d_dtype f)
{
    const bool e5m2 = f == D9D_F8_E5M2;

    EACH_ROW8 (r, at, m, n) {
        const float of_row =
            by.cols != NULL
                ? 0.0f
                : power(by.rows != NULL ? by.rows[d9di_fp8_row_place(&by, r)] : by.all[0], f, -1);
        float v[VEC];
        uint32_t w[2];

        load8(v, x + r * n + at, VEC);
#pragma unroll
        for (int j = 0; j < VEC; j++)
            v[j] *= by.cols != NULL ? power(by.cols[at + j], f, -1) : of_row;
#pragma unroll
        for (int h = 0; h < 2; h++)
            w[h] = round_pair(v[4 * h], v[4 * h + 1], e5m2) |
                   round_pair(v[4 * h + 2], v[4 * h + 3], e5m2) << 16;
        *(uint2 *)(y + r * n + at) = make_uint2(w[0], w[1]);
    }
}

template <class T>
static d9d_status launch_encode(d9d_stream s, const void *x, int64_t m, int64_t n,
                                const d9d_fp8_maxima *by, d9d_dtype f, void *y)
{
    encode_kernel<<<grid_for(s, m * (n / VEC)), THREADS, 0, d9di_cuda_stream(s)>>>(
        (uint8_t *)y, (const T *)x, m, n, *by, f);
    return d9di_cuda_check_launch("fp8_encode");
}

d9d_status d9d_k_fp8_encode(d9d_stream s, d9d_dtype t, const void *x, int64_t m, int64_t n,
                            const d9d_fp8_maxima *by, d9d_dtype f, void *y)
{
    D9D_TRY(d9di_args_check_fp8_encode(t, n, by, f));
    return m == 0 || n == 0 ? D9D_OK
                            : D9DI_DISPATCH_DTYPE(t, T, launch_encode<T>(s, x, m, n, by, f, y));
}

static __global__ void scales_kernel(float *scale, const int32_t *maxima, int64_t n, d9d_dtype f)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS)
        scale[i] = power(maxima[i], f, 1);
}

d9d_status d9d_k_fp8_scales(d9d_stream s, d9d_dtype f, const int32_t *maxima, int64_t n,
                            float *scale)
{
    D9D_TRY(d9di_args_check_fp8_scales(f));
    if (n == 0)
        return D9D_OK;
    scales_kernel<<<grid_for(s, n), THREADS, 0, d9di_cuda_stream(s)>>>(scale, maxima, n, f);
    return d9di_cuda_check_launch("fp8_scales");
}

/* Rows and columns are multiples of a word, the rows of y with zeros beyond m. */
static __global__ void __launch_bounds__(THREADS)
    transpose_kernel(uint8_t *y, const uint8_t *x, int64_t m, int64_t n, int64_t stride)
{
    __shared__ uint32_t words[TILE * PITCH];
    const uint8_t *bytes = (const uint8_t *)words;
    const int64_t c0 = (int64_t)blockIdx.x * TILE, r0 = (int64_t)blockIdx.y * TILE;

    for (int i = threadIdx.x; i < TILE * (TILE / WORD); i += THREADS) {
        const int r = i / (TILE / WORD), c = i % (TILE / WORD);
        const bool inside = r0 + r < m && c0 + c * WORD < n;

        words[r * PITCH + c] = inside ? *(const uint32_t *)(x + (r0 + r) * n + c0 + c * WORD) : 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * (TILE / WORD); i += THREADS) {
        const int c = i / (TILE / WORD), r = i % (TILE / WORD) * WORD;
        uint32_t w = 0;

        if (c0 + c >= n || r0 + r >= stride)
            continue;
#pragma unroll
        for (int k = 0; k < WORD; k++)
            w |= (uint32_t)bytes[(r + k) * PITCH * WORD + c] << 8 * k;
        *(uint32_t *)(y + (c0 + c) * stride + r0 + r) = w;
    }
}

d9d_status d9d_k_fp8_transpose(d9d_stream s, const void *x, int64_t m, int64_t n, void *y)
{
    const dim3 grid((unsigned)d9di_i64_ceil_div(n, TILE),
                    (unsigned)d9di_i64_ceil_div(d9d_fp8_padded(m), TILE));

    D9D_TRY(d9di_args_check_fp8_transpose(n));
    if (m == 0 || n == 0)
        return D9D_OK;
    transpose_kernel<<<grid, THREADS, 0, d9di_cuda_stream(s)>>>((uint8_t *)y, (const uint8_t *)x, m,
                                                                n, d9d_fp8_padded(m));
    return d9di_cuda_check_launch("fp8_transpose");
}
