/* preference.h - training on preferences: pairs of a chosen and a rejected answer, or single
 * answers that are desirable or not.
 *
 *     "task": {"name": "preference", "loss": "dpo", "beta": 0.1}
 *     "task": {"name": "preference", "loss": "dpo", "reference": {"checkpoint": "models/sft"}}
 *     "task": {"name": "reward"}
 *
 * A sample of the dataset (d9d-shard --format preference) has the answers of a record as documents
 * of one sequence, so that they are on one rank and in one micro-batch on any mesh, in any order
 * and packed or not:
 *
 *     pairs     | prompt chosen | prompt rejected |  ...
 *     single    | prompt desirable | . | prompt another's answer | . |  ...
 *               | . | prompt undesirable | prompt another's answer | . |
 *
 * where a dot is an absent answer, one token without a target.
 *
 * The log-probability of an answer is the sum over its targets, in float32, from the model's fused
 * losses of tokens: logits never exist as a whole.
 *
 *     loss    of                             reference   formula (d9d/op/loss.h)
 *     dpo     sums                           yes         d9d_op_dpo
 *     ipo     means over an answer's tokens  yes         d9d_op_ipo
 *     simpo   means                          no          d9d_op_simpo
 *     orpo    means                          no          d9d_op_orpo
 *     kto     sums, single answers           yes         d9d_op_kto, times desirable_weight or
 *                                                        undesirable_weight
 *
 * kto's kl is the mean log-ratio of the micro-batch's mismatched answers, 0 or more.  It depends on
 * microbatch_size and, as a micro-batch is the same samples on any mesh, on nothing else.
 *
 * The loss of a step is the mean over its pairs, or single answers.  The metric "rewards" has TRL's
 * names.
 *
 * The reward model has a head of one output on the last position of each answer, trained on pairs
 * (Bradley-Terry); HuggingFace's ...ForSequenceClassification of one label.
 */
#ifndef D9D_TASKS_PREFERENCE_H
#define D9D_TASKS_PREFERENCE_H

#include "d9d/tasks/task.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The key "reference" or "teacher": null, "start", or {"checkpoint": "DIR"}. */
typedef struct d9d_task_reference_key {
    bool given;
    const char *checkpoint; /* NULL: "start" */
} d9d_task_reference_key;

typedef struct d9d_preference_section {
    int loss;
    double beta, label_smoothing, gamma;
    double desirable_weight, undesirable_weight;
    d9d_task_reference_key reference;
} d9d_preference_section;

#ifdef __cplusplus
}
#endif
#endif /* D9D_TASKS_PREFERENCE_H */
