/* cuda_grouped_wgmma.cu - one product per expert on Hopper, in bfloat16.
 *
 * A block an SM, in pairs, for the whole launch.  A tile of C is BM x BN, made in steps of BK:
 *
 *     scheduler warp   claims a pair of tiles from a counter, tells both blocks of the pair
 *     producer warp    copies operands by TMA into a ring of STAGES
 *     2 warp groups    half the tile's rows each: 128 sums a thread, in registers
 *
 * The pair takes two row tiles of an expert with the same columns and shares B; an odd last row
 * tile is taken with two neighbouring column tiles, sharing A; a single one left over goes to
 * block 0 alone.  What is shared is read once, a half by each block, for both.  A finished tile is
 * packed into 64 registers and stored under the products of the next one.
 *
 * Nothing is aligned: a load may run into the next expert's rows, which go to rows that are not
 * stored; where rows are summed over (dW) the last step's rows outside are set to zero.  No
 * sum is split, and every element has one writer: which block takes a tile does not show.
 */
#include "cuda_grouped.h"

#include "cuda_hopper.cuh"

namespace
{

enum { BM = 128, BN = 256, BK = 64, STAGES = 4, BUFFERS = 2, SLOTS = 2, MOST_EXPERTS = 512 };
enum { BLOCK = 384, GROUP = 128, PAIR = 2, HALF = BM / 2 };
enum { A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, STAGE_BYTES = A_BYTES + B_BYTES };
enum { CHUNK = HALF * 128 }; /* 64 rows of 128 bytes on their way out */

/* How the two blocks of a pair work together on what they are told; DEAD: block 1 of ALONE. */
enum mode { ALONE, SHARE_B, SHARE_A, DEAD };

/* What C is: bfloat16, float32, and added to. */
enum sum { BF16, F32, BF16_ADD, F32_ADD };

struct job {
    void *c;
    const int32_t *offset;
    int *counter; /* two zeros */
    int64_t rows;
    int e, n; /* experts; columns of C */
    int m;    /* dW: rows of C, else what is summed over */
    int sums; /* dX: how many products are added up, else 1 */
};

/* Operands, the result, and for dX the operands of a second product. */
struct maps {
    CUtensorMap a, b, c, a2, b2;
};

/* What a block is told of a tile. */
struct order {
    int4 load;  /* row or column of A, of B; first k of A, of B */
    int4 store; /* row of C, column, live rows | odd k << 8 | mode << 16, steps; -1: the end */
};
enum { ORDER_BYTES = sizeof(order) };

/* Shared memory, as offsets from its start. */
enum {
    AT_CHUNKS = STAGES * STAGE_BYTES,
    AT_BARRIERS = AT_CHUNKS + 2 * BUFFERS * CHUNK,
    AT_ORDERS = AT_BARRIERS + 128,
    AT_FIRST = AT_ORDERS + SLOTS * ORDER_BYTES,
    SHARED_BYTES = AT_FIRST + (MOST_EXPERTS + 1) * 4
};
static_assert(SHARED_BYTES <= 232448, "shared memory of a block");

/* Addresses of the barriers; a stage is full or free, an order is told or taken. */
struct place {
    uint32_t base, full, free, told, taken;
};
DEVICE place place_of(uint32_t base)
{
    const uint32_t b = base + AT_BARRIERS;

    return {base, b, b + 8 * STAGES, b + 16 * STAGES, b + 16 * STAGES + 8 * SLOTS};
}

/* Where one stands in a ring of n. */
template <int N> struct turn {
    uint32_t i, parity;

    __device__ __forceinline__ void next()
    {
        if (++i == N) {
            i = 0;
            parity ^= 1;
        }
    }
};

DEVICE int up(int n, int by)
{
    return (n + by - 1) / by;
}

/* The rows of an expert, whatever the offsets say. */
DEVICE int first_row(const job &p, int x)
{
    return (int)d9di_max(0, d9di_min(p.rows, p.offset[x]));
}
DEVICE int count_rows(const job &p, int x)
{
    return (int)(d9di_max(first_row(p, x), d9di_min(p.rows, p.offset[x + 1])) - first_row(p, x));
}

/* Units, each for a pair of blocks, of a product of `rows` rows. */
DEVICE int units_of(const job &p, int rows)
{
    const int mt = up(rows, BM), nt = up(p.n, BN);

    return (mt >> 1) * nt + (mt & 1) * ((nt + 1) >> 1);
}

/* --- the scheduler ------------------------------------------------------------------------- */

/* Experts by falling count of rows, so that long sums begin first; all threads of the block. */
DEVICE void sort_experts(const job &p, int *sorted, int *count)
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
    shared_stores_done(); /* copies come to where the counts are */
}

