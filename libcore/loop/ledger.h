/* ledger.h - samples.jsonl: which samples made which step.
 *
 *     {"step": 1, "first": 0, "samples": [17, 3, 20, 8]}
 *     {"step": 2, "first": 4, "samples": [5, 1, 9, 2], "datasets": [0, 0, 1, 0], "skipped": [9]}
 *
 * `first` is the number in the stream of the first sample; samples are numbers in their split,
 * in the order of the rows of the step's batch, as d9d-shard inspect takes them.  `datasets`, of
 * a blend, has the place of each sample's dataset in the configuration; `skipped`, where there
 * are some, those of the samples that were left out.  Every step stands once: a run that resumes
 * takes out what is beyond its checkpoint first.
 */
#ifndef D9DI_LOOP_LEDGER_H
#define D9DI_LOOP_LEDGER_H

#include "d9d/base/writer.h"
#include "d9d/data/loader.h"

typedef struct d9di_ledger {
    d9d_writer *writer; /* NULL: closed */
    const char *path;   /* borrowed */
    d9d_buf line;
} d9di_ledger;

/* Open behind the line of step `done`, making the file if it is absent.  A thread writes it. */
d9d_status d9di_ledger_open(const char *path, int64_t done, const d9d_log *log, d9di_ledger *out);
/* Samples [first, first + n) of the stream were step `step`. */
d9d_status d9di_ledger_add(d9di_ledger *g, int64_t step, d9d_loader *l, int64_t first, int64_t n);
/* What was added is in the file; ... and durable. */
d9d_status d9di_ledger_flush(d9di_ledger *g);
d9d_status d9di_ledger_sync(d9di_ledger *g);
void d9di_ledger_release(d9di_ledger *g);

#endif /* D9DI_LOOP_LEDGER_H */
