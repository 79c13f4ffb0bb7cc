/* reduce.h - reductions of arrays to a few numbers, which stay in device memory.
 *
 * The rules of every entry and the shape letters are in table.h. Kernels: kernels/cuda/common.
 */
#ifndef D9D_KERNELS_REDUCE_H
#define D9D_KERNELS_REDUCE_H

#include <stdint.h>

#include "d9d/base/dtype.h"
#include "d9d/base/status.h"
#include "d9d/kernels/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One of several arrays that a call processes together (multi-tensor apply). The list is in host
 * memory; the call launches as many kernels as for one long array. */
typedef struct d9d_sum_squares_array {
    const void *x;
    int64_t n;
} d9d_sum_squares_array;

/* The same, by bytes. */
typedef struct d9d_checksum_array {
    const void *x; /* at any address; on a GPU a multiple of 16 is fastest */
    int64_t bytes;
} d9d_checksum_array;

typedef struct d9d_reduce_kernels {
    /* out[i] = sum of squares of array i, in float64, over blocks that only its length decides. */
    d9d_status (*sum_squares)(d9d_stream s, double *out, d9d_dtype t,
                              const d9d_sum_squares_array *list, int64_t count);
    /* out[0] = x[0] + x[1] + ..., in this order. */
    d9d_status (*sum_ordered)(d9d_stream s, double *out, const double *x, int64_t n);
    d9d_status (*sum)(d9d_stream s, double *out, double beta, d9d_dtype t, const void *x,
                      int64_t n);
    /* out[0] = index of the first element that is NaN or infinite, or -1. */
    d9d_status (*find_nonfinite)(d9d_stream s, int64_t *out, d9d_dtype t, const void *x, int64_t n);
    /* out[i] += a checksum of the bits of array i, modulo 2^64: the sum over its 8-byte words, the
     * last one padded with zeros, of a bijection that depends on the word's index.  Arrays that
     * differ in one word always have different checksums; others are equal by chance, 2^-64. */
    d9d_status (*checksum)(d9d_stream s, uint64_t *out, const d9d_checksum_array *list,
                           int64_t count);
} d9d_reduce_kernels;

/* Every entry as X(family, member, op); its functions are d9d_ref_<op> and d9d_k_<op>. */
#define D9D_REDUCE_KERNELS(X)                                                                      \
    X(reduce, sum_squares, sum_squares)                                                            \
    X(reduce, sum_ordered, sum_ordered)                                                            \
    X(reduce, sum, sum)                                                                            \
    X(reduce, find_nonfinite, find_nonfinite)                                                      \
    X(reduce, checksum, checksum)

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_REDUCE_H */
