/* op_tp_overlap.h - products beside the rows that they wait for, or that wait for them. */
#ifndef D9DI_OP_PARALLEL_OP_TP_OVERLAP_H
#define D9DI_OP_PARALLEL_OP_TP_OVERLAP_H

#include "op/op_common.h"

/* --- of rows that are on their way ------------------------------------------------------------ */

/* Rows [first, first + n) of a gather are at x. */
typedef struct d9di_op_tp_rows {
    int64_t first, n;
    const void *x;
} d9di_op_tp_rows;
typedef d9d_status d9di_op_tp_rows_fn(void *arg, const d9di_op_tp_rows *part);

/* Call f for the rows of each rank as they come, this one's first, and end the gather; once for all
 * where nothing is on its way.  `all` is what the gather makes. */
d9d_status d9di_op_tp_for_each_rank(d9d_tape *t, d9d_op_pending_rows *coming, const d9d_var *all,
                                    d9di_op_tp_rows_fn *f, void *arg);

/* --- of rows that are summed over ranks ----------------------------------------------------------
 */

typedef struct d9di_op_tp_reduce_scatter_args {
    d9d_comm *comm; /* of several ranks */
    const char *label;
    d9d_var *plus; /* NULL, or added to the sum */
    /* Queue rows [first, first + n) of what is summed, to y. */
    d9d_status (*make)(void *arg, int64_t first, int64_t n, void *y);
    void *arg;
} d9di_op_tp_reduce_scatter_args;

/* y [R / ranks, N] of what make makes of [R.., N]: part stands for that, and has no memory. */
d9d_status d9di_op_tp_reduce_scatter(d9d_tape *t, const d9di_op_tp_reduce_scatter_args *s,
                                     d9d_dtype type, d9d_shape shape, d9d_var **part, d9d_var **y);
/* ... and behind the record of what makes the part: */
d9d_status d9di_op_tp_reduce_scatter_record(d9d_tape *t, const d9di_op_tp_reduce_scatter_args *s,
                                            d9d_var *part, d9d_var *y);

#endif /* D9DI_OP_PARALLEL_OP_TP_OVERLAP_H */
