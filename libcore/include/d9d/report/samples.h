/* samples.h - which samples made a step of a run, and what they say.
 *
 * samples.jsonl of the run directory has a line for each step, config.json the datasets that its
 * numbers are of.  Those are looked for where the run found them, from the working directory on,
 * unless it is told where they are now.
 *
 *     D9D_TRY(d9d_report_samples(&how, &out));
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
    bool text;                   /* each sample as text, as d9d_sample_print_text() has it */
    const char *const *datasets; /* directories in place of those of the configuration; */
    size_t n_datasets;           /* 0: those */
} d9d_report_samples_opts;

/* For people, appended.  ENOTFOUND for a run without the file, and for a dataset that is not there;
 * EINVAL for a step that it has not done; EFORMAT; ECONFIG for another number of datasets than the
 * run had, and for text of one without a tokenizer. */
D9D_API D9D_MUST_USE d9d_status d9d_report_samples(const d9d_report_samples_opts *how,
                                                   d9d_buf *out);
/* {"step", "first", "samples": [{"dataset", "split", "sample", "text"}], "skipped": [...]}, "text"
 * and "skipped" where there is such. */
D9D_API D9D_MUST_USE d9d_status d9d_report_samples_json(const d9d_report_samples_opts *how,
                                                        json_t **out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_REPORT_SAMPLES_H */
