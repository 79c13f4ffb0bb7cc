/* infer_job.h - what every task of inference asks of its job, so that none of them can forget a
 * part of it: the scoring loop (infer.c) and generation (generate.c) have this from here alone. */
#ifndef D9DI_LOOP_INFER_JOB_H
#define D9DI_LOOP_INFER_JOB_H

#include "loop/engine.h"

/* What can be wrong with mesh, weights and output (NULL: none) before anything is read.  Rank 0
 * looks at the output, which must not exist. */
d9d_status d9di_infer_check(const d9d_infer_config *c, const d9d_job *where, const char *output);
/* What the engine is given: weights, adapters, mesh and time limits of the configuration; `data`
 * and `task` may be NULL. */
d9di_engine_how d9di_infer_engine_opts(const d9d_infer_config *c, const d9d_job *where,
                                       const d9di_data *data, const d9di_task *task);

#endif /* D9DI_LOOP_INFER_JOB_H */
