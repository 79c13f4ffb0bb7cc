/* fp8_quantise.cu - quantisation to e4m3 and e5m2 with scales, and back.
 *
 * amax_kernel finds the largest magnitude of each row and column, or of all; integer maxima are the
 * same in any order.  quantise_kernel makes the copies and their scales: it reads a tile of TILE x
 * TILE once, and turns it in shared memory.
 *
 *          columns                 a thread has 4 rows of 8 columns:     words[column][row / 4]
 *        .---------.               8 bytes of each row for `rows`,       one word for `cols`
 *   rows |  |8     |               and of each column a word of 4 rows
 *        |  4      |
 *        '---------'
 *
 * x is read twice and each copy written once: 6 bytes an element of bfloat16.
 */
#include "cuda/fp8/fp8_steps.cuh"

enum {
    TILE = 128, /* rows and columns of a tile */
    QUAD = 4,   /* rows of a thread at a time: bytes of a word */
    LANES = TILE / VEC,
    WORDS = TILE / QUAD,
    PITCH = WORDS + 1, /* words of a column in shared memory */
    ROWS_AT_ONCE = THREADS / LANES * QUAD
};

/* A copy to make; data NULL: none. */
struct target {
    uint8_t *data;
    float *scale;
    uint32_t *amax; /* of each row of the copy, or of all */
    int64_t row_stride;
    bool by_row, e5m2;
};

static __device__ __forceinline__ float bits_float(uint32_t u)
{
    return __uint_as_float(u);
}

static __device__ __forceinline__ int target_exponent(const target &t, int64_t row)
{
    return d9di_fp8_scale_exponent(t.amax[t.by_row ? row : 0],
                                   d9di_fp8_max_exponent(t.e5m2 ? D9D_F8_E5M2 : D9D_F8_E4M3));
}

/* Rows [first, first + 4) of 8 columns at c; zeros beyond the array. */
template <class T>
static __device__ __forceinline__ void quad_load(float (&v)[QUAD][VEC], const T *x, int64_t first,
                                                 int64_t c, int64_t m, int64_t n)
{
#pragma unroll
    for (int i = 0; i < QUAD; i++)
        load8(v[i], x + (first + i) * n + c, first + i < m && c < n ? VEC : 0);
}

static __device__ __forceinline__ void rows_store(const target &t, const float (&v)[QUAD][VEC],
                                                  const float *inverse, int64_t first, int64_t c,
                                                  int64_t m, int64_t n)
{
#pragma unroll
    for (int i = 0; i < QUAD; i++) {
        uint32_t w[2];

        if (first + i >= m || c >= n)
            continue;
#pragma unroll
        for (int h = 0; h < 2; h++)
            w[h] = round_pair(v[i][4 * h] * inverse[i], v[i][4 * h + 1] * inverse[i], t.e5m2) |
                   round_pair(v[i][4 * h + 2] * inverse[i], v[i][4 * h + 3] * inverse[i], t.e5m2)
                       << 16;
        *(uint2 *)(t.data + (first + i) * t.row_stride + c) = make_uint2(w[0], w[1]);
    }
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    quantise_kernel(const T *x, int64_t m, int64_t n, target rows, target cols)
{
    __shared__ uint32_t words[TILE * PITCH];
    __shared__ float row_inverse[TILE], col_inverse[TILE];
    /* The last rows first: they are what the L2 cache has of amax_kernel's read. */
    const int64_t c0 = (int64_t)blockIdx.x * TILE,
                  r0 = (int64_t)(gridDim.y - 1 - blockIdx.y) * TILE;
    const int lane = threadIdx.x % LANES;
    const int64_t c = c0 + lane * VEC;

    for (int i = threadIdx.x; i < TILE; i += THREADS) {
        if (rows.data != NULL && r0 + i < m) {
            const int e = target_exponent(rows, r0 + i);

            row_inverse[i] = bits_float(d9di_fp8_power_bits(-e));
            if (blockIdx.x == 0 && (rows.by_row || r0 + i == 0))
                rows.scale[rows.by_row ? r0 + i : 0] = bits_float(d9di_fp8_power_bits(e));
        }
        if (cols.data != NULL && c0 + i < n) {
            const int e = target_exponent(cols, c0 + i);

            col_inverse[i] = bits_float(d9di_fp8_power_bits(-e));
            if (r0 == 0 && (cols.by_row || c0 + i == 0))
                cols.scale[cols.by_row ? c0 + i : 0] = bits_float(d9di_fp8_power_bits(e));
        }
    }
    __syncthreads();
#pragma unroll
    for (int part = 0; part < TILE; part += ROWS_AT_ONCE) {
        const int r = part + threadIdx.x / LANES * QUAD;
        float v[QUAD][VEC];

        quad_load(v, x, r0 + r, c, m, n);
        if (rows.data != NULL)
            rows_store(rows, v, row_inverse + r, r0 + r, c, m, n);
        if (cols.data != NULL && c < n) {
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                const float s = col_inverse[lane * VEC + j];

                words[(lane * VEC + j) * PITCH + r / QUAD] =
                    round_pair(v[0][j] * s, v[1][j] * s, cols.e5m2) |
                    round_pair(v[2][j] * s, v[3][j] * s, cols.e5m2) << 16;
            }
        }
    }
    if (cols.data == NULL)
        return;
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * WORDS; i += THREADS) {
        const int col = i / WORDS, word = i % WORDS;

        if (c0 + col < n && r0 + word * QUAD < d9di_i64_round_up(m, D9D_FP8_ALIGN))
            *(uint32_t *)(cols.data + (c0 + col) * cols.row_stride + r0 + word * QUAD) =
                words[col * PITCH + word];
    }
}