/* The unit at which each expert begins, and the end; all threads of a warp. */
DEVICE int place_experts(const job &p, int *first)
{
    const int lane = threadIdx.x % WARP;
    int end = 0;

    for (int x0 = 0; x0 < p.e; x0 += WARP) {
        const int x = x0 + lane;
        int units = x < p.e ? units_of(p, count_rows(p, x)) : 0;

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

/* What block `rank` is to do of a unit of expert x. */
template <int FORM> DEVICE order order_of(const job &p, int x, int unit, int rank)
{
    const int start = first_row(p, x), rows = count_rows(p, x);
    const int tall = FORM == D9DI_DW ? p.m : rows, mt = up(tall, BM), nt = up(p.n, BN);
    const int pairs = (mt >> 1) * nt, j = 2 * (unit - pairs);
    const bool paired = unit < pairs;
    const int m = paired ? 2 * (unit / nt) + rank : mt - 1, n = paired ? unit % nt : j + rank;
    const int how = paired ? SHARE_B : j + 1 < nt ? SHARE_A : rank == 0 ? ALONE : DEAD;
    const int live = how == DEAD ? 0 : min(+BM, tall - m * BM);

    if (FORM == D9DI_DW)
        return {
            make_int4(m * BM, n * BN, start, start),
            make_int4(x * p.m + m * BM, n * BN, live | rows % BK << 8 | how << 16, up(rows, BK))};
    return {make_int4(start + m * BM, n * BN + (FORM == D9DI_DX ? x * p.n : 0), 0,
                      FORM == D9DI_Y ? x * p.m : 0),
            make_int4(start + m * BM, n * BN, live | how << 16, p.sums * (p.m / BK))};
}

template <int FORM> DEVICE void schedule(const job &p, const place &at, int *first)
{
    const int each = FORM == D9DI_DW ? units_of(p, p.m) : 0;
    const int total = FORM == D9DI_DW ? p.e * each : place_experts(p, first);
    turn<SLOTS> slot = {0, 1};
    int x = 0, unit;

    if (threadIdx.x % WARP != 0)
        return;
    do {
        /* Claimed as late as can be, so that all end together. */
        barrier_wait_or_trap(at.taken + 8 * slot.i, slot.parity);
        unit = atomicAdd(p.counter, 1);
        while (FORM != D9DI_DW && unit < total && unit >= first[x + 1])
            x++;
        for (int rank = 0; rank < PAIR; rank++) {
            order o = {make_int4(0, 0, 0, 0), make_int4(0, 0, 0, -1)};
            const uint32_t to = at.base + AT_ORDERS + ORDER_BYTES * slot.i;

            if (unit < total)
                o = FORM == D9DI_DW ? order_of<FORM>(p, first[unit / each], unit % each, rank)
                                    : order_of<FORM>(p, x, unit - first[x], rank);
            barrier_arrive_expecting_in(at.told + 8 * slot.i, rank, ORDER_BYTES);
            shared_store4_in(to, at.told + 8 * slot.i, rank, o.load);
            shared_store4_in(to + 16, at.told + 8 * slot.i, rank, o.store);
        }
        slot.next();
    } while (unit < total);
}

/* --- the producer ---------------------------------------------------------------------------- */

/* Two halves of an operand: rows or columns at i and i + half, summed over from k.  SHARED: this
 * block brings one of them, to both blocks. */
template <bool SIDEWAYS>
DEVICE void load_operand(uint32_t to, uint32_t bytes, const CUtensorMap *map, uint32_t full, int i,
                         int half, int k, bool shared)
{
    for (int h = 0; h < 2; h++) {
        const uint32_t at = to + h * (bytes / 2);
        const int j = i + h * half;

        if (shared && h != (int)cluster_rank())
            continue;
        if (SIDEWAYS && shared)
            box_load_both(at, map, full, 0, k, j / 64);
        else if (SIDEWAYS)
            box_load(at, map, full, 0, k, j / 64);
        else if (shared)
            box_load_both(at, map, full, k, j);
        else
            box_load(at, map, full, k, j);
    }
}

template <int FORM> DEVICE void produce(const job &p, const place &at, const maps &m)
{
    const int each = FORM == D9DI_DX ? p.m / BK : INT32_MAX; /* steps of one product */
    turn<STAGES> stage = {0, 1};
    turn<SLOTS> slot = {0, 0};

    for (;;) {
        const uint32_t from = at.base + AT_ORDERS + ORDER_BYTES * slot.i;

        barrier_wait_or_trap(at.told + 8 * slot.i, slot.parity);
        const int4 load = shared_load4(from), store = shared_load4(from + 16);
        const int how = store.z >> 16;
        barrier_arrive_in(at.taken + 8 * slot.i, 0);
        slot.next();
        if (store.w < 0)
            return;
        for (int k = 0; k < store.w; k++) {
            const uint32_t full = at.full + 8 * stage.i, to = at.base + stage.i * STAGE_BYTES;
            const bool second = k >= each;
            const int here = (second ? k - each : k) * BK;

            barrier_wait_or_trap(at.free + 8 * stage.i, stage.parity);
            if (how == DEAD) {
                barrier_arrive(full);
            } else {
                barrier_arrive_expecting(full, STAGE_BYTES);
                load_operand<FORM == D9DI_DW>(to, A_BYTES, second ? &m.a2 : &m.a, full, load.x,
                                              BM / 2, load.z + here, how == SHARE_A);
                load_operand<FORM != D9DI_DX>(to + A_BYTES, B_BYTES, second ? &m.b2 : &m.b, full,
                                              load.y, BN / 2, load.w + here, how == SHARE_B);
            }
            stage.next();
        }
    }
}

/* --- the consumers -----------------------------------------------------------------------------
 */

/* A warp group: rows 64 g .. 64 g + 63 of each tile. */
template <int FORM, int SUM> struct consumer {
    static constexpr bool WIDE = SUM == F32 || SUM == F32_ADD; /* C is float32 */
    static constexpr bool A_SIDEWAYS = FORM == D9DI_DW, B_SIDEWAYS = FORM != D9DI_DX;
    static constexpr int CHUNK_COLUMNS = WIDE ? 32 : 64;

    const job &p;
    const place &at;
    const CUtensorMap *c;
    int group, thread, warp, lane; /* in the group; in the warp */
    turn<STAGES> stage;
    turn<SLOTS> slot;
    uint64_t a, b;
    int held_next, held_row, held_column; /* of the last tile: 4 when all chunks are stored */

    __device__ __forceinline__ int4 next_order()
    {
        barrier_wait(at.told + 8 * slot.i, slot.parity);
        const int4 o = shared_load4(at.base + AT_ORDERS + ORDER_BYTES * slot.i + 16);
        __syncwarp();
        if (lane == 0)
            barrier_arrive_in(at.taken + 8 * slot.i, 0);
        slot.next();
        return o;
    }

    /* A stage may be filled again, as far as this warp goes; both blocks' producers hear it. */
    __device__ __forceinline__ void release(uint32_t i)
    {
        if (lane < PAIR)
            barrier_arrive_in(at.free + 8 * i, lane);
    }

    /* 64 rows of 128 bytes of C from registers to a buffer, rows swizzled. */
    __device__ __forceinline__ void put_chunk(uint32_t to, const uint32_t *v)
    {
        if (WIDE) {
            const int row = warp * 16 + lane / 4;

#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int eighth = (j * 2 + (lane / 2 & 1)) ^ (row & 7);
                const uint32_t x = to + row * 128 + (lane & 1) * 8 + eighth * 16;

                shared_store2(x, v[4 * j], v[4 * j + 1]);
                shared_store2(x + 1024, v[4 * j + 2], v[4 * j + 3]);
            }
        } else {
            const int row = warp * 16 + lane % 16;

#pragma unroll
            for (int j = 0; j < 4; j++)
                shared_store_matrices(to + row * 128 + (((j * 2 + lane / 16) ^ (row & 7)) << 4),
                                      v + 4 * j);
        }
    }

    /* Chunk i of the columns of 64 rows of C, `live` of them real. */
    __device__ __forceinline__ void store_chunk(const uint32_t *v, int i, int row, int column,
                                                int live)
    {
        const uint32_t buffer = at.base + AT_CHUNKS + (group * BUFFERS + i % BUFFERS) * CHUNK;
        const int x = column + i * CHUNK_COLUMNS;

        if (thread == 0)
            stores_read<BUFFERS - 1>();
        sync_threads(1 + group, GROUP);
        put_chunk(buffer, v);
        shared_stores_done();
        sync_threads(1 + group, GROUP);
        if (live < HALF) { /* the expert ends inside: D9DI_Y and _DX, in bfloat16 */
            bf16 *to = (bf16 *)p.c + (int64_t)row * p.n + x;

            for (int j = thread; x < p.n && j < live * 8; j += GROUP)
                *(int4 *)(to + (int64_t)(j / 8) * p.n + j % 8 * 8) =
                    shared_load4(buffer + j / 8 * 128 + ((j % 8 ^ (j / 8 & 7)) << 4));
        } else if (thread == 0 && x < p.n) {
            if (SUM == F32_ADD)
                box_add(c, buffer, x, row);
            else
                box_store(c, buffer, x, row);
        }
        if (thread == 0)
            stores_commit(); /* an empty one too: the waits count them */
    }

    /* A quarter of what is held; arrays in registers want constant indices. */
    __device__ __forceinline__ void store_held(const uint32_t (&held)[64])
    {
        constexpr int first = WIDE ? 4 : 0;

        switch (held_next++) {
        case 0: store_chunk(held, first, held_row, held_column, HALF); break;
        case 1: store_chunk(held + 16, first + 1, held_row, held_column, HALF); break;
        case 2: store_chunk(held + 32, first + 2, held_row, held_column, HALF); break;
        case 3: store_chunk(held + 48, first + 3, held_row, held_column, HALF); break;
        }
    }

    /* The last step of a sum over rows: what belongs to other experts counts as zero. */
    __device__ __forceinline__ void clear_rows(int from)
    {
        const uint32_t sa = at.base + stage.i * STAGE_BYTES + group * (A_BYTES / 2);
        const uint32_t sb = at.base + stage.i * STAGE_BYTES + A_BYTES + group * (B_BYTES / 2);

        for (int i = from * 8 + thread; i < BK * 8; i += GROUP) {
            shared_clear4(sa + 16 * i);
            shared_clear4(sb + 16 * i);
            shared_clear4(sb + 8192 + 16 * i);
        }
        shared_stores_done();
        sync_threads(3, 2 * GROUP);
    }

    /* No row of ours: only keep the ring moving. */
    __device__ __forceinline__ void pass(int steps)
    {
        for (int k = 0; k < steps; k++) {
            barrier_wait(at.full + 8 * stage.i, stage.parity);
            __syncwarp();
            release(stage.i);
            stage.next();
        }
    }

    /* The stage of the last step, whose products are not waited for. */
    __device__ __forceinline__ uint32_t multiply(float (&d)[128], const uint32_t (&held)[64],
                                                 int steps, int odd)
    {
        uint32_t last = 0;

        for (int k = 0; k < steps; k++) {
            const uint64_t da = a + stage.i * (STAGE_BYTES >> 4);
            const uint64_t db = b + stage.i * (STAGE_BYTES >> 4);

            barrier_wait(at.full + 8 * stage.i, stage.parity);
            if (FORM == D9DI_DW && k == steps - 1 && odd != 0)
                clear_rows(odd);
            product_begin();
#pragma unroll
            for (int i = 0; i < BK / 16; i++)
                product_64x256x16<A_SIDEWAYS, B_SIDEWAYS>(d, da + i * (A_SIDEWAYS ? 128 : 2),
                                                          db + i * (B_SIDEWAYS ? 128 : 2), k | i);
            product_commit();
            product_wait<1>();
            if (k > 0)
                release(last);
            if (held_next < 4)
                store_held(held);
            last = stage.i;
            stage.next();
        }
        return last;
    }

    /* C is bfloat16 and added to, in float32 before it is rounded. */
    __device__ __forceinline__ void add_old(float (&d)[128], int row, int column, int live)
    {
        const bf16 *old = (const bf16 *)p.c;

#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int r = row + warp * 16 + lane / 4 + 8 * h, x = column + 8 * j + lane % 4 * 2;
                uint32_t two = 0;

                if (x < p.n && r - row < live)
                    two = *(const uint32_t *)(old + (int64_t)r * p.n + x);
                d[4 * j + 2 * h] += __uint_as_float(two << 16);
                d[4 * j + 2 * h + 1] += __uint_as_float(two & 0xffff0000u);
            }
    }

    /* Half of a float32 tile is stored at once; the rest waits for the next tile's products. */
    __device__ __forceinline__ void finish(float (&d)[128], uint32_t (&held)[64], int row,
                                           int column, int live, bool none)
    {
        while (held_next < 4)
            store_held(held); /* after less than four steps */
        if (SUM == BF16_ADD)
            add_old(d, row, column, live);
#pragma unroll
        for (int i = 0; i < (WIDE ? 4 : 0); i++) {
            uint32_t v[16];

#pragma unroll
            for (int j = 0; j < 16; j++)
                v[j] = none ? 0 : __float_as_uint(d[i * 16 + j]);
            store_chunk(v, i, row, column, HALF);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < 16; j++)
                held[i * 16 + j] = none   ? 0
                                   : WIDE ? __float_as_uint(d[64 + i * 16 + j])
                                          : pack_bf16(d[i * 32 + 2 * j], d[i * 32 + 2 * j + 1]);
            if (live < HALF)
                store_chunk(held + i * 16, i, row, column, live);
        }
        if (live == HALF) {
            held_next = 0;
            held_row = row;
            held_column = column;
        }
    }

    __device__ __forceinline__ void run()
    {
        float d[128];
        uint32_t held[64];
        int4 o = next_order();

        while (o.w >= 0) {
            const int steps = o.w, how = o.z >> 16, odd = o.z >> 8 & 0xff;
            const int live = min(+HALF, (o.z & 0xff) - HALF * group);

            /* In dW both groups clear rows, so a group without rows of C multiplies too. */
            if (FORM == D9DI_DW ? how == DEAD : live <= 0) {
                pass(steps);
                o = next_order();
                continue;
            }
            const uint32_t last = multiply(d, held, steps, odd);
            const int4 next = next_order();
            product_wait<0>();
            product_taken(d);
            if (steps > 0)
                release(last);
            if (live > 0 && !(SUM >= BF16_ADD && steps == 0))
                finish(d, held, o.x + HALF * group, o.y, live, steps == 0);
            o = next;
        }
        while (held_next < 4)
            store_held(held);
        if (thread == 0)
            stores_wait();
    }
};

