/* infer.h - the inference loop: log-probabilities, perplexity, generation, and head tasks.
 *
 * Samples are read in the order of the data section, microbatch_size at a time; the last batch may
 * be smaller.  Results are written in the same order.  With several ranks, each data-parallel rank
 * has a micro-batch of its own, and rank 0 writes.
 *
 * logprobs writes one JSON object per sample,
 *
 *     {"sample": 0, "logprobs": [-1.2, ...], "loss": 1.2, "tokens": 17}
 *
 * with the natural-log probability of every target, in order, and their negated mean.  The output
 * is written under a temporary name and renamed when complete.  An interrupted run resumes after
 * the last sample in it.
 *
 * perplexity is exp of the mean negative log-probability over all targets.
 *
 * classification writes the class probabilities of each text, one line per text; embedding and
 * hidden_states write a .npy with one row per text (d9d/tasks/head_tasks.h).  They resume in the
 * same way.
 *
 * generate writes a continuation of each prompt, in prompt order, and resumes in the same way:
 *
 *     {"sample": 0, "prompt_tokens": 9, "tokens": [31, 7, 0], "text": "...", "finish": "stop"}
 *
 *     finish   "stop"     after a stop token, which is the last of the tokens
 *              "length"   at max_new_tokens, or at the model's maximum length or its max_length
 *              "skipped"  for a sample in skip_samples
 *     text     without special tokens; needs a tokenizer
 *
 * What the task leaves null, how tokens are drawn and how many, is that of the model's
 * generation_config.json.
 *
 * Generation uses continuous batching: each data-parallel rank decodes microbatch_size sequences at
 * a time, and a finished sequence's place goes to the next prompt.  The KV cache has slots for that
 * many sequences of the longest prompt plus max_new_tokens.  It is allocated, and its size logged,
 * before the first token.  A continuation depends on (weights, prompt, seed, sample number) and,
 * through rounding, on the mesh and the device.  On the CPU it does not depend on the other
 * sequences of the batch.
 */
#ifndef D9D_INFER_INFER_H
#define D9D_INFER_INFER_H

#include "d9d/job/job.h"
#include "d9d/tasks/task.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Runs inference.  Collective over the job, as d9d_train().  ECONFIG without the `weights` of
 * trainer.model_stage_factory.source_checkpoint.  EINTR after a signal; finished lines are kept for
 * the next start. */
D9D_API D9D_MUST_USE d9d_status d9d_infer(const d9d_infer_config *config, const json_t *resolved,
                                          const d9d_job *where, d9d_infer_task_summary *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_INFER_INFER_H */
