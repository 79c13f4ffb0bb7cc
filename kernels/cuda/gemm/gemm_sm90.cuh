/* gemm_sm90.cuh - GEMM on Hopper in bfloat16: producer warp, consumer warpgroups (mainloop) and
 * launch, for any epilogue.
 *
 * The tile shape and the scheduler are in gemm_sm90_mainloop.cuh. A finished tile is packed into 64
 * registers and stored during the next tile's mainloop. The EPILOGUE argument decides how:
 *
 *     struct EPILOGUE : consumer_warpgroup {
 *         struct args;                    // passed to the kernel by value
 *         static constexpr int COLUMNS;   // of C in a tile: BN, or half if B is two matrices
 *         static constexpr bool ADDS;     // adds to C: nothing to do for an empty sum
 *         void epilogue_begin(d, held, row, column, live, none);   // accumulators -> held
 *         bool epilogue_pending();        // some of `held` is not stored yet
 *         void epilogue_step(held);       // stores a part of it
 *     };
 *
 * Nothing is aligned: a load may run into the next expert's rows, which go to rows that are not
 * stored; where rows are summed over (dW) the last step's rows outside are set to zero.  Sides are
 * multiples of 8: of what lies behind the end of a row the copy engine brings zeros, so that the
 * last step of a sum needs no care, and stores nothing.
 */
#ifndef D9DI_CUDA_GEMM_GEMM_SM90_CUH
#define D9DI_CUDA_GEMM_GEMM_SM90_CUH

#include "cuda/gemm/gemm_sm90_mainloop.cuh"

namespace
{

/* TMA descriptors: the operands, those of a second product or the right half of B, and the arrays
 * that the epilogue stores and reads. */
enum { MAX_EPILOGUE_ARRAYS = 4 };
struct tma_descriptors {
    CUtensorMap a, b, a2, b2, c[MAX_EPILOGUE_ARRAYS];
};

/* --- the producer ---------------------------------------------------------------------------- */

/* Loads two halves of an operand: rows or columns at i and i + half, each from its own descriptor,
 * from k on. shared: this block loads one of them, for both blocks (multicast). */
template <bool MN_MAJOR>
DEVICE void load_operand_tile(uint32_t to, uint32_t bytes, const CUtensorMap *left,
                              const CUtensorMap *right, uint32_t full, int i, int half, int k,
                              bool shared)
{
    for (int h = 0; h < 2; h++) {
        const uint32_t at = to + h * (bytes / 2);
        const CUtensorMap *map = h == 0 ? left : right;
        const int j = i + h * half;

        if (shared && h != (int)cluster_rank())
            continue;
        for (uint32_t i = 0; i < (MN_MAJOR ? bytes / 2 / SLAB : 1); i++) {
            const int x = MN_MAJOR ? j + 64 * (int)i : k, y = MN_MAJOR ? k : j;

            if (shared)
                tma_load_multicast(at + i * SLAB, map, full, x, y);
            else
                tma_load(at + i * SLAB, map, full, x, y);
        }
    }
}

/* TWO: B is two matrices, half a tile each. */
template <int FORM, bool TWO>
DEVICE void run_producer(const gemm_params &p, const smem_offsets &at, const tma_descriptors &m)
{
    const int each = FORM == D9DI_GROUPED_GEMM_DGRAD ? ceil_div_int(p.m, BK)
                                                     : INT32_MAX; /* steps of one product */
    pipeline_state<STAGES> stage = {0, 1};
    pipeline_state<WORK_TILE_STAGES> slot = {0, 0};

    for (;;) {
        const uint32_t from = at.base + OFFSET_WORK_TILES + WORK_TILE_BYTES * slot.i;

        mbarrier_wait_or_trap(at.order_full + 8 * slot.i, slot.parity);
        const int4 load = smem_load4(from), store = smem_load4(from + 16);
        const int mode = store.z >> 16;
        mbarrier_arrive_cluster(at.order_empty + 8 * slot.i, 0);
        slot.next();
        if (store.w < 0)
            return;
        for (int k = 0; k < store.w; k++) {
            const uint32_t full = at.full + 8 * stage.i, to = at.base + stage.i * STAGE_BYTES;
            const bool second = k >= each;
            const int here = (second ? k - each : k) * BK;
            const CUtensorMap *a = second ? &m.a2 : &m.a, *b = second ? &m.b2 : &m.b;

            mbarrier_wait_or_trap(at.empty + 8 * stage.i, stage.parity);
            if (mode == IDLE) {
                mbarrier_arrive(full);
            } else {
                mbarrier_arrive_expect_tx(full, STAGE_BYTES);
                load_operand_tile<FORM == D9DI_GROUPED_GEMM_WGRAD>(
                    to, A_BYTES, a, a, full, load.x, BM / 2, load.z + here, mode == MULTICAST_A);
                load_operand_tile<FORM != D9DI_GROUPED_GEMM_DGRAD>(
                    to + A_BYTES, B_BYTES, b, TWO ? &m.b2 : b, full, load.y, TWO ? 0 : BN / 2,
                    load.w + here, mode == MULTICAST_B);
            }
            stage.next();
        }
    }
}

/* --- the consumers ---------------------------------------------------------------------------- */

/* A consumer warpgroup: rows 64 g .. 64 g + 63 of each tile. */
struct consumer_warpgroup {
    const gemm_params &p;
    const smem_offsets &at;
    const tma_descriptors &m;
    int group, thread, warp, lane; /* thread and warp within the warpgroup */

