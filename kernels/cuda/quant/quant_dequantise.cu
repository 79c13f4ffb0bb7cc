/* quant_dequantise.cu - frozen matrices in 8 or 4 bits as float32 or bfloat16: the operand that the
 * CPU's reference has, bit for bit. */
#include <cuda_fp8.h>

#include "common/quant_code.h"
#include "cuda/common/common.cuh"

static __constant__ const float nf4_values[16] = D9DI_QUANT_NF4_VALUES;

/* Where the parts of a row are, in bytes. */
struct row_layout {
    int64_t pitch, scale_codes, scales;
};

static __device__ __forceinline__ float rounded(float v, float)
{
    return v;
}
static __device__ __forceinline__ float rounded(float v, bf16)
{
    return to_float((bf16)v);
}

/* Elements [at, at + 8) of a row. */
static __device__ __forceinline__ void eight_of_fp8(float (&v)[8], const uint8_t *row, int64_t at,
                                                    const row_layout &of)
{
    const uint2 w = *(const uint2 *)(row + at);
    const float scale = *(const float *)(row + of.scales);

#pragma unroll
    for (int j = 0; j < 8; j++) {
        const __half_raw h = __nv_cvt_fp8_to_halfraw(
            (__nv_fp8_storage_t)((j < 4 ? w.x : w.y) >> 8 * (j % 4)), __NV_E4M3);

        v[j] = __half2float(__half(h)) * scale;
    }
}

template <class T>
static __device__ __forceinline__ void eight_of_nf4(float (&v)[8], const uint8_t *row, int64_t at,
                                                    const row_layout &of, const float *map)
{
    const uint32_t w = *(const uint32_t *)(row + at / 2);
    const float code = map[row[of.scale_codes + at / D9D_QUANT_NF4_BLOCK]];
    const float2 by = *(const float2 *)(row + of.scales); /* offset, range */
    const float scale = rounded(__fadd_rn(__fmul_rn(code, by.y), by.x), T());

#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = rounded(nf4_values[w >> 8 * (j / 2) >> (j % 2 == 0 ? 4 : 0) & 15], T()) * scale;
}

template <bool NF4, class T>
static __global__ void dequantise_kernel(T *y, const uint8_t *w, int64_t rows, int64_t cols,
                                         row_layout of)
{
    __shared__ float map[256];

    if (NF4) {
        map[threadIdx.x] = d9di_quant_map(threadIdx.x);
        __syncthreads();
    }
    EACH_ROW8 (r, at, rows, cols) {
        const uint8_t *row = w + r * of.pitch;
        float v[8];

        if (NF4)
            eight_of_nf4<T>(v, row, at, of, map);
        else
            eight_of_fp8(v, row, at, of);
        store8(y + r * cols + at, v, 8);
    }
}

template <bool NF4, class T> static void launch(d9d_stream s, void *y, const d9d_quant_matrix *w)
{
    const row_layout of = {d9d_quant_row_bytes(w->format, w->cols),
                           d9d_quant_code_bytes(w->format, w->cols),
                           d9d_quant_scale_at(w->format, w->cols)};

    static_assert(THREADS == 256, "a thread computes a number of the map");
    dequantise_kernel<NF4, T>
        <<<grid_for(s, w->rows * (w->cols / 8)), THREADS, 0, d9di_cuda_stream(s)>>>(
            (T *)y, (const uint8_t *)w->data, w->rows, w->cols, of);
}

template <class T> static void launch_by_format(d9d_stream s, void *y, const d9d_quant_matrix *w)
{
    if (w->format == D9D_QUANT_NF4)
        launch<true, T>(s, y, w);
    else
        launch<false, T>(s, y, w);
}

d9d_status d9d_k_quant_dequantise(d9d_stream s, d9d_dtype t, void *y, const d9d_quant_matrix *w)
{
    static const char op[] = "quant_dequantise";

    D9D_TRY(d9di_args_check_float(op, t));
    D9D_TRY(d9di_args_check_quant(op, w));
    if (w->rows == 0 || w->cols == 0)
        return D9D_OK;
    if (t == D9D_F32)
        launch_by_format<float>(s, y, w);
    else
        launch_by_format<bf16>(s, y, w);
    return d9di_cuda_check_launch(op);
}
