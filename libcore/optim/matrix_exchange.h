/* matrix_exchange.h - brings the slices of matrices to their owners, and the results back.
 *
 *     slices of each rank --all-to-all--> whole matrices of each owner, which computes with them
 *     slices of each rank <--all-to-all-- the results
 *
 * for the matrices of one round of a class (matrix_plan.h):
 *
 *     D9D_TRY(d9di_matrix_round_open(&plan, class, k, D9D_BF16, &arena, &round));
 *     ... write the slices' inputs to round.slices[i].data ...
 *     D9D_TRY(d9di_matrix_round_gather(&round));
 *     ... compute with round.whole in place ...
 *     D9D_TRY(d9di_matrix_round_scatter(&round));
 *     ... read the slices' results from round.slices[i].data ...
 *     d9di_matrix_round_close(&round);
 *
 * A slice that is whole rows of a matrix of this rank's own is written to that matrix directly.
 */
#ifndef D9DI_OPTIM_MATRIX_EXCHANGE_H
#define D9DI_OPTIM_MATRIX_EXCHANGE_H

#include "optim/matrix_plan.h"

/* This rank's part of a matrix: a contiguous run of its shard. */
typedef struct d9di_matrix_slice {
    size_t update;
    int64_t first, n; /* elements of the shard */
    void *data;       /* [n] of the round's type: input, then result */
    bool is_direct;   /* in `whole` */
    int64_t at;       /* first element in `whole`, or of the result in `near` */
    int64_t input_at; /* of the input in `near` */
} d9di_matrix_slice;

typedef struct d9di_matrix_round {
    d9d_device *dev;
    d9d_comm *group;
    d9d_tensor whole; /* [matrices, rows, columns] that this rank owns */
    d9di_matrix_slice *slices;
    size_t n_slices;
    struct d9di_matrix_copy *copies; /* between `far` and `whole` */
    size_t n_copies;
    int64_t *counts;      /* [4, ranks]: elements to and from each rank, for inputs and results */
    d9d_tensor near, far; /* slices that this rank stores; of matrices that it owns */
} d9di_matrix_round;

d9d_status d9di_matrix_round_open(const d9di_matrix_plan *p, const d9di_matrix_class *c, size_t k,
                                  d9d_dtype t, d9d_arena *a, d9di_matrix_round *out);
/* Both are collective over the group. */
d9d_status d9di_matrix_round_gather(d9di_matrix_round *r);
d9d_status d9di_matrix_round_scatter(d9di_matrix_round *r);
void d9di_matrix_round_close(d9di_matrix_round *r);

#endif /* D9DI_OPTIM_MATRIX_EXCHANGE_H */
