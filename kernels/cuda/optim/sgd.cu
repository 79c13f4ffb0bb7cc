/* sgd.cu - stochastic gradient descent with momentum.
 *
 *     g = scale grad, negated to maximize; g += wd p
 *     momentum: b = g at first, then momentum b + (1 - dampening) g
 *               g = nesterov ? g + momentum b : b
 *     p -= lr g
 */
#include "cuda/optim/master_weights.cuh"

struct sgd_consts {
    bool maximize;
    float wd, lr;
    float momentum, grad; /* b = momentum b + grad g */
    float nesterov;       /* g = g + nesterov b, or b if nesterov is 0 */
};

static sgd_consts sgd_consts_make(const d9d_sgd_step *c)
{
    sgd_consts k;

    k.maximize = c->maximize;
    k.wd = (float)c->weight_decay;
    k.lr = (float)c->lr;
    k.momentum = c->first ? 0.0f : (float)c->momentum;
    k.grad = c->first ? 1.0f : (float)(1.0 - c->dampening);
    k.nesterov = c->nesterov ? (float)c->momentum : 0.0f;
    return k;
}

template <bool MOMENTUM, class W, class G, class S>
static __global__ void sgd_kernel(sgd_consts k, W w, const G *g, const float *scale, S *momentum,
                                  int64_t n)
{
    const float by = k.maximize ? -*scale : *scale;

    if (isnan(by))
        return;
    D9DI_EACH8 (i, n) {
        float pf[8], gf[8], bf[8];

        w.load(pf, i, n - i);
        load8(gf, g + i, n - i);
        if (MOMENTUM)
            load8(bf, momentum + i, n - i);
        for (int j = 0; j < 8; j++) {
            float d = gf[j] * by + (k.wd == 0.0f ? 0.0f : k.wd * pf[j]);

            if (MOMENTUM) {
                bf[j] = k.momentum == 0.0f ? k.grad * d : k.momentum * bf[j] + k.grad * d;
                d = k.nesterov != 0.0f ? d + k.nesterov * bf[j] : bf[j];
            }
            pf[j] -= k.lr * d;
        }
        w.store(i, pf, n - i);
        if (MOMENTUM)
            store8(momentum + i, bf, n - i);
    }
}

template <bool MOMENTUM, class W, class G, class S>
static d9d_status launch_sgd(d9d_stream s, sgd_consts k, W w, const void *g, const float *scale,
                             void *momentum, int64_t n)
{
    sgd_kernel<MOMENTUM><<<grid_for(s, n / 8), THREADS, 0, d9di_cuda_stream(s)>>>(
        k, w, (const G *)g, scale, (S *)momentum, n);
    return d9di_cuda_check_launch("sgd");
}

d9d_status d9d_k_sgd(d9d_stream s, const d9d_sgd_step *c, d9d_dtype t, void *p, int16_t *residual,
                     d9d_dtype gt, const void *g, const float *scale, d9d_dtype st, void *momentum,
                     int64_t n)
{
    const sgd_consts k = sgd_consts_make(c);

    D9D_TRY(d9di_args_check_float("sgd", t));
    D9D_TRY(d9di_args_check_float("sgd", gt));
    D9D_TRY(d9di_args_check_float("sgd", st));
    if (n == 0)
        return D9D_OK;
    if (c->momentum == 0.0)
        return D9DI_WEIGHTS(
            t, residual, W,
            D9DI_DISPATCH_DTYPE(
                gt, G, launch_sgd<false, W, G, float>(s, k, W{p, residual}, g, scale, NULL, n)));
    return D9DI_WEIGHTS(
        t, residual, W,
        D9DI_DISPATCH_DTYPE(
            gt, G,
            D9DI_DISPATCH_DTYPE(
                st, S, launch_sgd<true, W, G, S>(s, k, W{p, residual}, g, scale, momentum, n))));
}
