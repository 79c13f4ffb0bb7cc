/* infer_job.h - what every task of inference asks of its job, so that none of them can forget a
 * part of it: the scoring loop (infer.c) and generation (generate.c) have this from here alone. */
#ifndef D9DI_INFER_INFER_JOB_H
#define D9DI_INFER_INFER_JOB_H

#include "engine/engine.h"
#include "engine/rank_consistency.h"

/* What can be wrong with mesh, weights and output (NULL: none) before anything is read.  Rank 0
 * looks at the output, which must not exist. */
d9d_status d9di_infer_check(const d9d_infer_config *c, const d9d_job *where, const char *output);
/* What the engine is given: weights, adapters, mesh and time limits of the configuration; `data`
 * and `task` may be NULL. */
d9di_engine_opts d9di_infer_engine_opts(const d9d_infer_config *c, const d9d_job *where,
                                        const d9di_run_data *data, const d9di_task *task);

/* Collective: over the job.  All that is read is the same on all ranks: what `same` has, which is
 * released, and what the open engine is made from.  On rank 0 *key (NULL: not asked for) becomes a
 * hash of it all, by content, and of the resolved configuration without the paths that lead to it.
 */
d9d_status d9di_infer_check_sources(const d9d_job *where, const d9di_engine *e,
                                    const d9di_engine_opts *opts, const json_t *resolved,
                                    d9di_rank_consistency *same, d9d_hash *key);

#endif /* D9DI_INFER_INFER_JOB_H */
