/* common.cuh - what the CUDA kernels share on the device.
 *
 * Arithmetic is float32 whatever the type of the arrays. A thread reads and writes vectors of eight
 * elements, in 16-byte accesses where address and length allow:
 *
 *     D9DI_EACH8(i, n) {
 *         float v[8];
 *         load8(v, x + i, n - i);
 *         ... v[j] = f(v[j]) ...
 *         store8(y + i, v, n - i);
 *     }
 *
 * The compiler does not contract a * b + c (-fmad=false). Code that needs one rounding calls fmaf,
 * so that it gives the same bits wherever it is inlined.
 */
#ifndef D9DI_CUDA_COMMON_COMMON_CUH
#define D9DI_CUDA_COMMON_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/common/common.h"

typedef __nv_bfloat16 bf16;

/* Evaluates an expression with T the type that a checked dtype names. */
#define D9DI_DISPATCH_DTYPE(t, T, ...)                                                             \
    ((t) == D9D_F32 ? [&] { typedef float T; return __VA_ARGS__; }()                               \
                    : [&] { typedef bf16 T; return __VA_ARGS__; }())

enum { THREADS = 256, WARP = 32, WARPS = THREADS / WARP };

static __device__ __forceinline__ float to_float(float x)
{
    return x;
}
static __device__ __forceinline__ float to_float(bf16 x)
{
    return __bfloat162float(x);
}
static __device__ __forceinline__ void store_float(float *y, float v)
{
    *y = v;
}
static __device__ __forceinline__ void store_float(bf16 *y, float v)
{
    *y = __float2bfloat16_rn(v);
}

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* cap tanh(x / cap), or x if cap is 0. */
static __device__ __forceinline__ float softcap(float x, float cap)
{
    return cap > 0.0f ? cap * tanhf(x / cap) : x;
}
/* The derivative of softcap() where it is y. */
static __device__ __forceinline__ float softcap_grad(float y, float cap)
{
    const float t = y / cap;

    return cap > 0.0f ? 1.0f - t * t : 1.0f;
}

/* --- vectors of eight elements --------------------------------------------------------- */

static __device__ __forceinline__ bool can_vectorize(const void *p, int64_t n)
{
    return n >= 8 && ((uintptr_t)p & 15) == 0;
}

