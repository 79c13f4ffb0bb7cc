/* eval_predictions.h - metrics of predictions that were written to files, a JSON object a line.
 *
 *     {"prediction": 0.93, "target": 1}
 *     {"prediction": [0.1, 0.7, 0.2], "target": 1, "weight": 2}
 *
 *     const char *metrics[] = {"binary_auroc", "f1,threshold=0.4"};
 *     D9D_TRY(d9d_eval_predictions(&how, &result));
 *
 * A line with null for one of these is left out, as those are that d9d-infer writes of samples that
 * it skips and of texts that have no class.  Files are read once, in pieces; memory is that of the
 * metrics.
 */
#ifndef D9D_REPORT_EVAL_PREDICTIONS_H
#define D9D_REPORT_EVAL_PREDICTIONS_H

#include "d9d/base/json.h"
#include "d9d/base/log.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_eval_predictions_opts {
    const char *const *metrics; /* "name,key=value,..." or a JSON object: d9d/metric/metric.h */
    size_t n_metrics;           /* at least 1 */
    const char *prediction, *target, *weight; /* keys of a line; NULL: not there */
    const char *const *paths;                 /* "-" is standard input */
    size_t n_paths;
    const d9d_log *log;
} d9d_eval_predictions_opts;

/* {"rows": 1000, "left_out": 0, "metrics": [{"name": "f1", "config": {...}, "value": 0.5}, ...]},
 * where a metric of several values has "values" and "labels".  A new reference.  ECONFIG for what
 * is wrong with a metric, EFORMAT with file and line for what is wrong with a prediction. */
D9D_API D9D_MUST_USE d9d_status d9d_eval_predictions(const d9d_eval_predictions_opts *how,
                                                     json_t **out);
/* The same as lines of text, appended. */
D9D_API D9D_MUST_USE d9d_status d9d_eval_predictions_text(const json_t *result, d9d_buf *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_REPORT_EVAL_PREDICTIONS_H */
