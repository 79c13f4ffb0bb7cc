/* fp8_grouped_gemm_sm90.cu - grouped GEMM of MoE experts on Hopper in 8 bits, with scales by row or
 * by array: on the scheduler of gemm_sm90_mainloop.cuh, with its blocks, clusters and epilogue.
 *
 * Algorithm: as cuda/gemm/gemm_sm90.cuh, with three differences.
 *
 *     both operands are K-major    one form of load: rows of 128 bytes, a step of the sum
 *     tiles of 128 x 128           a ring of 6 stages; 64 sums per thread
 *     sums of two kinds            the tensor cores keep about 14 bits: without fast_accum each
 * step begins at zero and is added to sums in float32
 *
 *     DeepGEMM, TransformerEngine, TorchAO          here
 *     m_grouped_fp8_gemm_nt_contiguous, k_grouped   FWD and DGRAD, WGRAD
 *     promotion of partial sums every 128           `sum` beside `d`
 *     _scaled_grouped_mm, rowwise scales            tile_scale()
 *
 * In WGRAD an expert's part of a row begins at any element, and a load at a multiple of 16, as the
 * copy engine demands.  Elements of other experts, in the first and the last step, are set to zero.
 * Scales are requested before a tile's sums and multiply them after.
 *
 * Measured (docs/benchmarks/one-gpu.md), one H100, Qwen3-30B-A3B, rowwise: forward 705 to 953,
 * dgrad 659 to 884, wgrad 517 TFLOP/s; bfloat16 has 574 to 657, 595 to 627, 497. A step of a tile
 * of 128 x 128 reads and writes 80 KiB of shared memory in the 490 cycles of its products, of 128
 * bytes each: wider tiles are the way to more.
 */
#include "cuda/fp8/fp8_grouped_gemm.h"
#include "cuda/gemm/gemm_store_sm90.cuh"

namespace
{

enum { TN = 128, STEP = 128, RING = 6, LOAD_ALIGN = 16 };
enum { SIDE_BYTES = BM * STEP, RING_STAGE_BYTES = 2 * SIDE_BYTES };
static_assert(+BM == +TN, "both operands have as many rows in a tile");
static_assert(RING * RING_STAGE_BYTES <= OFFSET_OUT, "the ring lies before the output buffers");
static_assert(16 * (RING + WORK_TILE_STAGES) <= OFFSET_WORK_TILES - OFFSET_BARRIERS, "mbarriers");

/* What the epilogue multiplies by: the scales of A's and B's rows, or one of each. */
struct fp8_args {
    void *c;
    const float *a, *b;
    int by_row; /* 0 or 1 */
};

DEVICE smem_offsets ring_offsets_make(uint32_t base)
{
    const uint32_t b = base + OFFSET_BARRIERS;

    return {base, b, b + 8 * RING, b + 16 * RING, b + 16 * RING + 8 * WORK_TILE_STAGES, 0};
}

DEVICE void init_ring_barriers(const smem_offsets &at)
{
    for (int i = 0; i < RING; i++) {
        mbarrier_create(at.full + 8 * i, 1);
        mbarrier_create(at.empty + 8 * i, PAIR * 2 * GROUP / WARP);
    }
    for (int i = 0; i < WORK_TILE_STAGES; i++) {
        mbarrier_create(at.order_full + 8 * i, 1);
        mbarrier_create(at.order_empty + 8 * i, PAIR * (2 * GROUP / WARP + 1));
    }
    mbarrier_create_fence();
}

/* --- the producer ----------------------------------------------------------------------------- */

DEVICE void run_fp8_producer(const smem_offsets &at, const tma_descriptors &m)
{
    pipeline_state<RING> stage = {0, 1};
    pipeline_state<WORK_TILE_STAGES> slot = {0, 0};

    for (;;) {
        const uint32_t from = at.base + OFFSET_WORK_TILES + WORK_TILE_BYTES * slot.i;

        mbarrier_wait_or_trap(at.order_full + 8 * slot.i, slot.parity);
        const int4 load = smem_load4(from), store = smem_load4(from + 16);
        const int mode = store.z >> 16 & 0xff;
        mbarrier_arrive_cluster(at.order_empty + 8 * slot.i, 0);
        slot.next();
        if (store.w < 0)
            return;
        for (int k = 0; k < store.w; k++) {
            const uint32_t full = at.full + 8 * stage.i, to = at.base + stage.i * RING_STAGE_BYTES;

            mbarrier_wait_or_trap(at.empty + 8 * stage.i, stage.parity);
            if (mode == IDLE) {
                mbarrier_arrive(full);
            } else {
                mbarrier_arrive_expect_tx(full, RING_STAGE_BYTES);
                load_operand_tile<false>(to, SIDE_BYTES, &m.a, &m.a, full, load.x, HALF,
                                         load.z + k * STEP, mode == MULTICAST_A);
                load_operand_tile<false>(to + SIDE_BYTES, SIDE_BYTES, &m.b, &m.b, full, load.y,
                                         HALF, load.w + k * STEP, mode == MULTICAST_B);
            }
            stage.next();
        }
    }
}

/* --- the consumers ---------------------------------------------------------------------------- */

/* What multiplies a thread's sums: the scales of its two rows, and of two pairs of columns, from
 * which the warp's lanes have all others. */
struct tile_scales {
    float low, high;
    float2 column[2];
};

/* SUM: an output_kind. FAST: the tensor cores keep the sums. */
template <int FORM, int SUM, bool FAST, bool A_E5M2, bool B_E5M2>
struct fp8_consumer : consumer_stores<SUM> {
    static constexpr bool WIDE = consumer_stores<SUM>::WIDE, ADDS = SUM >= BF16_ADD;
    static constexpr int PARTS = 2, FIRST = WIDE ? 2 : 0; /* that `held` has, and which */

