/* report.h - the reports of d9d-metrics: tables, JSON, charts, exports.
 *
 * Every function appends to a buffer.  Numbers have six digits in tables, and full precision in
 * JSON and CSV.  NaN is "-" in tables, null in JSON, and empty in CSV.
 */
#ifndef D9D_REPORT_REPORT_H
#define D9D_REPORT_REPORT_H

#include "d9d/base/json.h"
#include "d9d/pipe/timeline.h"
#include "d9d/plot/chart.h"
#include "d9d/report/run_reader.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- summary ----------------------------------------------------------------- */

typedef struct d9d_report_run_summary {
    int64_t records, first_step, last_step; /* of training; steps are -1 without records */
    double first_loss, min_loss;            /* NaN where nothing was logged */
    double last_loss;                       /* of last_step; NaN where it is not finite */
    int64_t min_loss_step;
    double tokens, samples; /* at the last record that has them */
    double seconds; /* of training steps: each record's step_ms times the steps since the record
                       before */
    double tokens_per_s; /* median */
    double mfu;          /* median */
    double mem_bytes;    /* maximum */
    int64_t restarts;
} d9d_report_run_summary;

/* Summarises the records read so far. */
D9D_API D9D_MUST_USE d9d_status d9d_report_summarise_run(const d9d_run_reader *r,
                                                         d9d_report_run_summary *out);

/* One column per run.  Rows for each loss and metric of an evaluation ("valid/loss") follow: the
 * last and the best value with their steps.  JSON has them as "evaluation": {"valid/loss": {"last",
 * "last_step", "best", "best_step"}}, if there are any.  The best loss is the lowest, the best
 * classification metric the highest.  For other metrics the best value is NaN, at step -1. */
D9D_API D9D_MUST_USE d9d_status d9d_report_summary(const d9d_run_reader_list *r, d9d_buf *out);
D9D_API D9D_MUST_USE d9d_status d9d_report_summary_json(const d9d_run_reader_list *r, json_t **out);

/* --- records --------------------------------------------------------------------- */

/* Columns to show: n keys.  With n 0: the columns that every run of d9d-train has, then the losses
 * and metrics of its evaluations. */
typedef struct d9d_report_columns {
    const char *const *key;
    size_t n;
} d9d_report_columns;

/* At most `rows` records of a run that log one of the keys; rows 0: all.  They are evenly spaced,
 * the first and the last included; records with an evaluation are preferred over their
 * neighbours.  Below the table are the lines of d9d_report_stragglers(). */
D9D_API D9D_MUST_USE d9d_status d9d_report_records(d9d_run_reader *r, d9d_report_columns keys,
                                                   size_t rows, d9d_buf *out);
/* A list of {"run", "restarts", "end", "records": [{"step", ...}], "stragglers": [{"straggler",
 * "rank", "host", ...}]}; the last is there only if there are any. */
D9D_API D9D_MUST_USE d9d_status d9d_report_records_json(const d9d_run_reader_list *r, json_t **out);

/* --- stragglers ------------------------------------------------------------------- */

/* A line for each time that a rank was found to compute slower than its peers, or no longer to;
 * nothing where there was none. */
D9D_API D9D_MUST_USE d9d_status d9d_report_stragglers(const d9d_run_reader *r, d9d_buf *out);

/* --- comparing ------------------------------------------------------------------- */

/* One key of all runs at the steps at which all runs logged it, with the differences from the first
 * run; the last lines name the largest.  ECONFIG if the runs have no step in common. */
D9D_API D9D_MUST_USE d9d_status d9d_report_compare(const d9d_run_reader_list *r, const char *key,
                                                   size_t rows, d9d_buf *out);
D9D_API D9D_MUST_USE d9d_status d9d_report_compare_json(const d9d_run_reader_list *r,
                                                        const char *key, json_t **out);

/* --- own values --------------------------------------------------------------------- */

/* The newest of each name, a line each; as JSON {"run", "values": [{"name", "kind", "step", ...}]},
 * with what the lines of metrics.jsonl have of it. */
D9D_API D9D_MUST_USE d9d_status d9d_report_values(const d9d_run_reader *r, d9d_buf *out);
D9D_API D9D_MUST_USE d9d_status d9d_report_values_json(const d9d_run_reader *r, json_t **out);

/* --- spikes ------------------------------------------------------------------------- */

/* Which steps are spikes.  A value is a spike if it is not finite, or more than `deviations`
 * deviations above the median of the previous `window` records that were no spikes.  Where
 * D9D_REPORT_SPIKES_MIN_WINDOW or more in a row would be, as after a rise that lasts, the first
 * stands for all of them, and they are what later ones are compared with.  A deviation is
 * 1.4826 times the median absolute deviation, which estimates the standard deviation of a normal
 * distribution; it is at least a thousandth of the median.  The first D9D_REPORT_SPIKES_MIN_WINDOW
 * records are never spikes. */