    /* Output buffer i: 64 rows of 128 bytes of C, swizzled. */
    __device__ __forceinline__ uint32_t out_buffer(int i) const
    {
        return at.base + OFFSET_OUT + (group * BUFFERS + i % BUFFERS) * CHUNK;
    }

    /* Waits until all but the last N TMA stores have read their buffers. Called by the whole
     * warpgroup. */
    template <int N> __device__ __forceinline__ void wait_out_buffers() const
    {
        if (thread == 0)
            tma_store_wait_read<N>();
        named_barrier_sync(1 + group, GROUP);
    }

    /* Address of this thread's row of four 8 x 8 matrices of 16-bit elements, columns 16 j on
     * (stmatrix). */
    __device__ __forceinline__ uint32_t matrices_at(uint32_t to, int j) const
    {
        return swizzle_128b(to, warp * 16 + lane % 16, j * 2 + lane / 16);
    }

    __device__ __forceinline__ void smem_store_bf16(uint32_t to, const uint32_t *v) const
    {
#pragma unroll
        for (int j = 0; j < 4; j++)
            stmatrix_x4(matrices_at(to, j), v + 4 * j);
    }

    __device__ __forceinline__ void smem_store_f32(uint32_t to, const uint32_t *v) const
    {
        const int row = warp * 16 + lane / 4;

#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int eighth = (j * 2 + (lane / 2 & 1)) ^ (row & 7);
            const uint32_t x = to + row * 128 + (lane & 1) * 8 + eighth * 16;

            smem_store2(x, v[4 * j], v[4 * j + 1]);
            smem_store2(x + 1024, v[4 * j + 2], v[4 * j + 3]);
        }
    }

    /* What is in a buffer, sixteen bytes at a time, to rows `row` and columns x of `c` of type T:
     * the rows of an expert, or the matrix, end inside.  put(place, value). */
    template <class T, class F>
    __device__ __forceinline__ void each_of_rows(uint32_t from, void *c, int row, int x, int live,
                                                 F put) const
    {
        constexpr int EACH = 16 / sizeof(T);
        const int part = thread % 8,
                  at = x + part * EACH; /* a thread has the same of all its rows */
        T *to = (T *)c + (int64_t)row * p.n + at;

        for (int r = thread / 8; at < p.n && r < live; r += GROUP / 8)
            put((int4 *)(to + (int64_t)r * p.n), smem_load4(swizzle_128b(from, r, part)));
    }

    __device__ __forceinline__ void store_rows(uint32_t from, void *c, int row, int x,
                                               int live) const
    {
        each_of_rows<bf16>(from, c, row, x, live, [](int4 *to, int4 v) { *to = v; });
    }

    /* Stores a buffer of 64 x 64 bfloat16 to array i, `live` of its rows. */
    __device__ __forceinline__ void tma_store_bf16(uint32_t from, int i, void *c, int row, int x,
                                                   int live) const
    {
        fence_proxy_async();
        named_barrier_sync(1 + group, GROUP);
        if (live < HALF)
            store_rows(from, c, row, x, live);
        else if (thread == 0 && x < p.n)
            tma_store(&m.c[i], from, x, row);
        if (thread == 0)
            tma_store_commit(); /* an empty group too, since the waits count groups */
    }