    const fp8_args &x;
    pipeline_state<RING> stage = {0, 0};
    pipeline_state<WORK_TILE_STAGES> slot = {0, 0};
    int held_next = PARTS, held_row, held_column; /* of the previous tile: its next part to store */
    uint64_t a, b;

    __device__ __forceinline__ fp8_consumer(const consumer_warpgroup &w, const fp8_args &x)
        : consumer_stores<SUM>(w, x.c), x(x),
          a(smem_descriptor<false>(w.at.base + w.group * (SIDE_BYTES / 2))),
          b(smem_descriptor<false>(w.at.base + SIDE_BYTES))
    {
    }

    __device__ __forceinline__ work_tile next_work_tile()
    {
        const uint32_t from = this->at.base + OFFSET_WORK_TILES + WORK_TILE_BYTES * slot.i;

        mbarrier_wait(this->at.order_full + 8 * slot.i, slot.parity);
        const work_tile o = {smem_load4(from), smem_load4(from + 16)};
        __syncwarp();
        if (this->lane == 0)
            mbarrier_arrive_cluster(this->at.order_empty + 8 * slot.i, 0);
        slot.next();
        return o;
    }

    /* Releases a stage for this warp, in both blocks: their producers multicast into both. */
    __device__ __forceinline__ void stage_release()
    {
        if (this->lane < PAIR)
            mbarrier_arrive_cluster(this->at.empty + 8 * stage.i, this->lane);
        stage.next();
    }

    /* Zeros in the place of bytes of 64 rows, but for those in [from, to). */
    __device__ __forceinline__ void clear_outside(uint32_t rows, int from, int to) const
    {
        for (int i = this->thread; i < HALF * 8; i += GROUP) {
            const int first = i % 8 * 16;
            const uint32_t at = swizzle_128b(rows, i / 8, i % 8);
            uint32_t keep[4];

            if (from <= first && first + 16 <= to)
                continue;
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const int low = min(max(from - first - 4 * w, 0), 4),
                          high = min(max(to - first - 4 * w, 0), 4);

                keep[w] = (uint32_t)(((1ull << 8 * high) - 1) & ~((1ull << 8 * low) - 1));
            }
            const int4 v = smem_load4(at);
            smem_store4(at, v.x & keep[0], v.y & keep[1], v.z & keep[2], v.w & keep[3]);
        }
    }

    /* A step of a sum over rows (WGRAD): elements of other experts become zero. */
    __device__ __forceinline__ void clear_foreign_elements(int from, int to) const
    {
        const uint32_t here =
            this->at.base + stage.i * RING_STAGE_BYTES + this->group * (SIDE_BYTES / 2);

        clear_outside(here, from, to);
        clear_outside(here + SIDE_BYTES, from, to);
        fence_proxy_async();
        named_barrier_sync(3, 2 * GROUP);
    }

