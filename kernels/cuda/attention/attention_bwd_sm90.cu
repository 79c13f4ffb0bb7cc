/* attention_bwd_sm90.cu - backward of causal attention on Hopper (sm_90a), in bfloat16: whole rows,
 * packed documents (varlen), context-parallel chunks, parts of the keys of these (ring attention),
 * sliding windows. Deterministic.
 *
 * Algorithm: FlashAttention's backward from a recomputed softmax.
 *
 *     P = exp(scale Q K' - lse)        dS = P (dO V' - delta)        delta = rows of dO O
 *
 *     dQ launch      dQ = scale dS K
 *     dK, dV launch  dK = scale dS' Q          dV = P' dO
 *
 * FlashAttention-3 has one launch, which owns keys and adds dQ with atomics in changing order. Here
 * one launch owns keys (KEYS) and a second owns queries, so that one block computes each sum in one
 * order. The first stores dS in scratch, which the second reads: 5 GEMMs in all. Scratch is
 * bounded: the two launches are repeated for parts of the call, some key heads or chunks of the
 * queries and keys of one at a time. Between parts sums are kept in float32, so that the bits stay
 * the same.
 *
 *     FlashAttention-3 (hopper/)               here (attention_bwd_sm90_...)
 *     flash_bwd_preprocess: dPsum, LSE_log2    preprocess_kernel: delta, lse2
 *     TileScheduler (persistent)               tile_tasks, tile_iterator       scheduler.cuh
 *     BlockMN, seqlen_info                     streamed_range(), segment_range scheduler.cuh
 *     SmemLayout, SharedStorage                layout<D, DV, KEYS>, smem_offsets  smem.cuh
 *     PipelineTmaAsync, PipelineState          at.full, at.empty, pipeline_state<STAGES>
 *     mainloop load(): producer warp           producer<L>::run()              smem.cuh
 *     mainloop mma(): consumer warpgroups      consumer_warpgroup              mainloop.cuh
 *     CollectiveEpilogueBwd                    sum_end(), store_grad()
 *     dQaccum, flash_bwd_postprocess           none; ds_buffer and 2nd launch  ds.cuh, dq.cuh
 *
 * Tile of a block of the dK, dV launch, heads of up to 128 features: 128 stationary keys, half for
 * each consumer warpgroup, against a stream of tiles of 64 queries (SIDE).
 *
 *                      streamed tiles of 64, a ring of STAGES = 4
 *                      .------.------.------.
 *     warpgroup 0   64 | P dS | P dS | P dS |  -->    X = K Q'     dV += P dO
 *     warpgroup 1   64 | P dS | P dS | P dS |  -->    Y = V dO'    dK += dS Q
 *                      '------'------'------'
 *
 * The dQ launch has 128 stationary queries, and streams keys and dS tiles: dQ += dS K.
 *
 * Pipeline of a tile: TMA (producer warp) -> full barrier -> wgmma X, Y -> exp2 -> wgmma sums,
 * while the next X runs -> empty barrier.
 *
 * dK and dV of heads of more than 128 features exceed the registers: a block has 64 stationary
 * keys. One warpgroup computes X, P and dV, the other Y, dS and dK (attention_bwd_sm90_d256.cuh).
 *
 * Tiles begin with a segment, so that a segment's bits do not depend on its position. The keys of
 * segments that begin with the same key are read by queries of all of them and of all query heads
 * of their group. The grid is persistent: blocks claim tasks from a list, largest first (LPT).
 *
 * Measured (docs/benchmarks/kernels.md), one H200, 16 and 8 heads of 128, sequences of 4096: 485 to
 * 495 TFLOP/s, 420 held at the power limit; cuDNN deterministic 430 and 386. Documents of 1024:
 * 325, cuDNN 158. docs/design/attention-backward.md has more.
 */
#include "cuda/attention/attention_bwd_sm90_d128.cuh"
#include "cuda/attention/attention_bwd_sm90_d256.cuh"
#include "cuda/attention/attention_bwd_sm90_dq.cuh"

#include <type_traits>