/* --- the kernel ----------------------------------------------------------------------------------
 */

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
enum { HAVE_WGMMA = 1 };
#else
enum { HAVE_WGMMA = 0 }; /* other targets get an empty kernel, which is never launched */
#endif

DEVICE void make_barriers(const place &at)
{
    for (int i = 0; i < STAGES; i++) {
        barrier_init(at.full + 8 * i, 1);
        barrier_init(at.free + 8 * i, PAIR * 2 * GROUP / WARP);
    }
    for (int i = 0; i < SLOTS; i++) {
        barrier_init(at.told + 8 * i, 1);
        barrier_init(at.taken + 8 * i, PAIR * (2 * GROUP / WARP + 1));
    }
    barriers_made();
}

template <int FORM, int SUM>
DEVICE void consume(const job &p, const place &at, const CUtensorMap *c, int warp)
{
    typedef consumer<FORM, SUM> worker;
    const int group = warp / (GROUP / WARP);
    const int thread = (int)threadIdx.x % GROUP;
    worker w = {p, at, c, group, thread, thread / WARP, thread % WARP, {0, 0}, {0, 0},
                0, 0,  4, 0,     0};

    w.a = operand_at<worker::A_SIDEWAYS>(at.base + group * (A_BYTES / 2));
    w.b = operand_at<worker::B_SIDEWAYS>(at.base + A_BYTES);
    w.run();
}

