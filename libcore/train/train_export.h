/* train_export.h - the export of a trained model, in HuggingFace's layout. */
#ifndef D9DI_TRAIN_TRAIN_EXPORT_H
#define D9DI_TRAIN_TRAIN_EXPORT_H

#include "train/train_checkpoint.h"

/* Refuses what the export at the end would refuse.  `done`: all steps are done already. */
d9d_status d9di_train_export_check(const d9di_train_run *run, const d9di_engine *e, bool done);
/* Exports the model after the steps of `state`, from this process or from the ranks' checkpoint:
 * the averages of its weights, where the optimizer `o` has some that are to be exported.
 * Collective. */
d9d_status d9di_train_export(const d9di_train_run *run, d9di_engine *e, d9d_optimizer *o,
                             const d9di_train_checkpointer *ck, const d9d_checkpointer_state *state,
                             d9d_train_summary *out);

#endif /* D9DI_TRAIN_TRAIN_EXPORT_H */
