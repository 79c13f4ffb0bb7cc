/* muon.cu - the elementwise parts of Muon (Jordan et al. 2024, Muon: An optimizer for hidden layers
 * in neural networks), before and after Newton-Schulz.
 *
 *     g = scale grad
 *     m = mu m + (1 - mu) g
 *     u = (1 - mu) g + mu m, or m without nesterov
 *     x = u / max(|u|, eps)
 *     p = (1 - lr wd) p - adjusted_lr g,   g now the orthogonalized update
 */
#include "cuda/optim/optim_apply.cuh"

struct muon_momentum_rule {
    enum { STATES = 1 };
    bool maximize, nesterov;
    float mu, one_minus_mu;

    __device__ __forceinline__ void update(float scale, float &u, float g, float (&state)[1]) const
    {
        float &m = state[0];

        g = g * scale;
        m = mu * m + one_minus_mu * g;
        u = nesterov ? one_minus_mu * g + mu * m : m;
    }
};

struct muon_rule {
    enum { STATES = 0 };
    bool maximize;
    float decay, lr;

    __device__ __forceinline__ void update(float, float &p, float g, float (&)[1]) const
    {
        p = p * decay - lr * g;
    }
};

d9d_status d9d_k_muon_momentum(d9d_stream s, const d9d_muon_step *c, const float *scale,
                               d9d_dtype ut, d9d_dtype gt, const d9d_optim_arrays *list,
                               int64_t count)
{
    muon_momentum_rule k = {};

    k.nesterov = c->nesterov;
    k.mu = (float)c->momentum;
    k.one_minus_mu = (float)(1.0 - c->momentum);
    return optim_apply(s, "muon_momentum", k, scale, ut, gt, D9D_F32, list, count);
}

d9d_status d9d_k_muon(d9d_stream s, const d9d_muon_step *c, const float *scale, d9d_dtype t,
                      d9d_dtype gt, const d9d_optim_arrays *list, int64_t count)
{
    muon_rule k = {};

    k.decay = (float)(1.0 - c->lr * c->weight_decay);
    k.lr = (float)c->adjusted_lr;
    return optim_apply(s, "muon", k, scale, t, gt, D9D_F32, list, count);
}

/* blockIdx.y is the array. */
template <class T>
static __global__ void normalize_kernel(T *x, const double *squares, int64_t n, float eps)
{
    const float factor = 1.0f / fmaxf((float)sqrt(squares[blockIdx.y]), eps);

    x += (int64_t)blockIdx.y * n;
    D9DI_EACH8 (i, n) {
        float v[8];

        load8(v, x + i, n - i);
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] *= factor;
        store8(x + i, v, n - i);
    }
}

template <class T>
static d9d_status launch_normalize(d9d_stream s, T *x, const double *squares, int64_t count,
                                   int64_t n, float eps)
{
    enum { MAX_GRID_Y = 65535 };

    for (int64_t i = 0; i < count && n > 0; i += MAX_GRID_Y) {
        const dim3 grid(grid_for(s, d9di_i64_ceil_div(n, 8)),
                        (unsigned)d9di_i64_min(count - i, MAX_GRID_Y));

        normalize_kernel<<<grid, THREADS, 0, d9di_cuda_stream(s)>>>(x + i * n, squares + i, n, eps);
    }
    return d9di_cuda_check_launch("muon_normalize");
}

d9d_status d9d_k_muon_normalize(d9d_stream s, d9d_dtype t, void *x, const double *squares,
                                int64_t count, int64_t n, float eps)
{
    D9D_TRY(d9di_args_check_float("muon_normalize", t));
    return D9DI_DISPATCH_DTYPE(t, T, launch_normalize<T>(s, (T *)x, squares, count, n, eps));
}
