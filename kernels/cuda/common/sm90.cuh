/* sm90.cuh - PTX of compute capability 9.0a: mbarriers, tensor copies (TMA), and warpgroup matrix
 * multiply (wgmma).
 *
 * Addresses of shared memory are 32-bit. A cluster is a pair of blocks, 0 and 1, which access each
 * other's shared memory.
 */
#ifndef D9DI_CUDA_COMMON_SM90_CUH
#define D9DI_CUDA_COMMON_SM90_CUH

#include <cuda.h>

#include "cuda/common/common.cuh"

#ifdef D9D_HANGS
enum { TRAP_ON_HANG = 1 }; /* a debug build: make HANGS=1 */
#else
enum { TRAP_ON_HANG = 0 };
#endif

#define DEVICE [[maybe_unused]] static __device__ __forceinline__

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
enum { HAVE_WGMMA = 1 };
#else
enum { HAVE_WGMMA = 0 }; /* other targets compile an empty kernel, which is never launched, */
#pragma nv_diag_suppress 177 /* and use nothing of this file */
#endif

DEVICE int ceil_div_int(int n, int by)
{
    return (n + by - 1) / by;
}

DEVICE int round_up_int(int n, int to)
{
    return ceil_div_int(n, to) * to;
}

/* --- cluster ---------------------------------------------------------------------------- */

DEVICE uint32_t smem_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

DEVICE uint32_t cluster_rank(void)
{
    uint32_t r;

    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

/* The same address in another block of the cluster. */
DEVICE uint32_t cluster_address(uint32_t address, uint32_t rank)
{
    uint32_t r;

    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
    return r;
}

DEVICE void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release;\n"
                 "barrier.cluster.wait.acquire;" ::
                     : "memory");
}

/* Barrier over some warps of a block. */
DEVICE void named_barrier_sync(int barrier, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* --- mbarriers: count arrivals and bytes ---------------------------------------------------- */

DEVICE void mbarrier_create(uint32_t b, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(arrivals) : "memory");
}

DEVICE void mbarrier_create_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

DEVICE void mbarrier_arrive(uint32_t b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}

DEVICE void mbarrier_arrive_expect_tx(uint32_t b, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes)
                 : "memory");
}

/* Arrives at a barrier in another block of the cluster. Without .release.cluster, which costs a
 * quarter of a kernel's speed: data of ordinary stores must not be handed over this way. */
DEVICE void mbarrier_arrive_cluster(uint32_t b, uint32_t rank)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(b, rank))
                 : "memory");
}

DEVICE void mbarrier_arrive_expect_tx_cluster(uint32_t b, uint32_t rank, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(
                     cluster_address(b, rank)),
                 "r"(bytes)
                 : "memory");
}

DEVICE bool mbarrier_try_wait(uint32_t b, uint32_t parity)
{
    uint32_t ok;

    asm volatile("{\n .reg .pred p;\n"
                 " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 " selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(ok)
                 : "r"(b), "r"(parity)
                 : "memory");
    return ok != 0;
}

DEVICE uint64_t global_timer_ns(void)
{
    uint64_t t;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* For threads with few registers: with TRAP_ON_HANG a hang becomes an error after two seconds. In
 * threads with accumulators the mere presence of __trap() would spill them; the producer, which
 * waits for them at the end, detects their hangs. */
DEVICE void mbarrier_wait_or_trap(uint32_t b, uint32_t parity)
{
    const uint64_t since = TRAP_ON_HANG ? global_timer_ns() : 0;

    for (uint32_t n = 0; !mbarrier_try_wait(b, parity);)
        if (++n >> 26 || (TRAP_ON_HANG && global_timer_ns() - since > 2000000000))
            __trap();
}

DEVICE void mbarrier_wait(uint32_t b, uint32_t parity)
{
    while (!mbarrier_try_wait(b, parity)) {
    }
}

/* Position in a ring of N stages: index and parity (CUTLASS: PipelineState). */
template <int N> struct pipeline_state {
    uint32_t i, parity;

    __device__ __forceinline__ void next()
    {
        if (++i == N) {
            i = 0;
            parity ^= 1;
        }
    }
};

/* --- shared memory --------------------------------------------------------------------------- */

/* Address of the i-th sixteen bytes of a 128-byte row, in TMA's 128-byte swizzle. */
DEVICE uint32_t swizzle_128b(uint32_t rows, int row, int i)
{
    return rows + row * 128 + ((i ^ (row & 7)) << 4);
}

DEVICE int4 smem_load4(uint32_t a)
{
    int4 v;

    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(a)
                 : "memory");
    return v;
}

