/* softmax_exp.h - the softmax of a head's logits before its sum is known, in one product.
 *
 *     p = 2^(hidden W' log2(e) - n)        n a whole number for each row and TILE columns
 *
 * n is reference[row], or near the largest logit of the tile where one is SLACK above that, so that
 * nothing overflows.  A power of two times what is bfloat16 is exact, so that tiles can be brought
 * to one n later.  A reference of +inf is for a row that is ignored: its p are 0.
 */
#ifndef D9DI_CUDA_LOSS_SOFTMAX_EXP_H
#define D9DI_CUDA_LOSS_SOFTMAX_EXP_H

#include "cuda/common/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* n, and the sum of the tile's p of a row, in float32 before they are rounded. */
typedef struct d9di_softmax_exp_part {
    float n, sum;
} d9di_softmax_exp_part;

enum { D9DI_SOFTMAX_EXP_TILE = 256 };
#define D9DI_SOFTMAX_EXP_SLACK                                                                     \
    43.0f /* 2^43 is far from the end of float32, with every vocabulary */

/* p [rows, n] of type bfloat16 of rows [rows, h] and w [n, h]; part [rows, stride], a column for
 * each TILE columns of p. */
typedef struct d9di_softmax_exp_args {
    int64_t rows, h, n;
    const float *reference;
    d9di_softmax_exp_part *part;
    int64_t stride;
} d9di_softmax_exp_args;

/* On compute capability 9.0: h and n that are multiples of 8, in bfloat16. */
bool d9di_softmax_exp_sm90_supported(d9d_stream s, d9d_dtype t, int64_t rows, int64_t h, int64_t n);
d9d_status d9di_softmax_exp_sm90(d9d_stream s, const char *op, const d9di_softmax_exp_args *c,
                                 void *p, const void *hidden, const void *w);

#ifdef __cplusplus
}
#endif
#endif /* D9DI_CUDA_LOSS_SOFTMAX_EXP_H */
