/* op_tp_overlap.h - GEMMs overlapped with the all-gather of their input, or with the reduce-scatter
 * of their output (tensor parallel).
 */
#ifndef D9DI_OP_PARALLEL_OP_TP_OVERLAP_H
#define D9DI_OP_PARALLEL_OP_TP_OVERLAP_H

#include "op/op_common.h"

/* --- all-gather, then GEMM --------------------------------------------------- */

/* Rows [first, first + n) of the gathered rows are at x. */
typedef struct d9di_op_tp_rows {
    int64_t first, n;
    const void *x;
} d9di_op_tp_rows;
typedef d9d_status d9di_op_tp_rows_fn(void *arg, const d9di_op_tp_rows *part);

/* Call f for the rows of each rank as they arrive, this rank's first, and complete the all-gather.
 * If nothing is in flight, call f once for all rows.  `all` is the result of the all-gather. */
d9d_status d9di_op_tp_for_each_rank(d9d_tape *t, d9d_op_pending_rows *coming, const d9d_var *all,
                                    d9di_op_tp_rows_fn *f, void *arg);

/* --- GEMM, then reduce-scatter ----------------------------------------------- */

typedef struct d9di_op_tp_reduce_scatter_args {
    d9d_comm *comm; /* of several ranks */
    const char *label;
    d9d_var *plus; /* NULL, or a residual that is added to the sum */
    /* Enqueue the computation of rows [first, first + n) of the GEMM's output, to y. */
    d9d_status (*make)(void *arg, int64_t first, int64_t n, void *y);
    void *arg;
} d9di_op_tp_reduce_scatter_args;

/* y [R / ranks, N] is the reduce-scatter of the rows that `make` computes.  `part` stands for these
 * rows [R, N] on the tape and has no memory. */
d9d_status d9di_op_tp_reduce_scatter(d9d_tape *t, const d9di_op_tp_reduce_scatter_args *s,
                                     d9d_dtype type, d9d_shape shape, d9d_var **part, d9d_var **y);
/* Record the reduce-scatter, after the op that makes `part` was recorded. */
d9d_status d9di_op_tp_reduce_scatter_record(d9d_tape *t, const d9di_op_tp_reduce_scatter_args *s,
                                            d9d_var *part, d9d_var *y);

#endif /* D9DI_OP_PARALLEL_OP_TP_OVERLAP_H */
