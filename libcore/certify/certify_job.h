/* certify_job.h - trainings and inferences of the small model, as jobs configured like any other.
 *
 *     {"data": {"dataset": "rows", "source": {"name": "random", ...}, "order": "sequential"},
 *      "model_provider": {"name": FAMILY, "hf_config": FOLDER}, ...}
 *
 * Every step of a training takes the same batch.  Jobs run on the CPU, by one rank but for the
 * self-test.
 */
#ifndef D9DI_CERTIFY_JOB_H
#define D9DI_CERTIFY_JOB_H

#include "certify/certify_parts.h"
#include "d9d/infer/infer.h"
#include "d9d/plan/plan.h"
#include "d9d/train/selftest.h"
#include "d9d/train/train.h"

enum { D9DI_CERTIFY_BATCH = 4 };

/* Put samples of a step and of a micro-batch into a document of a training. */
json_t *d9di_certify_with_batch(json_t *doc, int64_t batch, int64_t rows);

/* A document of a training: `steps` of AdamW from the model's folder, in a run directory of this
 * name.  With `peft`, taken over, by adapters.  NULL if memory is out, which running it reports. */
json_t *d9di_certify_train_doc(const d9di_certify *c, const char *run, int64_t steps, json_t *peft);
/* Greedy generation of `tokens` tokens for each line of `prompts`. */
json_t *d9di_certify_generate_doc(const d9di_certify *c, const char *prompts, const char *output,
                                  int64_t tokens);

/* Bind and run; takes the document over.  A signal is EINTR. */
d9d_status d9di_certify_train(d9di_certify *c, json_t *doc, d9d_train_summary *out);
d9d_status d9di_certify_infer(d9di_certify *c, json_t *doc, d9d_infer_task_summary *out);
/* Plan a training for this CPU; the plan is in the arena. */
d9d_status d9di_certify_plan(d9di_certify *c, json_t *doc, d9d_arena *a, d9d_plan *out);
/* Compare the training's mesh with one rank; collective over the bootstrap. */
d9d_status d9di_certify_selftest(d9di_certify *c, json_t *doc, d9d_selftest_summary *out);

#endif /* D9DI_CERTIFY_JOB_H */