template <int FORM, int SUM>
__global__ void __launch_bounds__(BLOCK, 1)
    grouped_kernel(const __grid_constant__ maps m, const __grid_constant__ job p)
{
    if constexpr (HAVE_WGMMA) {
        extern __shared__ __align__(1024) unsigned char shared[];
        const place at = place_of(shared_address(shared));
        const int warp = __shfl_sync(~0u, (int)threadIdx.x / WARP, 0);
        int *first = (int *)(shared + AT_FIRST);

        if (threadIdx.x == 0)
            make_barriers(at);
        if (FORM == D9DI_DW)
            sort_experts(p, first, (int *)shared);
        cluster_sync();
        if (warp >= 2 * GROUP / WARP) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
            if (warp == 2 * GROUP / WARP && threadIdx.x % WARP == 0) {
                map_prefetch(&m.a);
                map_prefetch(&m.b);
                map_prefetch(&m.c);
                produce<FORM>(p, at, m);
            } else if (warp == 2 * GROUP / WARP + 1 && cluster_rank() == 0) {
                schedule<FORM>(p, at, first);
            }
        } else {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
            consume<FORM, SUM>(p, at, &m.c, warp);
        }
        __syncwarp();
        cluster_sync(); /* neither leaves while the other may still reach into it */
    }
}

