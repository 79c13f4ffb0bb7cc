/* distillation.h - training a student to predict what a frozen teacher predicts.
 *
 *     "task": {"name": "distillation", "teacher": {"checkpoint": "models/large"}}
 *     "task": {"name": "distillation", "teacher": {"checkpoint": "models/large"}, "beta": 0.5,
 *              "temperature": 2, "cross_entropy_weight": 0.3, "hidden_weight": 0}
 *
 * The loss of a token is
 *
 *     divergence_weight     generalised Jensen-Shannon divergence of the two distributions, by
 * beta: 0 forward KL, 1 reverse KL (d9d_op_generalized_jsd(); TRL's GKD) cross_entropy_weight  -log
 * p of its target, at temperature 1 hidden_weight         mean squared difference of the hidden
 * states behind the final norm, of models of one hidden size
 *
 * and 0 where the target is ignored; that of a step is the mean over its targets.  Both models run
 * in one job, on one mesh, with one vocabulary.  Logits exist for a part of the tokens at a time
 * and are computed again in backward.  Their memory is that of some ten arrays of 2^26 float32, at
 * most.
 */
#ifndef D9D_TASKS_DISTILLATION_H
#define D9D_TASKS_DISTILLATION_H

#include "d9d/tasks/preference.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_distillation_section {
    d9d_task_reference_key teacher;
    double beta, temperature;
    double divergence_weight, cross_entropy_weight, hidden_weight;
    int64_t chunk_tokens; /* D9D_INT_NULL: as many as have 2^26 logits */
} d9d_distillation_section;

#ifdef __cplusplus
}
#endif
#endif /* D9D_TASKS_DISTILLATION_H */