namespace
{

/* --- preprocess ----------------------------------------------------------------------------- */

/* Blocks 0 and 1 of the preprocess launch make the task lists, the next one for each pair of chunks
 * places its dS blocks. The other blocks compute delta and lse2. */
enum { LIST_BLOCKS = 2 };

/* The chunks of a call, and their sizes. */
struct chunk_grid {
    int query_chunks, key_chunks, queries, keys;

    __host__ __device__ int pairs() const { return query_chunks * key_chunks; }

    /* Pair number i: keys change faster. */
    __host__ __device__ chunk_pair pair(const bwd_sizes &n, int i) const
    {
        const int q = i / key_chunks * queries, k = i % key_chunks * keys;

        return {i,
                {q, (int)d9di_i64_min((int64_t)n.b * n.s, (int64_t)q + queries)},
                {k, (int)d9di_i64_min((int64_t)n.b * n.z, (int64_t)k + keys)}};
    }
};

/* dout and o [B S, A, DV], lse [B, A, S]. */
struct preprocess_args {
    const bf16 *dout, *o;
    const float *lse;
    float *lse2, *delta; /* [A, B S]: lse times log2(e); rows of dO O (FlashAttention's dPsum) */
    int dv;
};

/* A warp computes delta and lse2 of one query and head. */
DEVICE void preprocess_row(const bwd_sizes &n, const preprocess_args &x, int64_t row)
{
    const int h = (int)(row % n.a), token = (int)(row / n.a);
    const int64_t to = (int64_t)h * n.b * n.s + token;
    float sum = 0.0f;

    for (int f = 2 * (threadIdx.x % WARP); f < x.dv; f += 2 * WARP) {
        const float2 a = __bfloat1622float2(*(const __nv_bfloat162 *)(x.dout + row * x.dv + f));
        const float2 b = __bfloat1622float2(*(const __nv_bfloat162 *)(x.o + row * x.dv + f));

        sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
    }
    sum = group_sum<WARP>(sum);
    if (threadIdx.x % WARP != 0)
        return;
    x.lse2[to] = x.lse[((int64_t)(token / n.s) * n.a + h) * n.s + token % n.s] * CUDART_L2E_F;
    x.delta[to] = sum;
}

} // namespace

static __global__ void __launch_bounds__(LIST_BLOCK)
    preprocess_kernel(bwd_sizes n, preprocess_args x, tile_tasks queries, tile_tasks keys,
                      ds_buffer ds, int parts, chunk_grid chunks)
{
    const int64_t all = (int64_t)n.b * n.s * n.a;
    const int warps = LIST_BLOCK / WARP, pair = (int)blockIdx.x - LIST_BLOCKS,
              pairs = chunks.pairs();

    if (blockIdx.x == 0)
        make_task_list<true>(n, keys, parts);
    else if (blockIdx.x == 1)
        make_task_list<false>(n, queries, parts);
    else if (pair < pairs)
        place_ds_blocks(n, ds_chunk_of(n, ds, chunks.pair(n, pair)));
    else
        for (int64_t row = (int64_t)(pair - pairs) * warps + threadIdx.x / WARP; row < all;
             row += (int64_t)(gridDim.x - LIST_BLOCKS - pairs) * warps)
            preprocess_row(n, x, row);
}

