/* common.h - what the CUDA kernels share on the host: the stream, scratch memory, GEMM.
 *
 * An entry d9d_k_<op> checks its arguments, allocates scratch, launches, and returns
 * d9di_cuda_check_launch(); it never waits. Device code is deterministic: sums have an order that
 * only sizes decide, without atomics on floats.
 */
#ifndef D9DI_CUDA_COMMON_COMMON_H
#define D9DI_CUDA_COMMON_COMMON_H

#include <cuda_runtime_api.h>
#ifdef __cplusplus
#include <type_traits>
#endif

#include "common/kernel_common.h"
#include "d9d/kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every entry of the tables, d9d_k_<op>, declared with its type there. */
#ifdef __cplusplus
#define DECLARE(family, member, op)                                                                \
    extern std::remove_pointer_t<decltype(d9d_##family##_kernels::member)> d9d_k_##op;
#else
#define DECLARE(family, member, op)                                                                \
    extern __typeof__(*((d9d_##family##_kernels *)0)->member) d9d_k_##op;
#endif
#define FAMILY(family, list) list(DECLARE)
D9D_KERNEL_FAMILIES(FAMILY)
#undef FAMILY
#undef DECLARE

struct d9d_disk_cache;
typedef struct d9di_cublaslt d9di_cublaslt;
typedef struct d9di_cudnn_attention d9di_cudnn_attention;

struct d9d_stream_state {
    int index; /* CUDA device index */
    cudaStream_t stream;
    int sms;                 /* number of SMs */
    int major;               /* of the compute capability */
    int64_t max_smem;        /* most bytes of shared memory per block */
    void *tensor_map_encode; /* cuTensorMapEncodeTiled; NULL without wgmma */
    d9d_cuda_owner owner;
    d9d_cuda_opts opts;
    char *cache_dir; /* of opts, a copy */
    d9di_cublaslt *cublaslt;
    d9di_cudnn_attention *cudnn_attention; /* NULL until it is needed */
    unsigned logged_notices;               /* bit set of d9di_cuda_notice */
};

/* The CUDA stream to launch on; makes its GPU current for this thread. */
cudaStream_t d9di_cuda_stream(d9d_stream s);

/* Scratch for work that is enqueued before the matching d9di_cuda_scratch_free(). */
d9d_status d9di_cuda_scratch_alloc(d9d_stream s, int64_t bytes, void **out);
void d9di_cuda_scratch_free(d9d_stream s, void *p, int64_t bytes);

/* Writes a line to the owner's log. */
void d9di_cuda_log(d9d_stream s, d9d_log_level level, const char *fmt, ...) D9D_PRINTF(3, 4);

/* Logs, once per kind, that a GEMM, or attention of IN queries to OUT keys, does not run on the
 * fast kernel, and why: "OP: IN x OUT in bfloat16 by slower kernels: WHY". */
typedef enum d9di_cuda_notice {
    D9DI_SLOW_GROUPED,
    D9DI_SLOW_SWIGLU,
    D9DI_SLOW_HEAD,
    D9DI_SLOW_ATTENTION,
    D9DI_SLOW_FP8
} d9di_cuda_notice;
void d9di_say_slow(d9d_stream s, d9di_cuda_notice kind, const char *op, int64_t in, int64_t out,
                   const char *why);

/* "OP: CUDA's error string", as ECUDA, or EOOM when memory is out. */
d9d_status d9di_cuda_fail(const char *op, cudaError_t e);
static inline d9d_status d9di_cuda_check_launch(const char *op)
{
    const cudaError_t e = cudaGetLastError();

    return e == cudaSuccess ? D9D_OK : d9di_cuda_fail(op, e);
}

/* Sets the most dynamic shared memory, in bytes, that launches of this kernel may request. */
d9d_status d9di_cuda_set_max_smem(const char *op, const void *kernel, int64_t bytes);

/* The driver's cuTensorMapEncodeTiled; NULL unless both this build and the GPU have wgmma. */
void *d9di_cuda_tensor_map_encode(int major);

/* Opens what earlier runs have kept of a library's choices for this GPU, driver and version; keys
 * and values belong to the library's caller. */
void d9di_cuda_open_cache(d9d_stream s, const char *library, uint64_t version,
                          struct d9d_disk_cache *out);
/* Seconds without a new choice after which a stream writes its cache. */
#define D9DI_CUDA_CACHE_IDLE_S 2.0

/* cuBLASLt, loaded at run time. The first loads it without a GPU, and reports nothing. */
void d9di_cublaslt_preload(void);
d9d_status d9di_cublaslt_open(d9d_stream s, d9di_cublaslt **out);
void d9di_cublaslt_close(d9di_cublaslt *b);
/* Elements from a row to the next and from a matrix of a batch to the next, as stored. */
typedef struct d9di_gemm_strides {
    int64_t a_row, b_row, c_row, a_matrix, b_matrix, c_matrix;
} d9di_gemm_strides;
/* Those of dense matrices. */
static inline d9di_gemm_strides d9di_gemm_strides_dense(const d9d_gemm *g)
{
    return (d9di_gemm_strides){.a_row = g->trans_a ? g->m : g->k,
                               .b_row = g->trans_b ? g->k : g->n,
                               .c_row = g->n,
                               .a_matrix = g->m * g->k,
                               .b_matrix = g->k * g->n,
                               .c_matrix = g->m * g->n};
}

/* Operands of 8 bits (d9d/kernels/fp8.h), in place of a GEMM's `t`: types and scales. */
typedef struct d9di_gemm_scales {
    d9d_dtype at, bt;
    bool by_row, fast_accum;
    const float *a, *b;
} d9di_gemm_scales;

/* A batch of products with all dimensions above 0. `scales`: NULL, or of a product whose operands
 * are K-major and whose `t` is a type of 8 bits. *done is false if cuBLASLt has no algorithm for
 * these types and shapes on this GPU. */
d9d_status d9di_cublaslt_gemm(d9d_stream s, const char *op, const d9d_gemm_batched *batch,
                              const d9di_gemm_strides *strides, const d9di_gemm_scales *scales,
                              const void *a, const void *b, void *c, bool *done);
/* x[i][j] = x[j][i] for j > i in each of `count` matrices [m, m]. */
d9d_status d9di_mirror_lower(d9d_stream s, const char *op, d9d_dtype t, void *x, int64_t count,
                             int64_t m);

/* Any GEMM: skinny kernel, cuBLASLt or SIMT tiles; implements d9d_k_gemm. */
d9d_status d9di_gemm(d9d_stream s, const char *op, const d9d_gemm *g, const void *a, const void *b,
                     void *c);
/* GEMM in SIMT tiles, for any sizes. */
d9d_status d9di_gemm_simt(d9d_stream s, const char *op, const d9d_gemm *g, const void *a,
                          const void *b, void *c);

/* The array that is added to the GEMM; NULL: none. */
static inline const void *d9di_gemm_addend(const d9d_gemm *g, const void *c)
{
    return g->beta == 0.0f ? NULL : g->addend != NULL ? g->addend : c;
}

/* Stable sort of n keys below `keys`: `order` lists the positions 0..n-1 by key, equal keys
 * ascending and negative keys last. start[x], x in [0, keys], is where key x begins; start[keys]
 * where the negative keys do. A key that is too large counts as the last one. All arrays are on the
 * device. */
d9d_status d9di_radix_sort(d9d_stream s, const char *op, const int32_t *key, int64_t n,
                           int64_t keys, int32_t *order, int32_t *start);

#ifdef __cplusplus
}
#endif
#endif /* D9DI_CUDA_COMMON_COMMON_H */