    /* The warpgroup has no rows of this tile: it only releases the stages. */
    __device__ __forceinline__ void skip_tile(int steps)
    {
        for (int k = 0; k < steps; k++) {
            mbarrier_wait(this->at.full + 8 * stage.i, stage.parity);
            __syncwarp();
            stage_release();
        }
    }

    __device__ __forceinline__ void mainloop(float (&sum)[64], uint32_t (&held)[32], int steps,
                                             int lead, int odd)
    {
        float step[FAST ? 1 : 64];

#pragma unroll
        for (int j = 0; j < 64; j++)
            sum[j] = 0.0f;
        for (int k = 0; k < steps; k++) {
            const uint64_t da = a + stage.i * (RING_STAGE_BYTES >> 4);
            const uint64_t db = b + stage.i * (RING_STAGE_BYTES >> 4);

            mbarrier_wait(this->at.full + 8 * stage.i, stage.parity);
            if (FORM == D9D_FP8_GROUPED_WGRAD) {
                const int from = k == 0 ? lead : 0, to = k == steps - 1 && odd != 0 ? odd : STEP;

                if (from > 0 || to < STEP)
                    clear_foreign_elements(from, to);
            }
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < STEP / 32; i++) {
                if constexpr (FAST)
                    wgmma_fp8_64x128x32<A_E5M2, B_E5M2>(sum, da + 2 * i, db + 2 * i, k | i);
                else
                    wgmma_fp8_64x128x32<A_E5M2, B_E5M2>(step, da + 2 * i, db + 2 * i, i);
            }
            wgmma_commit();
            if (held_next < PARTS)
                held_store(held);
            wgmma_wait<0>();
            if constexpr (FAST) {
                wgmma_fence_operand(sum);
            } else {
                wgmma_fence_operand(step);
#pragma unroll
                for (int j = 0; j < 64; j++)
                    sum[j] += step[j];
            }
            stage_release();
        }
    }

    /* Scales of rows from load.x on and of columns from load.y on. */
    __device__ __forceinline__ tile_scales scales_load(const int4 &load, int column, int live) const
    {
        const int r = this->warp * 16 + this->lane / 4, first = load.x + HALF * this->group;
        const float *const of_rows = x.a + (int64_t)first * x.by_row;
        tile_scales s = {r < live ? of_rows[r * x.by_row] : 0.0f,
                         r + 8 < live ? of_rows[(r + 8) * x.by_row] : 0.0f,
                         {}};

#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int at = 8 * (this->lane / 4 + 8 * h) + this->lane % 4 * 2;

            if (!x.by_row)
                s.column[h].x = s.column[h].y = *x.b;
            else if (column + at < this->p.n)
                s.column[h] = *(const float2 *)(x.b + load.y + at);
        }
        return s;
    }

    __device__ __forceinline__ void tile_scale(float (&sum)[64], const tile_scales &s) const
    {
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const int from = j % 8 * 4 + this->lane % 4;
            const float left = __shfl_sync(~0u, s.column[j / 8].x, from),
                        right = __shfl_sync(~0u, s.column[j / 8].y, from);

            sum[4 * j] *= s.low * left;
            sum[4 * j + 1] *= s.low * right;
            sum[4 * j + 2] *= s.high * left;
            sum[4 * j + 3] *= s.high * right;
        }
    }

    /* Stores a part of the previous tile. The switch keeps register indices constant. */
    __device__ __forceinline__ void held_store(const uint32_t (&held)[32])
    {
        switch (held_next++) {
        case 0: this->store_columns(held, FIRST, held_row, held_column, HALF); break;
        case 1: this->store_columns(held + 16, FIRST + 1, held_row, held_column, HALF); break;
        }
    }

    /* Half of a float32 tile is stored at once, the rest during the next tile's mainloop. */
    __device__ __forceinline__ void tile_store(float (&sum)[64], uint32_t (&held)[32], int row,
                                               int column, int live)
    {
        if (SUM == BF16_ADD)
            this->add_c(sum, row, column, live);
#pragma unroll
        for (int i = 0; i < FIRST; i++) {
            uint32_t v[16];

#pragma unroll
            for (int j = 0; j < 16; j++)
                v[j] = __float_as_uint(sum[i * 16 + j]);
            this->store_columns(v, i, row, column, live);
        }
#pragma unroll
        for (int j = 0; j < 32; j++)
            held[j] = WIDE ? __float_as_uint(sum[32 + j]) : pack_bf16(sum[2 * j], sum[2 * j + 1]);
        held_next = 0;
        held_row = row;
        held_column = column;
        if (live == HALF)
            return;
        held_next = PARTS;
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            this->store_columns(held + 16 * i, FIRST + i, row, column, live);
    }

    __device__ __forceinline__ void run()
    {
        float sum[64];
        uint32_t held[32];
        work_tile o = next_work_tile();

        while (o.store.w >= 0) {
            const int steps = o.store.w, mode = o.store.z >> 16 & 0xff;
            const int odd = o.store.z >> 8 & 0xff, lead = o.store.z >> 24;
            const int live = min(+HALF, (o.store.z & 0xff) - HALF * this->group);
            const int row = o.store.x + HALF * this->group, column = o.store.y;

            /* In WGRAD both groups clear elements, so a group without rows of C takes part too. */
            if (FORM == D9D_FP8_GROUPED_WGRAD ? mode == IDLE : live <= 0) {
                skip_tile(steps);
                o = next_work_tile();
                continue;
            }
            const tile_scales scales = scales_load(o.load, column, live);
            mainloop(sum, held, steps, lead, odd);
            o = next_work_tile();
            if (live <= 0 || (ADDS && steps == 0))
                continue;
            while (held_next < PARTS)
                held_store(held); /* the tile had fewer steps than there are parts */
            tile_scale(sum, scales);
            tile_store(sum, held, row, column, live);
        }
        while (held_next < PARTS)
            held_store(held);
        if (this->thread == 0)
            tma_store_wait();
    }
};

