/* samples_log.h - samples.jsonl: which samples formed which step.
 *
 *     {"step": 1, "first": 0, "count": 4,
 *      "sampler": [{"samples": 80, "order": "shuffled", "seed": 7, "weight": 1}]}
 *     {"step": 2, "first": 4, "count": 4, "skipped": [9]}
 *
 * A step's samples are numbers `first` to `first` + `count` - 1 of the stream.  `sampler` maps them
 * to samples of datasets (d9d/data/loader/sampler.h); a line without it uses the last one before.
 * It is written at step 1, every 1024 steps, and when it changes.  `skipped`, if present, lists the
 * skipped samples by their numbers in the split.  The bucketed order is not a function of the
 * numbers, so its lines have explicit lists, as all lines had before version 0.2:
 *
 *     {"step": 1, "first": 0, "samples": [17, 3, 20, 8], "datasets": [0, 0, 1, 0]}
 *
 * `samples` has numbers in the split, in the order of the step's rows, as d9d-shard inspect takes
 * them. `datasets`, of a blend, has the index of each sample's dataset in the configuration.  Every
 * step has exactly one line: a resumed run first removes the lines beyond its checkpoint.
 */
#ifndef D9DI_TRAIN_SAMPLES_LOG_H
#define D9DI_TRAIN_SAMPLES_LOG_H

#include "d9d/base/writer.h"
#include "d9d/data/loader/sampler.h"

typedef struct d9di_samples_log {
    d9d_writer *writer; /* NULL: closed */
    const char *path;   /* borrowed */
    d9d_buf line;
    d9d_buf last_sampler, sampler; /* the last sampler written; the loader's present one */
} d9di_samples_log;

/* Opens the log, truncated after the line of step `done`; creates it if necessary.  A thread writes
 * it. */
d9d_status d9di_samples_log_open(const char *path, int64_t done, const d9d_log *log,
                                 d9di_samples_log *out);
/* Records samples [first, first + n) of the stream as step `step`.  The loader must always be the
 * same. */
d9d_status d9di_samples_log_add(d9di_samples_log *g, int64_t step, d9d_loader *l, int64_t first,
                                int64_t n);
/* flush: all lines are in the file.  sync: and durable. */
d9d_status d9di_samples_log_flush(d9di_samples_log *g);
d9d_status d9di_samples_log_sync(d9di_samples_log *g);
void d9di_samples_log_release(d9di_samples_log *g);

#endif /* D9DI_TRAIN_SAMPLES_LOG_H */
