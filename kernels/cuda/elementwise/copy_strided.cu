/* copy_strided.cu - some columns of an array beside those of others, for each head. */
#include "cuda/common/common.cuh"

template <class T> static __global__ void columns_kernel(d9d_columns_dims n, T *y, const T *x)
{
    EACH_ROW8 (i, j, n.m * n.heads, n.n) {
        float v[8];

        load8(v, x + i / n.heads * n.x + n.from + j, n.n - j);
        store8(y + i * n.y + n.to + j, v, n.n - j);
    }
}

template <class T> static __global__ void columns_din_kernel(d9d_columns_dims n, T *x, const T *y)
{
    EACH_ROW8 (i, j, n.m, n.n) {
        float sum[8] = {}, v[8];

        for (int64_t h = 0; h < n.heads; h++) {
            load8(v, y + (i * n.heads + h) * n.y + n.to + j, n.n - j);
#pragma unroll
            for (int c = 0; c < 8; c++)
                sum[c] += v[c];
        }
        store8(x + i * n.x + n.from + j, sum, n.n - j);
    }
}

template <class T>
static d9d_status columns(d9d_stream s, const d9d_columns_dims *n, void *y, const void *x)
{
    const int64_t eights = n->m * n->heads * d9di_ceil_div(n->n, 8);

    if (eights == 0)
        return D9D_OK;
    columns_kernel<<<blocks_for(s, eights), THREADS, 0, d9di_queue(s)>>>(*n, (T *)y, (const T *)x);
    return d9di_launched("columns");
}

template <class T>
static d9d_status columns_din(d9d_stream s, const d9d_columns_dims *n, void *x, const void *y)
{
    const int64_t eights = n->m * d9di_ceil_div(n->n, 8);

    if (eights == 0)
        return D9D_OK;
    columns_din_kernel<<<blocks_for(s, eights), THREADS, 0, d9di_queue(s)>>>(*n, (T *)x,
                                                                             (const T *)y);
    return d9di_launched("columns_din");
}

d9d_status d9d_k_columns(d9d_stream s, const d9d_columns_dims *n, void *y, const void *x)
{
    D9D_TRY(d9di_check_float("columns", n->t));
    return D9DI_TYPED(n->t, T, columns<T>(s, n, y, x));
}

d9d_status d9d_k_columns_din(d9d_stream s, const d9d_columns_dims *n, void *x, const void *y)
{
    D9D_TRY(d9di_check_float("columns_din", n->t));
    return D9DI_TYPED(n->t, T, columns_din<T>(s, n, x, y));
}
