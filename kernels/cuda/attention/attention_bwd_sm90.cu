/* attention_bwd_sm90.cu - backward of causal attention on Hopper (sm_90a), in bfloat16: whole rows,
 * packed documents (varlen), context-parallel chunks, sliding windows. Deterministic.
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
 * order. The first stores dS in scratch for as many heads as fit. For the others the second launch
 * recomputes S and dP: 7 GEMMs in place of 5, with the same bits.
 *
 *     FlashAttention-3 (hopper/)               here (attention_bwd_sm90_...)
 *     flash_bwd_preprocess: dPsum, LSE_log2    preprocess_kernel: delta, lse2
 *     TileScheduler (persistent)               tile_tasks, tile_iterator       scheduler.cuh
 *     BlockMN, seqlen_info                     streamed_range(), segment_range scheduler.cuh
 *     SmemLayout, SharedStorage                layout<D>, smem_offsets         smem.cuh
 *     PipelineTmaAsync, PipelineState          at.full, at.empty, pipeline_state<STAGES>
 *     mainloop load(): producer warp           producer<D, KEYS>::run()        smem.cuh
 *     mainloop mma(): consumer warpgroups      consumer_warpgroup              mainloop.cuh
 *     CollectiveEpilogueBwd                    epilogue(), store_grad()
 *     dQaccum, flash_bwd_postprocess           none; ds_buffer and 2nd launch  ds.cuh
 *
 * Tile of a block, heads of up to 128 features: 128 stationary tokens, half for each consumer
 * warpgroup, against a stream of tiles of 64 (SIDE).
 *
 *                      streamed tiles of 64, a ring of STAGES = 4
 *                      .------.------.------.
 *     warpgroup 0   64 | P dS | P dS | P dS |  -->    X = stationary[0] streamed[0]'
 *     warpgroup 1   64 | P dS | P dS | P dS |  -->    Y = stationary[1] streamed[1]'
 *                      '------'------'------'         sum[0] += dS streamed[0]
 *                                                     sum[1] += P streamed[1]      (KEYS only)
 *
 *     launch     stationary   streamed   X    Y    sum[0]   sum[1]
 *     dK, dV     K V          Q dO       S'   dP'  dK       dV
 *     dQ         Q dO         K V        S    dP   dQ
 *
 * Pipeline of a tile: TMA (producer warp) -> full barrier -> wgmma X, Y -> exp2 -> wgmma sums,
 * while the next X runs -> empty barrier.
 *
 * Heads of more than 128 features exceed the registers: a block has 64 stationary tokens. One
 * warpgroup computes X and P, the other Y and dS, and no dS is stored
 * (attention_bwd_sm90_d256.cuh).
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

namespace
{

/* --- preprocess ----------------------------------------------------------------------------- */

/* Blocks 0, 1 and 2 of the preprocess launch make the task lists and place the dS blocks. The other
 * blocks compute delta and lse2. */
enum { LIST_BLOCKS = 3 };

/* dout and o [B S, A, D], lse [B, A, S]. */
struct preprocess_args {
    const bf16 *dout, *o;
    const float *lse;
    float *lse2, *delta; /* [A, B S]: lse times log2(e); rows of dO O (FlashAttention's dPsum) */
    int d;
};