namespace
{

/* --- the kernel ------------------------------------------------------------------------------ */

template <class L> DEVICE void init_barriers(const smem_offsets &at)
{
    for (int i = 0; i < L::STAGES; i++) {
        mbarrier_create(at.full + 8 * i, L::KEYS ? 2 : 1);
        mbarrier_create(at.empty + 8 * i, CONSUMER_WARPS);
    }
    mbarrier_create(at.work_full, 1);
    mbarrier_create(at.work_empty, CONSUMER_WARPS);
    for (int i = 0; L::SHARED_TILE && i < BUFFERS * GROUP / WARP; i++) {
        mbarrier_create(at.p_full + 8 * i, 1);
        mbarrier_create(at.p_empty + 8 * i, 1);
    }
    mbarrier_create_fence();
}

/* The consumers of a launch. */
template <class L>
using mainloop = std::conditional_t<!L::KEYS, dq_any<L>,
                                    std::conditional_t<L::SHARED_TILE, dkv_d256<L>, dkv_d128<L>>>;

template <class L>
__global__ void __launch_bounds__(BLOCK, 1)
    bwd_kernel(const __grid_constant__ tma_descriptors m, const __grid_constant__ bwd_params p)
{
    if constexpr (HAVE_WGMMA) {
        extern __shared__ __align__(1024) unsigned char tiles[];
        const smem_offsets at = smem_offsets_make<L>(smem_address(tiles));
        const int warp = __shfl_sync(~0u, (int)threadIdx.x / WARP, 0);

        if (threadIdx.x == 0)
            init_barriers<L>(at);
        __syncthreads();
        if (warp >= CONSUMER_WARPS) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
            if (warp == CONSUMER_WARPS)
                producer<L>{p, m, at, (int)threadIdx.x % WARP}.run();
        } else {
            const int thread = (int)threadIdx.x % GROUP;
            const consumer_warpgroup<L> consumer = {
                p, at, warp / (GROUP / WARP), thread, thread / WARP, thread % WARP};

            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
            mainloop<L>{consumer}.run();
        }
    }
}

/* TMA descriptor of [tokens, heads, d]: boxes of SIDE tokens, 64 features of one head. TMA pads
 * smaller heads with zeros. */
void encode_descriptor(tensor_map_encoder *e, CUtensorMap *m, const void *x, int64_t tokens,
                       int64_t heads, int64_t d)
{
    const cuuint64_t dim[] = {(cuuint64_t)d, (cuuint64_t)heads, (cuuint64_t)tokens};
    const cuuint64_t stride[] = {(cuuint64_t)d * 2, (cuuint64_t)(heads * d * 2)};
    const cuuint32_t box[] = {64, 1, SIDE};

    e->make(m, D9D_BF16, x, 3, dim, stride, box);
}

template <class L>
d9d_status launch(d9d_stream s, const char *op, const tma_descriptors &m, const bwd_params &p)
{
    auto *const k = bwd_kernel<L>;

    D9D_TRY(d9di_cuda_set_max_smem(op, (const void *)k, L::BYTES));
    k<<<(unsigned)s->sms, BLOCK, L::BYTES, d9di_cuda_stream(s)>>>(m, p);
    return d9di_cuda_check_launch(op);
}

/* The two launches of a call: their parameters but for the part. */
struct bwd_launches {
    tma_descriptors m[2];
    bwd_params p[2]; /* dK and dV; dQ */
};

chunk_grid chunk_grid_of(const d9di_attention_bwd_parts &of)
{
    return {(int)of.query_chunks, (int)of.key_chunks, (int)of.chunk_queries, (int)of.chunk_keys};
}

/* Runs both launches for each part. A head's parts follow each other: they share unfinished sums.
 * The dQ launch reads no values. */
template <int D, int DV>
d9d_status launch_parts(d9d_stream s, const char *op, bwd_launches *x,
                        const d9di_attention_bwd_parts &of)
{
    const bwd_sizes &n = x->p[0].n;
    const chunk_grid chunks = chunk_grid_of(of);
    bwd_part part = {};

    for (int h = 0; h < n.kv; h += (int)of.heads)
        for (int i = 0; i < chunks.pairs(); i++, part.index++) {
            part.head = h;
            part.heads = (int)d9di_i64_min(of.heads, n.kv - h);
            part.in = chunks.pair(n, i);
            x->p[0].part = x->p[1].part = part;
            D9D_TRY((launch<layout<D, DV, true>>(s, op, x->m[0], x->p[0])));
            D9D_TRY((launch<layout<D, D, false>>(s, op, x->m[1], x->p[1])));
        }
    return D9D_OK;
}

/* One instance of the kernels, for queries and keys, and values, of at most so many features. */
struct head_size_launcher {
    int features, value_features;
    d9d_status (*launch)(d9d_stream s, const char *op, bwd_launches *x,
                         const d9di_attention_bwd_parts &of);
};
template <int D, int DV = D>
constexpr head_size_launcher launcher_of = {D, DV, launch_parts<D, DV>};
const head_size_launcher head_size_launchers[] = {
    launcher_of<64>,  launcher_of<80>,       launcher_of<96>,  launcher_of<112>, launcher_of<128>,
    launcher_of<160>, launcher_of<192, 128>, launcher_of<192>, launcher_of<224>, launcher_of<256>};
