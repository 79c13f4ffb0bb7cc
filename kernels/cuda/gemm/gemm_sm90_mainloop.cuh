/* gemm_sm90_mainloop.cuh - GEMM on Hopper in bfloat16: tile shape, shared memory and the tile
 * scheduler. The producer, the consumers' mainloop and the launch are in cuda/gemm/gemm_sm90.cuh.
 *
 * Algorithm: a persistent, warp-specialised GEMM with TMA multicast in clusters of two blocks, as
 * CUTLASS's KernelTmaWarpSpecializedCooperative. One block per SM stays for the whole launch. A
 * tile of C is BM x BN = 128 x 256, computed in steps of BK = 64:
 *
 *     scheduler warp   of block 0 claims a pair of tiles from a counter, publishes one per block
 *     producer warp    loads A and B by TMA into a ring of STAGES = 4
 *     2 warpgroups     64 rows of the tile each: 64 x 256, 128 accumulators per thread
 *
 *     CUTLASS 3.x                                  here
 *     PipelineTmaAsync, PipelineState              at.full, at.empty, pipeline_state<STAGES>
 *     producer_acquire / _commit                   mbarrier_wait(empty), _arrive_expect_tx(full)
 *     consumer_wait / _release                     mbarrier_wait(full), stage_release()
 *     PersistentTileSchedulerSm90Group             run_scheduler(), work_tile, tile_pairs_of()
 *     ClusterShape 2x1x1, SM90_TMA_LOAD_MULTICAST  PAIR, pair_mode, tma_load_multicast()
 *     TileShape, SharedStorage                     BM, BN, BK, OFFSET_...
 *     CollectiveMma, SM90_64x256x16_F32BF16BF16    consumer::mainloop(), wgmma_64x256x16()
 *     CollectiveEpilogue                           the EPILOGUE argument: epilogue_begin(), _step()
 *
 *     time -->
 *     producer     | k0 | k1 | k2 | k3 |    | k4 | ...     TMA -> full[stage]
 *     warpgroup 0       | wgmma k0 | wgmma k1 | ...        wait full; release empty one step later
 *     warpgroup 1       | wgmma k0 | wgmma k1 | ...
 *     epilogue          [ the previous tile, a part per step: stmatrix -> TMA store ]
 *
 * A pair of blocks computes two row tiles of an expert with the same columns and shares B
 * (MULTICAST_B). An odd last row tile is computed as two neighbouring column tiles that share A
 * (MULTICAST_A). A single tile left over goes to block 0 (SINGLE); block 1 is IDLE. Each block
 * loads half of what is shared, for both.
 *
 * Deterministic: no split-K, and every element has one writer, so that the order of claims does not
 * affect results.
 *
 * Measured (docs/benchmarks/kernels.md), one H200, grouped GEMM of Qwen3-30B-A3B: 649 to 760
 * TFLOP/s, 82 to 96 % of a dense GEMM (793). gemm/grouped_gemm_sm90.cu has the rest.
 */
#ifndef D9DI_CUDA_GEMM_GEMM_SM90_MAINLOOP_CUH
#define D9DI_CUDA_GEMM_GEMM_SM90_MAINLOOP_CUH

#include "cuda/gemm/grouped_gemm.h"

#include "cuda/common/sm90.cuh"