/* Loads the first n elements at p; zeros for the rest of eight. */
static __device__ __forceinline__ void load8(float (&v)[8], const float *p, int64_t n)
{
    if (can_vectorize(p, n)) {
        const float4 a = ((const float4 *)p)[0], b = ((const float4 *)p)[1];

        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = j < n ? p[j] : 0.0f;
}

static __device__ __forceinline__ void load8(float (&v)[8], const bf16 *p, int64_t n)
{
    if (can_vectorize(p, n)) {
        const uint4 a = *(const uint4 *)p;
        const uint32_t w[4] = {a.x, a.y, a.z, a.w};

#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[2 * j] = __uint_as_float(w[j] << 16);
            v[2 * j + 1] = __uint_as_float(w[j] & 0xffff0000u);
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = j < n ? to_float(p[j]) : 0.0f;
}

static __device__ __forceinline__ void store8(float *p, const float (&v)[8], int64_t n)
{
    if (can_vectorize(p, n)) {
        ((float4 *)p)[0] = make_float4(v[0], v[1], v[2], v[3]);
        ((float4 *)p)[1] = make_float4(v[4], v[5], v[6], v[7]);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (j < n)
            p[j] = v[j];
}

/* Eight bfloat16 given as bits. */
static __device__ __forceinline__ void store8_bits(bf16 *p, const uint16_t (&b)[8], int64_t n)
{
    if (can_vectorize(p, n)) {
        *(uint4 *)p = make_uint4(b[0] | (uint32_t)b[1] << 16, b[2] | (uint32_t)b[3] << 16,
                                 b[4] | (uint32_t)b[5] << 16, b[6] | (uint32_t)b[7] << 16);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (j < n)
            p[j] = __ushort_as_bfloat16(b[j]);
}

static __device__ __forceinline__ void store8(bf16 *p, const float (&v)[8], int64_t n)
{
    uint16_t b[8];

#pragma unroll
    for (int j = 0; j < 8; j++)
        b[j] = __bfloat16_as_ushort(__float2bfloat16_rn(v[j]));
    store8_bits(p, b, n);
}

/* Eight elements as they are stored, fetched long before they are unpacked; zeros beyond n. */
template <class T> struct raw8 {
    uint4 part[sizeof(T) / 2];
};

template <class T> static __device__ __forceinline__ void fetch8(raw8<T> &r, const T *p, int64_t n)
{
    if (can_vectorize(p, n)) {
#pragma unroll
        for (int i = 0; i < (int)sizeof(T) / 2; i++)
            r.part[i] = ((const uint4 *)p)[i];
        return;
    }
    float v[8];

    load8(v, p, n);
    store8((T *)&r, v, 8);
}
template <class T> static __device__ __forceinline__ void unpack8(float (&v)[8], const raw8<T> &r)
{
    load8(v, (const T *)&r, 8);
}

/* Grid-stride loop over an array's vectors of eight. */
#define D9DI_EACH8(i, n)                                                                           \
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 8; i < (n);                \
         i += (int64_t)gridDim.x * blockDim.x * 8)

/* Grid-stride loop over the vectors of m rows of h; `r` is the row and `at` the index within it. */
#define EACH_ROW8(r, at, m, h)                                                                     \
    for (int64_t e_ = (int64_t)blockIdx.x * THREADS + threadIdx.x, per_ = d9di_i64_ceil_div(h, 8), \
                 r, at;                                                                            \
         r = e_ / per_, at = e_ % per_ * 8, r < (m); e_ += (int64_t)gridDim.x * THREADS)

/* Blocks of THREADS for `work` threads, at most as many as fill the GPU. */
static inline unsigned grid_for(const d9d_stream s, int64_t work)
{
    const int64_t blocks = d9di_i64_ceil_div(work, THREADS), max_blocks = 16 * (int64_t)s->sms;

    return (unsigned)d9di_i64_max(1, d9di_i64_min(blocks, max_blocks));
}

/* --- programmatic dependent launch (PDL) ------------------------------------------------------ */
static __device__ __forceinline__ void pdl_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
static __device__ __forceinline__ void pdl_launch_dependents(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

template <class... P, class... A>
static inline d9d_status pdl_launch_smem(d9d_stream s, const char *op, size_t shared,
                                         void (*kernel)(P...), dim3 grid, unsigned threads,
                                         A... args)
{
    cudaLaunchAttribute early[2] = {};
    cudaLaunchConfig_t config = {};
    cudaError_t e;

    early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early[0].val.programmaticStreamSerializationAllowed = 1;
    early[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    early[1].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = d9di_cuda_stream(s);
    config.attrs = early;
    config.numAttrs = s->major >= 9 ? 2 : 0;
    e = cudaLaunchKernelEx(&config, kernel, (P)args...);
    return e == cudaSuccess ? d9di_cuda_check_launch(op) : d9di_cuda_fail(op, e);
}

template <class... P, class... A>
static inline d9d_status pdl_launch(d9d_stream s, const char *op, void (*kernel)(P...), dim3 grid,
                                    unsigned threads, A... args)
{
    return pdl_launch_smem(s, op, 0, kernel, grid, threads, args...);
}

/* --- reductions over the G threads that share a row: part of a warp, a warp, or the block ----- */

struct plus {
    __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};
struct max_op {
    __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/* Reduces in a fixed tree; every thread gets the result. */
template <int G, class T, class F> static __device__ __forceinline__ T group_reduce(T v, F f)
{
    const unsigned sharing = G >= WARP ? ~0u : ((1u << G % WARP) - 1) << threadIdx.x % WARP / G * G;

#pragma unroll
    for (int o = (G < WARP ? G : WARP) / 2; o > 0; o /= 2)
        v = f(v, __shfl_xor_sync(sharing, v, o));
    if (G > WARP) {
        __shared__ T part[G > WARP ? G / WARP : 1];

        __syncthreads(); /* the previous reduction has been read */
        if (threadIdx.x % WARP == 0)
            part[threadIdx.x / WARP] = v;
        __syncthreads();
        v = part[0];
#pragma unroll
        for (int w = 1; w < G / WARP; w++)
            v = f(v, part[w]);
    }
    return v;
}

template <int G> static __device__ __forceinline__ float group_sum(float v)
{
    return group_reduce<G>(v, plus());
}

/* Which threads share a row of n elements: half a warp up to HEAD_ROW, a warp up to SHORT_ROW, else
 * a block. */
enum { HEAD_ROW = 128, SHORT_ROW = 1024 };
#define D9DI_BY_ROWS(n, G, ...)                                                                    \
    ((n) <= HEAD_ROW    ? [&] { constexpr int G = WARP / 2; return __VA_ARGS__; }()                \
     : (n) <= SHORT_ROW ? [&] { constexpr int G = WARP; return __VA_ARGS__; }()                    \
                        : [&] { constexpr int G = THREADS; return __VA_ARGS__; }())
/* group_row(): the row of this thread's group, in a launch over `m` rows. */
template <int G> static __device__ __forceinline__ int64_t group_row(void)
{
    return (int64_t)blockIdx.x * (THREADS / G) + threadIdx.x / G;
}
static inline unsigned grid_for_rows(int64_t m, int g)
{
    return (unsigned)d9di_i64_ceil_div(m, THREADS / g);
}
/* Loop over the vectors of a row of n, shared among its group. */
#define D9DI_ROW8(i, n, G) for (int64_t i = threadIdx.x % (G)*8; i < (n); i += (G)*8)

#endif /* D9DI_CUDA_COMMON_COMMON_CUH */