enum { MAX_HEAD_SIZE = 256 };

/* The first instance that a head fits in. */
const head_size_launcher &launcher_for(const d9d_attention_dims &n)
{
    const head_size_launcher *by = head_size_launchers;

    while (by->features < n.d || by->value_features < n.dv)
        by++;
    return *by;
}

/* An array of n elements. */
template <class T> T *arena_alloc(d9di_cuda_arena *r, int64_t n)
{
    return (T *)d9di_cuda_arena_alloc(r, n * (int64_t)sizeof(T));
}

struct bwd_scratch {
    d9d_segment *list;
    float *lse, *delta;
    tile_tasks queries, keys;
    ds_buffer ds;
    float4 *dq, *dkv; /* unfinished sums, or NULL */
};

tile_tasks tasks_alloc(d9di_cuda_arena *r, int64_t tokens, int64_t rows, int64_t segments,
                       int64_t parts)
{
    const int64_t capacity = tokens / rows + segments;

    return {arena_alloc<int32_t>(r, 1 + parts), arena_alloc<tile_task>(r, capacity),
            (int32_t)capacity};
}

int64_t segments_of(const d9d_attention_dims &n)
{
    return n.segment != NULL ? n.segments : n.b * d9di_i64_max(1, n.chunks);
}

/* Float32 sums of so many work tiles. */
float4 *sums_alloc(d9di_cuda_arena *r, int64_t work_tiles, int64_t rows, int64_t features)
{
    return arena_alloc<float4>(r, work_tiles * rows * features / 4);
}

bwd_scratch bwd_scratch_alloc(const d9d_attention_dims &n, const d9di_attention_bwd_parts &of,
                              d9di_cuda_arena *r)
{
    const int64_t rows = n.b * n.s * n.a, segments = segments_of(n),
                  pairs = of.query_chunks * of.key_chunks;
    const head_size_launcher &by = launcher_for(n);
    bwd_scratch x;

    x.list = arena_alloc<d9d_segment>(r, n.segment == NULL ? segments : 0);
    x.lse = arena_alloc<float>(r, rows);
    x.delta = arena_alloc<float>(r, rows);
    x.queries = tasks_alloc(r, n.b * n.s, BLOCK_ROWS, segments, of.n_parts);
    x.keys = tasks_alloc(r, n.b * n.z, of.key_rows, segments, of.n_parts);
    x.ds = {arena_alloc<char>(r, of.ds_blocks * of.ds_block_bytes), of.ds_blocks,
            arena_alloc<int32_t>(r, segments * pairs), arena_alloc<int32_t>(r, pairs)};
    x.dq = x.dkv = NULL;
    if (pairs == 1)
        return x;
    x.dq = sums_alloc(r, x.queries.capacity * (n.a / n.kv), BLOCK_ROWS, by.features);
    x.dkv = sums_alloc(r, x.keys.capacity, 2 * of.key_rows,
                       d9di_i64_max(by.features, by.value_features));
    return x;
}

bwd_sizes bwd_sizes_of(const d9d_attention_dims &n, const d9d_segment *segment, int64_t key_rows)
{
    return {segment,
            (int)segments_of(n),
            (int)n.b,
            (int)n.s,
            (int)n.z,
            (int)n.a,
            (int)n.kv,
            (int)(n.a / n.kv),
            n.window > 0 ? (int)d9di_i64_min(n.window, +NO_WINDOW) : +NO_WINDOW,
            (int)key_rows};
}

/* The parameters of the dK, dV launch, without a part. */
bwd_params dkv_params_of(const d9di_attention_call *c, const bwd_scratch &x, int64_t key_rows)
{
    const d9d_attention_dims &n = c->n;
    bwd_params p = {};

    p.n = bwd_sizes_of(n, n.segment != NULL ? n.segment : x.list, key_rows);
    p.scale = n.scale;
    p.lse = x.lse;
    p.delta = x.delta;
    p.to[0] = (bf16 *)c->dk;
    p.to[1] = (bf16 *)c->dv;
    p.of = x.keys;
    p.ds = x.ds;
    p.unfinished = x.dkv;
    p.d = (int)n.d;
    p.dv = (int)n.dv;
    return p;
}

