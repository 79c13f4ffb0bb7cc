/* cuda.h - the kernel table of NVIDIA GPUs, and the stream that its entries run on.
 *
 * Only in builds with CUDA.  The device that makes a stream owns it.  It lends scratch memory: a
 * kernel takes a block, queues work that uses it and gives it back at once; the next taker
 * on the same stream runs later, so nothing waits.  It also hears which kernels were chosen.
 *
 *     const d9d_cuda_owner owner = {self, take, give, say};
 *     D9D_TRY(d9d_cuda_stream_create(0, &owner, &(d9d_cuda_opts){0}, &s));
 *     D9D_TRY(d9d_kernels_cuda()->fill(s, D9D_F32, y, n, 1.0f));
 *     d9d_cuda_stream_free(s);
 *
 * cuBLASLt is loaded when a stream is made, so programs start without it, and cuDNN when attention
 * comes that it could do.
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

/* Zeros are the defaults. */
typedef enum d9d_cuda_attention {
    D9D_CUDA_ATTENTION_CUDNN, /* where it is found and takes the shape; else our own */
    D9D_CUDA_ATTENTION_BUILTIN
} d9d_cuda_attention;

typedef struct d9d_cuda_opts {
    d9d_cuda_attention attention;
    bool nondeterministic; /* the gradient of cuDNN's attention may differ in the last bits between
                            * runs, for 6 to 14 % of its time and its scratch memory */
    bool high_priority; /* its kernels start before those of other streams: for what others wait for
                         */
    int64_t
        max_score_bytes; /* bytes that it may take for the scores, by working in pieces; 0: 4 GiB */
} d9d_cuda_opts;

/* A stream on GPU `index`, which is there.  ENOTFOUND when its compute capability is below 8.0;
 * ENOTSUP names the library that is missing. */
D9D_API D9D_MUST_USE d9d_status d9d_cuda_stream_create(int index, const d9d_cuda_owner *owner,
                                                       const d9d_cuda_opts *options,
                                                       d9d_stream *out);
/* All of its work must be done. */
D9D_API void d9d_cuda_stream_free(d9d_stream s);

/* The CUstream_st * inside, for copies in the same order. */
D9D_API struct CUstream_st *d9d_cuda_stream_handle(d9d_stream s);

D9D_API const d9d_kernels *d9d_kernels_cuda(void);

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_CUDA_H */
