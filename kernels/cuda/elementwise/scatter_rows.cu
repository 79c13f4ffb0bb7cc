/* scatter_rows.cu - writes rows of an array to indexed rows of another (index_put). */
#include "cuda/common/common.cuh"

template <class T>
static __global__ void scatter_rows_kernel(T *y, int64_t ld, int64_t first, const int32_t *at,
                                           const T *x, int64_t m, int64_t n)
{
    pdl_launch_dependents();
    pdl_wait();
    EACH_ROW8 (i, j, m, n) {
        const int64_t row = at != NULL ? at[i] : i;
        float v[8];

        load8(v, x + i * n + j, n - j);
        if (row >= 0)
            store8(y + row * ld + first + j, v, n - j);
    }
}

template <class T>
static d9d_status launch(d9d_stream s, void *y, int64_t ld, int64_t first, const int32_t *at,
                         const void *x, int64_t m, int64_t n)
{
    const int64_t eights = m * d9di_i64_ceil_div(n, 8);

    if (eights == 0)
        return D9D_OK;
    return pdl_launch(s, "scatter_rows", scatter_rows_kernel<T>, grid_for(s, eights), THREADS,
                      (T *)y, ld, first, at, (const T *)x, m, n);
}

d9d_status d9d_k_scatter_rows(d9d_stream s, d9d_dtype t, void *y, int64_t ld, int64_t first,
                              const int32_t *at, const void *x, int64_t m, int64_t n)
{
    D9D_TRY(d9di_args_check_float("scatter_rows", t));
    return D9DI_DISPATCH_DTYPE(t, T, launch<T>(s, y, ld, first, at, x, m, n));
}
