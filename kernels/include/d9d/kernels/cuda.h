/* cuda.h - the kernel table of NVIDIA GPUs, and the stream that its entries run on.
 *
 * Only in builds with CUDA.  The device that makes a stream lends it scratch memory: a
 * kernel takes a block, queues work that uses it and gives it back at once; the next taker
 * on the same stream runs later, so nothing waits.
 *
 *     const d9d_cuda_memory memory = {self, take, give};
 *     D9D_TRY(d9d_cuda_stream_create(0, &memory, &s));
 *     D9D_TRY(d9d_kernels_cuda()->fill(s, D9D_F32, y, n, 1.0f));
 *     d9d_cuda_stream_free(s);
 *
 * cuBLASLt is loaded when a stream is made, so programs start without it.
 */
#ifndef D9D_KERNELS_CUDA_H
#define D9D_KERNELS_CUDA_H

#include "d9d/kernels/table.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_cuda_memory {
    void *self;
    d9d_status (*take)(void *self, uint64_t n, void **out); /* aligned to 256 bytes */
    void (*give)(void *self, void *p, uint64_t n);
} d9d_cuda_memory;

/* A stream on GPU `index`, which is there.  ENOTFOUND when its compute capability is below 8.0;
 * ENOTSUP names the library that is missing. */
D9D_API D9D_MUST_USE d9d_status d9d_cuda_stream_create(int index, const d9d_cuda_memory *memory,
                                                       d9d_stream *out);
/* All of its work must be done. */
D9D_API void d9d_cuda_stream_free(d9d_stream s);

/* The CUstream_st * inside, for copies in the same order. */
D9D_API struct CUstream_st *d9d_cuda_stream_queue(d9d_stream s);

D9D_API const d9d_kernels *d9d_kernels_cuda(void);

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_CUDA_H */
