/* pointwise.cu - y = f(a, b, c) with broadcasting, and g df of each input: the formulas of
 * common/pointwise.h. A thread computes eight elements of a row.
 */
#include "cuda/common/common.cuh"

#define D9DI_POINTWISE_INLINE        static __device__ __forceinline__
#define D9DI_POINTWISE_EXP(x)        expf(x)
#define D9DI_POINTWISE_LOG(x)        logf(x)
#define D9DI_POINTWISE_LOG1P(x)      log1pf(x)
#define D9DI_POINTWISE_TANH(x)       tanhf(x)
#define D9DI_POINTWISE_SIGMOID(x)    sigmoid(x)
#define D9DI_POINTWISE_NORMAL_CDF(x) normcdff(x)
#include "common/pointwise.h"

/* A function as a type. */
#define X(NAME, name, n, f, r0, d0, r1, d1, r2, d2)                                                \
    struct fn_##name {                                                                             \
        static __device__ __forceinline__ float eval(int of, float a, float b, float c, float g,   \
                                                     float k0, float k1)                           \
        {                                                                                          \
            switch (of) {                                                                          \
            case 0: return d9di_pointwise_##name##_d0(a, b, c, k0, k1) * g;                        \
            case 1: return d9di_pointwise_##name##_d1(a, b, c, k0, k1) * g;                        \
            case 2: return d9di_pointwise_##name##_d2(a, b, c, k0, k1) * g;                        \
            default: return d9di_pointwise_##name(a, b, c, k0, k1);                                \
            }                                                                                      \
        }                                                                                          \
    };
D9DI_POINTWISE_TABLE(X)
#undef X

struct pointwise_args {
    d9d_pointwise_dims d;
    void *y;
    const void *x[D9D_POINTWISE_INPUTS];
    int64_t rows, n; /* n: elements of a row */
};

static __device__ __forceinline__ float load_one(d9d_dtype t, const void *x, int64_t i)
{
    return t == D9D_F32    ? ((const float *)x)[i]
           : t == D9D_BF16 ? to_float(((const bf16 *)x)[i])
                           : (float)((const int32_t *)x)[i];
}

/* Elements [j, j + 8) of an input's row that begins at `first`; n remain in the row. */
static __device__ __forceinline__ void load_input(float (&v)[8], const pointwise_args &p, int i,
                                                  int64_t first, int64_t j, int64_t n)
{
    const d9d_dtype t = p.d.x[i].t;
    const void *x = p.x[i];

    if (x == NULL || p.d.x[i].stride[p.d.ndim - 1] == 0) {
        const float one = x == NULL ? 0.0f : load_one(t, x, first);

        for (int k = 0; k < 8; k++)
            v[k] = one;
    } else if (t == D9D_F32) {
        load8(v, (const float *)x + first + j, n);
    } else if (t == D9D_BF16) {
        load8(v, (const bf16 *)x + first + j, n);
    } else {
        for (int k = 0; k < 8; k++)
            v[k] = k < n ? load_one(t, x, first + j + k) : 0.0f;
    }
}

static __device__ __forceinline__ int64_t row_begin(const pointwise_args &p, int i, int64_t r)
{
    int64_t at = 0;

    for (int k = p.d.ndim - 2; k >= 0; k--) {
        at += r % p.d.dim[k] * p.d.x[i].stride[k];
        r /= p.d.dim[k];
    }
    return at;
}

template <class F>
static __global__ void __launch_bounds__(THREADS)
    pointwise_kernel(const __grid_constant__ pointwise_args p)
{
    EACH_ROW8 (r, j, p.rows, p.n) {
        float v[D9D_POINTWISE_INPUTS][8], y[8];

#pragma unroll
        for (int i = 0; i < D9D_POINTWISE_INPUTS; i++)
            load_input(v[i], p, i, p.x[i] != NULL ? row_begin(p, i, r) : 0, j, p.n - j);
        for (int k = 0; k < 8; k++)
            y[k] = F::eval(p.d.of, v[0][k], v[1][k], v[2][k], v[3][k], p.d.k[0], p.d.k[1]);
        if (p.d.yt == D9D_F32)
            store8((float *)p.y + r * p.n + j, y, p.n - j);
        else
            store8((bf16 *)p.y + r * p.n + j, y, p.n - j);
    }
}

template <class F> static d9d_status launch(d9d_stream s, const pointwise_args &p)
{
    const int64_t eights = p.rows * d9di_i64_ceil_div(p.n, 8);

    pointwise_kernel<F><<<grid_for(s, eights), THREADS, 0, d9di_cuda_stream(s)>>>(p);
    return d9di_cuda_check_launch(d9d_pointwise_name(p.d.f));
}

d9d_status d9d_k_pointwise(d9d_stream s, const d9d_pointwise_dims *d, void *y,
                           const void *const x[D9D_POINTWISE_INPUTS])
{
    pointwise_args p = {*d, y, {x[0], x[1], x[2], x[3]}, 1, 0};

    D9D_TRY(d9di_args_check_pointwise(d));
    p.n = d->dim[d->ndim - 1];
    for (int i = 0; i + 1 < d->ndim; i++)
        p.rows *= d->dim[i];
    if (p.rows * p.n == 0)
        return D9D_OK;
    switch (d->f) {
#define X(NAME, name, n, f, r0, d0, r1, d1, r2, d2)                                                \
    case D9D_POINTWISE_##NAME: return launch<fn_##name>(s, p);
        D9DI_POINTWISE_TABLE(X)
#undef X
    default: return D9D_OK;
    }
}
