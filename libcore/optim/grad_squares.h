/* grad_squares.h - sums of squares of gradients that are released one after the other: each has a
 * place until the step ends, where they are added in the order of parameters.
 */
#ifndef D9DI_OPTIM_GRAD_SQUARES_H
#define D9DI_OPTIM_GRAD_SQUARES_H

#include "d9d/optim/optim.h"
#include "optim/optimizer_index.h"

enum { D9DI_GRAD_SQUARES_MAX_ARRAYS = 128 }; /* of one kernel call */

/* The gradient of a parameter, as a kernel call takes it. */
d9d_sum_squares_array d9di_grad_squares_array(const d9d_param *p);

typedef struct d9di_grad_squares {
    d9d_device *dev;
    d9di_optimizer_index index;
    size_t *place;      /* [params.n]: primary ones first, both in the order of params */
    size_t n_primary;   /* those of the norm */
    d9d_tensor sums[2]; /* [params.n] of step k at [k % 2]; a gradient that there is not has 0 */
    int64_t step;       /* the newest */
    d9d_tensor early;   /* [micro-batches + 1]: losses, and the targets, of all ranks */
    d9d_tensor guard; /* [3]: squares of the newest gradients; loss and norm, which nobody reads */
    d9d_param **sorted; /* [params.n]: by place, during a call */
    d9d_arena arena;
} d9di_grad_squares;

void d9di_grad_finalize_squares_release(d9d_grad_finalize *e);
/* Zeros for the next step, `step`. */
d9d_status d9di_grad_squares_begin(d9di_grad_squares *q, int64_t step);
/* The squares of some gradients, which the device's stream waits for.  *scale becomes NaN if one is
 * not finite. */
d9d_status d9di_grad_squares_add(d9di_grad_squares *q, const d9d_params *some,
                                 const d9d_tensor *scale);
/* *out on the device: the sum of those of the norm. */
d9d_status d9di_grad_squares_sum(const d9di_grad_squares *q, double *out);

#endif /* D9DI_OPTIM_GRAD_SQUARES_H */