    __device__ __forceinline__ void store_bf16_columns(const uint32_t *v, uint32_t from, int i,
                                                       void *c, int row, int x, int live) const
    {
        wait_out_buffers<BUFFERS - 1>();
        smem_store_bf16(from, v);
        tma_store_bf16(from, i, c, row, x, live);
    }
};

/* Packs the accumulators in pairs of bfloat16: columns 64 i on are in registers 16 i on. */
DEVICE void pack_accumulators(uint32_t (&held)[64], const float (&d)[128], bool none)
{
#pragma unroll
    for (int j = 0; j < 64; j++)
        held[j] = none ? 0 : pack_bf16(d[2 * j], d[2 * j + 1]);
}

template <int FORM, class EPILOGUE> struct consumer : EPILOGUE {
    static constexpr bool A_MN_MAJOR = FORM == D9DI_GROUPED_GEMM_WGRAD,
                          B_MN_MAJOR = FORM != D9DI_GROUPED_GEMM_DGRAD;

    pipeline_state<STAGES> stage = {0, 0};
    pipeline_state<WORK_TILE_STAGES> slot = {0, 0};
    uint64_t a, b;

    __device__ __forceinline__ consumer(const consumer_warpgroup &c,
                                        const typename EPILOGUE::args &x)
        : EPILOGUE(c, x), a(smem_descriptor<A_MN_MAJOR>(c.at.base + c.group * (A_BYTES / 2))),
          b(smem_descriptor<B_MN_MAJOR>(c.at.base + A_BYTES))
    {
    }

    __device__ __forceinline__ int4 next_work_tile()
    {
        mbarrier_wait(this->at.order_full + 8 * slot.i, slot.parity);
        const int4 o =
            smem_load4(this->at.base + OFFSET_WORK_TILES + WORK_TILE_BYTES * slot.i + 16);
        __syncwarp();
        if (this->lane == 0)
            mbarrier_arrive_cluster(this->at.order_empty + 8 * slot.i, 0);
        slot.next();
        return o;
    }

    /* Releases a stage for this warp, in both blocks: their producers multicast into both. */
    __device__ __forceinline__ void stage_release(uint32_t i)
    {
        if (this->lane < PAIR)
            mbarrier_arrive_cluster(this->at.empty + 8 * i, this->lane);
    }

    /* The last step of a sum over rows (WGRAD): rows of other experts become zero. */
    __device__ __forceinline__ void clear_foreign_rows(int from)
    {
        const uint32_t here = this->at.base + stage.i * STAGE_BYTES;
        const uint32_t sa = here + this->group * (A_BYTES / 2);
        const uint32_t sb = here + A_BYTES + this->group * (B_BYTES / 2);

        for (int i = from * 8 + this->thread; i < BK * 8; i += GROUP) {
            smem_clear4(sa + 16 * i);
            smem_clear4(sb + 16 * i);
            smem_clear4(sb + 8192 + 16 * i);
        }
        fence_proxy_async();
        named_barrier_sync(3, 2 * GROUP);
    }

    /* The warpgroup has no rows of this tile: it only releases the stages. */
    __device__ __forceinline__ void skip_tile(int steps)
    {
        for (int k = 0; k < steps; k++) {
            mbarrier_wait(this->at.full + 8 * stage.i, stage.parity);
            __syncwarp();
            stage_release(stage.i);
            stage.next();
        }
    }

    /* Returns the stage of the last step, whose wgmma may still be in flight. */
    __device__ __forceinline__ uint32_t mainloop(float (&d)[128], uint32_t (&held)[64], int steps,
                                                 int odd)
    {
        uint32_t last = 0;

        for (int k = 0; k < steps; k++) {
            const uint64_t da = a + stage.i * (STAGE_BYTES >> 4);
            const uint64_t db = b + stage.i * (STAGE_BYTES >> 4);

            mbarrier_wait(this->at.full + 8 * stage.i, stage.parity);
            if (FORM == D9DI_GROUPED_GEMM_WGRAD && k == steps - 1 && odd != 0)
                clear_foreign_rows(odd);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < BK / 16; i++)
                wgmma_64x256x16<A_MN_MAJOR, B_MN_MAJOR>(d, da + i * (A_MN_MAJOR ? 128 : 2),
                                                        db + i * (B_MN_MAJOR ? 128 : 2), k | i);
            wgmma_commit();
            wgmma_wait<1>();
            if (k > 0)
                stage_release(last);
            if (this->epilogue_pending())
                this->epilogue_step(held);
            last = stage.i;
            stage.next();
        }
        return last;
    }

    __device__ __forceinline__ void run()
    {
        float d[128];
        uint32_t held[64];
        int4 o = next_work_tile();

        while (o.w >= 0) {
            const int steps = o.w, mode = o.z >> 16, odd = o.z >> 8 & 0xff;
            const int live = min(+HALF, (o.z & 0xff) - HALF * this->group);

            /* In WGRAD both groups clear rows, so a group without rows of C takes part too. */
            if (FORM == D9DI_GROUPED_GEMM_WGRAD ? mode == IDLE : live <= 0) {
                skip_tile(steps);
                o = next_work_tile();
                continue;
            }
            const uint32_t last = mainloop(d, held, steps, odd);
            const int4 next = next_work_tile();
            wgmma_wait<0>();
            wgmma_fence_operand(d);
            if (steps > 0)
                stage_release(last);
            if (live > 0 && !(EPILOGUE::ADDS && steps == 0)) {
                while (this->epilogue_pending())
                    this->epilogue_step(held); /* the tile had fewer steps than the epilogue has
                                                  parts */
                this->epilogue_begin(d, held, o.x + HALF * this->group, o.y, live, steps == 0);
            }
            o = next;
        }
        while (this->epilogue_pending())
            this->epilogue_step(held);
        if (this->thread == 0)
            tma_store_wait();
    }
};

