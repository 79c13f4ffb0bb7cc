/* attention_decode.cu - decode attention: a few queries against a long KV cache (flash decoding,
 * split-KV).
 *
 * Algorithm: the keys that a query sees are divided into chunks of CHUNK, and chunk c goes to split
 * c mod n. A block has one query, up to GROUP query heads of one key head (GQA packing) and one
 * split. It keeps an online softmax: running maximum m, sum l of exp(score - m), unscaled output. A
 * second launch combines the splits in order.
 *
 *     Flash decoding (FlashAttention)          here
 *     num_splits, num_splits_heuristic()       splits_for(), split_table
 *     flash_fwd_splitkv_kernel                 split_kernel
 *     softmax_lse_accum, out_accum             m, l and DV features of a split: split_floats()
 *     combine_attn_seqk_parallel               combine_kernel
 *     PackGQA                                  GROUP query heads per block
 *     cache_seqlens, block_table               d9d_segment list: visible_keys()
 *
 * The work of a block, split 1 of n = 4:
 *
 *     chunks of 32 keys     | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | ...
 *     those of split 1            ^               ^
 *     a chunk:  V   cp.async -> shared memory ---------------------.
 *               K   registers -> q_g . k -> online softmax (m, l) --'--> o = keep o + p V
 *                   (of more than a slice: cp.async -> shared memory)
 *
 *     lanes      HALF = 16 lanes share a key, 8 features each (SLICE = 128 features at a time)
 *     output     a thread owns features threadIdx.x + i DECODE_THREADS
 *
 * A query's result depends on its own keys, and on the number of queries only through n: many
 * queries keep the GPU busy with fewer splits, of which most would be empty otherwise. This makes
 * decode batch-invariant within a row of split_table.
 *
 * A cache in 8 bits has codes of e4m3 and a scale for each key and head, a power of two.  The
 * products are with the codes: a score is multiplied by its key's scale, and a probability by its
 * value's, which is exact.
 *
 * Each block waits for memory about once: queries, keys and values are requested together. Their
 * addresses are known before the previous kernel ends, because segments are constant (PDL).
 *
 * Measured on one H200, end to end: 128 sequences of Qwen3-1.7B take 4.7 ms a token, and 7.7 with
 * 32 splits whatever the batch (docs/design/decode.md). One sequence of Qwen3-8B takes 4.06 to 4.17
 * ms a token (docs/benchmarks/one-gpu.md).
 */
#include "cuda/attention/attention_simt.cuh"

#include <cuda_fp8.h>
#include <cuda_pipeline_primitives.h>

enum {
    CHUNK = 32,
    MAX_SPLITS = 32,
    MIN_SPLITS = 4,
    FULL = 512, /* blocks that fill a GPU */
    MAX_QUERIES = 4096,
    DECODE_THREADS = 128,
    DECODE_WARPS = DECODE_THREADS / WARP,
    HALF = WARP / 2, /* lanes that share a key */
    GROUP = 4,       /* query heads per block */
    SLICE = HALF * 8 /* features of a key that its lanes load at a time, and of the output all
                        threads; the kernel is instantiated for a few numbers N of slices */
};

/* Number of splits, by the most queries that there can be. Batches of skinny GEMMs (up to 16 rows)
 * get the most splits, but no more than FULL blocks for each query: with many heads most would be
 * empty. */
static const struct {
    int64_t queries;
    int splits;
} split_table[] = {{16, MAX_SPLITS}, {64, 8}, {MAX_QUERIES, 4}};

/* Blocks of a query in each split: groups of query heads. */
static int64_t head_groups(const d9d_attention_dims *n)
{
    return n->kv * d9di_i64_ceil_div(n->a / n->kv, GROUP);
}

static int splits_for(const d9d_attention_dims *n)
{
    int i = 0, splits;

    while (n->b * n->s > split_table[i].queries)
        i++;
    splits = split_table[i].splits;
    while (splits > MIN_SPLITS && splits * head_groups(n) > FULL)
        splits /= 2;
    return splits;
}

/* Floats of a split's partial result of a query head: m, l, and DV features. */
static __host__ __device__ int64_t split_floats(const d9d_attention_dims &n)
{
    return n.dv + 2;
}

