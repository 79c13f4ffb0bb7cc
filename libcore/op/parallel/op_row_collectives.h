/* op_row_collectives.h - asynchronous all-gather and reduce-scatter of rows in a group.
 *
 * With n ranks of R rows each, an all-gather makes [n R, W] from each rank's [R, W], in rank order.
 * A reduce-scatter makes, from each rank's [n R, W], the sum of this rank's rows, [R, W], added in
 * rank order.  With symmetric memory (d9d/comm/comm.h) the rows come from staging buffers, rank by
 * rank, overlapped with computation.  Without it the group's collectives run in the wait.
 *
 *     D9D_TRY_OR(st, d9di_op_row_coll_init(&m, t, D9DI_ROW_ALL_GATHER, &rows), out);
 *     D9D_TRY_OR(st, d9di_op_all_gather_start(&m, all, local), out);
 *     ...                                          // computation, overlapped
 *     st = d9di_op_all_gather_wait(&m);            // from here on `all` is valid
 *
 *     D9D_TRY_OR(st, d9di_op_row_coll_init(&m, t, D9DI_ROW_REDUCE_SCATTER, &rows), out);
 *     D9D_TRY_OR(st, d9di_op_reduce_scatter_start(&m, all), out); // publishes other ranks' rows
 *     ...
 *     st = d9di_op_reduce_scatter_wait(&m, all, NULL, y);
 * out:
 *     d9di_op_row_coll_release(&m);
 */
#ifndef D9DI_OP_PARALLEL_OP_ROW_COLLECTIVES_H
#define D9DI_OP_PARALLEL_OP_ROW_COLLECTIVES_H

#include "op/op_common.h"

typedef enum d9di_op_row_coll_kind {
    D9DI_ROW_ALL_GATHER,
    D9DI_ROW_REDUCE_SCATTER
} d9di_op_row_coll_kind;

typedef struct d9di_op_row_coll_args {
    d9d_comm *comm; /* of several ranks */
    const char *label;
    d9d_dtype t;
    int64_t n; /* elements of one rank's rows, equal on all ranks */
} d9di_op_row_coll_args;

typedef struct d9di_op_row_coll {
    d9d_tape *tape;
    d9di_op_row_coll_args rows;
    bool uses_symm; /* staging buffers are used; equal on all ranks */
    void *all;      /* of an all-gather */
    const void *local;
    d9d_tensor recv; /* of a reduce-scatter: the other ranks' rows, [ranks - 1, n] */
} d9di_op_row_coll;

/* Collective: reserves staging buffers if they are too small. */
d9d_status d9di_op_row_coll_init(d9di_op_row_coll *m, d9d_tape *t, d9di_op_row_coll_kind kind,
                                 const d9di_op_row_coll_args *r);
void d9di_op_row_coll_release(d9di_op_row_coll *m);

/* The i-th rank after this one in ring order; 0 is this rank. */
static inline int d9di_op_row_coll_next_rank(const d9di_op_row_coll *m, int i)
{
    return (d9d_comm_rank(m->rows.comm) + i) % d9d_comm_size(m->rows.comm);
}

/* local [n] must live until the wait; all [ranks, n]. */
d9d_status d9di_op_all_gather_start(d9di_op_row_coll *m, void *all, const void *local);
/* With staging buffers: work enqueued from here on sees the rows of rank `from` of the group, at
 * *rows. This rank's own rows are there at once. */
d9d_status d9di_op_all_gather_wait_rank(const d9di_op_row_coll *m, int from, const void **rows);
d9d_status d9di_op_all_gather_wait(const d9di_op_row_coll *m);

/* With staging buffers, in place of start when parts are computed one by one: dst is the address
 * for the part of rank `to`, signal publishes that part, and get fetches those of the others.  No
 * other transfer may be in flight then.  Of those with start several may be, if they have one size.
 */
void *d9di_op_reduce_scatter_dst(const d9di_op_row_coll *m, int to);
d9d_status d9di_op_reduce_scatter_signal(const d9di_op_row_coll *m, int to);
d9d_status d9di_op_reduce_scatter_get(const d9di_op_row_coll *m);

/* all [ranks, n] */
d9d_status d9di_op_reduce_scatter_start(const d9di_op_row_coll *m, const void *all);
/* y [n] = the sum, + plus [n] unless that is NULL; rounded once with staging buffers.  all NULL:
 * staging buffers were used, and this rank's part is in y. */
d9d_status d9di_op_reduce_scatter_wait(const d9di_op_row_coll *m, const void *all, const void *plus,
                                       void *y);

#endif /* D9DI_OP_PARALLEL_OP_ROW_COLLECTIVES_H */