/* --- launching
 * -------------------------------------------------------------------------------------- */

typedef __typeof__(cuTensorMapEncodeTiled) encode;

d9d_status encode_map(const d9di_grouped *g, encode *f, CUtensorMap *m, d9d_dtype t, const void *p,
                      unsigned ndim, const cuuint64_t *dim, const cuuint64_t *stride,
                      const cuuint32_t *box)
{
    const cuuint32_t one[] = {1, 1, 1};
    const CUtensorMapDataType type =
        t == D9D_F32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const CUresult e = f(m, type, ndim, (void *)p, dim, stride, box, one,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);

    return e == CUDA_SUCCESS
               ? D9D_OK
               : D9D_FAIL(D9D_ECUDA, "%s: no tensor map of %llu x %llu: error %d", g->op,
                          (unsigned long long)dim[1], (unsigned long long)dim[0], (int)e);
}

/* A matrix [rows, columns] of bfloat16 as an operand, `side` of whose rows or columns are loaded
 * at a time: boxes of 64 in the dimension that is contiguous, 128 bytes wide. */
d9d_status map_operand(const d9di_grouped *g, encode *f, CUtensorMap *m, const void *p,
                       int64_t rows, int64_t columns, bool sideways, int side)
{
    const cuuint64_t flat[] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t deep[] = {64, (cuuint64_t)rows, (cuuint64_t)columns / 64};
    const cuuint64_t stride[] = {(cuuint64_t)columns * 2, 128};
    const cuuint32_t flat_box[] = {64, (cuuint32_t)side},
                     deep_box[] = {64, BK, (cuuint32_t)side / 64};

    return sideways ? encode_map(g, f, m, D9D_BF16, p, 3, deep, stride, deep_box)
                    : encode_map(g, f, m, D9D_BF16, p, 2, flat, stride, flat_box);
}