/* The keys that query t may see. */
static __device__ __forceinline__ token_range visible_keys(const d9d_attention_dims &n, int64_t t)
{
    const int64_t b = t / n.s;
    segment x = segment_of(n, segment_find(n, false, t), b);

    /* If segments without queries begin here too, the last one is the query's. */
    return {first_visible_key(n, x, t), visible_key_end(n, x, t)};
}

/* A cached element of type C: T, or a code of e4m3. */
using code = uint8_t;
template <> struct raw8<code> {
    uint2 part;
};
static __device__ __forceinline__ float to_float(code v)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(v, __NV_E4M3)));
}
static __device__ __forceinline__ void fetch8(raw8<code> &r, const code *p, int64_t n)
{
    if (n >= 8 && (uintptr_t)p % 8 == 0) {
        r.part = *(const uint2 *)p;
        return;
    }
    code v[8];

#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = j < n ? p[j] : 0;
    memcpy(&r, v, sizeof(r));
}
static __device__ __forceinline__ void unpack8(float (&v)[8], const raw8<code> &r)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t w = j < 2 ? r.part.x : r.part.y;
        const float2 two = __half22float2(__half2(
            __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(w >> 16 * (j % 2)), __NV_E4M3)));

        v[2 * j] = two.x;
        v[2 * j + 1] = two.y;
    }
}
template <class C> static constexpr bool IS_CODE = sizeof(C) == sizeof(code);

struct decode_smem {
    float score[GROUP][CHUNK];
    float m[GROUP], l[GROUP], keep[GROUP];
};

/* Loads a head's rows of d features unconverted, `pitch` apart in shared memory. */
template <class T>
static __device__ __forceinline__ void load_rows(T *to, int pitch, const d9d_attention_dims &n,
                                                 const T *x, int d, int64_t kh, int64_t first,
                                                 int64_t count)
{
    enum { WIDE = 16 / sizeof(T) };
    const T *from = x + (first * n.kv + kh) * d;

    if (d % WIDE == 0 && (uintptr_t)x % 16 == 0) {
        for (int i = threadIdx.x * WIDE; i < count * d; i += DECODE_THREADS * WIDE)
            __pipeline_memcpy_async(to + i / d * pitch + i % d, from + i / d * n.kv * d + i % d,
                                    16);
        return;
    }
    for (int i = threadIdx.x; i < count * d; i += DECODE_THREADS)
        to[i / d * pitch + i % d] = from[i / d * n.kv * d + i % d];
}

/* The scales of a chunk's values; 0 beyond them. */
static __device__ __forceinline__ void load_scales(float *to, const d9d_attention_dims &n,
                                                   int64_t kh, int64_t first, int64_t count)
{
    if (threadIdx.x < CHUNK)
        to[threadIdx.x] = threadIdx.x < count ? n.v_scale[(first + threadIdx.x) * n.kv + kh] : 0.0f;
}

/* A chunk's values in shared memory and, with KEYS, its keys, of two slices.  Keys of one slice go
 * to registers, where there is room for all of a lane at once; those of more, one at a time. */
template <bool KEYS, class C> struct chunk_tiles {
    C *value, *key;
    int value_pitch, key_pitch;

    static __host__ __device__ int64_t pitch(int64_t d) { return d9di_i64_ceil_div(d, 8) * 8; }
    static __host__ __device__ int64_t bytes(const d9d_attention_dims &n)
    {
        return CHUNK * (pitch(n.dv) + (KEYS ? pitch(n.d) : 0)) * (int64_t)sizeof(C);
    }
    __device__ __forceinline__ chunk_tiles(void *memory, const d9d_attention_dims &n)
        : value((C *)memory), key((C *)memory + CHUNK * pitch(n.dv)), value_pitch((int)pitch(n.dv)),
          key_pitch((int)pitch(n.d))
    {
    }
    /* Two groups of copies: keys, then values. */
    __device__ __forceinline__ void load(const d9d_attention_dims &n, const C *k, const C *v,
                                         int64_t kh, int64_t first, int64_t count) const
    {
        if (KEYS)
            load_rows(key, key_pitch, n, k, (int)n.d, kh, first, count);
        __pipeline_commit();
        load_rows(value, value_pitch, n, v, (int)n.dv, kh, first, count);
        __pipeline_commit();
    }
};

/* score[g][j] = q_g . k_j, for the keys of a chunk, which are `step` apart; k_scale is that of the
 * first, of codes. */