/* --- the kernel ------------------------------------------------------------------------------- */

DEVICE void init_barriers(const smem_offsets &at)
{
    for (int i = 0; i < STAGES; i++) {
        mbarrier_create(at.full + 8 * i, 1);
        mbarrier_create(at.empty + 8 * i, PAIR * 2 * GROUP / WARP);
    }
    for (int i = 0; i < WORK_TILE_STAGES; i++) {
        mbarrier_create(at.order_full + 8 * i, 1);
        mbarrier_create(at.order_empty + 8 * i, PAIR * (2 * GROUP / WARP + 1));
    }
    for (int i = 0; i < 2; i++)
        mbarrier_create(at.epilogue_full + 8 * i, 1);
    mbarrier_create_fence();
}

template <int FORM, class EPILOGUE>
__global__ void __launch_bounds__(BLOCK, 1)
    wgmma_gemm_kernel(const __grid_constant__ tma_descriptors m,
                      const __grid_constant__ gemm_params p,
                      const __grid_constant__ typename EPILOGUE::args x)
{
    if constexpr (HAVE_WGMMA) {
        extern __shared__ __align__(1024) unsigned char shared[];
        const smem_offsets at = smem_offsets_make(smem_address(shared));
        const int warp = __shfl_sync(~0u, (int)threadIdx.x / WARP, 0);
        int *first = (int *)(shared + OFFSET_EXPERTS);

        if (threadIdx.x == 0)
            init_barriers(at);
        if (FORM == D9DI_GROUPED_GEMM_WGRAD)
            sort_experts(p, first, (int *)shared);
        cluster_sync();
        if (warp >= 2 * GROUP / WARP) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
            if (warp == 2 * GROUP / WARP && threadIdx.x % WARP == 0) {
                tma_prefetch_descriptor(&m.a);
                tma_prefetch_descriptor(&m.b);
                tma_prefetch_descriptor(&m.c[0]);
                run_producer<FORM, EPILOGUE::COLUMNS != BN>(p, at, m);
            } else if (warp == 2 * GROUP / WARP + 1 && cluster_rank() == 0) {
                run_scheduler<FORM, EPILOGUE::COLUMNS>(p, at, first);
            }
        } else {
            const int thread = (int)threadIdx.x % GROUP;

            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
            consumer<FORM, EPILOGUE>(
                {p, at, m, warp / (GROUP / WARP), thread, thread / WARP, thread % WARP}, x)
                .run();
        }
        __syncwarp();
        cluster_sync(); /* neither block may exit while the other accesses its shared memory */
    }
}

/* --- launching -------------------------------------------------------------------------------- */