namespace
{

enum {
    BM = 128,
    BN = 256,
    BK = 64,
    STAGES = 4,
    BUFFERS = 2,
    WORK_TILE_STAGES = 2,
    MAX_EXPERTS = 512
};
enum { BLOCK = 384, GROUP = 128, PAIR = 2, HALF = BM / 2 };
enum { A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, STAGE_BYTES = A_BYTES + B_BYTES };
enum { CHUNK = HALF * 128 }; /* 64 rows of 128 bytes on their way out */
enum { SLAB = BK * 128 };    /* 64 columns of an operand that lies sideways */

/* How a pair of blocks shares the operands of its two tiles; see above. IDLE: block 1 of SINGLE. */
enum pair_mode { SINGLE, MULTICAST_B, MULTICAST_A, IDLE };

struct gemm_params {
    const int32_t *offset; /* NULL: one expert has all rows */
    int *counter;          /* next pair of tiles; starts at 0 */
    int64_t rows;
    int e, n; /* experts; columns of C */
    int m;    /* WGRAD: rows of C; else the dimension that is summed over */
    int sums; /* DGRAD: number of products that are added, else 1 */
};

/* A tile as the scheduler publishes it to a block. */
struct work_tile {
    int4 load;  /* row or column of A, of B; first k of A, of B */
    int4 store; /* row of C, column, live rows | odd k << 8 | mode << 16 | lead << 24, steps;
                   steps -1: no more work */
};
enum { WORK_TILE_BYTES = sizeof(work_tile) };

/* Shared memory layout: offsets in bytes. */
enum {
    OFFSET_OUT = STAGES * STAGE_BYTES,
    OFFSET_BARRIERS = OFFSET_OUT + 2 * BUFFERS * CHUNK,
    OFFSET_WORK_TILES = OFFSET_BARRIERS + 128,
    OFFSET_EXPERTS = OFFSET_WORK_TILES + WORK_TILE_STAGES * WORK_TILE_BYTES,
    SHARED_BYTES = OFFSET_EXPERTS + (MAX_EXPERTS + 1) * 4
};
static_assert(SHARED_BYTES <= 232448, "shared memory of a block");

/* Addresses of the mbarriers: a stage is full or empty; a work tile is published or read; what a
 * warpgroup's epilogue loads has arrived. */
struct smem_offsets {
    uint32_t base, full, empty, order_full, order_empty, epilogue_full;
};
DEVICE smem_offsets smem_offsets_make(uint32_t base)
{
    const uint32_t b = base + OFFSET_BARRIERS;

    return {base,
            b,
            b + 8 * STAGES,
            b + 16 * STAGES,
            b + 16 * STAGES + 8 * WORK_TILE_STAGES,
            b + 16 * STAGES + 16 * WORK_TILE_STAGES};
}

/* The rows of an expert, clamped in case the offsets are invalid. */
DEVICE int first_row(const gemm_params &p, int x)
{
    return p.offset == NULL ? 0 : (int)d9di_i64_max(0, d9di_i64_min(p.rows, p.offset[x]));
}
DEVICE int count_rows(const gemm_params &p, int x)
{
    if (p.offset == NULL)
        return (int)p.rows;
    return (int)(d9di_i64_max(first_row(p, x), d9di_i64_min(p.rows, p.offset[x + 1])) -
                 first_row(p, x));
}

/* Number of pairs of tiles of a product of `rows` rows, in tiles of COLUMNS columns. */
template <int COLUMNS> DEVICE int tile_pairs_of(const gemm_params &p, int rows)
{
    const int mt = ceil_div_int(rows, BM), nt = ceil_div_int(p.n, COLUMNS);

    return (mt >> 1) * nt + (mt & 1) * ((nt + 1) >> 1);
}

/* --- the scheduler ------------------------------------------------------------------------- */

/* Sorts experts by descending number of rows, so that long sums start first. Called by all threads
 * of the block. */
DEVICE void sort_experts(const gemm_params &p, int *sorted, int *count)
{
    for (int x = threadIdx.x; x < p.e; x += BLOCK)
        count[x] = count_rows(p, x);
    __syncthreads();
    for (int x = threadIdx.x; x < p.e; x += BLOCK) {
        int before = 0;

        for (int y = 0; y < p.e; y++)
            before += count[y] > count[x] || (count[y] == count[x] && y < x);
        sorted[before] = x;
    }
    fence_proxy_async(); /* later async-proxy writes reuse the memory of the counts */
}

/* Prefix sum: each expert's first pair of tiles, and the total. Called by all threads of a warp. */
template <int COLUMNS> DEVICE int expert_first_pairs(const gemm_params &p, int *first)
{
    const int lane = threadIdx.x % WARP;
    int end = 0;

    for (int x0 = 0; x0 < p.e; x0 += WARP) {
        const int x = x0 + lane;
        int units = x < p.e ? tile_pairs_of<COLUMNS>(p, count_rows(p, x)) : 0;

        for (int o = 1; o < WARP; o *= 2) {
            const int left = __shfl_up_sync(~0u, units, o);

            units += lane >= o ? left : 0;
        }
        if (x < p.e)
            first[x + 1] = end + units;
        end += __shfl_sync(~0u, units, WARP - 1);
    }
    if (lane == 0)
        first[0] = 0;
    __syncwarp();
    return end;
}

/* Tile order (CUTLASS: swizzle): GROUP_ROWS pairs of row tiles by some columns, then the next
 * columns, so that concurrent blocks also share columns of B in L2. */
enum { GROUP_ROWS = 8 };

/* The tile of block `rank` in pair number `unit` of expert x. STEP: elements of the sum of a step;
 * ALIGN: a sum over rows (WGRAD) begins at a multiple of it, and so with `lead` elements of earlier
 * experts. */
template <int FORM, int COLUMNS, int STEP, int ALIGN>
DEVICE work_tile work_tile_of(const gemm_params &p, int x, int unit, int rank)
{
    const int start = first_row(p, x), rows = count_rows(p, x);
    const int tall = FORM == D9DI_GROUPED_GEMM_WGRAD ? p.m : rows, mt = ceil_div_int(tall, BM),
              nt = ceil_div_int(p.n, COLUMNS);
    const int pairs = (mt >> 1) * nt, j = 2 * (unit - pairs);
    const bool paired = unit < pairs;
    const int top = unit / (GROUP_ROWS * nt) * GROUP_ROWS,
              across = min(+GROUP_ROWS, (mt >> 1) - top);
    const int m = paired ? 2 * (top + (unit - top * nt) % across) + rank : mt - 1;
    const int n = paired ? (unit - top * nt) / across : j + rank;
    const int mode = paired ? MULTICAST_B : j + 1 < nt ? MULTICAST_A : rank == 0 ? SINGLE : IDLE;
    const int lead = ALIGN > 1 ? start % ALIGN : 0;
    const int live = mode == IDLE ? 0 : min(+BM, tall - m * BM), column = n * COLUMNS;

    if (FORM == D9DI_GROUPED_GEMM_WGRAD)
        return {make_int4(m * BM, column, start - lead, start - lead),
                make_int4(x * p.m + m * BM, column,
                          live | (lead + rows) % STEP << 8 | mode << 16 | lead << 24,
                          ALIGN > 1 && rows == 0 ? 0 : ceil_div_int(lead + rows, STEP))};
    return {make_int4(start + m * BM, column + (FORM == D9DI_GROUPED_GEMM_DGRAD ? x * p.n : 0), 0,
                      FORM == D9DI_GROUPED_GEMM_FWD ? x * p.m : 0),
            make_int4(start + m * BM, column, live | mode << 16, p.sums * ceil_div_int(p.m, STEP))};
}

template <int FORM, int COLUMNS, int STEP = BK, int ALIGN = 1>
DEVICE void run_scheduler(const gemm_params &p, const smem_offsets &at, int *first)
{
    const int each = FORM == D9DI_GROUPED_GEMM_WGRAD ? tile_pairs_of<COLUMNS>(p, p.m) : 0;
    const int total =
        FORM == D9DI_GROUPED_GEMM_WGRAD ? p.e * each : expert_first_pairs<COLUMNS>(p, first);
    pipeline_state<WORK_TILE_STAGES> slot = {0, 1};
    int x = 0, unit;

    if (threadIdx.x % WARP != 0)
        return;
    do {
        /* Claimed as late as possible, so that all blocks end together. */
        mbarrier_wait_or_trap(at.order_empty + 8 * slot.i, slot.parity);
        unit = atomicAdd(p.counter, 1);
        while (FORM != D9DI_GROUPED_GEMM_WGRAD && unit < total && unit >= first[x + 1])
            x++;
        for (int rank = 0; rank < PAIR; rank++) {
            work_tile o = {make_int4(0, 0, 0, 0), make_int4(0, 0, 0, -1)};
            const uint32_t to = at.base + OFFSET_WORK_TILES + WORK_TILE_BYTES * slot.i;

            if (unit < total)
                o = FORM == D9DI_GROUPED_GEMM_WGRAD
                        ? work_tile_of<FORM, COLUMNS, STEP, ALIGN>(p, first[unit / each],
                                                                   unit % each, rank)
                        : work_tile_of<FORM, COLUMNS, STEP, ALIGN>(p, x, unit - first[x], rank);
            mbarrier_arrive_expect_tx_cluster(at.order_full + 8 * slot.i, rank, WORK_TILE_BYTES);
            st_async_cluster(to, at.order_full + 8 * slot.i, rank, o.load);
            st_async_cluster(to + 16, at.order_full + 8 * slot.i, rank, o.store);
        }
        slot.next();
    } while (unit < total);
}

} // namespace

#endif /* D9DI_CUDA_GEMM_GEMM_SM90_MAINLOOP_CUH */
