/* slice_runs.h - runs of slices: what they span, whether they are disjoint, and how slices at
 * regular distances become runs.  See d9d/ckpt/dir/slices.h. */
#ifndef D9DI_CKPT_DIR_SLICE_RUNS_H
#define D9DI_CKPT_DIR_SLICE_RUNS_H

#include "d9d/ckpt/dir/slices.h"

/* The smallest box around all slices of a run that fits. */
d9d_box d9di_slice_run_span(const d9d_slice_run *r);
/* Slices of a run. */
int64_t d9di_slice_run_count(const d9d_slice_run *r);
/* True if all slices lie in the global shape `whole`, are disjoint, and belong to ranks in
 * [0, ranks). */
bool d9di_slice_run_fits(const d9d_slice_run *r, const d9d_shape *whole, int64_t ranks);
/* Sorts the runs of a tensor by their first index, and finds two slices that overlap. */
void d9di_slice_runs_sort(d9d_sliced_tensor *t);
bool d9di_slice_runs_overlap(const d9d_sliced_tensor *t, d9d_box *one, d9d_box *other);
/* Joins the runs of a tensor; steps are in the arena. */
d9d_status d9di_slice_runs_join(d9d_sliced_tensor *t, d9d_arena *a);

#endif /* D9DI_CKPT_DIR_SLICE_RUNS_H */
