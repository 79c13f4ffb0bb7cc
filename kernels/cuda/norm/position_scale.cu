/* position_scale.cu - rows of queries times 1 + beta log(1 + floor(position / period)). */
#include "cuda/common/common.cuh"

template <class T, int G>
static __global__ void position_scale_kernel(T *y, const T *x, const int32_t *positions, int64_t m,
                                             int64_t n, float beta, int64_t period)
{
    const int64_t r = group_row<G>();
    float by, v[8];

    if (r >= m)
        return;
    by = 1.0f + beta * log1pf((float)(positions[r] / period));
    D9DI_ROW8 (i, n, G) {
        load8(v, x + r * n + i, n - i);
        for (int j = 0; j < 8; j++)
            v[j] *= by;
        store8(y + r * n + i, v, n - i);
    }
}

template <class T, int G>
static d9d_status launch_scale(d9d_stream s, void *y, const void *x, const int32_t *positions,
                               int64_t m, int64_t n, float beta, int64_t period)
{
    position_scale_kernel<T, G><<<grid_for_rows(m, G), THREADS, 0, d9di_cuda_stream(s)>>>(
        (T *)y, (const T *)x, positions, m, n, beta, period);
    return d9di_cuda_check_launch("position_scale");
}

d9d_status d9d_k_position_scale(d9d_stream s, d9d_dtype t, void *y, const void *x,
                                const int32_t *positions, int64_t m, int64_t n, float beta,
                                int64_t period)
{
    D9D_TRY(d9di_args_check_float("position_scale", t));
    if (m == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(
        t, T, D9DI_BY_ROWS(n, G, launch_scale<T, G>(s, y, x, positions, m, n, beta, period)));
}
