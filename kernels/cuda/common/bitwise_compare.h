/* bitwise_compare.h - compares two arrays bit by bit, asynchronously. */
#ifndef D9DI_CUDA_COMMON_BITWISE_COMPARE_H
#define D9DI_CUDA_COMMON_BITWISE_COMPARE_H

#include "cuda/common/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets *different to 1 unless a and b, aligned to 16 bytes, have the same bits. *different is in
 * host memory that the GPU can write (pinned); enqueued on `s`. */
d9d_status d9di_bitwise_compare(d9d_stream s, const char *op, const void *a, const void *b,
                                int64_t bytes, int *different);

#ifdef __cplusplus
}
#endif
#endif /* D9DI_CUDA_COMMON_BITWISE_COMPARE_H */