/* --- the kernel ------------------------------------------------------------------------------- */

template <int FORM, int SUM, bool FAST, bool A_E5M2, bool B_E5M2>
__global__ void __launch_bounds__(BLOCK, 1)
    fp8_grouped_kernel(const __grid_constant__ tma_descriptors m,
                       const __grid_constant__ gemm_params p, const __grid_constant__ fp8_args x)
{
    if constexpr (HAVE_WGMMA) {
        extern __shared__ __align__(1024) unsigned char shared[];
        const smem_offsets at = ring_offsets_make(smem_address(shared));
        const int warp = __shfl_sync(~0u, (int)threadIdx.x / WARP, 0);
        int *first = (int *)(shared + OFFSET_EXPERTS);

        if (threadIdx.x == 0)
            init_ring_barriers(at);
        if (FORM == D9DI_GROUPED_GEMM_WGRAD)
            sort_experts(p, first, (int *)shared);
        cluster_sync();
        if (warp >= 2 * GROUP / WARP) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
            if (warp == 2 * GROUP / WARP && threadIdx.x % WARP == 0) {
                tma_prefetch_descriptor(&m.a);
                tma_prefetch_descriptor(&m.b);
                tma_prefetch_descriptor(&m.c[0]);
                run_fp8_producer(at, m);
            } else if (warp == 2 * GROUP / WARP + 1 && cluster_rank() == 0) {
                run_scheduler<FORM, TN, STEP, LOAD_ALIGN>(p, at, first);
            }
        } else {
            const int thread = (int)threadIdx.x % GROUP;

            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
            fp8_consumer<FORM, SUM, FAST, A_E5M2, B_E5M2>(
                {p, at, m, warp / (GROUP / WARP), thread, thread / WARP, thread % WARP}, x)
                .run();
        }
        __syncwarp();
        cluster_sync(); /* neither block may exit while the other accesses its shared memory */
    }
}

/* --- launching -------------------------------------------------------------------------------- */

/* The scheduler's forms are those of the operands. */
static_assert((int)D9D_FP8_GROUPED_FWD == (int)D9DI_GROUPED_GEMM_FWD &&
                  (int)D9D_FP8_GROUPED_DGRAD == (int)D9DI_GROUPED_GEMM_DGRAD &&
                  (int)D9D_FP8_GROUPED_WGRAD == (int)D9DI_GROUPED_GEMM_WGRAD,
              "forms");

