/* html.h - a report of runs: one HTML page that needs neither a server nor a network.
 *
 *     const d9d_report_html_opts opts = {.plans = plans, .n_plans = 1};
 *
 *     D9D_TRY(d9d_report_write_html(&runs, &opts, "report.html"));
 *
 * The page has what the run directories have:
 *
 *     summary         how far each run is, its losses, speed, memory
 *     losses          training and evaluations, runs over each other
 *     speed           tokens a second, MFU, time of a step; where the time went, beside the plan
 *     optimisation    learning rate, gradient norm
 *     experts, memory, energy, and any further column, as far as logged
 *     pipeline        lanes of a step with the measured stage times; ranks and stages
 *     restarts        restarts with their causes, checkpoints; what the flight recorder says
 *     spikes          steps that stand out, with their documents
 *     configuration   all keys, and the keys in which runs differ
 *
 * A column is divided into as many buckets as fit the page, each with its mean, least and greatest
 * value, so that no spike is lost: about 700 kB for any number of steps.  Tables, the pipeline and
 * the loads of experts need no JavaScript; the charts do.  Everything that comes from a run is
 * escaped.  The bytes depend on the runs alone, not on the time of day.
 */
#ifndef D9D_REPORT_HTML_H
#define D9D_REPORT_HTML_H

#include "d9d/report/run_reader.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_report_html_opts {
    /* Files of `d9d-train --plan --json` (d9d.plan.v1), in the order of the runs; 0: none. */
    const char *const *plans;
    size_t n_plans;
} d9d_report_html_opts;

/* Appends the page.  ECONFIG if there are plans, but not one per run; the reader's errors for a
 * plan or a config.json that is damaged. */
D9D_API D9D_MUST_USE d9d_status d9d_report_html(const d9d_run_reader_list *r,
                                                const d9d_report_html_opts *opts, d9d_buf *out);
/* The same into a file, which is replaced atomically.  ECONFIG if `path` is the record of one of
 * the runs. */
D9D_API D9D_MUST_USE d9d_status d9d_report_write_html(const d9d_run_reader_list *r,
                                                      const d9d_report_html_opts *opts,
                                                      const char *path);

#ifdef __cplusplus
}
#endif
#endif /* D9D_REPORT_HTML_H */
