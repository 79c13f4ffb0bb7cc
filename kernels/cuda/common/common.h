/* common.h - what the CUDA kernels share on the host: the stream, scratch, products.
 *
 * An entry d9d_k_<op> checks its types, takes its scratch, launches, and asks
 * d9di_cuda_check_launch() whether the launches were accepted; it never waits.  Device code gives
 * one result for one input: sums run in an order that sizes alone decide, without atomics on
 * floats.
 */
#ifndef D9DI_CUDA_COMMON_COMMON_H
#define D9DI_CUDA_COMMON_COMMON_H

#include <cuda_runtime_api.h>

#include "common/kernel_common.h"
#include "d9d/kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9di_cublaslt d9di_cublaslt;
typedef struct d9di_cudnn_attention d9di_cudnn_attention;

struct d9d_stream_state {
    int index; /* of the GPU */
    cudaStream_t stream;
    int sms;                 /* multiprocessors */
    int major;               /* of the compute capability */
    int64_t max_smem;        /* bytes of shared memory that one block can have */
    void *tensor_map_encode; /* cuTensorMapEncodeTiled; NULL where there is no wgmma */
    d9d_cuda_owner owner;
    d9d_cuda_opts opts;
    d9di_cublaslt *cublaslt;
    d9di_cudnn_attention *cudnn_attention; /* NULL until it is needed */
    unsigned said;                         /* bits of d9di_notice */
};

/* The queue to launch on, its GPU made current for this thread. */
cudaStream_t d9di_cuda_stream(d9d_stream s);

/* Scratch for what is queued between take and give. */
d9d_status d9di_cuda_scratch_alloc(d9d_stream s, int64_t bytes, void **out);
void d9di_cuda_scratch_free(d9d_stream s, void *p, int64_t bytes);

/* A line to the owner's log. */
void d9di_cuda_log(d9d_stream s, d9d_log_level level, const char *fmt, ...) D9D_PRINTF(3, 4);

/* Which products do not run on the fast kernel, and why: "OP: IN x OUT in bfloat16 by slower
 * kernels: WHY", of each kind of product the first. */
typedef enum d9di_notice { D9DI_SLOW_GROUPED, D9DI_SLOW_GATED, D9DI_SLOW_HEAD } d9di_notice;
void d9di_say_slow(d9d_stream s, d9di_notice kind, const char *op, int64_t in, int64_t out,
                   const char *why);

/* "OP: what CUDA says", as ECUDA, or EOOM when memory is out. */
d9d_status d9di_cuda_fail(const char *op, cudaError_t e);
static inline d9d_status d9di_cuda_check_launch(const char *op)
{
    const cudaError_t e = cudaGetLastError();

    return e == cudaSuccess ? D9D_OK : d9di_cuda_fail(op, e);
}

/* The most dynamic shared memory that launches of this kernel may ask for. */
d9d_status d9di_cuda_set_max_smem(const char *op, const void *kernel, int64_t bytes);

/* cuTensorMapEncodeTiled of the driver; NULL unless this build and the GPU have wgmma. */
void *d9di_cuda_tensor_map_encode(int major);

/* cuBLASLt, loaded at run time. */
d9d_status d9di_cublaslt_open(d9di_cublaslt **out);
void d9di_cublaslt_close(d9di_cublaslt *b);
/* C = op(A) op(B) + beta C with all sides above 0; *done is false when the library has no
 * algorithm for such a product. */
d9d_status d9di_cublaslt_gemm(d9d_stream s, const char *op, const d9d_gemm *g, const void *a,
                              const void *b, void *c, bool *done);

/* A product by cuBLASLt, or by our own kernel; what d9d_k_gemm is. */
d9d_status d9di_gemm(d9d_stream s, const char *op, const d9d_gemm *g, const void *a, const void *b,
                     void *c);
/* Our own, for any sizes. */
d9d_status d9di_gemm_simt(d9d_stream s, const char *op, const d9d_gemm *g, const void *a,
                          const void *b, void *c);

/* What is added to the product; NULL: nothing. */
static inline const void *d9di_gemm_addend(const d9d_gemm *g, const void *c)
{
    return g->beta == 0.0f ? NULL : g->addend != NULL ? g->addend : c;
}

/* n keys below `keys`: `order` lists the positions 0..n-1 by key, those of one key ascending and
 * negative keys after all others; start[x], x in [0, keys], is where key x begins, start[keys]
 * where the negative ones do.  A key that is too large counts as the last one. */
d9d_status d9di_radix_sort(d9d_stream s, const char *op, const int32_t *key, int64_t n,
                           int64_t keys, int32_t *order, int32_t *start);

#ifdef __cplusplus
}
#endif
#endif /* D9DI_CUDA_COMMON_COMMON_H */
