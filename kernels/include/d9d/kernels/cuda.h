/* cuda.h - the kernel table of NVIDIA GPUs, and the CUDA stream that its entries run on.
 *
 * Only in builds with CUDA. The device that creates a stream owns it and provides scratch memory: a
 * kernel allocates a block, enqueues work that uses it and frees it at once. The next user of the
 * block runs later on the same stream, so nothing waits. The owner's log also receives which
 * kernels were chosen.
 *
 *     const d9d_cuda_owner owner = {self, alloc, free, log};
 *     D9D_TRY(d9d_cuda_stream_create(0, &owner, &(d9d_cuda_opts){0}, &s));
 *     D9D_TRY(d9d_kernels_cuda()->elementwise->fill(s, D9D_F32, y, n, 1.0f));
 *     d9d_cuda_stream_free(s);
 *
 * cuBLASLt is loaded with dlopen when a stream is created, so that programs start without it. cuDNN
 * is loaded at the first attention call that it may support.
 */
#ifndef D9D_KERNELS_CUDA_H
#define D9D_KERNELS_CUDA_H

#include "d9d/base/log.h"
#include "d9d/kernels/table.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_cuda_owner {
    void *self;
    d9d_status (*alloc)(void *self, uint64_t n, void **out); /* aligned to 256 bytes */
    void (*free)(void *self, void *p, uint64_t n);
    void (*log)(void *self, d9d_log_level level, const char *line);
} d9d_cuda_owner;

/* Which attention kernels to use; the first is the default. SIMT: only the float32 SIMT kernels.
 */
typedef enum d9d_cuda_attention {
    D9D_CUDA_ATTENTION_CUDNN, /* the fastest that supports the call: cuDNN, Hopper's own, SIMT */
    D9D_CUDA_ATTENTION_SIMT
} d9d_cuda_attention;

typedef struct d9d_cuda_opts {
    d9d_cuda_attention attention;
    bool nondeterministic; /* cuDNN's attention backward may differ in the last bits between
                              runs; it takes 6 to 14 % less time, and less scratch */
    bool high_priority;    /* kernels start before those of other streams: for work that others wait
                              for */
    int64_t max_score_bytes; /* most bytes of scratch for attention scores; larger calls are split;
                                0: 4 GiB */
    const char *cache_dir;   /* keeps choices of cuBLASLt and plans of cuDNN between runs; borrowed
                                until the stream is created; NULL: no run knows those of another */
    bool cache_read_only;
} d9d_cuda_opts;

/* Creates a stream on GPU `index`, which must exist. ENOTFOUND if its compute capability is below
 * 8.0; ENOTSUP, with the library's name, if a library is missing. */
D9D_API D9D_MUST_USE d9d_status d9d_cuda_stream_create(int index, const d9d_cuda_owner *owner,
                                                       const d9d_cuda_opts *options,
                                                       d9d_stream *out);
/* All of the stream's work must have completed. */
D9D_API void d9d_cuda_stream_free(d9d_stream s);

/* The CUDA stream itself, for copies in the same order. Borrowed. */
D9D_API struct CUstream_st *d9d_cuda_stream_handle(d9d_stream s);

/* A function of the CUDA driver, as of CUDA 12.0; NULL if this driver lacks it. */
D9D_API void *d9d_cuda_driver_function(const char *name);

D9D_API const d9d_kernels *d9d_kernels_cuda(void);

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_CUDA_H */
