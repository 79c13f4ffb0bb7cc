/* random.cu - arrays filled by the counter-based generator of d9d/base/rng.h. */
#include "cuda/common/philox.cuh"

/* d9d_rng_uniform() and d9d_rng_normal(). */
static __device__ float uniform(d9d_rng r, uint64_t index)
{
    return (float)(random_u32(r, index) >> 8) * 0x1p-24f;
}

static __device__ float normal(d9d_rng r, uint64_t index)
{
    const double tau = 6.283185307179586476925286766559;
    const uint4 w = philox(r, index / 2);
    const double u = ((double)(index % 2 ? w.z : w.x) + 1.0) * 0x1p-32;
    const double v = (double)(index % 2 ? w.w : w.y) * 0x1p-32;

    return (float)(sqrt(-2.0 * log(u)) * cos(tau * v));
}

template <class T>
static __global__ void random_kernel(T *y, bool is_normal, float scale, d9d_rng r, d9di_subarray b)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < b.run * b.n_runs;
         i += (int64_t)gridDim.x * THREADS) {
        const uint64_t index = (uint64_t)(d9di_subarray_index(&b, i / b.run) + i % b.run);

        store_float(y + i, is_normal ? scale * normal(r, index)
                                     : scale * (2.0f * uniform(r, index) - 1.0f));
    }
}

template <class T>
static d9d_status launch_random(d9d_stream s, void *y, bool is_normal, float scale, d9d_rng r,
                                const d9di_subarray *b)
{
    random_kernel<<<grid_for(s, b->run * b->n_runs), THREADS, 0, d9di_cuda_stream(s)>>>(
        (T *)y, is_normal, scale, r, *b);
    return d9di_cuda_check_launch("random");
}

d9d_status d9d_k_random(d9d_stream s, d9d_dtype t, void *y, d9d_init_kind kind, float scale,
                        d9d_rng r, int ndim, const int64_t *box, const int64_t *start,
                        const int64_t *whole)
{
    const d9di_subarray b = d9di_subarray_make(ndim, box, start, whole);

    D9D_TRY(d9di_args_check_float("random", t));
    if (kind == D9D_INIT_ZEROS || kind == D9D_INIT_ONES)
        return d9d_k_fill(s, t, y, b.run * b.n_runs, kind == D9D_INIT_ONES ? 1.0f : 0.0f);
    if (b.run * b.n_runs == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(t, T, launch_random<T>(s, y, kind == D9D_INIT_NORMAL, scale, r, &b));
}