d9d_status map_result(const d9di_grouped *g, encode *f, CUtensorMap *m, int64_t rows,
                      int64_t columns)
{
    const cuuint64_t dim[] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t stride[] = {(cuuint64_t)columns * d9d_dtype_size(g->ct)};
    const cuuint32_t box[] = {128 / (cuuint32_t)d9d_dtype_size(g->ct), HALF};

    return encode_map(g, f, m, g->ct, g->c, 2, dim, stride, box);
}

d9d_status make_maps(const d9di_grouped *g, encode *f, maps *m)
{
    const int64_t depth = g->form == D9DI_DX ? g->out : g->in;
    const bool across = g->form == D9DI_Y; /* B is [in, out], and its columns are C's */

    D9D_TRY(map_operand(g, f, &m->a, g->a, g->rows, depth, g->form == D9DI_DW, BM / 2));
    if (g->form == D9DI_DW) {
        D9D_TRY(map_operand(g, f, &m->b, g->b, g->rows, g->out, true, BN / 2));
        return map_result(g, f, &m->c, g->e * g->in, g->out);
    }
    D9D_TRY(map_operand(g, f, &m->b, g->b, g->e * g->in, g->out, across, BN / 2));
    if (g->a2 != NULL) {
        D9D_TRY(map_operand(g, f, &m->a2, g->a2, g->rows, depth, false, BM / 2));
        D9D_TRY(map_operand(g, f, &m->b2, g->b2, g->e * g->in, g->out, across, BN / 2));
    }
    return map_result(g, f, &m->c, g->rows, across ? g->out : g->in);
}

