/* masked_lm.h - masked language modelling: learn the tokens that were masked, and tell them.
 *
 *     "task": {"name": "masked_lm"}
 *     "task": {"name": "masked_lm", "mlm_probability": 0.15, "mask_replace_prob": 1.0,
 *              "random_replace_prob": 0.0, "mask_token": "[MASK]", "seed": 0}        d9d-train
 *     "task": {"name": "masked_lm", "output": "masked.jsonl"}                        d9d-infer
 *
 * Of the tokens of a text some are chosen, each with mlm_probability, and only these are targets.
 * A chosen token becomes the mask with mask_replace_prob, any token of the vocabulary with
 * random_replace_prob, and else stays as it is.  The names and the rule are those of transformers'
 * DataCollatorForLanguageModeling; special tokens are never chosen.
 *
 *     ids       [CLS]  the   cat  [MASK]  on   dog   mat  [SEP]
 *     labels     -100 -100  -100   sat   -100  the  -100   -100
 *
 * What becomes of a position is a function of (seed, the sample's number in the stream, position)
 * alone: of one block of Philox for each position.  So it depends on no mesh, micro-batch or
 * worker, a resumed run goes on with the same masks, each epoch has new ones, and each evaluation
 * the same.
 *
 * Inference masks in the same way, and scores the targets of each sample:
 *
 *     {"sample": 0, "positions": [3, 5], "targets": [17, 9], "logprobs": [-0.1, -2.0],
 * "loss": 1.05, "tokens": 2}
 *
 * With mlm_probability 0 nothing is masked: the dataset brings masked ids, and labels for them.
 *
 *     "task": {"name": "fill_mask", "output": "filled.jsonl", "top_k": 5}            d9d-infer
 *
 * finds the likeliest tokens behind the masks that the samples have, as transformers' pipeline
 * "fill-mask": for each mask top_k of them, the likeliest first, with their probabilities among the
 * whole vocabulary.
 *
 *     {"sample": 0, "positions": [3], "tokens": [[17, 9, 4, 1, 8]],
 *      "scores": [[0.5, 0.2, 0.1, 0.01, 0.001]]}
 *
 * The model is one with the head of a masked language model, ...ForMaskedLM in HuggingFace's files.
 * A checkpoint without it is accepted: the head is then random.
 */
#ifndef D9D_TASKS_MASKED_LM_H
#define D9D_TASKS_MASKED_LM_H

#include "d9d/tasks/task.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_masked_lm_section {
    d9d_job_output_section output; /* of inference */
    double mlm_probability, mask_replace_prob, random_replace_prob;
    const char *mask_token; /* NULL: "[MASK]" or "<mask>", whichever the tokenizer has */
    int64_t mask_token_id;  /* D9D_INT_NULL: that of mask_token */
    d9d_list special_ids;   /* int64_t: never chosen, beside the tokenizer's special tokens */
    int64_t seed;
} d9d_masked_lm_section;

typedef struct d9d_fill_mask_section {
    d9d_job_output_section output;
    int64_t top_k;
    const char *mask_token; /* as above */
    int64_t mask_token_id;
} d9d_fill_mask_section;

typedef struct d9d_masked_lm_opts {
    double mlm_probability, mask_replace_prob, random_replace_prob;
    uint64_t seed;
    int32_t mask_id;
    const bool *special; /* [n_special] by id; larger ids are not special */
    int64_t n_special;
} d9d_masked_lm_opts;

/* Mask n positions of `sample` of the stream: ids of chosen tokens change, labels become the chosen
 * tokens and -100 elsewhere.  Random tokens are in [0, vocab). */
D9D_API void d9d_masked_lm_mask(const d9d_masked_lm_opts *o, int64_t sample, int64_t vocab,
                                int64_t n, int32_t *ids, int32_t *labels);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TASKS_MASKED_LM_H */
