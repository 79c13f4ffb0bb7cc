/* op_row_collectives.h - rows of the ranks of a group on their way: gathered, or summed.
 *
 * Of n ranks, R rows each: a gather makes [n R, W] of what each has, [R, W], in the order of ranks;
 * a sum makes of each rank's [n R, W] the sums of this rank's rows, [R, W], added in the order of
 * ranks.  They come from the rooms of the group (d9d/comm/comm.h), rank by rank, beside what is
 * computed; where it has none, by its collectives when the move ends.
 *
 *     D9D_TRY_OR(st, d9di_move_begin(&m, t, D9DI_GATHER, &rows), out);
 *     D9D_TRY_OR(st, d9di_gather_go(&m, all, mine), out);
 *     ...                                        // computation beside it
 *     st = d9di_gather_end(&m);                  // from here on all is there
 *
 *     D9D_TRY_OR(st, d9di_move_begin(&m, t, D9DI_SUM, &rows), out);
 *     D9D_TRY_OR(st, d9di_sum_go(&m, all), out); // what the others need of it
 *     ...
 *     st = d9di_sum_end(&m, all, NULL, y);
 * out:
 *     d9di_move_release(&m);
 */
#ifndef D9DI_OP_PARALLEL_OP_ROW_COLLECTIVES_H
#define D9DI_OP_PARALLEL_OP_ROW_COLLECTIVES_H

#include "op/op_common.h"

typedef enum d9di_move_kind { D9DI_GATHER, D9DI_SUM } d9di_move_kind;

typedef struct d9di_move_rows {
    d9d_comm *comm; /* of several ranks */
    const char *what;
    d9d_dtype t;
    int64_t n; /* elements of one rank's, the same on all */
} d9di_move_rows;

typedef struct d9di_move {
    d9d_tape *tape;
    d9di_move_rows rows;
    bool by_room; /* the same on all ranks */
    void *all;    /* of a gather */
    const void *mine;
    d9d_tensor came; /* of a sum: the parts of the others, [ranks - 1, n] */
} d9di_move;

/* Collective: makes rooms where there are none so large. */
d9d_status d9di_move_begin(d9di_move *m, d9d_tape *t, d9di_move_kind kind, const d9di_move_rows *r);
void d9di_move_release(d9di_move *m);

/* The i-th of the group's ranks behind this one, which is number 0 and the last. */
static inline int d9di_move_behind(const d9di_move *m, int i)
{
    return (d9d_comm_rank(m->rows.comm) + i) % d9d_comm_size(m->rows.comm);
}

/* mine [n] stays until the end; all [ranks, n]. */
d9d_status d9di_gather_go(d9di_move *m, void *all, const void *mine);
/* By rooms: what is queued from here on has the rows of rank `from` of the group, at *rows; those
 * of this rank are there at once. */
d9d_status d9di_gather_join(const d9di_move *m, int from, const void **rows);
d9d_status d9di_gather_end(const d9di_move *m);

/* By rooms, in place of go where parts are made one by one: where the part of another rank is to be
 * written, that it has been queued, and that all others have.  No other move is under way then; of
 * those that go whole several may be, of one size. */
void *d9di_sum_place(const d9di_move *m, int to);
d9d_status d9di_sum_tell(const d9di_move *m, int to);
d9d_status d9di_sum_take(const d9di_move *m);

/* all [ranks, n] */
d9d_status d9di_sum_go(const d9di_move *m, const void *all);
/* y [n] = the sum, + plus [n] unless it is NULL, rounded once where it came by rooms.  all NULL: by
 * rooms, and this rank's part is in y. */
d9d_status d9di_sum_end(const d9di_move *m, const void *all, const void *plus, void *y);

#endif /* D9DI_OP_PARALLEL_OP_ROW_COLLECTIVES_H */
