/* grpo.h - policy gradients over samples that the job generates: GRPO and its kin.
 *
 *     "task": {"name": "grpo", "num_generations": 8, "max_completion_length": 256,
 *              "rewards": [{"name": "answer"}]}
 *
 *     each round                           each of its num_iterations steps
 *       prompts    of the data               forward of the completions
 *       generate   num_generations each      ratio of log-probabilities to the first step's
 *       score      by the rewards            loss, backward, update
 *       advantages within each prompt
 *
 * The dataset is one of prompts with answers, as for fine-tuning (d9d-shard): the prompt is what
 * stands before the first target, the answer the text of the targets.  A sample of a batch is a
 * prompt: global_batch_size counts prompts, and a micro-batch of n prompts has n num_generations
 * completions.
 *
 * Names and formulas are those of TRL's GRPOTrainer; d9d_op_policy_gradient() has that of a token.
 * With m(t) 1 for a token that counts and n its completion's number of them, over all completions:
 *
 *     loss_type   loss of a step
 *     grpo        mean over completions of sum(m loss) / n
 *     bnpo        mean over micro-batches of sum(m loss) / sum(m)
 *     dr_grpo     sum(m loss) / (completions max_completion_length)
 *     dapo        sum(m loss) / sum(m)
 *     cispo       as dapo, of the cispo loss
 *
 *     advantage = (r - mean of the prompt's r) / (s + 1e-4), with s by scale_rewards:
 *     "group"     standard deviation (n - 1) of the prompt's rewards
 *     "batch"     of all rewards of the step
 *     "none"      no division
 *
 * The completions that a step samples depend on (weights, prompt, seed, number of the prompt in the
 * stream, number of the completion) and, through rounding, on tensor parallelism and the device: on
 * no micro-batch, and not on the number of data-parallel or context-parallel ranks or of stages.
 * The completions of a prompt share its prefill.
 *
 * Log-probabilities are those at the temperature of sampling.  The old ones of a ratio are computed
 * by the first step's own forward, so that its ratios are 1 exactly and a router's choices are
 * those of the same forward; what the sampler computed serves for the metric
 * sampling/sampling_logp_difference/mean.
 *
 * A round is a transaction: checkpoints are of its ends, and a signal exits there.
 */
#ifndef D9D_TASKS_GRPO_H
#define D9D_TASKS_GRPO_H

#include "d9d/tasks/preference.h"
#include "d9d/tasks/reward_function.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9d_grpo_loss_type {
    D9D_GRPO_LOSS_GRPO,
    D9D_GRPO_LOSS_BNPO,
    D9D_GRPO_LOSS_DR_GRPO,
    D9D_GRPO_LOSS_DAPO,
    D9D_GRPO_LOSS_CISPO
} d9d_grpo_loss_type;

typedef enum d9d_grpo_scale_rewards {
    D9D_GRPO_SCALE_GROUP,
    D9D_GRPO_SCALE_BATCH,
    D9D_GRPO_SCALE_NONE
} d9d_grpo_scale_rewards;

typedef struct d9d_grpo_section {
    int loss_type;                           /* d9d_grpo_loss_type */
    int importance_sampling_level;           /* 0: token, 1: sequence */
    int scale_rewards;                       /* d9d_grpo_scale_rewards */
    int64_t num_generations, num_iterations; /* completions of a prompt; steps */
    int64_t max_completion_length;           /* tokens */
    int64_t generation_batch_size;           /* completions decoded at a time */
    double temperature, top_p;               /* of sampling; top_p 1: no limit */
    int64_t top_k;                           /* 0: no limit */
    bool stop_at_eos, mask_truncated_completions;
    d9d_list stop_tokens;                /* int64_t */
    double epsilon, epsilon_high, delta; /* NaN: as epsilon; no limit */
    double beta;                         /* of the divergence from the reference; 0: none */
    d9d_task_reference_key reference;
    d9d_list rewards, reward_weights; /* d9d_union; double, none: 1 each */
    int64_t seed;
    int64_t log_completions; /* prompts of a step whose completions are written */
} d9d_grpo_section;

/* Advantages of n rewards, n a multiple of the section's num_generations.  `all` [n_all] are the
 * rewards of the step, for scale_rewards "batch". */
D9D_API void d9d_grpo_advantages(const d9d_grpo_section *c, const double *rewards, size_t n,
                                 const double *all, size_t n_all, double *advantages);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TASKS_GRPO_H */
