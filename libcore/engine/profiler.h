/* profiler.h - traces of the steps that a configuration's "profiling" selects.
 *
 *     p = (d9di_profiler){.c = trainer->profiling, .dir = run_dir, .rank = rank, .log = log};
 *     each step k, from 1:
 *         D9D_TRY(d9di_profiler_begin(&p, dev, k));
 *         ... step k is enqueued ...
 *         d9di_profiler_end(&p, dev, k, k == last);
 *     d9di_profiler_close(&p);
 *
 * Of every period_steps the last active_steps are in one trace, in TRACES_DIR/step-K/rank-N.json.
 */
#ifndef D9DI_ENGINE_PROFILER_H
#define D9DI_ENGINE_PROFILER_H

#include "d9d/device/trace.h"
#include "d9d/job/job.h"
#include "engine/trace_file.h"

typedef struct d9di_profiler {
    const d9d_job_profiling_section *c; /* NULL: nothing is traced */
    const char *dir;                    /* that a relative traces_dir is in */
    int rank;
    const d9d_log *log;
    d9d_trace *trace;        /* of the steps being traced; NULL: none */
    d9di_trace_file *traced; /* the previous trace, while it is written; NULL: none */
} d9di_profiler;

d9d_status d9di_profiler_begin(d9di_profiler *p, d9d_device *dev, int64_t k);
/* A trace that cannot be written does not end the job.  `last`: no step follows. */
void d9di_profiler_end(d9di_profiler *p, d9d_device *dev, int64_t k, bool last);
/* Before the device closes. */
void d9di_profiler_close(d9di_profiler *p);

#endif /* D9DI_ENGINE_PROFILER_H */
