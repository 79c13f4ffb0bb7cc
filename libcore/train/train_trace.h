/* train_trace.h - the profiler: traces of the steps that the configuration selects.
 *
 *     D9D_TRY(d9di_train_profiler_begin(&p, &run, dev, k));
 *     ... step k is enqueued ...
 *     d9di_train_profiler_end(&p, &run, dev, k);
 */
#ifndef D9DI_TRAIN_TRAIN_TRACE_H
#define D9DI_TRAIN_TRAIN_TRACE_H

#include "d9d/device/trace.h"
#include "engine/trace_file.h"
#include "train/train_run.h"

typedef struct d9di_train_profiler {
    d9d_trace *trace;        /* of the steps being traced; NULL: none */
    d9di_trace_file *traced; /* the previous trace, while it is written; NULL: none */
} d9di_train_profiler;

/* Call before and after step k, counted from 1, is enqueued. */
d9d_status d9di_train_profiler_begin(d9di_train_profiler *p, const d9di_train_run *run,
                                     d9d_device *dev, int64_t k);
/* A trace that cannot be written does not end the run. */
void d9di_train_profiler_end(d9di_train_profiler *p, const d9di_train_run *run, d9d_device *dev,
                             int64_t k);
void d9di_train_profiler_close(d9di_train_profiler *p);

#endif /* D9DI_TRAIN_TRAIN_TRACE_H */
