/* optim_apply.cuh - the rule of an optimizer over a list of arrays (multi-tensor apply), or over
 * one array with stochastic rounding.
 *
 * A RULE has the constants of a step and
 *
 *     enum { STATES };                       m, v and vmax of d9d_optim_arrays, as many as it has
 *     bool maximize;
 *     void update(float scale, float &p, float g, float (&state)[STATES]) const;
 *
 * A rule without states has an array of one, which is not read.
 */
#ifndef D9DI_CUDA_OPTIM_OPTIM_APPLY_CUH
#define D9DI_CUDA_OPTIM_OPTIM_APPLY_CUH

#include <math.h>

#include "common/state_blocks.h"
#include "cuda/common/multi_tensor.cuh"
#include "cuda/common/philox.cuh"
#include "cuda/optim/master_weights.cuh"

/* Length of a rule's array of states. */
template <class RULE> struct state_array {
    enum { LEN = RULE::STATES > 0 ? (int)RULE::STATES : 1 };
};

/* The rule for eight elements of a thread. */
template <class RULE>
static __device__ __forceinline__ void update8(const RULE &rule, float scale, float (&p)[8],
                                               const float (&g)[8],
                                               float (&state)[state_array<RULE>::LEN][8])
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float x[state_array<RULE>::LEN];

#pragma unroll
        for (int k = 0; k < RULE::STATES; k++)
            x[k] = state[k][j];
        rule.update(scale, p[j], g[j], x);
#pragma unroll
        for (int k = 0; k < RULE::STATES; k++)
            state[k][j] = x[k];
    }
}

/* Arrays of one launch and their chunks: a kernel argument of at most 4 KiB. */
enum { MAX_ARRAYS = 64, CHUNK = 64 * THREADS };
struct optim_list {
    chunk_map<MAX_ARRAYS> chunks;
    d9d_optim_arrays arrays[MAX_ARRAYS];
};

/* A thread has eight elements, in accesses of 16 bytes where it can: all in a row if each array has
 * two bytes an element, else two times four that are QUADS apart. */
enum { QUADS = 4 * 32 };
template <class W, class G, class S> struct optim_elements {
    static constexpr bool ROW = W::BYTES == 2 && sizeof(G) == 2 && sizeof(S) == 2;

    /* The first, of a block's. */
    static __device__ __forceinline__ int64_t of_thread()
    {
        return ROW ? threadIdx.x * 8 : threadIdx.x / 32 * 2 * QUADS + threadIdx.x % 32 * 4;
    }
    template <int N>
    static __device__ __forceinline__ void load(float (&p)[8], float (&g)[8], float (&state)[N][8],
                                                const W &w, const G *grad, S *const *states,
                                                int n_states, int64_t i, int64_t n)
    {
        if constexpr (ROW) {
            w.load(p, i, n - i);
            load8(g, grad + i, n - i);
#pragma unroll
            for (int k = 0; k < n_states; k++)
                load8(state[k], states[k] + i, n - i);
        } else {
#pragma unroll
            for (int h = 0; h < 8; h += 4, i += QUADS) {
                w.load4_at(&p[h], i, n - i);
                load4(&g[h], grad + i, n - i);
#pragma unroll
                for (int k = 0; k < n_states; k++)
                    load4(&state[k][h], states[k] + i, n - i);
            }
        }
    }
    template <int N>
    static __device__ __forceinline__ void store(const W &w, S *const *states, int n_states,
                                                 int64_t i, int64_t n, const float (&p)[8],
                                                 const float (&state)[N][8])
    {
        if constexpr (ROW) {
            w.store(i, p, n - i);
#pragma unroll
            for (int k = 0; k < n_states; k++)
                store8(states[k] + i, state[k], n - i);
        } else {
#pragma unroll
            for (int h = 0; h < 8; h += 4, i += QUADS) {
                w.store4_at(i, &p[h], n - i);
#pragma unroll
                for (int k = 0; k < n_states; k++)
                    store4(states[k] + i, &state[k][h], n - i);
            }
        }
    }
};

