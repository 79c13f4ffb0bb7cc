/* adam.cu - Adam, AdamW and AdamW with stochastic rounding.
 *
 *     g = scale grad, negated to maximize
 *     decoupled (AdamW): p -= lr wd p; else g += wd p
 *     m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
 *     p -= lr / bias_correction1 * m / (sqrt(v) / sqrt(bias_correction2) + eps)
 *
 * With amsgrad, the largest v so far takes the place of v.
 */
#include <math.h>

#include "cuda/common/multi_tensor.cuh"
#include "cuda/common/philox.cuh"
#include "cuda/optim/master_weights.cuh"

/* The constants of a step, each rounded to float32 once. */
struct adam_consts {
    bool maximize;
    float decay, wd, b1, b2, c1, c2, step_size, inv_sqrt_bias2, eps;
};

static adam_consts adam_consts_make(const d9d_adam_step *c)
{
    adam_consts k = {};

    k.maximize = c->maximize;
    k.decay = c->decoupled ? (float)(1.0 - c->lr * c->weight_decay) : 1.0f;
    k.wd = c->decoupled ? 0.0f : (float)c->weight_decay;
    k.b1 = (float)c->beta1;
    k.b2 = (float)c->beta2;
    k.c1 = (float)(1.0 - c->beta1);
    k.c2 = (float)(1.0 - c->beta2);
    k.step_size = (float)(c->lr / c->bias_correction1);
    k.inv_sqrt_bias2 = (float)(1.0 / sqrt(c->bias_correction2));
    k.eps = (float)c->eps;
    return k;
}

/* One element; `v_max` is v itself, or the largest so far. */
template <bool AMSGRAD>
static __device__ __forceinline__ void adam_update(const adam_consts &k, float scale, float &p,
                                                   float g, float &m, float &v, float &v_max)
{
    g = g * scale + (k.wd == 0.0f ? 0.0f : k.wd * p);
    m = k.b1 * m + k.c1 * g;
    v = k.b2 * v + k.c2 * (g * g);
    v_max = AMSGRAD && v_max > v ? v_max : v;
    p = p * k.decay - k.step_size * m / (sqrtf(v_max) * k.inv_sqrt_bias2 + k.eps);
}

/* Arrays of one launch and their chunks: a kernel argument of at most 4 KiB. */
enum { MAX_ARRAYS = 64, CHUNK = 64 * THREADS };
struct adam_list {
    chunk_map<MAX_ARRAYS> chunks;
    d9d_adam_arrays arrays[MAX_ARRAYS];
};

template <bool AMSGRAD, class W, class G, class S>
static __global__ void adam_kernel(adam_consts k, const float *scale,
                                   const __grid_constant__ adam_list list)
{
    const int tensor = list.chunks.tensor_of_block();
    const d9d_adam_arrays &a = list.arrays[tensor];
    const W w = {a.p, a.residual};
    const G *const g = (const G *)a.g;
    S *const m = (S *)a.m, *const v = (S *)a.v, *const vmax = (S *)a.vmax;
    const int64_t first = list.chunks.chunk_begin(tensor, CHUNK),
                  n = d9di_i64_min(a.n, first + CHUNK);
    const float by = k.maximize ? -*scale : *scale;

    if (isnan(by))
        return;
#pragma unroll 2
    for (int64_t i = first + threadIdx.x * 8; i < n; i += THREADS * 8) {
        float pf[8], gf[8], mf[8], vf[8], xf[8];

        w.load(pf, i, n - i);
        load8(gf, g + i, n - i);
        load8(mf, m + i, n - i);
        load8(vf, v + i, n - i);
        if (AMSGRAD)
            load8(xf, vmax + i, n - i);
        for (int j = 0; j < 8; j++)
            adam_update<AMSGRAD>(k, by, pf[j], gf[j], mf[j], vf[j], xf[j]);
        w.store(i, pf, n - i);
        store8(m + i, mf, n - i);
        store8(v + i, vf, n - i);
        if (AMSGRAD)
            store8(vmax + i, xf, n - i);
    }
}

/* Up to MAX_ARRAYS of them. */
template <bool AMSGRAD, class W, class G, class S>
static d9d_status launch_adam(d9d_stream s, const adam_consts &k, const float *scale,
                              const d9d_adam_arrays *arrays, int64_t count)
{
    adam_list list = {};

    for (int64_t i = 0; i < count; i++) {
        list.arrays[i] = arrays[i];
        list.chunks.append_tensor(arrays[i].n, CHUNK);
    }
    if (list.chunks.parts > 0)
        adam_kernel<AMSGRAD, W, G, S>
            <<<(unsigned)list.chunks.parts, THREADS, 0, d9di_cuda_stream(s)>>>(k, scale, list);
    return d9di_cuda_check_launch("adam");
}

d9d_status d9d_k_adam(d9d_stream s, const d9d_adam_step *c, const float *scale, d9d_dtype t,
                      d9d_dtype gt, d9d_dtype st, const d9d_adam_arrays *list, int64_t count)
{
    const adam_consts k = adam_consts_make(c);

    D9D_TRY(d9di_args_check_float("adam", t));
    D9D_TRY(d9di_args_check_float("adam", gt));
    D9D_TRY(d9di_args_check_float("adam", st));
    for (int64_t n; count > 0; list += n, count -= n) {
        n = d9di_i64_min(count, MAX_ARRAYS);
        D9D_TRY(D9DI_WEIGHTS(
            t, list->residual, W,
            D9DI_DISPATCH_DTYPE(gt, G, D9DI_DISPATCH_DTYPE(st, S, [&] {
                                    return c->amsgrad
                                               ? launch_adam<true, W, G, S>(s, k, scale, list, n)
                                               : launch_adam<false, W, G, S>(s, k, scale, list, n);
                                }()))));
    }
    return D9D_OK;
}