/* Boxes of 64 rows and a step of the sum. */
void encode_side(tma_descriptor_encoder *map, CUtensorMap *m, const d9d_fp8_operand *x,
                 int64_t rows, int64_t k)
{
    const cuuint64_t dim[] = {(cuuint64_t)k, (cuuint64_t)rows};
    const cuuint64_t stride[] = {(cuuint64_t)x->row_stride};
    const cuuint32_t box[] = {STEP, HALF};

    map->make(m, x->t, x->data, 2, dim, stride, box);
}

struct fp8_call {
    d9d_stream s;
    const d9d_fp8_grouped_dims *g;
    const d9d_fp8_operand *a, *b;
    void *c;
};

template <int FORM, int SUM, bool FAST, bool A_E5M2, bool B_E5M2>
d9d_status launch_fp8(const fp8_call &call)
{
    const d9d_fp8_grouped_dims *g = call.g;
    const d9di_fp8_grouped_shape shape = d9di_fp8_grouped_shape_of(g);
    const bool is_wgrad = FORM == D9D_FP8_GROUPED_WGRAD;
    const int64_t n = FORM == D9D_FP8_GROUPED_DGRAD ? g->in : g->out;
    const gemm_params p = {g->offset, NULL,   g->rows,
                           (int)g->e, (int)n, (int)(FORM == D9D_FP8_GROUPED_DGRAD ? g->out : g->in),
                           1};
    tma_descriptor_encoder map = {"fp8_grouped_gemm",
                                  (tensor_map_encode_fn *)call.s->tensor_map_encode, D9D_OK};
    tma_descriptors m = {};

    encode_side(&map, &m.a, call.a, shape.a_rows, shape.a_k);
    encode_side(&map, &m.b, call.b, shape.b_rows, shape.b_k);
    map.encode_output(&m.c[0], g->ct, call.c, is_wgrad ? g->e * g->in : g->rows, n);
    D9D_TRY(map.st);
    return launch_pairs(call.s, map.op, fp8_grouped_kernel<FORM, SUM, FAST, A_E5M2, B_E5M2>, m, p,
                        fp8_args{call.c, call.a->scale, call.b->scale, call.a->scale_by_row});
}

template <int FORM, int SUM, bool FAST> d9d_status launch_types(const fp8_call &call)
{
    if constexpr (FORM != D9D_FP8_GROUPED_WGRAD)
        if (call.a->t == D9D_F8_E5M2)
            return launch_fp8<FORM, SUM, FAST, true, false>(call);
    if constexpr (FORM != D9D_FP8_GROUPED_DGRAD)
        if (call.b->t == D9D_F8_E5M2)
            return launch_fp8<FORM, SUM, FAST, false, true>(call);
    return launch_fp8<FORM, SUM, FAST, false, false>(call);
}

template <int FORM, int SUM> d9d_status launch_sums(const fp8_call &call)
{
    return call.g->fast_accum ? launch_types<FORM, SUM, true>(call)
                              : launch_types<FORM, SUM, false>(call);
}

template <int FORM> d9d_status launch_form(const fp8_call &call)
{
    const bool adds = call.g->beta != 0.0f;

    if (call.g->ct == D9D_BF16)
        return adds ? launch_sums<FORM, BF16_ADD>(call) : launch_sums<FORM, BF16>(call);
    return adds ? launch_sums<FORM, F32_ADD>(call) : launch_sums<FORM, F32>(call);
}

} // namespace

bool d9di_fp8_grouped_gemm_sm90_supported(d9d_stream s, const d9d_fp8_grouped_dims *g)
{
    const char *why;

    if (g->rows == 0)
        return false;
    why = wgmma_refuses(s, g->rows, g->e, g->in, g->out);
    if (why != NULL)
        d9di_say_slow(s, D9DI_SLOW_FP8, "fp8_grouped_gemm", g->in, g->out, why);
    return why == NULL;
}

d9d_status d9di_fp8_grouped_gemm_sm90(d9d_stream s, const d9d_fp8_grouped_dims *g,
                                      const d9d_fp8_operand *a, const d9d_fp8_operand *b, void *c)
{
    const fp8_call call = {s, g, a, b, c};

    switch (g->form) {
    case D9D_FP8_GROUPED_FWD: return launch_form<D9D_FP8_GROUPED_FWD>(call);
    case D9D_FP8_GROUPED_DGRAD: return launch_form<D9D_FP8_GROUPED_DGRAD>(call);
    default: return launch_form<D9D_FP8_GROUPED_WGRAD>(call);
    }
}
