/* linear_cross_entropy_combine.cu - the cross-entropy of a vocabulary in parts, from those of the
 * parts.
 *
 * lse = logsumexp over parts; a part's logit of the target is its lse - loss, 0 where it is not.
 * With f = exp(lse of this part - lse), its share in dloss/dh is f unit - (1 - f) W[target].
 * A block has a token; reads 8 n bytes and, once each way, a row of unit.
 */
#include <math_constants.h>

#include "cuda/loss/linear_cross_entropy.cuh"

static const char op[] = "cross-entropy of parts";

static __device__ void join(const float *parts, int64_t n, int64_t rows, float *loss, float *lse)
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
static __global__ void join_kernel(float *loss, float *lse, T *unit, const float *parts, int64_t n,
                                   int64_t mine, const int32_t *targets, int32_t ignore, splits w,
                                   int64_t rows, int64_t h)
{
    const int64_t r = blockIdx.x;
    const bool ignored = targets[r] == ignore;
    float all = 0.0f, of_target = 0.0f;

    if (!ignored)
        join(parts + r, n, rows, &of_target, &all);
    if (threadIdx.x == 0) {
        loss[r] = of_target;
        lse[r] = all;
    }
    if (ignored || unit == NULL)
        return;
    const float f = expf(parts[2 * mine * rows + r] - all);
    const T *row = row_of<T>(w, targets[r], h);
    for (int64_t i = threadIdx.x; i < h; i += THREADS)
        put(unit + r * h + i,
            f * to_float(unit[r * h + i]) + (row != NULL ? (f - 1.0f) * to_float(row[i]) : 0.0f));
}

template <class T>
static d9d_status joined(d9d_stream s, const d9d_xent_dims *d, float *loss, float *lse, void *unit,
                         const float *parts, int64_t n, int64_t mine, const int32_t *targets,
                         const splits &w)
{
    join_kernel<<<(unsigned)d->rows, THREADS, 0, d9di_queue(s)>>>(
        loss, lse, (T *)unit, parts, n, mine, targets, d->ignore, w, d->rows, d->h);
    return d9di_launched(op);
}

d9d_status d9d_k_xent_join(d9d_stream s, const d9d_xent_dims *d, float *loss, float *lse,
                           void *unit, const float *parts, int64_t n, int64_t mine,
                           const void *const *w, const int32_t *targets)
{
    splits all = {};

    D9D_TRY(d9di_check_float(op, d->t));
    D9D_TRY(splits_of(op, d, w, &all));
    if (d->rows == 0)
        return D9D_OK;
    return D9DI_TYPED(d->t, T, joined<T>(s, d, loss, lse, unit, parts, n, mine, targets, all));
}
