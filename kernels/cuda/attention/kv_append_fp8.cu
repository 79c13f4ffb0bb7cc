/* kv_append_fp8.cu - keys or values of new tokens, quantised to e4m3 with a scale for each token's
 * head, to their slots of a KV cache; and the keys and values of a cache as T, for kernels that do
 * not read codes.  A warp has a head of a token, and reads it twice. */
#include <cuda_fp8.h>

#include "common/fp8_scale.h"
#include "cuda/attention/attention_call.h"
#include "cuda/common/common.cuh"

static __device__ __forceinline__ float finite_or_nan(float v)
{
    return fabsf(v) < INFINITY ? v : NAN;
}

/* Codes of eight elements times `by`. */
static __device__ __forceinline__ void round8(uint8_t *to, const float (&v)[8], float by, int64_t n)
{
    union {
        uint2 all;
        uint16_t pair[4];
        uint8_t code[8];
    } q;

#pragma unroll
    for (int j = 0; j < 4; j++)
        q.pair[j] = __nv_cvt_float2_to_fp8x2(
            make_float2(finite_or_nan(v[2 * j] * by), finite_or_nan(v[2 * j + 1] * by)),
            __NV_SATFINITE, __NV_E4M3);
    if (n >= 8 && (uintptr_t)to % 8 == 0)
        *(uint2 *)to = q.all;
    else
        for (int j = 0; j < 8 && j < n; j++)
            to[j] = q.code[j];
}

struct append_list {
    d9d_attention_append_fp8 of[D9D_ATTENTION_APPEND_FP8_MAX];
};

/* Grid: heads of tokens, arrays. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    append_kernel(append_list list, const int32_t *at, int64_t rows, int64_t kv, int64_t d)
{
    const d9d_attention_append_fp8 y = blockIdx.y == 0 ? list.of[0] : list.of[1];
    const T *const x = (const T *)y.x;
    const int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    const int lane = threadIdx.x % WARP;
    uint32_t amax = 0;

    pdl_launch_dependents();
    pdl_wait();
    if (r >= rows || at[r / kv] < 0)
        return;
    for (int64_t f = lane * 8; f < d; f += WARP * 8) {
        float v[8];

        load8(v, x + r * d + f, d - f);
#pragma unroll
        for (int j = 0; j < 8; j++)
            amax = max(amax, f + j < d ? __float_as_uint(v[j]) & 0x7fffffffu : 0);
    }
    amax = __reduce_max_sync(~0u, amax);

    const int e = d9di_fp8_scale_exponent(amax, d9di_fp8_max_exponent(D9D_F8_E4M3));
    const int64_t to = at[r / kv] * kv + r % kv;

    for (int64_t f = lane * 8; f < d; f += WARP * 8) {
        float v[8];

        load8(v, x + r * d + f, d - f);
        round8((uint8_t *)y.codes + to * d + f, v, __uint_as_float(d9di_fp8_power_bits(-e)), d - f);
    }
    if (lane == 0)
        y.scale[to] = __uint_as_float(d9di_fp8_power_bits(e));
}

d9d_status d9d_k_kv_append_fp8(d9d_stream s, d9d_dtype t, int n,
                               const d9d_attention_append_fp8 *list, const int32_t *at, int64_t m,
                               int64_t kv, int64_t d)
{
    static const char op[] = "kv_append_fp8";
    const int64_t rows = m * kv;
    const dim3 grid((unsigned)d9di_i64_ceil_div(rows, WARPS), (unsigned)n);
    append_list all = {};

    D9D_TRY(d9di_args_check_float(op, t));
    D9D_TRY(d9di_args_check_kv_append_fp8(op, n));
    if (n * rows * d == 0)
        return D9D_OK;
    for (int i = 0; i < n; i++)
        all.of[i] = list[i];
    return D9DI_DISPATCH_DTYPE(
        t, T, pdl_launch(s, op, append_kernel<T>, grid, THREADS, all, at, rows, kv, d));
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    dequantise_kernel(T *y, const uint8_t *codes, const float *scale, int64_t rows, int64_t d)
{
    EACH_ROW8 (r, f, rows, d) {
        float v[8];

#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = f + j < d ? __half2float(__half(
                                   __nv_cvt_fp8_to_halfraw(codes[r * d + f + j], __NV_E4M3))) *
                                   scale[r]
                             : 0.0f;
        store8(y + r * d + f, v, d - f);
    }
}

template <class T>
static void launch_dequantise(d9d_stream s, void *y, const void *codes, const float *scale,
                              int64_t rows, int64_t d)
{
    dequantise_kernel<T>
        <<<grid_for(s, rows * d9di_i64_ceil_div(d, 8)), THREADS, 0, d9di_cuda_stream(s)>>>(
            (T *)y, (const uint8_t *)codes, scale, rows, d);
}

d9d_status d9di_attention_dequantise(d9d_stream s, const char *op, d9d_dtype t, void *y,
                                     const void *codes, const float *scale, int64_t rows, int64_t d)
{
    if (rows * d == 0)
        return D9D_OK;
    if (t == D9D_F32)
        launch_dequantise<float>(s, y, codes, scale, rows, d);
    else
        launch_dequantise<bf16>(s, y, codes, scale, rows, d);
    return d9di_cuda_check_launch(op);
}