template <int N, class T>
static __device__ void chunk_scores(const d9d_attention_dims &n, decode_smem &w,
                                    const float (&q)[GROUP][N][8], int heads, const T *k,
                                    int64_t step, const float *k_scale, int64_t count)
{
    enum { HALVES = DECODE_THREADS / HALF, KEYS_IN_FLIGHT = N == 1 ? CHUNK / HALVES : 1 };
    const int half = threadIdx.x / HALF, lane = threadIdx.x % HALF;
    raw8<T> key[KEYS_IN_FLIGHT][N];
    float by[KEYS_IN_FLIGHT]; /* the scales of codes */

    for (int j0 = half; j0 < CHUNK; j0 += KEYS_IN_FLIGHT * HALVES) {
#pragma unroll
        for (int c = 0; c < KEYS_IN_FLIGHT; c++)
#pragma unroll
            for (int i = 0; i < N; i++) {
                const int64_t j = j0 + c * HALVES, f = i * SLICE + lane * 8;

                fetch8(key[c][i], k + j * step + f, j < count ? n.d - f : 0);
            }
#pragma unroll
        for (int c = 0; c < KEYS_IN_FLIGHT && IS_CODE<T>; c++) {
            const int64_t j = j0 + c * HALVES;

            by[c] = j < count ? k_scale[j * n.kv] : 0.0f;
        }
#pragma unroll
        for (int c = 0; c < KEYS_IN_FLIGHT; c++) {
            const int j = j0 + c * HALVES;
            float dot[GROUP] = {};

#pragma unroll
            for (int i = 0; i < N; i++) {
                float v[8];

                unpack8(v, key[c][i]);
#pragma unroll
                for (int g = 0; g < GROUP; g++)
#pragma unroll
                    for (int e = 0; e < 8; e++)
                        dot[g] = fmaf(q[g][i][e], v[e], dot[g]);
            }
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                dot[g] = group_reduce<HALF>(dot[g], plus());
                if (IS_CODE<T>)
                    dot[g] *= by[c];
                if (lane == 0 && g < heads)
                    w.score[g][j] =
                        j < count ? softcap(dot[g] * n.scale, n.softcap) : -CUDART_INF_F;
            }
        }
    }
}

/* Online softmax of a chunk: scores become probabilities relative to the running maximum, times
 * what the values are multiplied by, if anything. A warp has a head. */
static __device__ __forceinline__ void chunk_softmax(decode_smem &w, const float *by, int heads)
{
    const int g = threadIdx.x / WARP, lane = threadIdx.x % WARP;

    if (g < heads) {
        const float s = w.score[g][lane], old = w.m[g];
        const float m = fmaxf(old, group_reduce<WARP>(s, max_op()));
        const bool none = m == -CUDART_INF_F; /* nothing visible yet, or only NaN, which the sum
                                                 propagates */
        const float p = none ? (s == s ? 0.0f : s) : expf(s - m);
        const float keep = none ? 1.0f : expf(old - m), sum = group_reduce<WARP>(p, plus());

        __syncwarp(); /* all have read m */
        w.score[g][lane] = by != NULL ? p * by[lane] : p;
        if (lane == 0) {
            w.l[g] = w.l[g] * keep + sum;
            w.m[g] = m;
            w.keep[g] = keep;
        }
    }
}

/* o[g] = keep o[g] + sum over j of p_j v_j; a thread has features threadIdx.x + i DECODE_THREADS.
 */
template <int N, class T>
static __device__ void chunk_output(const d9d_attention_dims &n, const decode_smem &w,
                                    float (&o)[GROUP][N], const T *v, int pitch, int count)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int f = threadIdx.x + i * DECODE_THREADS;

        if (f >= n.dv)
            break;
#pragma unroll
        for (int g = 0; g < GROUP; g++)
            o[g][i] *= w.keep[g];
#pragma unroll 8
        for (int j = 0; j < count; j++) {
            const float x = to_float(v[j * pitch + f]);

#pragma unroll
            for (int g = 0; g < GROUP; g++)
                o[g][i] = fmaf(w.score[g][j], x, o[g][i]);
        }
    }
}

