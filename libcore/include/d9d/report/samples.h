/* samples.h - which samples formed a step of a run, and their text.
 *
 * Reads samples.jsonl of the run directory, which has one line per step, and the datasets in
 * config.json.  Dataset paths are resolved relative to the working directory, unless the caller
 * passes their present directories.
 *
 *     D9D_TRY(d9d_report_samples(&opts, &out));
 *
 *     step 7: 4 samples, 24 to 27 of the stream
 *        row       sample  dataset
 *          0           24  data/demo, train
 */
#ifndef D9D_REPORT_SAMPLES_H
#define D9D_REPORT_SAMPLES_H

#include "d9d/base/json.h"
#include "d9d/base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_report_samples_opts {
    const char *run; /* a run directory or a file in it */
    int64_t step;
    bool text;                   /* print each sample as text, as d9d_sample_print_text() does */
    const char *const *datasets; /* directories in place of those of the configuration; */
    size_t n_datasets;           /* 0: those */
} d9d_report_samples_opts;

/* Appends the report as text.  ENOTFOUND for a missing samples.jsonl or dataset; EINVAL for a step
 * that the run has not done; EFORMAT for a damaged line.  ECONFIG if the number of datasets differs
 * from the run's, or if text is requested and a dataset has no tokenizer. */
D9D_API D9D_MUST_USE d9d_status d9d_report_samples(const d9d_report_samples_opts *opts,
                                                   d9d_buf *out);
/* {"step", "first", "samples": [{"dataset", "split", "sample", "text"}], "skipped": [...]}; "text"
 * and "skipped" are there only if they apply. */
D9D_API D9D_MUST_USE d9d_status d9d_report_samples_json(const d9d_report_samples_opts *opts,
                                                        json_t **out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_REPORT_SAMPLES_H */
