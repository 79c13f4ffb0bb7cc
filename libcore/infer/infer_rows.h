/* infer_rows.h - what is made of the rows of batches, on the ranks that have computed them.
 *
 *     rank 0   losses --row()--> head line, head line, ...     \
 *     rank 1   values ---------> head columns, head columns    -- gathered --> sums;  rank 0: the
 * file
 *     ...                                                      /
 *
 * Every rank adds up all rows in the order of samples, so that all have the same sums.  The file
 * has a line a row or, where the task says a shape, is a .npy of records, whose columns come from
 * any stage of a pipeline; of ranks that have the same losses or values the first one speaks.
 */
#ifndef D9DI_INFER_INFER_ROWS_H
#define D9DI_INFER_INFER_ROWS_H

#include "engine/engine.h"
#include "infer/resumable_lines.h"

typedef struct d9di_infer_rows {
    /* Whose they are; set first. */
    const d9d_infer_task_kind *task;
    const d9d_union *section; /* the task's, a d9d_job_output_section */
    const d9d_job *where;
    const d9di_engine *engine;
    const d9di_run_data *data;
    const d9di_task *body; /* of a task with values */

    int64_t samples;            /* of the dataset */
    int64_t width;              /* values of a record; 0: there are none */
    int64_t batch;              /* samples of a batch of all ranks */
    d9di_resumable_lines lines; /* of rank 0 */
    d9d_buf line, records;      /* records: of a batch of all ranks */
    d9d_buf *messages;          /* [most]: of each batch that goes through the model with others */
    int64_t max_batches;
    float *host; /* a batch's losses or values */
    size_t host_cap;
    double sum; /* of losses, and targets, so far */
    int64_t targets;
} d9di_infer_rows;

/* Does the task write something of each row? */
bool d9di_infer_rows_are_written(const d9di_infer_rows *r);
/* The engine and the data are open: how wide a record is.  ECONFIG where it is too wide. */
d9d_status d9di_infer_rows_check(d9di_infer_rows *r);
/* Rank 0: the file of what this key stands for, to go on with behind what it has, which `first`
 * says. */
d9d_status d9di_infer_rows_open(d9di_infer_rows *r, d9d_hash key, int64_t *first);

/* Up to `max_batches` batches go through the model together, of `batch` samples each. */
d9d_status d9di_infer_rows_prepare(d9di_infer_rows *r, int64_t batch, int64_t max_batches);
/* Before each time: nothing has been said. */
void d9di_infer_rows_begin(d9di_infer_rows *r);
/* Of batch k of them: its losses, or columns of its values from `at` on. */
d9d_status d9di_infer_rows_add_losses(d9di_infer_rows *r, int64_t k, const d9d_batch *b,
                                      const d9d_tensor *loss);
d9d_status d9di_infer_rows_add_values(d9di_infer_rows *r, int64_t k, const d9d_batch *b,
                                      const d9d_tensor *v, int64_t at);
/* Collective: over the world.  Batch k, which begins at sample `first`, is what all have said. */
d9d_status d9di_infer_rows_gather(d9di_infer_rows *r, int64_t k, int64_t first);

/* Rank 0: the file is whole. */
d9d_status d9di_infer_rows_finish(d9di_infer_rows *r, const d9d_infer_task_summary *s);
void d9di_infer_rows_release(d9di_infer_rows *r);

#endif /* D9DI_INFER_INFER_ROWS_H */
