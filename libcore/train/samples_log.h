/* samples_log.h - samples.jsonl: which samples made which step.
 *
 *     {"step": 1, "first": 0, "count": 4, "sampler": [{"samples": 80, "order": "shuffled", "seed":
 * 7, "weight": 1}]}
 *     {"step": 2, "first": 4, "count": 4, "skipped": [9]}
 *
 * A step's samples are numbers `first` to `first` + `count` - 1 of a stream.  Which sample of which
 * dataset each of them is follows from `sampler` (d9d/data/loader/sampler.h), of this line or the
 * nearest one before: it stands at step 1 and every 1024 steps, and where it changes.  `skipped`,
 * where there are some, has the numbers in their split of those that were left out.  The bucketed
 * order, which does not follow from numbers, has a list, as all had before version 0.2:
 *
 *     {"step": 1, "first": 0, "samples": [17, 3, 20, 8], "datasets": [0, 0, 1, 0]}
 *
 * samples are numbers in their split, in the order of the rows of the step's batch, as d9d-shard
 * inspect takes them.  `datasets`, of a blend, has the place of each sample's dataset in the
 * configuration.  Every step stands once: a run that resumes takes out what is beyond its
 * checkpoint first.
 */
#ifndef D9DI_TRAIN_SAMPLES_LOG_H
#define D9DI_TRAIN_SAMPLES_LOG_H

#include "d9d/base/writer.h"
#include "d9d/data/loader/sampler.h"

typedef struct d9di_samples_log {
    d9d_writer *writer; /* NULL: closed */
    const char *path;   /* borrowed */
    d9d_buf line;
    d9d_buf last_sampler, sampler; /* the rule that was written last, that of the loader */
} d9di_samples_log;

/* Open behind the line of step `done`, making the file if it is absent.  A thread writes it. */
d9d_status d9di_samples_log_open(const char *path, int64_t done, const d9d_log *log,
                                 d9di_samples_log *out);
/* Samples [first, first + n) of the stream were step `step`; the loader is always the same. */
d9d_status d9di_samples_log_add(d9di_samples_log *g, int64_t step, d9d_loader *l, int64_t first,
                                int64_t n);
/* What was added is in the file; ... and durable. */
d9d_status d9di_samples_log_flush(d9di_samples_log *g);
d9d_status d9di_samples_log_sync(d9di_samples_log *g);
void d9di_samples_log_release(d9di_samples_log *g);

#endif /* D9DI_TRAIN_SAMPLES_LOG_H */
