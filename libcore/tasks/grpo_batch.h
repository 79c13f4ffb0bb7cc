/* grpo_batch.h - completions as a micro-batch: tokens, targets, and what forward() reads of each.
 *
 *     ids      p p p p c c c          p: of the prompt, c: of the completion
 *     labels   . . . c c c e          e: its last token; "." has no target
 *     fields   "grpo.tokens" [B, S, D9DI_GRPO_COLUMNS] float32, "grpo.rows" [B, S] int32: 0 at the
 *              completion's tokens, -100 elsewhere
 */
#ifndef D9DI_TASKS_GRPO_BATCH_H
#define D9DI_TASKS_GRPO_BATCH_H

#include "d9d/data/loader/loader.h"
#include "d9d/op/loss.h"
#include "d9d/tasks/grpo.h"

#define D9DI_GRPO_TOKENS "grpo.tokens"
#define D9DI_GRPO_ROWS   "grpo.rows"

/* Columns of a token.  Those from MASK on go to the metric "grpo" as they are; from FIRST on they
 * are of the completion, at its first token alone. */
enum d9di_grpo_column {
    D9DI_GRPO_ADVANTAGE,
    D9DI_GRPO_WEIGHT,
    D9DI_GRPO_SHARE,
    D9DI_GRPO_SAMPLED, /* log-probability where it was sampled */
    D9DI_GRPO_MASK,    /* 1: it is trained */
    D9DI_GRPO_ENTROPY,
    D9DI_GRPO_FIRST, /* 1 */
    D9DI_GRPO_REWARD,
    D9DI_GRPO_ZERO_STD, /* 1: the rewards of its prompt are equal */
    D9DI_GRPO_LENGTH,
    D9DI_GRPO_TRUNCATED,
    D9DI_GRPO_COLUMNS
};
/* Further ones that forward() computes, in front of those from MASK on. */
enum d9di_grpo_computed {
    D9DI_GRPO_LOW,
    D9DI_GRPO_HIGH,
    D9DI_GRPO_KL,
    D9DI_GRPO_DIFFERENCE,
    D9DI_GRPO_COMPUTED
};

typedef struct d9di_grpo_token {
    double log_prob, entropy;
} d9di_grpo_token;

typedef struct d9di_grpo_completion {
    const uint32_t *ids;           /* [prompt + n] */
    int64_t prompt, n;             /* n 0: a skipped sample */
    const d9di_grpo_token *tokens; /* [n] */
    double reward, advantage;
    bool zero_std, truncated;
    d9d_sample_ref ref;
} d9di_grpo_completion;

typedef struct d9di_grpo_buffer {
    D9D_VEC(int32_t) ints;
    D9D_VEC(float) columns;
    D9D_VEC(int64_t) lengths;
    D9D_VEC(d9d_sample_ref) refs;
    d9d_batch_field fields[2];
} d9di_grpo_buffer;

/* The batch of `rows` completions, numbers first and on, padded to a multiple of `multiple`
 * positions.  It points into the buffer. */
d9d_status d9di_grpo_batch_make(const d9d_grpo_section *c, const d9di_grpo_completion *x,
                                int64_t rows, int64_t first, int64_t multiple,
                                d9di_grpo_buffer *buffer, d9d_batch *out);
void d9di_grpo_buffer_release(d9di_grpo_buffer *buffer);

/* Completions that a rank decodes at a time, with micro-batches of this many prompts. */
int64_t d9di_grpo_decoded_rows(const d9d_grpo_section *c, int64_t microbatch_size);
/* Of the losses that the section names. */
d9d_op_policy_opts d9di_grpo_policy_opts(const d9d_grpo_section *c);
/* The divisor of a batch's losses. */
int64_t d9di_grpo_targets(const d9d_grpo_section *c, const d9d_batch *b);

#endif /* D9DI_TASKS_GRPO_BATCH_H */
