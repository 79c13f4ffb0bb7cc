/* infer_rows.h - turns the rows of batches into output, from the ranks that have computed them.
 *
 *     rank 0   losses --row()--> head line, head line, ...     \
 *     rank 1   values ---------> head columns, head columns    -- gathered --> sums on all ranks,
 *     ...                                                      /               the file on rank 0
 *
 * Every rank adds up all rows in sample order, so that all have the same sums.  Rank 0 counts them
 * in the metrics, in the same order: what was counted is proven with the lines (resumable_lines.h),
 * so that a job that was interrupted has the values of one that was not.  The file has one line per
 * row.  If the task defines a shape, it is a .npy of records, whose columns may come from
 * any pipeline stage.  Among ranks with the same losses or values, only the first contributes.
 */
#ifndef D9DI_INFER_INFER_ROWS_H
#define D9DI_INFER_INFER_ROWS_H

#include "engine/engine.h"
#include "infer/resumable_lines.h"

typedef struct d9di_infer_rows {
    /* The task; set before any call. */
    const d9d_infer_task_kind *task;
    const d9d_union *section; /* the task's, a d9d_job_output_section */
    const d9d_job *where;
    const d9di_engine *engine;
    const d9di_run_data *data;
    const d9di_task *body; /* NULL: a task without values */

    int64_t samples;            /* of the dataset */
    int64_t width;              /* values per record; 0: no records */
    int64_t batch;              /* samples of a global batch */
    d9di_resumable_lines lines; /* on rank 0 */
    d9d_buf line, records;      /* records: of a global batch */
    d9d_buf *messages; /* [max_batches]: one per batch that runs through the pipeline together with
                          others */
    int64_t max_batches;
    float *host; /* host copy of a batch's losses or values */
    size_t host_cap;
    d9di_run_metrics *metrics;          /* that count all rows on rank 0; NULL: none */
    uint64_t metrics_id;                /* hash of what they are */
    d9d_buf counted;                    /* what they count of a row */
    D9D_VEC(double) prediction, target; /* of a row */
    struct d9di_infer_totals {
        double sum; /* of losses */
        int64_t targets;
    } totals, resumed;    /* so far; of which earlier processes had these */
    int64_t counted_from; /* the first sample of the totals; on rank 0 */
} d9di_infer_rows;

/* True if the task writes output per row. */
bool d9di_infer_rows_are_written(const d9di_infer_rows *r);
/* True if it computes values in place of losses. */
bool d9di_infer_rows_are_values(const d9di_infer_rows *r);
/* Computes the width of a record; call after the engine and the data are open.  ECONFIG if it is
 * too large. */
d9d_status d9di_infer_rows_check(d9di_infer_rows *r);
/* On rank 0: opens the output for this key, and resumes it and what was counted; *first is the
 * first missing sample. */
d9d_status d9di_infer_rows_open(d9di_infer_rows *r, d9d_hash key, d9d_arena *a, int64_t *first);

/* Prepares for up to `max_batches` global batches of `batch` samples that run together. */
d9d_status d9di_infer_rows_prepare(d9di_infer_rows *r, int64_t batch, int64_t max_batches);
/* Clears the messages; call before each group of batches. */
void d9di_infer_rows_begin(d9di_infer_rows *r);
/* Adds batch k's losses, or columns of its values from `at` on. */
d9d_status d9di_infer_rows_add_losses(d9di_infer_rows *r, int64_t k, const d9d_batch *b,
                                      const d9d_tensor *loss);
d9d_status d9di_infer_rows_add_values(d9di_infer_rows *r, int64_t k, const d9d_batch *b,
                                      const d9d_tensor *v, int64_t at);
/* Gathers batch k, which begins at sample `first`, from all ranks.  Collective over the world. */
d9d_status d9di_infer_rows_gather(d9di_infer_rows *r, int64_t k, int64_t first);

/* On rank 0: completes the file. */
d9d_status d9di_infer_rows_finish(d9di_infer_rows *r, const d9d_infer_task_summary *s);
void d9di_infer_rows_release(d9di_infer_rows *r);

#endif /* D9DI_INFER_INFER_ROWS_H */
