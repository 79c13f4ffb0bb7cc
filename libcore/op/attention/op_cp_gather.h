/* op_cp_gather.h - rows that lie in pieces on the ranks of a group (d9d/nn/parallel_groups.h).
 *
 * x [B, S, ...] is what a rank of n has, y [B, n S, ...] the rows in order; both calls make their
 * result, to be released.  In a group of one it is the argument once more.
 */
#ifndef D9DI_OP_ATTENTION_OP_CP_GATHER_H
#define D9DI_OP_ATTENTION_OP_CP_GATHER_H

#include "op/parallel/op_row_collectives.h"

typedef struct d9di_op_cp {
    d9d_comm *comm;
    const char *label;
} d9di_op_cp;

/* Of s positions that this rank has of a row: where its piece i ends, counted over the row. */
int64_t d9di_op_cp_chunk_end(const d9di_op_cp *p, int64_t s, int i);

/* Rows on their way: d9di_op_cp_gather(), or d9di_op_cp_reduce_scatter(), in two, with computation
 * between them. */
typedef struct d9di_op_cp_transfer {
    d9di_op_row_coll coll;
    d9d_tensor gathered; /* [n, one rank's], in the order of ranks */
} d9di_op_cp_transfer;
d9d_status d9di_op_cp_gather_start(d9d_tape *t, const d9di_op_cp *p, const d9d_tensor *x,
                                   d9di_op_cp_transfer *m);
d9d_status d9di_op_cp_gather_wait(d9d_tape *t, const d9di_op_cp *p, const d9d_tensor *x,
                                  d9di_op_cp_transfer *m, d9d_tensor *y);
d9d_status d9di_op_cp_reduce_scatter_start(d9d_tape *t, const d9di_op_cp *p, const d9d_tensor *y,
                                           d9di_op_cp_transfer *m);
d9d_status d9di_op_cp_reduce_scatter_wait(d9d_tape *t, const d9di_op_cp *p, const d9d_tensor *y,
                                          d9di_op_cp_transfer *m, d9d_tensor *x);
void d9di_op_cp_transfer_release(d9di_op_cp_transfer *m);

/* EINVAL unless S is two pieces, where there are several ranks. */
d9d_status d9di_op_cp_check(const char *op, const char *name, const d9di_op_cp *p,
                            const d9d_tensor *x);
d9d_status d9di_op_cp_gather(d9d_tape *t, const d9di_op_cp *p, const d9d_tensor *x, d9d_tensor *y);
/* The sum over the ranks of this one's pieces of their y. */
d9d_status d9di_op_cp_reduce_scatter(d9d_tape *t, const d9di_op_cp *p, const d9d_tensor *y,
                                     d9d_tensor *x);

#endif /* D9DI_OP_ATTENTION_OP_CP_GATHER_H */
