/* stage_tuple.h - what the stages of a rank exchange with their neighbours.
 *
 *     model and task        d9d_model_ops.stage_tensors, d9d_train_task.stage_tensors
 *     reference, teacher    the same of the frozen model, as constants "reference.NAME"
 *
 * The declarations of all stages are made once, from the configuration alone, so that all ranks
 * have the same.
 */
#ifndef D9DI_ENGINE_STAGE_TUPLE_H
#define D9DI_ENGINE_STAGE_TUPLE_H

#include "engine/engine.h"

/* Makes and checks the declarations: after the stages and the frozen model.  ECONFIG. */
d9d_status d9di_stage_tuple_open(d9di_engine *e);
/* Most tensors that enter a stage. */
size_t d9di_stage_tuple_longest(const d9di_engine *e);
/* Those that enter `stage` with the micro-batch `in`, of which ids and fields are read. */
d9d_status d9di_stage_tuple_tensors(const d9di_engine *e, int stage, const d9d_model_in *in,
                                    d9d_stage_tensor *out, size_t *n);
/* Messages that a transfer of this rank's program has on average. */
double d9di_stage_tuple_messages(const d9di_engine *e);

/* What has entered a stage, by name. */
typedef struct d9di_stage_tuple_in {
    d9d_model_passed own[D9D_STAGE_TENSORS_MAX], frozen[D9D_STAGE_TENSORS_MAX];
    size_t n_own, n_frozen;
} d9di_stage_tuple_in;
void d9di_stage_tuple_take(const d9di_engine *e, int stage, d9d_var *const *v,
                           d9di_stage_tuple_in *out);
/* Sorts what a stage but the last has given, and the frozen model, if there is one, into the order
 * of the next stage's tuple.  EMISMATCH for a tensor that is not declared. */
d9d_status d9di_stage_tuple_give(const d9di_engine *e, int stage, const d9d_model_out *own,
                                 const d9d_model_out *frozen, d9d_var **v);

#endif /* D9DI_ENGINE_STAGE_TUPLE_H */