/* --- stochastic rounding ---------------------------------------------------------------------- */

/* (float32 bits + random & 0xffff) >> 16: rounds up with the probability of the fraction that is
 * dropped. NaN and infinity are kept. */
static __device__ __forceinline__ uint16_t round_stochastic(float x, uint32_t bits)
{
    const uint32_t u = __float_as_uint(x), up = u + (bits & 0xffffu), nan = u | 0x00400000u;

    return (uint16_t)(((u & 0x7fffffffu) > 0x7f800000u ? nan : up) >> 16);
}

/* Stores the c elements at y, whose index in the whole array is `index`. */
static __device__ __forceinline__ void store_stochastic(bf16 *y, const float (&x)[8], int64_t c,
                                                        d9d_rng r, uint64_t offset, uint64_t index)
{
    uint32_t bits[8];
    uint16_t b[8];

    r.stream += offset;
    random8(bits, r, index);
#pragma unroll
    for (int j = 0; j < 8; j++)
        b[j] = round_stochastic(x[j], bits[j]);
    store8_bits(y, b, c);
}

static __device__ __forceinline__ void store_stochastic(float *y, const float (&x)[8], int64_t c,
                                                        d9d_rng, uint64_t, uint64_t)
{
    store8(y, x, c);
}

/* Weights without residuals are rounded stochastically, as moments are. */
template <class T>
static __device__ __forceinline__ void store_stochastic(const plain_weights<T> &w, int64_t i,
                                                        const float (&x)[8], int64_t c, d9d_rng r,
                                                        uint64_t index)
{
    store_stochastic((T *)w.p + i, x, c, r, 0, index);
}
static __device__ __forceinline__ void store_stochastic(const master_weights &w, int64_t i,
                                                        const float (&x)[8], int64_t c, d9d_rng,
                                                        uint64_t)
{
    w.store(i, x, c);
}

/* A thread has eight elements of one run. */
template <class W, class G, class S>
static __global__ void adam_stochastic_kernel(adam_consts k, d9d_adam_arrays a, const float *scale,
                                              d9d_rng r, d9di_subarray b)
{
    const float by = k.maximize ? -*scale : *scale;
    const int64_t per_run = d9di_i64_ceil_div(b.run, 8);
    const W w = {a.p, a.residual};
    const G *const g = (const G *)a.g;
    S *const m = (S *)a.m, *const v = (S *)a.v;

    if (isnan(by))
        return;
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < b.n_runs * per_run;
         e += (int64_t)gridDim.x * THREADS) {
        const int64_t run = e / per_run, at = e % per_run * 8, i = run * b.run + at;
        const int64_t c = d9di_i64_min(8, b.run - at);
        const uint64_t index = (uint64_t)(d9di_subarray_index(&b, run) + at);
        float pf[8], gf[8], mf[8], vf[8], v_max;

        w.load(pf, i, c);
        load8(gf, g + i, c);
        load8(mf, m + i, c);
        load8(vf, v + i, c);
        for (int j = 0; j < 8; j++)
            adam_update<false>(k, by, pf[j], gf[j], mf[j], vf[j], v_max);
        store_stochastic(w, i, pf, c, r, index);
        store_stochastic(m + i, mf, c, r, 42, index);
        store_stochastic(v + i, vf, c, r, 67, index);
    }
}

template <class W, class G, class S>
static d9d_status launch_stochastic(d9d_stream s, const adam_consts &k, const float *scale,
                                    const d9d_adam_arrays *a, d9d_rng r, const d9di_subarray &b)
{
    adam_stochastic_kernel<W, G, S>
        <<<grid_for(s, b.run * b.n_runs / 8), THREADS, 0, d9di_cuda_stream(s)>>>(k, *a, scale, r,
                                                                                 b);
    return d9di_cuda_check_launch("adam_stochastic");
}

d9d_status d9d_k_adam_stochastic(d9d_stream s, const d9d_adam_step *c, const float *scale,
                                 d9d_dtype t, d9d_dtype gt, d9d_dtype st, const d9d_adam_arrays *a,
                                 d9d_rng r, int ndim, const int64_t *box, const int64_t *start,
                                 const int64_t *whole)
{
    const d9di_subarray b = d9di_subarray_make(ndim, box, start, whole);
    const adam_consts k = adam_consts_make(c);

    D9D_TRY(d9di_args_check_float("adam_stochastic", t));
    D9D_TRY(d9di_args_check_float("adam_stochastic", gt));
    D9D_TRY(d9di_args_check_float("adam_stochastic", st));
    if (b.run * b.n_runs == 0)
        return D9D_OK;
    return D9DI_WEIGHTS(
        t, a->residual, W,
        D9DI_DISPATCH_DTYPE(
            gt, G, D9DI_DISPATCH_DTYPE(st, S, launch_stochastic<W, G, S>(s, k, scale, a, r, b))));
}
