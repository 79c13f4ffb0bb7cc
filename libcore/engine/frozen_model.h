/* frozen_model.h - the second model of a task: a reference or a teacher, which is not trained.
 *
 *     "reference": "start"                     the weights that the run begins with
 *     "reference": {"checkpoint": "teacher"}   a model folder, of any family with the vocabulary
 *
 * It has the stages of the trained model, on its mesh and by the same parallel plan, without
 * gradients: its forward of a micro-batch precedes the trained model's on the same tape.  Through a
 * pipeline what it passes on travels beside the rest, without gradients (engine/stage_tuple.h):
 *
 *     stage k  --[ hidden | reference.hidden ]-->  stage k + 1
 *
 * Where adapters alone are trained (LoRA), the weights that the run begins with are the trained
 * model's own, without its adapters: "start" is then no second copy.
 *
 * The engine owns it.  It is not saved; a resume reads it again from where it came.
 */
#ifndef D9DI_ENGINE_FROZEN_MODEL_H
#define D9DI_ENGINE_FROZEN_MODEL_H

#include "engine/engine.h"

/* Builds the structure, if the task has a reference: after the trained model's stages.  ECONFIG if
 * it does not go with the trained model, the data or the mesh. */
d9d_status d9di_frozen_model_open(d9di_engine *e, const d9di_engine_opts *opts);
/* Places it on the mesh; *group_bytes is raised to those of its largest unsharded unit. */
d9d_status d9di_frozen_model_place(d9di_engine *e, uint64_t *group_bytes);
/* Bytes of its parameters on this rank, once they are placed; 0 without a copy. */
uint64_t d9di_frozen_model_bytes(const d9di_engine *e);
/* Elements of its parameters, as far as on this rank's stages; 0 without a copy. */
int64_t d9di_frozen_model_param_count(const d9di_engine *e);
/* Takes over its units, and reads or initialises its parameters. */
d9d_status d9di_frozen_model_create(d9di_engine *e);
d9d_status d9di_frozen_model_materialize(d9di_engine *e, const d9di_engine_opts *opts);
/* Its memory is about to move, between steps (d9d_fsdp_invalidate()). */
void d9di_frozen_model_invalidate(d9di_engine *e);
void d9di_frozen_model_release(d9di_engine *e);

/* Its part of stage k of this rank: the trained model's stage, if that is its own. */
d9d_model *d9di_frozen_model_stage_model(const d9di_engine *e, size_t k);
/* Its forward of a micro-batch through stage k of this rank; in->hidden and in->passed are its
 * own. */
d9d_status d9di_frozen_model_forward(d9di_engine *e, size_t k, d9d_tape *t, const d9d_model_in *in,
                                     d9d_model_reference *out);

#endif /* D9DI_ENGINE_FROZEN_MODEL_H */