struct tma_descriptor_encoder : tensor_map_encoder {
    /* A matrix [rows, columns] of bfloat16 as an operand: boxes of 64 in the dimension that is
     * contiguous, 128 bytes wide, and of `side` rows, or sideways of one step of the sum. */
    void encode_operand(CUtensorMap *m, const void *p, int64_t rows, int64_t columns, bool sideways,
                        int side)
    {
        const cuuint64_t dim[] = {(cuuint64_t)columns, (cuuint64_t)rows};
        const cuuint64_t stride[] = {(cuuint64_t)columns * 2};
        const cuuint32_t box[] = {64, sideways ? +BK : (cuuint32_t)side};

        make(m, D9D_BF16, p, 2, dim, stride, box);
    }

    /* An array that the epilogue stores or loads. */
    void encode_output(CUtensorMap *m, d9d_dtype t, const void *p, int64_t rows, int64_t columns)
    {
        const cuuint64_t dim[] = {(cuuint64_t)columns, (cuuint64_t)rows};
        const cuuint64_t stride[] = {(cuuint64_t)columns * d9d_dtype_size(t)};
        const cuuint32_t box[] = {128 / (cuuint32_t)d9d_dtype_size(t), HALF};

        make(m, t, p, 2, dim, stride, box);
    }
};

/* Why not a product [rows, out] of [rows, in], or those turned, of matrices of e experts; NULL: it
 * can be. */
static inline const char *wgmma_refuses(d9d_stream s, int64_t rows, int64_t e, int64_t in,
                                        int64_t out)
{
    if (s->tensor_map_encode == NULL)
        return "the GPU, or this build, has not compute capability 9.0";
    if (in <= 0 || in % 8 != 0 || out <= 0 || out % 8 != 0)
        return "dimensions are not multiples of 8";
    return e <= MAX_EXPERTS && rows <= INT32_MAX - BM && e * d9di_i64_max(in, out) <= INT32_MAX - BN
               ? NULL
               : "it is too large";
}

static inline bool wgmma_gemm_supported(d9d_stream s, d9di_cuda_notice kind, const char *op,
                                        d9d_dtype t, int64_t rows, int64_t e, int64_t in,
                                        int64_t out)
{
    const char *why;

    if (t != D9D_BF16 || rows <= 0)
        return false;
    why = wgmma_refuses(s, rows, e, in, out);
    if (why != NULL)
        d9di_say_slow(s, kind, op, in, out, why);
    return why == NULL;
}

/* Launches a kernel of clusters of two blocks, one block an SM.  p is without its counter, which
 * the launch allocates. */
template <class KERNEL, class X>
d9d_status launch_pairs(d9d_stream s, const char *op, KERNEL *k, const tma_descriptors &m,
                        gemm_params p, const X &x)
{
    enum { COUNTER_BYTES = 256 };
    cudaLaunchAttribute pair = {};
    cudaLaunchConfig_t config = {};
    void *counter;
    cudaError_t e;

    D9D_TRY(d9di_cuda_set_max_smem(op, (const void *)k, SHARED_BYTES));
    D9D_TRY(d9di_cuda_scratch_alloc(s, COUNTER_BYTES, &counter));
    p.counter = (int *)counter;
    pair.id = cudaLaunchAttributeClusterDimension;
    pair.val.clusterDim.x = PAIR;
    pair.val.clusterDim.y = pair.val.clusterDim.z = 1;
    config.gridDim = dim3((unsigned)(s->sms / PAIR * PAIR));
    config.blockDim = dim3(BLOCK);
    config.dynamicSmemBytes = SHARED_BYTES;
    config.stream = d9di_cuda_stream(s);
    config.attrs = &pair;
    config.numAttrs = 1;
    e = cudaMemsetAsync(counter, 0, sizeof(int), config.stream);
    if (e == cudaSuccess)
        e = cudaLaunchKernelEx(&config, k, m, p, x);
    d9di_cuda_scratch_free(s, counter, COUNTER_BYTES);
    return e == cudaSuccess ? D9D_OK : d9di_cuda_fail(op, e);
}

template <int FORM, class EPILOGUE>
d9d_status launch_wgmma_gemm(d9d_stream s, const char *op, const tma_descriptors &m,
                             const gemm_params &p, const typename EPILOGUE::args &x)
{
    return launch_pairs(s, op, wgmma_gemm_kernel<FORM, EPILOGUE>, m, p, x);
}

} // namespace

#endif /* D9DI_CUDA_GEMM_GEMM_SM90_CUH */
