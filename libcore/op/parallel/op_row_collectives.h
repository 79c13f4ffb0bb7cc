/* op_row_collectives.h - rows of the ranks of a group on their way: gathered, or summed.
 *
 * Of n ranks, R rows each: a gather makes [n R, W] of what each has, [R, W], in the order of ranks;
 * a sum makes of each rank's [n R, W] the sums of this rank's rows, [R, W], added in the order of
 * ranks.  They come from the rooms of the group (d9d/comm/comm.h), rank by rank, beside what is
 * computed; where it has none, by its collectives when the move ends.
 *
 *     D9D_TRY_OR(st, d9di_op_row_coll_init(&m, t, D9DI_ROW_ALL_GATHER, &rows), out);
 *     D9D_TRY_OR(st, d9di_op_all_gather_start(&m, all, mine), out);
 *     ...                                        // computation beside it
 *     st = d9di_op_all_gather_wait(&m);                  // from here on all is there
 *
 *     D9D_TRY_OR(st, d9di_op_row_coll_init(&m, t, D9DI_ROW_REDUCE_SCATTER, &rows), out);
 *     D9D_TRY_OR(st, d9di_op_reduce_scatter_start(&m, all), out); // what the others need of it
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
    int64_t n; /* elements of one rank's, the same on all */
} d9di_op_row_coll_args;

typedef struct d9di_op_row_coll {
    d9d_tape *tape;
    d9di_op_row_coll_args rows;
    bool uses_symm; /* the same on all ranks */
    void *all;      /* of a gather */
    const void *local;
    d9d_tensor recv; /* of a sum: the parts of the others, [ranks - 1, n] */
} d9di_op_row_coll;

/* Collective: makes rooms where there are none so large. */
d9d_status d9di_op_row_coll_init(d9di_op_row_coll *m, d9d_tape *t, d9di_op_row_coll_kind kind,
                                 const d9di_op_row_coll_args *r);
void d9di_op_row_coll_release(d9di_op_row_coll *m);

/* The i-th of the group's ranks behind this one, which is number 0 and the last. */
static inline int d9di_op_row_coll_next_rank(const d9di_op_row_coll *m, int i)
{
    return (d9d_comm_rank(m->rows.comm) + i) % d9d_comm_size(m->rows.comm);
}

/* mine [n] stays until the end; all [ranks, n]. */
d9d_status d9di_op_all_gather_start(d9di_op_row_coll *m, void *all, const void *mine);
/* By rooms: what is queued from here on has the rows of rank `from` of the group, at *rows; those
 * of this rank are there at once. */
d9d_status d9di_op_all_gather_wait_rank(const d9di_op_row_coll *m, int from, const void **rows);
d9d_status d9di_op_all_gather_wait(const d9di_op_row_coll *m);

/* By rooms, in place of go where parts are made one by one: where the part of another rank is to be
 * written, that it has been queued, and that all others have.  No other move is under way then; of
 * those that go whole several may be, of one size. */
void *d9di_op_reduce_scatter_dst(const d9di_op_row_coll *m, int to);
d9d_status d9di_op_reduce_scatter_signal(const d9di_op_row_coll *m, int to);
d9d_status d9di_op_reduce_scatter_get(const d9di_op_row_coll *m);

/* all [ranks, n] */
d9d_status d9di_op_reduce_scatter_start(const d9di_op_row_coll *m, const void *all);
/* y [n] = the sum, + plus [n] unless it is NULL, rounded once where it came by rooms.  all NULL: by
 * rooms, and this rank's part is in y. */
d9d_status d9di_op_reduce_scatter_wait(const d9di_op_row_coll *m, const void *all, const void *plus,
                                       void *y);

#endif /* D9DI_OP_PARALLEL_OP_ROW_COLLECTIVES_H */
