/* newton_schulz.h - orthogonalizes a batch of matrices by Newton-Schulz iterations.
 */
#ifndef D9DI_OPTIM_NEWTON_SCHULZ_H
#define D9DI_OPTIM_NEWTON_SCHULZ_H

#include "d9d/tensor/tensor.h"

typedef struct d9di_newton_schulz_opts {
    int64_t steps;
    float a, b, c; /* coefficients */
    float eps;     /* least norm to divide by */
} d9di_newton_schulz_opts;

/* Replace x [count, rows, columns], float32 or bfloat16, by the orthogonalized matrices.  With
 * X = x / max(|x|, eps), and in the type of x, `steps` times
 *
 *     A = X X';  X = a X + (b A + c A A) X
 *
 * or from the right, X = a X + X (b A + c A A) with A = X' X, where there are more rows than
 * columns.  x->storage may be another one afterwards. */
d9d_status d9di_newton_schulz(d9d_device *dev, const d9di_newton_schulz_opts *opts, d9d_tensor *x);

#endif /* D9DI_OPTIM_NEWTON_SCHULZ_H */
