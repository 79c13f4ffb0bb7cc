/* foreach_axpby.cu - y = alpha x + beta y, for each matrix of a list: blockIdx.y is the matrix. */
#include "cuda/common/common.cuh"

struct foreach_list {
    d9d_foreach_matrix of[D9D_FOREACH_MAX];
};

template <class Y, class X> static __global__ void foreach_axpby_kernel(const foreach_list list)
{
    pdl_launch_dependents();
    pdl_wait();

    const d9d_foreach_matrix &a = list.of[blockIdx.y];

    EACH_ROW8 (i, j, a.m, a.n) {
        Y *const y = (Y *)a.y + i * a.y_ld + a.y_first + j;
        float u[8], v[8];

        load8(u, (const X *)a.x + i * a.x_ld + a.x_first + j, a.n - j);
        for (int c = 0; c < 8; c++)
            u[c] *= a.alpha;
        if (a.beta != 0.0f) {
            load8(v, y, a.n - j);
            for (int c = 0; c < 8; c++)
                u[c] += a.beta * v[c];
        }
        store8(y, u, a.n - j);
    }
}

template <class Y, class X>
static d9d_status launch_foreach_axpby(d9d_stream s, const d9d_foreach_matrix *of, int count)
{
    foreach_list list = {};
    int64_t eights = 0;
    unsigned n = 0;

    for (int i = 0; i < count; i++) {
        if (of[i].m == 0 || of[i].n == 0)
            continue;
        list.of[n++] = of[i];
        eights = d9di_i64_max(eights, of[i].m * d9di_i64_ceil_div(of[i].n, 8));
    }
    if (n == 0)
        return D9D_OK;
    return pdl_launch(s, "foreach_axpby", foreach_axpby_kernel<Y, X>, dim3(grid_for(s, eights), n),
                      THREADS, list);
}

d9d_status d9d_k_foreach_axpby(d9d_stream s, d9d_dtype yt, d9d_dtype xt,
                               const d9d_foreach_matrix *list, int count)
{
    D9D_TRY(d9di_args_check_float("foreach_axpby", yt));
    D9D_TRY(d9di_args_check_float("foreach_axpby", xt));
    D9D_TRY(d9di_args_check_foreach(count));
    return D9DI_DISPATCH_DTYPE(
        yt, Y, D9DI_DISPATCH_DTYPE(xt, T, launch_foreach_axpby<Y, T>(s, list, count)));
}
