/* prompt.h - virtual tokens that begin each sequence (prompt tuning): where they can be, and what
 * they begin as. */
#ifndef D9DI_ENGINE_PROMPT_H
#define D9DI_ENGINE_PROMPT_H

#include "engine/engine.h"

/* ECONFIG for a task or a mask that they do not go with; nothing without them. */
d9d_status d9di_engine_prompt_check(const d9di_engine *e);
/* Set those of a stage as the section peft says, once its weights are loaded; nothing for other
 * stages and methods.  Collective over the ranks that have the stage. */
d9d_status d9di_engine_prompt_start(const d9di_engine *e, const d9di_engine_opts *opts,
                                    d9d_model *m);

#endif /* D9DI_ENGINE_PROMPT_H */