typedef void kernel(const maps, const job);

kernel *kernel_of(const d9di_grouped *g)
{
    if (g->form == D9DI_Y)
        return grouped_kernel<D9DI_Y, BF16>;
    if (g->form == D9DI_DX)
        return g->beta != 0.0f ? grouped_kernel<D9DI_DX, BF16_ADD> : grouped_kernel<D9DI_DX, BF16>;
    if (g->ct == D9D_F32)
        return g->beta != 0.0f ? grouped_kernel<D9DI_DW, F32_ADD> : grouped_kernel<D9DI_DW, F32>;
    return g->beta != 0.0f ? grouped_kernel<D9DI_DW, BF16_ADD> : grouped_kernel<D9DI_DW, BF16>;
}

d9d_status launch(d9d_stream s, const d9di_grouped *g, const maps *m, int *counter)
{
    const job p = {g->c,
                   g->offset,
                   counter,
                   g->rows,
                   (int)g->e,
                   (int)(g->form == D9DI_DX ? g->in : g->out),
                   (int)(g->form == D9DI_DX ? g->out : g->in),
                   g->a2 != NULL ? 2 : 1};
    kernel *const k = kernel_of(g);
    cudaLaunchAttribute pair = {};
    cudaLaunchConfig_t how = {};
    cudaError_t e;

    D9D_TRY(d9di_allow_shared(g->op, (const void *)k, SHARED_BYTES));
    pair.id = cudaLaunchAttributeClusterDimension;
    pair.val.clusterDim.x = PAIR;
    pair.val.clusterDim.y = pair.val.clusterDim.z = 1;
    how.gridDim = dim3((unsigned)(s->sms / PAIR * PAIR));
    how.blockDim = dim3(BLOCK);
    how.dynamicSmemBytes = SHARED_BYTES;
    how.stream = s->queue;
    how.attrs = &pair;
    how.numAttrs = 1;
    e = cudaMemsetAsync(counter, 0, sizeof(*counter), s->queue);
    if (e == cudaSuccess)
        e = cudaLaunchKernelEx(&how, k, *m, p);
    return e == cudaSuccess ? D9D_OK : d9di_cuda_fail(g->op, e);
}

} // namespace

void *d9di_wgmma_encoder(int major)
{
    cudaDriverEntryPointQueryResult found;
    void *f = NULL;

    if (!D9D_SM90A || major != 9)
        return NULL;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault,
                                         &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return NULL;
    return f;
}

bool d9di_grouped_wgmma_takes(d9d_stream s, const d9di_grouped *g)
{
    return s->encode_map != NULL && g->t == D9D_BF16 && g->in % 64 == 0 && g->out % 64 == 0 &&
           g->e <= MOST_EXPERTS && g->rows > 0 && g->rows <= INT32_MAX - BM &&
           g->e * d9di_max(g->in, g->out) <= INT32_MAX - BN && (g->beta == 0.0f || g->beta == 1.0f);
}

d9d_status d9di_grouped_wgmma(d9d_stream s, const d9di_grouped *g)
{
    enum { COUNTER_BYTES = 256 };
    maps m = {};
    void *counter;
    d9d_status st;

    (void)d9di_queue(s);
    D9D_TRY(make_maps(g, (encode *)s->encode_map, &m));
    D9D_TRY(d9di_take(s, COUNTER_BYTES, &counter));
    st = launch(s, g, &m, (int *)counter);
    d9di_give(s, counter, COUNTER_BYTES);
    return st;
}