/* Grid: splits, key heads times groups of query heads, queries. */
template <int N, bool KEYS, class T, class C>
static __global__ void __launch_bounds__(DECODE_THREADS)
    split_kernel(d9d_attention_dims n, float *part, const T *q, const C *k, const C *v)
{
    extern __shared__ uint4 memory[];
    __shared__ decode_smem w;
    __shared__ float scales[IS_CODE<C> ? CHUNK : 1];
    const chunk_tiles<KEYS, C> tile(memory, n);
    const int64_t t = blockIdx.z, per = n.a / n.kv, groups = d9di_i64_ceil_div(per, GROUP);
    const int64_t kh = blockIdx.y / groups, h0 = kh * per + blockIdx.y % groups * GROUP;
    const int heads = (int)d9di_i64_min(GROUP, (kh + 1) * per - h0);
    float query[GROUP][N][8] = {}, o[GROUP][N] = {};

    pdl_launch_dependents();

    const token_range keys = visible_keys(n, t);
    int64_t at = keys.first + (int64_t)blockIdx.x * CHUNK;

    if (at >= keys.end)
        return;
    pdl_wait();
    tile.load(n, k, v, kh, at, d9di_i64_min(CHUNK, keys.end - at));
    if (IS_CODE<C>)
        load_scales(scales, n, kh, at, keys.end - at);
#pragma unroll
    for (int g = 0; g < GROUP; g++)
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int64_t f = i * SLICE + threadIdx.x % HALF * 8;

            if (g < heads && f < n.d)
                load8(query[g][i], q + (t * n.a + h0 + g) * n.d + f, n.d - f);
        }
    if (threadIdx.x < GROUP) {
        w.m[threadIdx.x] = -CUDART_INF_F;
        w.l[threadIdx.x] = 0.0f;
        w.keep[threadIdx.x] = 1.0f;
    }
    for (int g = threadIdx.x / WARP; g < GROUP; g += DECODE_WARPS)
        w.score[g][threadIdx.x % WARP] = 0.0f;
    for (;;) {
        const int64_t count = d9di_i64_min(CHUNK, keys.end - at);

        if (KEYS)
            __pipeline_wait_prior(1);
        __syncthreads();
        if (KEYS)
            chunk_scores<N>(n, w, query, heads, tile.key, tile.key_pitch, NULL, count);
        else
            chunk_scores<N>(n, w, query, heads, k + (at * n.kv + kh) * n.d, n.kv * n.d,
                            IS_CODE<C> ? n.k_scale + at * n.kv + kh : NULL, count);
        __syncthreads();
        chunk_softmax(w, IS_CODE<C> ? scales : NULL, heads);
        __pipeline_wait_prior(0);
        __syncthreads();
        chunk_output<N>(n, w, o, tile.value, tile.value_pitch, (int)count);
        at += (int64_t)gridDim.x * CHUNK;
        if (at >= keys.end)
            break;
        __syncthreads();
        tile.load(n, k, v, kh, at, d9di_i64_min(CHUNK, keys.end - at));
        if (IS_CODE<C>)
            load_scales(scales, n, kh, at, keys.end - at);
    }
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        float *to = part + ((t * n.a + h0 + g) * gridDim.x + blockIdx.x) * split_floats(n);

        if (g >= heads)
            break;
        if (threadIdx.x == 0) {
            to[0] = w.m[g];
            to[1] = w.l[g];
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            if (threadIdx.x + i * DECODE_THREADS < n.dv)
                to[2 + threadIdx.x + i * DECODE_THREADS] = o[g][i];
    }
}

/* Combines the splits. Grid: query heads, queries, features; a lane has a split, a thread a
 * feature. */