d9d_status make_launches(d9d_stream s, const d9di_attention_call *c, const bwd_scratch &x,
                         int64_t key_rows, bwd_launches *out)
{
    const d9d_attention_dims &n = c->n;
    tensor_map_encoder e = {c->op, (tensor_map_encode_fn *)s->tensor_map_encode, D9D_OK};
    tma_descriptors &m = out->m[0];

    encode_descriptor(&e, &m.stationary[0], c->k, n.b * n.z, n.kv, n.d);
    encode_descriptor(&e, &m.stationary[1], c->v, n.b * n.z, n.kv, n.dv);
    encode_descriptor(&e, &m.streamed[0], c->q, n.b * n.s, n.a, n.d);
    encode_descriptor(&e, &m.streamed[1], c->dout, n.b * n.s, n.a, n.dv);
    out->m[1].streamed[0] = m.stationary[0];
    out->p[0] = out->p[1] = dkv_params_of(c, x, key_rows);
    out->p[1].to[0] = (bf16 *)c->dq;
    out->p[1].to[1] = NULL;
    out->p[1].of = x.queries;
    out->p[1].unfinished = x.dq;
    return e.st;
}

d9d_status run_bwd(d9d_stream s, const d9di_attention_call *c, const bwd_scratch &x,
                   const d9di_attention_bwd_parts &of)
{
    bwd_launches launches = {};
    const bwd_params &p = launches.p[0];

    D9D_TRY(make_launches(s, c, x, of.key_rows, &launches));
    if (c->n.segment == NULL)
        D9D_TRY(d9di_attention_varlen_list(s, c, x.list));
    const chunk_grid chunks = chunk_grid_of(of);
    preprocess_kernel<<<(unsigned)(LIST_BLOCKS + chunks.pairs() + 2 * s->sms), LIST_BLOCK, 0,
                        d9di_cuda_stream(s)>>>(
        p.n, {(const bf16 *)c->dout, (const bf16 *)c->o, c->lse, x.lse, x.delta, p.dv}, x.queries,
        x.keys, x.ds, (int)of.n_parts, chunks);
    D9D_TRY(d9di_cuda_check_launch(c->op));
    return launcher_for(c->n).launch(s, c->op, &launches, of);
}

/* True if the tiles and the numbers of keys behind the part fit. */
bool part_supported(const d9d_attention_dims &n)
{
    return d9di_attention_part_is_tiles(&n) && n.chunk_end[n.chunks - 1] < NO_WINDOW;
}

} // namespace

bool d9di_attention_bwd_sm90_supported(d9d_stream s, const d9di_attention_call *c)
{
    const d9d_attention_dims *n = &c->n;

    return c->dout != NULL && s->tensor_map_encode != NULL &&
           s->opts.attention != D9D_CUDA_ATTENTION_SIMT && n->t == D9D_BF16 && n->d % 8 == 0 &&
           n->d <= MAX_HEAD_SIZE && n->dv % 8 == 0 && n->dv <= MAX_HEAD_SIZE && n->causal &&
           n->prefix == NULL && n->softcap == 0.0f && n->b * d9di_i64_max(n->s, n->z) < NO_WINDOW &&
           n->b * n->s * n->a < INT32_MAX && (!c->part || part_supported(*n));
}

d9d_status d9di_attention_bwd_sm90(d9d_stream s, const d9di_attention_call *c)
{
    const d9di_attention_bwd_parts of =
        d9di_attention_bwd_parts_of(&c->n, d9di_attention_max_score_bytes(s), s->sms);
    d9di_cuda_arena r = {nullptr, 0};
    void *scratch;
    d9d_status st;

    (void)bwd_scratch_alloc(c->n, of, &r);
    const int64_t bytes = r.used;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &scratch));
    r = {(char *)scratch, 0};
    st = run_bwd(s, c, bwd_scratch_alloc(c->n, of, &r), of);
    d9di_cuda_scratch_free(s, scratch, bytes);
    return st;
}
