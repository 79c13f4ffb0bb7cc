/* report.h - what d9d-metrics says about runs: tables, JSON, charts, exports.
 *
 * Everything is appended to a buffer; numbers in tables have six digits, in JSON and
 * CSV all of them, and NaN is "-", null and an empty cell.
 */
#ifndef D9D_REPORT_REPORT_H
#define D9D_REPORT_REPORT_H

#include "d9d/base/json.h"
#include "d9d/plot/chart.h"
#include "d9d/report/run_reader.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- summary ----------------------------------------------------------------- */

typedef struct d9d_report_run_summary {
    int64_t records, first_step, last_step; /* of training; steps are -1 without records */
    double first_loss, last_loss, min_loss; /* NaN where nothing was logged, as below */
    int64_t min_loss_step;
    double tokens, samples; /* at the last record that has them */
    double seconds;         /* of steps: step_ms times the steps since the record before */
    double tokens_per_s;    /* median */
    double mfu;             /* median */
    double mem_bytes;       /* highest */
    int64_t restarts;
} d9d_report_run_summary;

D9D_API D9D_MUST_USE d9d_status d9d_report_summarise_run(const d9d_run_reader *r,
                                                         d9d_report_run_summary *out);

/* One column a run.  Of each loss and metric of an evaluation ("valid/loss") then the last value
 * and the best with their steps; JSON has them as "evaluation": {"valid/loss": {"last",
 * "last_step", "best", "best_step"}}, where there are any.  The best loss is the least, of metrics
 * of classes the highest; of others nothing says which is better, and it is NaN, at step -1. */
D9D_API D9D_MUST_USE d9d_status d9d_report_summary(const d9d_run_reader_list *r, d9d_buf *out);
D9D_API D9D_MUST_USE d9d_status d9d_report_summary_json(const d9d_run_reader_list *r, json_t **out);

/* --- records --------------------------------------------------------------------- */

/* Columns to show: n keys, or with n 0 those that every run of d9d-train has, and the losses and
 * metrics of its evaluations. */
typedef struct d9d_report_columns {
    const char *const *key;
    size_t n;
} d9d_report_columns;

/* At most `rows` records of a run that log one of the keys, evenly spread, the first and the last
 * among them, those with an evaluation before their neighbours; rows 0: all of them. */
D9D_API D9D_MUST_USE d9d_status d9d_report_records(d9d_run_reader *r, d9d_report_columns keys,
                                                   size_t rows, d9d_buf *out);
/* A list of {"run", "restarts", "end", "records": [{"step", ...}]}. */
D9D_API D9D_MUST_USE d9d_status d9d_report_records_json(const d9d_run_reader_list *r, json_t **out);

/* --- comparing ------------------------------------------------------------------- */

/* One key of all runs at the steps at which all of them logged it, and the differences from the
 * first run; the last lines name the largest.  ECONFIG when no step is in all runs. */
D9D_API D9D_MUST_USE d9d_status d9d_report_compare(const d9d_run_reader_list *r, const char *key,
                                                   size_t rows, d9d_buf *out);
D9D_API D9D_MUST_USE d9d_status d9d_report_compare_json(const d9d_run_reader_list *r,
                                                        const char *key, json_t **out);

/* --- spikes ------------------------------------------------------------------------- */

/* Which steps stand out: their value is more than `deviations` above the median of the `window`
 * records before that did not, or is not finite.  A deviation is 1.4826 times the median distance
 * from that median, which is the standard deviation of normal numbers, but at least a thousandth of
 * the median.  The first `least` records are never judged. */
typedef struct d9d_report_spikes_opts {
    const char *key;             /* "loss", "grad_norm" */
    double deviations;           /* above 0 */
    size_t window;               /* at least `least` */
    const char *const *datasets; /* directories in place of those of the run's configuration; */
    size_t n_datasets;           /* 0: those, as far as they are there */
} d9d_report_spikes_opts;
enum { D9D_REPORT_SPIKES_MIN_WINDOW = 8 };

