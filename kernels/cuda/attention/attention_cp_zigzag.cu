/* attention_cp_zigzag.cu - context-parallel chunks between sequence order and zigzag rank order. */
#include "cuda/common/common.cuh"

template <class T>
static __global__ void cp_zigzag_kernel(T *y, const T *x, int64_t n, int64_t b, int64_t size,
                                        bool in_order)
{
    EACH_ROW8 (i, at, 2 * n * b, size) {
        const int64_t rank = i / (2 * b), row = i / 2 % b;
        const int64_t chunk = i % 2 == 0 ? rank : 2 * n - 1 - rank;
        const int64_t dealt = i * size + at, rows = (row * 2 * n + chunk) * size + at;
        float v[8];

        load8(v, x + (in_order ? dealt : rows), size - at);
        store8(y + (in_order ? rows : dealt), v, size - at);
    }
}

template <class T>
static d9d_status launch(d9d_stream s, void *y, const void *x, int64_t n, int64_t b, int64_t size,
                         bool in_order)
{
    const int64_t eights = 2 * n * b * d9di_i64_ceil_div(size, 8);

    if (eights == 0)
        return D9D_OK;
    cp_zigzag_kernel<<<grid_for(s, eights), THREADS, 0, d9di_cuda_stream(s)>>>(
        (T *)y, (const T *)x, n, b, size, in_order);
    return d9di_cuda_check_launch("cp_zigzag");
}

d9d_status d9d_k_cp_zigzag(d9d_stream s, d9d_dtype t, void *y, const void *x, int64_t n, int64_t b,
                           int64_t p, int64_t w, bool in_order)
{
    D9D_TRY(d9di_args_check_float("cp_zigzag", t));
    return D9DI_DISPATCH_DTYPE(t, T, launch<T>(s, y, x, n, b, p * w, in_order));
}