template <class RULE, class W, class G, class S>
static __global__ void optim_kernel(RULE rule, const float *scale,
                                    const __grid_constant__ optim_list list)
{
    typedef optim_elements<W, G, S> elements;
    const int tensor = list.chunks.tensor_of_block();
    const d9d_optim_arrays &a = list.arrays[tensor];
    const W w = {a.p, a.residual};
    S *const states[] = {(S *)a.m, (S *)a.v, (S *)a.vmax};
    const int64_t first = list.chunks.chunk_begin(tensor, CHUNK),
                  n = d9di_i64_min(a.n, first + CHUNK);
    const float by = rule.maximize ? -*scale : *scale;

    if (isnan(by))
        return;
#pragma unroll 2
    for (int64_t i = first + elements::of_thread(); i < n; i += THREADS * 8) {
        float pf[8], gf[8], sf[state_array<RULE>::LEN][8];

        elements::load(pf, gf, sf, w, (const G *)a.g, states, RULE::STATES, i, n);
        update8(rule, by, pf, gf, sf);
        elements::store(w, states, RULE::STATES, i, n, pf, sf);
    }
}

/* Up to MAX_ARRAYS of them. */
template <class RULE, class W, class G, class S>
static d9d_status launch_optim(d9d_stream s, const char *name, const RULE &rule, const float *scale,
                               const d9d_optim_arrays *arrays, int64_t count)
{
    optim_list list = {};

    for (int64_t i = 0; i < count; i++) {
        list.arrays[i] = arrays[i];
        list.chunks.append_tensor(arrays[i].n, CHUNK);
    }
    if (list.chunks.parts > 0)
        optim_kernel<RULE, W, G, S>
            <<<(unsigned)list.chunks.parts, THREADS, 0, d9di_cuda_stream(s)>>>(rule, scale, list);
    return d9di_cuda_check_launch(name);
}

static inline d9d_status optim_types_check(const char *name, d9d_dtype t, d9d_dtype gt,
                                           d9d_dtype st)
{
    D9D_TRY(d9di_args_check_float(name, t));
    D9D_TRY(d9di_args_check_float(name, gt));
    return d9di_args_check_float(name, st);
}

