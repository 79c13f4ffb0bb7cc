/* infer.h - the inference loop: log-probabilities, perplexity, generation, rows of texts.
 *
 * Samples are read in the order of the data section, microbatch_size at a time, the last
 * batch short; results come out in that order.
 *
 * logprobs writes one JSON object a sample,
 *
 *     {"sample": 0, "logprobs": [-1.2, ...], "loss": 1.2, "tokens": 17}
 *
 * a natural-log probability for every target that counts, in order, and their negated mean.
 * It is written beside its final name and renamed when it is whole; an interrupted run goes
 * on behind the last sample that is there.
 *
 * On many ranks each data-parallel rank has a micro-batch of its own at a time, and rank 0 writes.
 *
 * perplexity is exp of the mean negative log-probability over all targets.
 *
 * classification writes the probabilities of each text's classes, a line a text; embedding and
 * hidden_states a .npy with a row for each (d9d/tasks/head_tasks.h).  They go on in the same way.
 *
 * generate writes what follows each prompt, in the order of the prompts, and goes on in the same
 * way when it was interrupted:
 *
 *     {"sample": 0, "prompt_tokens": 9, "tokens": [31, 7, 0], "text": "...", "finish": "stop"}
 *
 * finish is "stop" behind a token that ends a text, which is among the tokens, "length" when there
 * are max_new_tokens or the model has no more positions, "skipped" for a sample that is to be
 * skipped; text, where there is a tokenizer, leaves special tokens out.
 *
 * Each data-parallel rank has microbatch_size rows at a time; the place of one that is done is the
 * next prompt's.  Keys and values are kept for as many rows of the longest prompt and
 * max_new_tokens, in memory that is taken, and spoken of, before the first token.  What is
 * generated for a prompt depends on (weights, prompt, seed, its number) and, where rounding
 * decides, on the mesh and the device; on the CPU no bit depends on the rows beside it.
 */
#ifndef D9D_INFER_INFER_H
#define D9D_INFER_INFER_H

#include "d9d/job/job.h"
#include "d9d/tasks/task.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Collective: over the job, as d9d_train().  `weights` of
 * trainer.model_stage_factory.source_checkpoint are required: ECONFIG.  EINTR after a signal, when
 * what was done is kept (logprobs). */
D9D_API D9D_MUST_USE d9d_status d9d_infer(const d9d_infer_config *config, const json_t *resolved,
                                          const d9d_job *where, d9d_infer_task_summary *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_INFER_INFER_H */
