/* eval_predictions.h - computes metrics of predictions in files, one JSON object per line.
 *
 *     {"prediction": 0.93, "target": 1}
 *     {"prediction": [0.1, 0.7, 0.2], "target": 1, "weight": 2}
 *
 *     const char *metrics[] = {"binary_auroc", "f1,threshold=0.4"};
 *     D9D_TRY(d9d_eval_predictions(&opts, &result));
 *
 * A line in which one of these keys is null is left out.  d9d-infer writes such lines for samples
 * that it skips and for texts without a class.  Files are streamed once; memory is that of the
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
    const char *prediction, *target, *weight; /* keys of a line; NULL: the lines have none */
    const char *const *paths;                 /* "-" is standard input */
    size_t n_paths;
    const d9d_log *log;
} d9d_eval_predictions_opts;

/* Computes the metrics.  The result is a new reference: {"rows": 1000, "left_out": 0, "metrics":
 * [{"name": "f1", "config": {...}, "value": 0.5}, ...]}; a metric of several values has "values"
 * and "labels" instead of "value".  ECONFIG for an invalid metric; EFORMAT, with file and line, for
 * an invalid prediction. */
D9D_API D9D_MUST_USE d9d_status d9d_eval_predictions(const d9d_eval_predictions_opts *opts,
                                                     json_t **out);
/* Appends the result as lines of text. */
D9D_API D9D_MUST_USE d9d_status d9d_eval_predictions_text(const json_t *result, d9d_buf *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_REPORT_EVAL_PREDICTIONS_H */