/* The rule for a list of arrays, rounded to nearest. */
template <class RULE>
static d9d_status optim_apply(d9d_stream s, const char *name, const RULE &rule, const float *scale,
                              d9d_dtype t, d9d_dtype gt, d9d_dtype st, const d9d_optim_arrays *list,
                              int64_t count)
{
    D9D_TRY(optim_types_check(name, t, gt, st));
    for (int64_t n; count > 0; list += n, count -= n) {
        n = d9di_i64_min(count, MAX_ARRAYS);
        D9D_TRY(D9DI_WEIGHTS(t, list->residual, W,
                             D9DI_DISPATCH_DTYPE(gt, G, D9DI_DISPATCH_DTYPE(st, S, [&] {
                                                     return launch_optim<RULE, W, G, S>(
                                                         s, name, rule, scale, list, n);
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

/* A thread has eight elements of one run. State k draws from the stream r + 42 or r + 67. */
template <class RULE, class W, class G, class S>
static __global__ void optim_stochastic_kernel(RULE rule, d9d_optim_arrays a, const float *scale,
                                               d9d_rng r, d9di_subarray b)
{
    const float by = rule.maximize ? -*scale : *scale;
    const int64_t per_run = d9di_i64_ceil_div(b.run, 8);
    const W w = {a.p, a.residual};
    const G *const g = (const G *)a.g;
    S *const states[] = {(S *)a.m, (S *)a.v};

    if (isnan(by))
        return;
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < b.n_runs * per_run;
         e += (int64_t)gridDim.x * THREADS) {
        const int64_t run = e / per_run, at = e % per_run * 8, i = run * b.run + at;
        const int64_t c = d9di_i64_min(8, b.run - at);
        const uint64_t index = (uint64_t)(d9di_subarray_index(&b, run) + at);
        float pf[8], gf[8], sf[state_array<RULE>::LEN][8];

        w.load(pf, i, c);
        load8(gf, g + i, c);
#pragma unroll
        for (int k = 0; k < RULE::STATES; k++)
            load8(sf[k], states[k] + i, c);
        update8(rule, by, pf, gf, sf);
        store_stochastic(w, i, pf, c, r, index);
#pragma unroll
        for (int k = 0; k < RULE::STATES; k++)
            store_stochastic(states[k] + i, sf[k], c, r, k == 0 ? 42 : 67, index);
    }
}

template <class RULE, class W, class G, class S>
static d9d_status launch_stochastic(d9d_stream s, const char *name, const RULE &rule,
                                    const float *scale, const d9d_optim_arrays *a, d9d_rng r,
                                    const d9di_subarray &b)
{
    optim_stochastic_kernel<RULE, W, G, S>
        <<<grid_for(s, b.run * b.n_runs / 8), THREADS, 0, d9di_cuda_stream(s)>>>(rule, *a, scale, r,
                                                                                 b);
    return d9di_cuda_check_launch(name);
}

/* --- states in 8 bits: common/state_blocks.h -------------------------------------------------- */

enum { BLOCK_LANES = D9D_STATE_BLOCK / 8 }; /* threads that share a block, eight elements each */

static __device__ __forceinline__ void load8_codes(uint8_t (&c)[8], const uint8_t *p, int64_t n)
{
    if (n >= 8 && ((uintptr_t)p & 7) == 0) {
        const uint2 w = *(const uint2 *)p;

#pragma unroll
        for (int j = 0; j < 8; j++)
            c[j] = (uint8_t)((j < 4 ? w.x : w.y) >> j % 4 * 8);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        c[j] = j < n ? p[j] : (uint8_t)0;
}

static __device__ __forceinline__ void store8_codes(uint8_t *p, const uint8_t (&c)[8], int64_t n)
{
    if (n >= 8 && ((uintptr_t)p & 7) == 0) {
        uint2 w = {};

#pragma unroll
        for (int j = 0; j < 4; j++) {
            w.x |= (uint32_t)c[j] << j * 8;
            w.y |= (uint32_t)c[j + 4] << j * 8;
        }
        *(uint2 *)p = w;
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (j < n)
            p[j] = c[j];
}

/* The largest magnitude of a block, in all threads that share it; NaN is larger than any. */
static __device__ __forceinline__ float block_largest(const float (&x)[8], int64_t n)
{
    const unsigned group = ((1u << BLOCK_LANES) - 1)
                           << (threadIdx.x % 32 / BLOCK_LANES * BLOCK_LANES);
    uint32_t most = 0;

#pragma unroll
    for (int j = 0; j < 8; j++)
        most = j < n ? max(most, __float_as_uint(x[j]) & 0x7fffffffu) : most;
#pragma unroll
    for (int lane = BLOCK_LANES / 2; lane > 0; lane /= 2)
        most = max(most, __shfl_xor_sync(group, most, lane));
    return __uint_as_float(most);
}

/* State 0 is signed, state 1 is not. */
template <int STATE>
static __device__ __forceinline__ void load8_state(float (&x)[8], const uint8_t *codes,
                                                   const uint16_t *scale, int64_t n)
{
    const float by = __uint_as_float((uint32_t)*scale << 16);
    uint8_t c[8];

    load8_codes(c, codes, n);
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] = STATE == 0 ? d9di_state_m((int8_t)c[j], by) : d9di_state_v(c[j], by);
}

template <int STATE>
static __device__ __forceinline__ void store8_state(uint8_t *codes, uint16_t *scale,
                                                    const float (&x)[8], const uint32_t (&bits)[8],
                                                    int64_t n)
{
    const uint16_t b = d9di_state_scale_bits(block_largest(x, n));
    const float inverse = d9di_state_inverse(__uint_as_float((uint32_t)b << 16));
    uint8_t c[8];

#pragma unroll
    for (int j = 0; j < 8; j++)
        c[j] = (uint8_t)(STATE == 0 ? d9di_state_m_code(x[j], inverse, bits[j] & 0xffffu)
                                    : d9di_state_v_code(x[j], inverse, bits[j] >> 16));
    store8_codes(codes, c, n);
    if (threadIdx.x % BLOCK_LANES == 0)
        *scale = b;
}

/* Four threads have a block of a row.  All of them take part where the row ends within it.  One
 * overwrites the scale, when it has the largest of what the others computed with the old one. */
template <class RULE, class W, class G>
static __global__ void optim_blocks_kernel(RULE rule, d9d_optim_arrays a, const float *scale,
                                           d9d_rng r, d9di_subarray rows)
{
    const float by = rule.maximize ? -*scale : *scale;
    const int64_t row_blocks = d9di_i64_ceil_div(rows.run, D9D_STATE_BLOCK),
                  per_row = row_blocks * BLOCK_LANES;
    const W w = {a.p, a.residual};
    const G *const g = (const G *)a.g;
    uint8_t *const m = (uint8_t *)a.m, *const v = (uint8_t *)a.v;
    d9d_rng of_states = r;

    if (isnan(by))
        return;
    of_states.stream += 42;
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < rows.n_runs * per_row;
         e += (int64_t)gridDim.x * THREADS) {
        const int64_t row = e / per_row, part = e % per_row, at = part * 8;
        const int64_t i = row * rows.run + at, block = row * row_blocks + part / BLOCK_LANES;
        const int64_t c = d9di_i64_max(0, d9di_i64_min(8, rows.run - at));
        const uint64_t index = (uint64_t)(d9di_subarray_index(&rows, row) + at);
        float pf[8], gf[8], sf[state_array<RULE>::LEN][8];
        uint32_t bits[8];

        w.load(pf, i, c);
        load8(gf, g + i, c);
        load8_state<0>(sf[0], m + i, a.m_scale + block, c);
        if constexpr (RULE::STATES > 1)
            load8_state<1>(sf[1], v + i, a.v_scale + block, c);
        update8(rule, by, pf, gf, sf);
        store_stochastic(w, i, pf, c, r, index);
        random8(bits, of_states, index);
        store8_state<0>(m + i, a.m_scale + block, sf[0], bits, c);
        if constexpr (RULE::STATES > 1)
            store8_state<1>(v + i, a.v_scale + block, sf[1], bits, c);
    }
}

template <class RULE, class W, class G>
static d9d_status launch_blocks(d9d_stream s, const char *name, const RULE &rule,
                                const float *scale, const d9d_optim_arrays *a, d9d_rng r,
                                const d9di_subarray &rows)
{
    const int64_t threads =
        rows.n_runs * d9di_i64_ceil_div(rows.run, D9D_STATE_BLOCK) * BLOCK_LANES;

    optim_blocks_kernel<RULE, W, G>
        <<<grid_for(s, threads), THREADS, 0, d9di_cuda_stream(s)>>>(rule, *a, scale, r, rows);
    return d9di_cuda_check_launch(name);
}

/* --- one array, rounded stochastically -------------------------------------------------------- */

/* The rule for one array, a box of a whole array; rules of at most two states. */
template <class RULE>
static d9d_status optim_apply_stochastic(d9d_stream s, const char *name, const RULE &rule,
                                         const float *scale, d9d_dtype t, d9d_dtype gt,
                                         d9d_dtype st, const d9d_optim_arrays *a, d9d_rng r,
                                         int ndim, const int64_t *box, const int64_t *start,
                                         const int64_t *whole)
{
    const bool in_blocks = st == D9D_I8;
    const d9di_subarray b = in_blocks ? d9di_subarray_make_rows(ndim, box, start, whole)
                                      : d9di_subarray_make(ndim, box, start, whole);

    D9D_TRY(optim_types_check(name, t, gt, in_blocks ? D9D_F32 : st));
    if (in_blocks)
        D9D_TRY(d9di_args_check_state_box(name, a, RULE::STATES, ndim, box, start, whole));
    if (b.run * b.n_runs == 0)
        return D9D_OK;
    if (in_blocks)
        return D9DI_WEIGHTS(t, a->residual, W, D9DI_DISPATCH_DTYPE(gt, G, [&] {
                                return launch_blocks<RULE, W, G>(s, name, rule, scale, a, r, b);
                            }()));
    return D9DI_WEIGHTS(t, a->residual, W,
                        D9DI_DISPATCH_DTYPE(gt, G, D9DI_DISPATCH_DTYPE(st, S, [&] {
                                                return launch_stochastic<RULE, W, G, S>(
                                                    s, name, rule, scale, a, r, b);
                                            }())));
}

#endif /* D9DI_CUDA_OPTIM_OPTIM_APPLY_CUH */