/* A line a spike: step, value, the median before it, deviations above; then of each whose documents
 * were recorded (trainer.logging.documents) those that raised the step's loss most: sample and
 * place in it, targets, mean loss, what the step's loss would have been without it, and its first
 * words where the dataset is there and has a tokenizer.  ECONFIG for a key that a run has not, a
 * window below the least, and another number of datasets than the run had. */
D9D_API D9D_MUST_USE d9d_status d9d_report_spikes(const d9d_run_reader *r,
                                                  const d9d_report_spikes_opts *how, d9d_buf *out);
/* A list of {"run", "key", "spikes": [{"step", "value", "usual", "deviations", "documents":
 * [{"sample", "document", "tokens", "mean_loss", "without", "dataset", "split", "text"}]}]},
 * documents and what is known of them where there are such. */
D9D_API D9D_MUST_USE d9d_status d9d_report_spikes_json(const d9d_run_reader_list *r,
                                                       const d9d_report_spikes_opts *how,
                                                       json_t **out);

/* --- charts ------------------------------------------------------------------------ */

/* One chart a key with one line a run: for the terminal, or into an image file (two
 * beside each other).  Keys with n 0: loss and the losses of evaluations, or in a file also
 * grad_norm, lr, tokens_per_s and the metrics of evaluations, as far as they were logged.  A line
 * joins the records that log its key. */
D9D_API D9D_MUST_USE d9d_status d9d_report_curves(const d9d_run_reader_list *r,
                                                  d9d_report_columns keys, bool log_y,
                                                  const d9d_chart_text_style *style, d9d_buf *out);
/* Into a file: ECONFIG where that is the record of one of the runs. */
D9D_API D9D_MUST_USE d9d_status d9d_report_plot(const d9d_run_reader_list *r,
                                                d9d_report_columns keys, bool log_y,
                                                const char *path);

/* --- a run that goes on ---------------------------------------------------------------- */

enum { D9D_REPORT_FOLLOW_FOREVER = -1 };
typedef struct d9d_report_follow_opts {
    d9d_report_columns keys;
    bool json;      /* an object a line, else a table */
    int64_t idle_s; /* stop when nothing was logged for so long, 0: at once; or
                       D9D_REPORT_FOLLOW_FOREVER */
    /* Show lines of text, at once. */
    d9d_status (*put)(void *arg, const d9d_buf *lines);
    void *arg;
} d9d_report_follow_opts;

/* Put every record of a run, and those to come, until the run ends or SIGINT or SIGTERM
 * comes; the calling thread blocks both.  An evaluation that comes after the record of its step is
 * a line of its own with that step and its values alone; columns that appear later get a heading
 * again. */
D9D_API D9D_MUST_USE d9d_status d9d_report_follow(const char *path, const d9d_report_follow_opts *f,
                                                  const d9d_log *log);

/* --- exports ---------------------------------------------------------------------- */

/* "run,step,loss,...": a line a record, all columns of all runs. */
D9D_API D9D_MUST_USE d9d_status d9d_report_csv(const d9d_run_reader_list *r, d9d_buf *out);
/* The same into a file: ECONFIG where that is the record of one of the runs. */
D9D_API D9D_MUST_USE d9d_status d9d_report_write_csv(const d9d_run_reader_list *r,
                                                     const char *path);
/* A TensorBoard event file of one run, values that are not finite left out. */
D9D_API D9D_MUST_USE d9d_status d9d_report_events(const d9d_run_reader *r, d9d_buf *out);
/* One for each run, as dir/NAME/events.out.tfevents.0.d9d.  ECONFIG when two runs have
 * the same name. */
D9D_API D9D_MUST_USE d9d_status d9d_report_write_events(const d9d_run_reader_list *r,
                                                        const char *dir);

#ifdef __cplusplus
}
#endif
#endif /* D9D_REPORT_REPORT_H */
