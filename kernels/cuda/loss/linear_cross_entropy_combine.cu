/* linear_cross_entropy_combine.cu - vocabulary-parallel cross entropy from the results of each
 * part.
 *
 * lse = logsumexp over parts. A part's logit of the target is its lse - loss, 0 if the part lacks
 * it. With f = exp(lse of this part - lse), its share of dloss/dh is f unit - (1 - f) derivative
 * W[target] (softcap_grad(), 1 without a softcap). A block has a token; it reads 8 n bytes, and
 * reads and writes a row of unit.
 */
#include <math_constants.h>

#include "cuda/loss/linear_cross_entropy.cuh"

static const char op[] = "linear_cross_entropy_combine";

static __device__ void combine_token(const float *parts, int64_t n, int64_t rows, float *loss,
                                     float *lse)
{
    float m = -CUDART_INF_F, sum = 0.0f, target = 0.0f;

    for (int64_t i = 0; i < n; i++)
        m = fmaxf(m, parts[2 * i * rows]);
    for (int64_t i = 0; i < n; i++) {
        const float l = parts[2 * i * rows];

        if (l == -CUDART_INF_F)
            continue;
        sum += expf(l - m);
        target += l - parts[(2 * i + 1) * rows];
    }
    *lse = m + logf(sum);
    *loss = *lse - target;
}

template <class T>
static __global__ void combine_kernel(float *loss, float *lse, T *token_grad, const float *parts,
                                      int64_t n, int64_t rank, const int32_t *targets,
                                      int32_t ignore, vocab_splits w, int64_t rows, int64_t h,
                                      float cap)
{
    const int64_t r = blockIdx.x;
    const bool ignored = targets[r] == ignore;
    float all = 0.0f, of_target = 0.0f;

    if (!ignored)
        combine_token(parts + r, n, rows, &of_target, &all);
    if (threadIdx.x == 0) {
        loss[r] = of_target;
        lse[r] = all;
    }
    if (ignored || token_grad == NULL)
        return;
    const float *own = parts + 2 * rank * rows + r;
    const float f = expf(own[0] - all), derivative = softcap_grad(own[0] - own[rows], cap);
    const T *row = target_row<T>(w, targets[r], h);
    for (int64_t i = threadIdx.x; i < h; i += THREADS)
        store_float(token_grad + r * h + i,
                    f * to_float(token_grad[r * h + i]) +
                        (row != NULL ? (f - 1.0f) * derivative * to_float(row[i]) : 0.0f));
}

template <class T>
static d9d_status launch_combine(d9d_stream s, const d9d_linear_cross_entropy_dims *d, float *loss,
                                 float *lse, void *token_grad, const float *parts, int64_t n,
                                 int64_t rank, const int32_t *targets, const vocab_splits &w)
{
    combine_kernel<<<(unsigned)d->rows, THREADS, 0, d9di_cuda_stream(s)>>>(
        loss, lse, (T *)token_grad, parts, n, rank, targets, d->ignore, w, d->rows, d->h,
        d->softcap);
    return d9di_cuda_check_launch(op);
}

d9d_status d9d_k_linear_cross_entropy_combine(d9d_stream s, const d9d_linear_cross_entropy_dims *d,
                                              float *loss, float *lse, void *token_grad,
                                              const float *parts, int64_t n, int64_t rank,
                                              const void *const *w, const int32_t *targets)
{
    vocab_splits all = {};

    D9D_TRY(d9di_args_check_float(op, d->t));
    D9D_TRY(vocab_splits_make(op, d, w, &all));
    if (d->rows == 0)
        return D9D_OK;
    return D9DI_DISPATCH_DTYPE(
        d->t, T, launch_combine<T>(s, d, loss, lse, token_grad, parts, n, rank, targets, all));
}