typedef struct d9d_report_spikes_opts {
    const char *key;             /* "loss", "grad_norm" */
    double deviations;           /* above 0 */
    size_t window;               /* at least D9D_REPORT_SPIKES_MIN_WINDOW */
    const char *const *datasets; /* directories that replace those of the configuration; */
    size_t n_datasets;           /* 0: those, as far as they exist */
} d9d_report_spikes_opts;
enum { D9D_REPORT_SPIKES_MIN_WINDOW = 8 };

/* One line per spike: step, value, the median before it, deviations above it; a sentence for each
 * that stands for several records in a row, and if there is none.  If the step's documents were
 * recorded (trainer.logging.documents), the ones that raised its loss most follow.  Each has its
 * sample, its index in the sample, targets, mean loss, the step's loss without it, and its first
 * words; the words need the dataset and a tokenizer.  ECONFIG for a key that the run lacks, a
 * window that is too small, or a number of datasets that differs from the run's. */
D9D_API D9D_MUST_USE d9d_status d9d_report_spikes(const d9d_run_reader *r,
                                                  const d9d_report_spikes_opts *opts, d9d_buf *out);
/* A list of {"run", "key", "spikes": [{"step", "value", "usual", "deviations", "records",
 * "documents": [{"sample", "document", "tokens", "mean_loss", "without", "dataset", "split",
 * "text"}]}]}.
 * "documents" and its members are there only where they are known. */
D9D_API D9D_MUST_USE d9d_status d9d_report_spikes_json(const d9d_run_reader_list *r,
                                                       const d9d_report_spikes_opts *opts,
                                                       json_t **out);

/* --- pipelines ---------------------------------------------------------------------- */

/* What a stage took for a micro-batch, in seconds: the medians over the newest pipeline lines
 * (d9d_run_reader.pipeline); 0 if it was not measured. */
D9D_API d9d_stage_costs d9d_report_stage_costs(const d9d_run_reader *r, size_t stage);

/* --- charts ------------------------------------------------------------------------ */

/* One chart per key with one line per run, for the terminal or an image file (two charts side by
 * side).  Keys with n 0: loss and the losses of evaluations; in a file also grad_norm, lr,
 * tokens_per_s and the metrics of evaluations, as far as logged.  A line joins the records that log
 * its key. */
D9D_API D9D_MUST_USE d9d_status d9d_report_curves(const d9d_run_reader_list *r,
                                                  d9d_report_columns keys, bool log_y,
                                                  const d9d_chart_text_style *style, d9d_buf *out);
/* The same into an image file.  ECONFIG if `path` is the record of one of the runs. */
D9D_API D9D_MUST_USE d9d_status d9d_report_plot(const d9d_run_reader_list *r,
                                                d9d_report_columns keys, bool log_y,
                                                const char *path);

/* --- following a running job ----------------------------------------------------------- */

enum { D9D_REPORT_FOLLOW_FOREVER = -1 };
typedef struct d9d_report_follow_opts {
    d9d_report_columns keys;
    bool json;      /* one JSON object per line; false: a table */
    int64_t idle_s; /* stop after this many seconds without a new record; 0: at once; or
                       D9D_REPORT_FOLLOW_FOREVER */
    /* Shows lines of text; must not buffer them. */
    d9d_status (*put)(void *arg, const d9d_buf *lines);
    void *arg;
} d9d_report_follow_opts;

/* Passes every existing and new record of a run to `put`, until the run ends or SIGINT or SIGTERM
 * arrives; both are blocked in the calling thread.  An evaluation that is logged after its step's
 * record is a line of its own, with the step and the evaluation's values only.  New columns cause a
 * new heading. */
D9D_API D9D_MUST_USE d9d_status d9d_report_follow(const char *path, const d9d_report_follow_opts *f,
                                                  const d9d_log *log);

/* --- exports ---------------------------------------------------------------------- */

/* CSV "run,step,loss,...": one line per record, all columns of all runs. */
D9D_API D9D_MUST_USE d9d_status d9d_report_csv(const d9d_run_reader_list *r, d9d_buf *out);
/* The same into a file.  ECONFIG if `path` is the record of one of the runs. */
D9D_API D9D_MUST_USE d9d_status d9d_report_write_csv(const d9d_run_reader_list *r,
                                                     const char *path);
/* A TensorBoard event file of one run, without values that are not finite. */
D9D_API D9D_MUST_USE d9d_status d9d_report_events(const d9d_run_reader *r, d9d_buf *out);
/* An event file per run, dir/NAME/events.out.tfevents.0.d9d.  ECONFIG if two runs have the same
 * name. */
D9D_API D9D_MUST_USE d9d_status d9d_report_write_events(const d9d_run_reader_list *r,
                                                        const char *dir);

#ifdef __cplusplus
}
#endif
#endif /* D9D_REPORT_REPORT_H */
