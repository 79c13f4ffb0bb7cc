/* scatter_rows.cu - rows of a small array into a larger one. */
#include "cuda/common/common.cuh"

template <class T>
static __global__ void put_rows_kernel(T *y, int64_t ld, int64_t first, const int32_t *at,
                                       const T *x, int64_t m, int64_t n)
{
    let_next_begin();
    wait_for_last();
    EACH_ROW8 (i, j, m, n) {
        const int64_t row = at != NULL ? at[i] : i;
        float v[8];

        load8(v, x + i * n + j, n - j);
        if (row >= 0)
            store8(y + row * ld + first + j, v, n - j);
    }
}

template <class T>
static d9d_status run(d9d_stream s, void *y, int64_t ld, int64_t first, const int32_t *at,
                      const void *x, int64_t m, int64_t n)
{
    const int64_t eights = m * d9di_ceil_div(n, 8);

    if (eights == 0)
        return D9D_OK;
    return launch_early(s, "put_rows", put_rows_kernel<T>, blocks_for(s, eights), THREADS, (T *)y,
                        ld, first, at, (const T *)x, m, n);
}

d9d_status d9d_k_put_rows(d9d_stream s, d9d_dtype t, void *y, int64_t ld, int64_t first,
                          const int32_t *at, const void *x, int64_t m, int64_t n)
{
    D9D_TRY(d9di_check_float("put_rows", t));
    return D9DI_TYPED(t, T, run<T>(s, y, ld, first, at, x, m, n));
}