static target target_make(const d9d_fp8_operand *x, uint32_t *amax)
{
    return x == NULL ? target{} : target{(uint8_t *)x->data, x->scale,        amax,
                                         x->row_stride,      x->scale_by_row, x->t == D9D_F8_E5M2};
}

/* Where maxima go: [all, rows, columns]; unused parts have no elements. */
struct amax_scratch {
    int64_t rows, cols; /* elements */
    uint32_t *p;
};

static uint32_t *amax_of(const amax_scratch &a, const d9d_fp8_operand *x, int64_t first)
{
    return x != NULL && x->scale_by_row ? a.p + first : a.p;
}

template <class T>
static d9d_status launch_quantise(d9d_stream s, const void *x, int64_t m, int64_t n,
                                  const d9d_fp8_operand *rows, const d9d_fp8_operand *cols,
                                  const amax_scratch &a)
{
    const bool all = (rows != NULL && !rows->scale_by_row) || (cols != NULL && !cols->scale_by_row);
    const dim3 grid((unsigned)d9di_i64_ceil_div(n, TILE),
                    (unsigned)d9di_i64_max(1, d9di_i64_ceil_div(m, TILE)));

    amax_kernel<T, false><<<amax_grid(m, n), THREADS, 0, d9di_cuda_stream(s)>>>(
        (const T *)x, m, n, all ? a.p : NULL, a.rows > 0 ? amax_of(a, rows, 1) : NULL,
        a.cols > 0 ? amax_of(a, cols, 1 + a.rows) : NULL, 0, 0);
    D9D_TRY(d9di_cuda_check_launch("fp8_quantise"));
    quantise_kernel<<<grid, THREADS, 0, d9di_cuda_stream(s)>>>(
        (const T *)x, m, n, target_make(rows, amax_of(a, rows, 1)),
        target_make(cols, amax_of(a, cols, 1 + a.rows)));
    return d9di_cuda_check_launch("fp8_quantise");
}

d9d_status d9d_k_fp8_quantise(d9d_stream s, d9d_dtype t, const void *x, int64_t m, int64_t n,
                              const d9d_fp8_operand *rows, const d9d_fp8_operand *cols)
{
    amax_scratch a = {rows != NULL && rows->scale_by_row ? m : 0,
                      cols != NULL && cols->scale_by_row ? n : 0, NULL};
    const int64_t bytes = (1 + a.rows + a.cols) * (int64_t)sizeof(uint32_t);
    cudaError_t e;
    d9d_status st;
    void *scratch;

    D9D_TRY(d9di_args_check_fp8_quantise(t, m, n, rows, cols));
    if (n == 0 || (rows == NULL && cols == NULL))
        return D9D_OK;
    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &scratch));
    a.p = (uint32_t *)scratch;
    e = cudaMemsetAsync(scratch, 0, (size_t)bytes, d9di_cuda_stream(s));
    st = e != cudaSuccess
             ? d9di_cuda_fail("fp8_quantise", e)
             : D9DI_DISPATCH_DTYPE(t, T, launch_quantise<T>(s, x, m, n, rows, cols, a));
    d9di_cuda_scratch_free(s, scratch, bytes);
    return st;
}

/* --- back ------------------------------------------------------------------------------------ */

static __global__ void dequantise_kernel(bf16 *y, const uint8_t *x, const float *scale,
                                         int64_t rows, int64_t k, int64_t row_stride, bool by_row,
                                         bool e5m2)
{
    EACH_ROW8 (r, at, rows, k) {
        const float by = scale[by_row ? r : 0];
        const uint2 w = *(const uint2 *)(x + r * row_stride + at);
        float v[8];

#pragma unroll
        for (int j = 0; j < 8; j++) {
            const __half_raw h = __nv_cvt_fp8_to_halfraw(
                (uint8_t)((j < 4 ? w.x : w.y) >> 8 * (j % 4)), e5m2 ? __NV_E5M2 : __NV_E4M3);

            v[j] = __half2float(__half(h)) * by;
        }
        store8(y + r * k + at, v, 8);
    }
}

d9d_status d9di_fp8_dequantise(d9d_stream s, const char *op, void *y, const d9d_fp8_operand *x,
                               int64_t rows, int64_t k)
{
    if (rows == 0 || k == 0)
        return D9D_OK;
    dequantise_kernel<<<grid_for(s, rows * (k / 8)), THREADS, 0, d9di_cuda_stream(s)>>>(
        (bf16 *)y, (const uint8_t *)x->data, x->scale, rows, k, x->row_stride, x->scale_by_row,
        x->t == D9D_F8_E5M2);
    return d9di_cuda_check_launch(op);
}
