/* copy_strided.cu - copies some columns of an array into columns of another, repeated for each
 * head. */
#include "cuda/common/common.cuh"

template <class T>
static __global__ void copy_strided_kernel(d9d_copy_strided_dims n, T *y, const T *x)
{
    pdl_launch_dependents();
    pdl_wait();
    EACH_ROW8 (i, j, n.m * n.heads, n.n) {
        float v[8];

        load8(v, x + i / n.heads * n.x_cols + n.x_first + j, n.n - j);
        store8(y + i * n.y_cols + n.y_first + j, v, n.n - j);
    }
}

template <class T>
static __global__ void copy_strided_bwd_kernel(d9d_copy_strided_dims n, T *x, const T *y)
{
    EACH_ROW8 (i, j, n.m, n.n) {
        float sum[8] = {}, v[8];

        for (int64_t h = 0; h < n.heads; h++) {
            load8(v, y + (i * n.heads + h) * n.y_cols + n.y_first + j, n.n - j);
#pragma unroll
            for (int c = 0; c < 8; c++)
                sum[c] += v[c];
        }
        store8(x + i * n.x_cols + n.x_first + j, sum, n.n - j);
    }
}

template <class T>
static d9d_status launch_copy(d9d_stream s, const d9d_copy_strided_dims *n, void *y, const void *x)
{
    const int64_t eights = n->m * n->heads * d9di_i64_ceil_div(n->n, 8);

    if (eights == 0)
        return D9D_OK;
    return pdl_launch(s, "copy_strided", copy_strided_kernel<T>, grid_for(s, eights), THREADS, *n,
                      (T *)y, (const T *)x);
}

template <class T>
static d9d_status launch_bwd(d9d_stream s, const d9d_copy_strided_dims *n, void *x, const void *y)
{
    const int64_t eights = n->m * d9di_i64_ceil_div(n->n, 8);

    if (eights == 0)
        return D9D_OK;
    copy_strided_bwd_kernel<<<grid_for(s, eights), THREADS, 0, d9di_cuda_stream(s)>>>(*n, (T *)x,
                                                                                      (const T *)y);
    return d9di_cuda_check_launch("copy_strided_bwd");
}

d9d_status d9d_k_copy_strided(d9d_stream s, const d9d_copy_strided_dims *n, void *y, const void *x)
{
    D9D_TRY(d9di_args_check_float("copy_strided", n->t));
    return D9DI_DISPATCH_DTYPE(n->t, T, launch_copy<T>(s, n, y, x));
}

d9d_status d9d_k_copy_strided_bwd(d9d_stream s, const d9d_copy_strided_dims *n, void *x,
                                  const void *y)
{
    D9D_TRY(d9di_args_check_float("copy_strided_bwd", n->t));
    return D9DI_DISPATCH_DTYPE(n->t, T, launch_bwd<T>(s, n, x, y));
}