DEVICE void smem_clear4(uint32_t a)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(a), "r"(0) : "memory");
}

DEVICE void smem_store4(uint32_t a, uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(a), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

DEVICE void smem_store2(uint32_t a, uint32_t x, uint32_t y)
{
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(a), "r"(x), "r"(y) : "memory");
}

/* stmatrix: stores four 8 x 8 matrices of 16-bit elements from a warp's registers. */
DEVICE void stmatrix_x4(uint32_t a, const uint32_t *v)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(a),
                 "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}

/* The inverse, a load. */
DEVICE void ldmatrix_x4(uint32_t (&v)[4], uint32_t a)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(a)
                 : "memory");
}

/* The same, each matrix transposed. */
DEVICE void ldmatrix_x4_trans(uint32_t (&v)[4], uint32_t a)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(a)
                 : "memory");
}

/* Stores to a block of the cluster; its mbarrier counts the bytes. */
DEVICE void st_async_cluster(uint32_t a, uint32_t b, uint32_t rank, int4 v)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], "
                 "{%1, %2, %3, %4}, [%5];" ::"r"(cluster_address(a, rank)),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(cluster_address(b, rank))
                 : "memory");
}

/* Orders this thread's earlier stores before later TMA copies and wgmma reads. */
DEVICE void fence_proxy_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* --- tensor copies (TMA) ---------------------------------------------------------------------- */

/* Copies contiguous bytes, a multiple of 16, to shared memory; marked evict-first in L2. */
DEVICE void tma_bulk_load_once(uint32_t to, const void *from, uint32_t bytes, uint32_t b)
{
    uint64_t first;

    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(b), "l"(first)
                 : "memory");
}

DEVICE void tma_prefetch_descriptor(const CUtensorMap *m)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(m) : "memory");
}

/* Loads the box at (x, y) into shared memory, of this block or (multicast) of both. */
DEVICE void tma_load(uint32_t to, const CUtensorMap *m, uint32_t b, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(m), "r"(b), "r"(x), "r"(y)
                 : "memory");
}

DEVICE void tma_load_multicast(uint32_t to, const CUtensorMap *m, uint32_t b, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(m), "r"(b), "r"(x), "r"(y), "h"((uint16_t)3)
                 : "memory");
}

DEVICE void tma_load(uint32_t to, const CUtensorMap *m, uint32_t b, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(m), "r"(b), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

DEVICE void tma_store(const CUtensorMap *m, uint32_t from, int x, int y)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(m),
        "r"(from), "r"(x), "r"(y)
        : "memory");
}

DEVICE void tma_reduce_add(const CUtensorMap *m, uint32_t from, int x, int y)
{
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group "
                 "[%0, {%2, %3}], [%1];" ::"l"(m),
                 "r"(from), "r"(x), "r"(y)
                 : "memory");
}

DEVICE void tma_store_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until all but the last N groups of stores have read shared memory, or have completed. */
template <int N> DEVICE void tma_store_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
DEVICE void tma_store_wait(void)
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* --- wgmma ----------------------------------------------------------------------------------- */

DEVICE void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
DEVICE void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> DEVICE void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Descriptor of an operand in shared memory with rows of 128 bytes, swizzled. MN_MAJOR: its M or N
 * dimension is contiguous, 64 at a time, 8 KiB between groups of 64; else K is. */
template <bool MN_MAJOR> DEVICE uint64_t smem_descriptor(uint32_t address)
{
    const uint64_t next = MN_MAJOR ? 8192 >> 4 : 1;

    return (uint64_t)((address & 0x3FFFF) >> 4) | next << 16 | (uint64_t)(1024 >> 4) << 32 |
           1ull << 62;
}