/* A warp computes delta and lse2 of one query and head. */
DEVICE void preprocess_row(const bwd_sizes &n, const preprocess_args &x, int64_t row)
{
    const int h = (int)(row % n.a), token = (int)(row / n.a);
    const int64_t to = (int64_t)h * n.b * n.s + token;
    float sum = 0.0f;

    for (int f = 2 * (threadIdx.x % WARP); f < x.d; f += 2 * WARP) {
        const float2 a = __bfloat1622float2(*(const __nv_bfloat162 *)(x.dout + row * x.d + f));
        const float2 b = __bfloat1622float2(*(const __nv_bfloat162 *)(x.o + row * x.d + f));

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
                      ds_buffer ds)
{
    const int64_t all = (int64_t)n.b * n.s * n.a,
                  step = (gridDim.x - LIST_BLOCKS) * (LIST_BLOCK / WARP);

    if (blockIdx.x == 0)
        make_task_list<true>(n, keys);
    else if (blockIdx.x == 1)
        make_task_list<false>(n, queries);
    else if (blockIdx.x == 2)
        place_ds_blocks(n, ds);
    else
        for (int64_t row =
                 ((int64_t)blockIdx.x - LIST_BLOCKS) * (LIST_BLOCK / WARP) + threadIdx.x / WARP;
             row < all; row += step)
            preprocess_row(n, x, row);
}

namespace
{

/* --- the kernel ------------------------------------------------------------------------------ */

template <int D, bool KEYS> DEVICE void init_barriers(const smem_offsets &at)
{
    typedef layout<D> L;

    for (int i = 0; i < L::STAGES; i++) {
        mbarrier_create(at.full + 8 * i, KEYS ? 2 : 1);
        mbarrier_create(at.empty + 8 * i, CONSUMER_WARPS);
    }
    mbarrier_create(at.stationary_full, 1);
    mbarrier_create(at.stationary_empty, CONSUMER_WARPS);
    for (int i = 0; L::SHARED_TILE && i < BUFFERS * GROUP / WARP; i++) {
        mbarrier_create(at.p_full + 8 * i, 1);
        mbarrier_create(at.p_empty + 8 * i, 1);
    }
    mbarrier_create_fence();
}

template <int D, bool KEYS>
__global__ void __launch_bounds__(BLOCK, 1)
    bwd_kernel(const __grid_constant__ tma_descriptors m, const __grid_constant__ bwd_params p)
{
    if constexpr (HAVE_WGMMA) {
        extern __shared__ __align__(1024) unsigned char tiles[];
        const smem_offsets at = smem_offsets_make<D>(smem_address(tiles));
        const int warp = __shfl_sync(~0u, (int)threadIdx.x / WARP, 0);

        if (threadIdx.x == 0)
            init_barriers<D, KEYS>(at);
        __syncthreads();
        if (warp >= CONSUMER_WARPS) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
            if (warp == CONSUMER_WARPS)
                producer<D, KEYS>{p, m, at, (int)threadIdx.x % WARP}.run();
        } else {
            const int thread = (int)threadIdx.x % GROUP;
            const consumer_warpgroup<D, KEYS> consumer = {
                p, at, warp / (GROUP / WARP), thread, thread / WARP, thread % WARP};

            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
            if constexpr (layout<D>::SHARED_TILE)
                bwd_d256<D, KEYS>{consumer}.run();
            else
                bwd_d128<D, KEYS>{consumer}.run();
        }
    }
}

/* TMA descriptor of [tokens, heads, d]: boxes of SIDE tokens, 64 features of one head. TMA pads
 * smaller heads with zeros. */

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

template <int D, bool KEYS>
d9d_status launch(d9d_stream s, const char *op, const tma_descriptors &m, const bwd_params &p)
{
    auto *const k = bwd_kernel<D, KEYS>;

    D9D_TRY(d9di_cuda_set_max_smem(op, (const void *)k, layout<D>::BYTES));
    k<<<(unsigned)s->sms, BLOCK, layout<D>::BYTES, d9di_cuda_stream(s)>>>(m, p);
    return d9di_cuda_check_launch(op);
}

/* Launches the dK, dV kernel, and then the dQ kernel, which may find dS in scratch. */
template <int D>
d9d_status launch_dkv_dq(d9d_stream s, const d9di_attention_call *c, bwd_params p,
                         tile_tasks of_queries)
{
    const d9d_attention_dims &n = c->n;
    tensor_map_encoder e = {c->op, (tensor_map_encode_fn *)s->tensor_map_encode, D9D_OK};
    tma_descriptors m;

    encode_descriptor(&e, &m.stationary[0], c->k, n.b * n.z, n.kv, n.d);
    encode_descriptor(&e, &m.stationary[1], c->v, n.b * n.z, n.kv, n.d);
    encode_descriptor(&e, &m.streamed[0], c->q, n.b * n.s, n.a, n.d);
    encode_descriptor(&e, &m.streamed[1], c->dout, n.b * n.s, n.a, n.d);
    D9D_TRY(e.st);
    D9D_TRY((launch<D, true>(s, c->op, m, p)));
    p.to[0] = (bf16 *)c->dq;
    p.to[1] = NULL;
    p.of = of_queries;
    return launch<D, false>(
        s, c->op, {{m.streamed[0], m.streamed[1]}, {m.stationary[0], m.stationary[1]}}, p);
}

/* One instance of the kernels, for heads of at most `features`. */
struct head_size_launcher {
    int features, rows; /* features of a tile; stationary tokens of a block */
    d9d_status (*launch)(d9d_stream s, const d9di_attention_call *c, bwd_params p,
                         tile_tasks of_queries);
};
template <int D>
constexpr head_size_launcher launcher_of = {D, layout<D>::TILES *SIDE, launch_dkv_dq<D>};
const head_size_launcher head_size_launchers[] = {
    launcher_of<64>,  launcher_of<80>,  launcher_of<96>,  launcher_of<112>, launcher_of<128>,
    launcher_of<160>, launcher_of<192>, launcher_of<224>, launcher_of<256>};
enum { MAX_HEAD_SIZE = 256 };

/* The first instance that a head fits in. */
const head_size_launcher &launcher_for(const d9d_attention_dims &n)
{
    const head_size_launcher *by = head_size_launchers;

    while (by->features < n.d)
        by++;
    return *by;
}

/* An array of n elements. */
template <class T> T *arena_alloc(d9di_cuda_arena *r, int64_t n)
{
    return (T *)d9di_cuda_arena_alloc(r, n * (int64_t)sizeof(T));
}

/* Number of segments, and of dS blocks that the scratch may hold. */
struct scratch_counts {
    int64_t segments, ds_blocks;
};

scratch_counts scratch_counts_of(d9d_stream s, const d9d_attention_dims &n)
{
    const int64_t workspace =
        launcher_for(n).rows == BLOCK_ROWS ? d9di_attention_max_score_bytes(s) : 0;

    return {n.segment != NULL ? n.segments : n.b * d9di_i64_max(1, n.chunks),
            d9di_i64_min(workspace / DS_BLOCK_BYTES, d9di_attention_ds_blocks(&n))};
}

struct bwd_scratch {
    d9d_segment *list;
    float *lse, *delta;
    tile_tasks queries, keys;
    ds_buffer ds;
};

tile_tasks tasks_alloc(d9di_cuda_arena *r, int64_t tokens, int64_t rows, int64_t segments)
{
    const int64_t capacity = tokens / rows + segments;

    return {arena_alloc<int32_t>(r, 2), arena_alloc<tile_task>(r, capacity), (int32_t)capacity};
}

bwd_scratch bwd_scratch_alloc(const d9d_attention_dims &n, const scratch_counts &of,
                              d9di_cuda_arena *r)
{
    const int64_t rows = n.b * n.s * n.a, block = launcher_for(n).rows;

    return {arena_alloc<d9d_segment>(r, n.segment == NULL ? of.segments : 0),
            arena_alloc<float>(r, rows),
            arena_alloc<float>(r, rows),
            tasks_alloc(r, n.b * n.s, block, of.segments),
            tasks_alloc(r, n.b * n.z, block, of.segments),
            {arena_alloc<char>(r, of.ds_blocks * DS_BLOCK_BYTES), of.ds_blocks,
             arena_alloc<int32_t>(r, of.segments), arena_alloc<int32_t>(r, 1),
             arena_alloc<int32_t>(r, 1)}};
}

bwd_sizes bwd_sizes_of(const d9d_attention_dims &n, const d9d_segment *segment, int64_t segments)
{
    return {segment,
            (int)segments,
            (int)n.b,
            (int)n.s,
            (int)n.z,
            (int)n.a,
            (int)n.kv,
            (int)(n.a / n.kv),
            n.window > 0 ? (int)d9di_i64_min(n.window, +NO_WINDOW) : +NO_WINDOW,
            launcher_for(n).rows};
}

d9d_status run_bwd(d9d_stream s, const d9di_attention_call *c, const bwd_scratch &x,
                   int64_t segments)
{
    const d9d_attention_dims &n = c->n;
    const bwd_params p = {bwd_sizes_of(n, n.segment != NULL ? n.segment : x.list, segments),
                          n.scale,
                          x.lse,
                          x.delta,
                          {(bf16 *)c->dk, (bf16 *)c->dv},
                          x.keys,
                          x.ds,
                          (int)n.d};

    if (n.segment == NULL)
        D9D_TRY(d9di_attention_varlen_list(s, c, x.list));
    preprocess_kernel<<<(unsigned)(LIST_BLOCKS + 2 * s->sms), LIST_BLOCK, 0, d9di_cuda_stream(s)>>>(
        p.n, {(const bf16 *)c->dout, (const bf16 *)c->o, c->lse, x.lse, x.delta, p.d}, x.queries,
        x.keys, x.ds);
    D9D_TRY(d9di_cuda_check_launch(c->op));
    return launcher_for(n).launch(s, c, p, x.queries);
}

} // namespace

bool d9di_attention_bwd_sm90_supported(d9d_stream s, const d9di_attention_call *c)
{
    const d9d_attention_dims *n = &c->n;

    return c->dout != NULL && s->tensor_map_encode != NULL &&
           s->opts.attention != D9D_CUDA_ATTENTION_SIMT && n->t == D9D_BF16 && n->d % 8 == 0 &&
           n->d <= MAX_HEAD_SIZE && n->causal && n->prefix == NULL && n->softcap == 0.0f &&
           n->b * d9di_i64_max(n->s, n->z) < NO_WINDOW && n->b * n->s * n->a < INT32_MAX;
}

d9d_status d9di_attention_bwd_sm90(d9d_stream s, const d9di_attention_call *c)
{
    const scratch_counts of = scratch_counts_of(s, c->n);
    d9di_cuda_arena r = {nullptr, 0};
    void *scratch;
    d9d_status st;

    (void)bwd_scratch_alloc(c->n, of, &r);
    const int64_t bytes = r.used;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &scratch));
    r = {(char *)scratch, 0};
    st = run_bwd(s, c, bwd_scratch_alloc(c->n, of, &r), of.segments);
    d9di_cuda_scratch_free(s, scratch, bytes);
    return st;
}