template <class T>
static __global__ void __launch_bounds__(DECODE_THREADS)
    combine_kernel(d9d_attention_dims n, int max_splits, T *o, float *lse, const float *part)
{
    static_assert(MAX_SPLITS == WARP, "a lane has a split");
    __shared__ float weight[MAX_SPLITS];
    const int64_t h = blockIdx.x, t = blockIdx.y, size = split_floats(n);
    const int i = threadIdx.x % WARP;

    pdl_launch_dependents();

    const token_range keys = visible_keys(n, t);
    const int splits =
        (int)d9di_i64_min(max_splits, d9di_i64_ceil_div(keys.end - keys.first, CHUNK));

    pdl_wait();
    part += (t * n.a + h) * max_splits * size;

    const float split_max = i < splits ? part[i * size] : -CUDART_INF_F;
    const float sum = i < splits ? part[i * size + 1] : 0.0f;
    const float m = group_reduce<WARP>(split_max, max_op());
    const float scale = m == -CUDART_INF_F ? 1.0f : expf(split_max - m);
    const float l = group_reduce<WARP>(i < splits ? sum * scale : 0.0f, plus());

    if (threadIdx.x < WARP)
        weight[i] = scale;
    __syncthreads();
    const int64_t f = (int64_t)blockIdx.z * DECODE_THREADS + threadIdx.x;

    if (f < n.dv) {
        float all = 0.0f;

#pragma unroll 8
        for (int j = 0; j < splits; j++)
            all = fmaf(part[j * size + 2 + f], weight[j], all);
        store_float(o + (t * n.a + h) * n.dv + f, all / l);
    }
    if (threadIdx.x == 0 && blockIdx.z == 0)
        lse[row_stat_index(n, t / n.s, h, t)] = m + logf(l);
}

template <int N, bool KEYS, class T, class C>
static d9d_status launch(d9d_stream s, const d9di_attention_call *c, float *part)
{
    const d9d_attention_dims *n = &c->n;
    const int64_t queries = n->b * n->s;
    const int splits = splits_for(n);
    const dim3 split((unsigned)splits, (unsigned)head_groups(n), (unsigned)queries);
    const dim3 join((unsigned)n->a, (unsigned)queries,
                    (unsigned)d9di_i64_ceil_div(n->dv, DECODE_THREADS));
    const int64_t tiles = chunk_tiles<KEYS, C>::bytes(*n);

    D9D_TRY(d9di_cuda_set_max_smem(c->op, (const void *)split_kernel<N, KEYS, T, C>, tiles));
    D9D_TRY(pdl_launch_smem(s, c->op, (size_t)tiles, split_kernel<N, KEYS, T, C>, split,
                            DECODE_THREADS, *n, part, (const T *)c->q, (const C *)c->k,
                            (const C *)c->v));
    return pdl_launch(s, c->op, combine_kernel<T>, join, DECODE_THREADS, *n, splits, (T *)c->o,
                      c->lse, (const float *)part);
}

/* Keys of two slices in shared memory, if it has room for them; codes are half as many bytes, and
 * need it less. */
template <class T, class C>
static d9d_status launch_two_slices(d9d_stream s, const d9di_attention_call *c, float *part)
{
    if constexpr (!IS_CODE<C>)
        if (chunk_tiles<true, C>::bytes(c->n) <= s->max_smem - (int64_t)sizeof(decode_smem))
            return launch<2, true, T, C>(s, c, part);
    return launch<2, false, T, C>(s, c, part);
}

template <class T, class C>
static d9d_status launch_by_head_size(d9d_stream s, const d9di_attention_call *c, float *part)
{
    const int64_t d = head_size_max(c->n);

    return d <= SLICE       ? launch<1, false, T, C>(s, c, part)
           : d <= 2 * SLICE ? launch_two_slices<T, C>(s, c, part)
                            : launch<MAX_HEAD_SIZE / SLICE, false, T, C>(s, c, part);
}

template <class T>
static d9d_status launch_by_cache(d9d_stream s, const d9di_attention_call *c, float *part)
{
    return c->n.k_scale != NULL ? launch_by_head_size<T, code>(s, c, part)
                                : launch_by_head_size<T, T>(s, c, part);
}

bool d9di_attention_decode_supported(const d9di_attention_call *c)
{
    const d9d_attention_dims *n = &c->n;
    const int64_t queries = n->b * n->s;

    return c->dout == NULL && n->decode && queries <= MAX_QUERIES &&
           (queries <= 64 || queries <= 2 * n->segments) && head_size_max(*n) <= MAX_HEAD_SIZE;
}

d9d_status d9di_attention_decode(d9d_stream s, const d9di_attention_call *c)
{
    const int64_t queries = c->n.b * c->n.s;
    const int64_t bytes = queries * c->n.a * splits_for(&c->n) * split_floats(c->n) * 4;
    void *part;
    d9d_status st;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &part));
    st = D9DI_DISPATCH_DTYPE(c->n.t, T, launch_by_cache<T>(s, c, (float *)part));
    d9di_cuda_scratch_free(s, part, bytes);
    return st;
}
