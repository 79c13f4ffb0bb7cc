/* infer_job.h - start-up that scoring (infer.c) and generation (generate.c) share. */
#ifndef D9DI_INFER_INFER_JOB_H
#define D9DI_INFER_INFER_JOB_H

#include "engine/engine.h"
#include "engine/profiler.h"
#include "engine/rank_consistency.h"

/* Checks mesh, weights and output (NULL: none) before anything is read.  Rank 0 checks that the
 * output does not exist. */
d9d_status d9di_infer_check(const d9d_infer_config *c, const d9d_job *where, const char *output);
/* The traces of its steps, as "profiling" says; a relative traces_dir is in the working directory.
 */
d9di_profiler d9di_infer_profiler(const d9d_infer_config *c, const d9d_job *where);
/* The engine's options from the configuration: weights, adapters, mesh and timeouts.  `data` and
 * `task` may be NULL. */
d9di_engine_opts d9di_infer_engine_opts(const d9d_infer_config *c, const d9d_job *where,
                                        const d9di_run_data *data, const d9di_task *task);

/* Checks that all input files are the same on all ranks: the items of `same`, which is released,
 * and the inputs of the open engine.  On rank 0, *key (NULL: not wanted) becomes a hash of their
 * content and of the resolved configuration without paths.  Collective over the job.
 */
d9d_status d9di_infer_check_sources(const d9d_job *where, const d9di_engine *e,
                                    const d9di_engine_opts *opts, const json_t *resolved,
                                    d9di_rank_consistency *same, d9d_hash *key);

#endif /* D9DI_INFER_INFER_JOB_H */
