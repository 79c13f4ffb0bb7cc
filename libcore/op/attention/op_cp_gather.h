/* op_cp_gather.h - all-gather and reduce-scatter of context-parallel chunks of sequences
 * (d9d/nn/parallel_groups.h).
 *
 * x [B, S, ...] has the zigzag chunks of one of n ranks, y [B, n S, ...] the sequences in order.
 * Both calls allocate their result; the caller releases it.  In a group of one it is a reference to
 * the argument.
 */
#ifndef D9DI_OP_ATTENTION_OP_CP_GATHER_H
#define D9DI_OP_ATTENTION_OP_CP_GATHER_H

#include "op/parallel/op_row_collectives.h"

typedef struct d9di_op_cp {
    d9d_comm *comm;
    const char *label;
} d9di_op_cp;

/* Where chunk i of this rank ends, counted over the whole sequence; this rank has s positions of
 * it. */
int64_t d9di_op_cp_chunk_end(const d9di_op_cp *p, int64_t s, int i);

/* A transfer in flight: d9di_op_cp_gather() or d9di_op_cp_reduce_scatter() as start and wait, with
 * computation in between. */
typedef struct d9di_op_cp_transfer {
    d9di_op_row_coll coll;
    d9d_tensor gathered; /* [n, one rank's rows], in rank order */
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

/* EINVAL unless S is divisible into two chunks, where there are several ranks. */
d9d_status d9di_op_cp_check(const char *op, const char *name, const d9di_op_cp *p,
                            const d9d_tensor *x);
d9d_status d9di_op_cp_gather(d9d_tape *t, const d9di_op_cp *p, const d9d_tensor *x, d9d_tensor *y);
/* x becomes the sum over ranks of this rank's chunks of their y. */
d9d_status d9di_op_cp_reduce_scatter(d9d_tape *t, const d9di_op_cp *p, const d9d_tensor *y,
                                     d9d_tensor *x);

#endif /* D9DI_OP_ATTENTION_OP_CP_GATHER_H */