/* D [64, 256] = A [64, 16] B [16, 256] (+ D if `keep`), with D in the registers of a warpgroup. */
#define D9DI_R4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D9DI_R16(i) D9DI_R4(i), D9DI_R4(i + 4), D9DI_R4(i + 8), D9DI_R4(i + 12)
template <bool A_MN_MAJOR, bool B_MN_MAJOR>
DEVICE void wgmma_64x256x16(float (&d)[128], uint64_t a, uint64_t b, int keep)
{
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %130, 0;\n"
                 " wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
                 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
                 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127},"
                 " %128, %129, p, 1, 1, %131, %132;\n}"
                 : D9DI_R16(0), D9DI_R16(16), D9DI_R16(32), D9DI_R16(48), D9DI_R16(64),
                   D9DI_R16(80), D9DI_R16(96), D9DI_R16(112)
                 : "l"(a), "l"(b), "r"(keep), "n"(A_MN_MAJOR), "n"(B_MN_MAJOR));
}
/* The same with D [64, 64] and both operands K-major. */
DEVICE void wgmma_64x64x16(float (&d)[32], uint64_t a, uint64_t b, int keep)
{
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %34, 0;\n"
                 " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                 " %32, %33, p, 1, 1, 0, 0;\n}"
                 : D9DI_R16(0), D9DI_R16(16)
                 : "l"(a), "l"(b), "r"(keep));
}
/* The same with A in registers, 4 per thread: rows r and r + 8, elements 2 c and 2 c + 1, and both
 * again 8 further. r = lane / 4, c = lane % 4. D [64, N] has COUNT = N / 2 registers per thread,
 * asm operands 0 on, which LIST names; the following ones A .. F are those of A, B and B's
 * major-ness. */
#define D9DI_TEN(t)                                                                                \
    "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9"
#define D9DI_40 D9DI_TEN() "," D9DI_TEN(1) "," D9DI_TEN(2) "," D9DI_TEN(3)
#define D9DI_80 D9DI_40 "," D9DI_TEN(4) "," D9DI_TEN(5) "," D9DI_TEN(6) "," D9DI_TEN(7)
#define D9DI_WGMMA_RS(N, COUNT, LIST, A, B, C, E, F, KEEP, MN_MAJOR, ...)                          \
    template <bool B_MN_MAJOR>                                                                     \
    DEVICE void wgmma_rs(float(&d)[COUNT], const uint32_t *a, uint64_t b, int keep)                \
    {                                                                                              \
        asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #KEEP ", 0;\n"                         \
                     " wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" LIST "},"       \
                     " {%" #A ",%" #B ",%" #C ",%" #E "}, %" #F ", p, 1, 1, %" #MN_MAJOR ";\n}"    \
                     : __VA_ARGS__                                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep),              \
                       "n"(B_MN_MAJOR));                                                           \
    }
D9DI_WGMMA_RS(64, 32, D9DI_TEN() "," D9DI_TEN(1) "," D9DI_TEN(2) ",%30,%31", 32, 33, 34, 35, 36, 37,
              38, D9DI_R16(0), D9DI_R16(16))
D9DI_WGMMA_RS(80, 40, D9DI_40, 40, 41, 42, 43, 44, 45, 46, D9DI_R16(0), D9DI_R16(16), D9DI_R4(32),
              D9DI_R4(36))
D9DI_WGMMA_RS(96, 48, D9DI_40 ",%40,%41,%42,%43,%44,%45,%46,%47", 48, 49, 50, 51, 52, 53, 54,
              D9DI_R16(0), D9DI_R16(16), D9DI_R16(32))
D9DI_WGMMA_RS(112, 56, D9DI_40 "," D9DI_TEN(4) ",%50,%51,%52,%53,%54,%55", 56, 57, 58, 59, 60, 61,
              62, D9DI_R16(0), D9DI_R16(16), D9DI_R16(32), D9DI_R4(48), D9DI_R4(52))
D9DI_WGMMA_RS(128, 64, D9DI_40 "," D9DI_TEN(4) "," D9DI_TEN(5) ",%60,%61,%62,%63", 64, 65, 66, 67,
              68, 69, 70, D9DI_R16(0), D9DI_R16(16), D9DI_R16(32), D9DI_R16(48))
D9DI_WGMMA_RS(160, 80, D9DI_80, 80, 81, 82, 83, 84, 85, 86, D9DI_R16(0), D9DI_R16(16), D9DI_R16(32),
              D9DI_R16(48), D9DI_R16(64))
D9DI_WGMMA_RS(192, 96, D9DI_80 "," D9DI_TEN(8) ",%90,%91,%92,%93,%94,%95", 96, 97, 98, 99, 100, 101,
              102, D9DI_R16(0), D9DI_R16(16), D9DI_R16(32), D9DI_R16(48), D9DI_R16(64),
              D9DI_R16(80))
D9DI_WGMMA_RS(224, 112, D9DI_80 "," D9DI_TEN(8) "," D9DI_TEN(9) "," D9DI_TEN(10) ",%110,%111", 112,
              113, 114, 115, 116, 117, 118, D9DI_R16(0), D9DI_R16(16), D9DI_R16(32), D9DI_R16(48),
              D9DI_R16(64), D9DI_R16(80), D9DI_R16(96))
D9DI_WGMMA_RS(256, 128,
              D9DI_80 "," D9DI_TEN(8) "," D9DI_TEN(9) "," D9DI_TEN(10) "," D9DI_TEN(
                  11) ",%120,%121,%122,%123,%124,%125,%126,%127",
              128, 129, 130, 131, 132, 133, 134, D9DI_R16(0), D9DI_R16(16), D9DI_R16(32),
              D9DI_R16(48), D9DI_R16(64), D9DI_R16(80), D9DI_R16(96), D9DI_R16(112))
#undef D9DI_WGMMA_RS

/* D [64, 128] = A [64, 32] B [32, 128] (+ D if `keep`) of 8 bits, both operands K-major in shared
 * memory: e5m2 where said, else e4m3. */
#define D9DI_WGMMA_FP8(AT, BT)                                                                     \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %66, 0;\n"                                    \
                 " wgmma.mma_async.sync.aligned.m64n128k32.f32." AT "." BT " {" D9DI_40            \
                 "," D9DI_TEN(4) "," D9DI_TEN(5) ",%60,%61,%62,%63}, %64, %65, p, 1, 1;\n}"        \
                 : D9DI_R16(0), D9DI_R16(16), D9DI_R16(32), D9DI_R16(48)                           \
                 : "l"(a), "l"(b), "r"(keep))
template <bool A_E5M2, bool B_E5M2>
DEVICE void wgmma_fp8_64x128x32(float (&d)[64], uint64_t a, uint64_t b, int keep)
{
    if constexpr (A_E5M2)
        D9DI_WGMMA_FP8("e5m2", "e4m3");
    else if constexpr (B_E5M2)
        D9DI_WGMMA_FP8("e4m3", "e5m2");
    else
        D9DI_WGMMA_FP8("e4m3", "e4m3");
}
#undef D9DI_WGMMA_FP8
#undef D9DI_80
#undef D9DI_40
#undef D9DI_TEN
#undef D9DI_R16
#undef D9DI_R4

/* Keeps the compiler from moving uses of d before the wait for wgmma. */
template <int N> DEVICE void wgmma_fence_operand(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

DEVICE uint32_t pack_bf16(float low, float high)
{
    uint32_t r;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* --- TMA descriptors, on the host ------------------------------------------------------------- */

typedef __typeof__(cuTensorMapEncodeTiled) tensor_map_encode_fn;

/* Encodes TMA descriptors; keeps the first failure. */
struct tensor_map_encoder {
    const char *op;
    tensor_map_encode_fn *f;
    d9d_status st;

    /* Of an array with dim[0] contiguous and strides of stride[i] bytes in dimension i + 1.
     * Elements outside of it are loaded as 0. */
    void make(CUtensorMap *m, d9d_dtype t, const void *p, unsigned ndim, const cuuint64_t *dim,
              const cuuint64_t *stride, const cuuint32_t *box)
    {
        const cuuint32_t one[] = {1, 1, 1};
        const CUtensorMapDataType type = t == D9D_F32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                         : t == D9D_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                         : CU_TENSOR_MAP_DATA_TYPE_UINT8;
        CUresult e;

        if (st != D9D_OK)
            return;
        e = f(m, type, ndim, (void *)p, dim, stride, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE,
              CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
        if (e != CUDA_SUCCESS)
            st = D9D_FAIL(D9D_ECUDA, "%s: no tensor map of %llu x %llu: error %d", op,
                          (unsigned long long)dim[1], (unsigned long long)dim[0], (int)e);
    }
};

#endif /* D9DI_CUDA_COMMON_SM90_CUH */
