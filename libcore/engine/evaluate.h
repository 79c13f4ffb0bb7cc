/* evaluate.h - evaluation of a model on another dataset, between two training steps.
 *
 *     D9D_TRY(d9di_evaluations_open(config, &task, &config->mesh, &arena, &list));
 *     D9D_TRY(d9di_evaluations_check(&list, &task, engine.whole.model, source, hf_config));
 *     for each v with d9di_evaluation_is_due(v, step, total):
 *         D9D_TRY(d9di_evaluation_run(v, &opts, &cut));     // v->values, unless it was cut
 *
 * Samples are distributed over the ranks batch by batch, as in a training step; ranks without
 * samples compute an idle batch.  The forward is training's, on the same stages.  It changes no
 * training state: no gradient, random number or data position.  The host sums losses in float64, in
 * rank order.
 *
 * The step of the last evaluation is rank state in checkpoints.  So an evaluation that a signal cut
 * short is repeated after the restart, and a complete one is not.
 */
#ifndef D9DI_ENGINE_EVALUATE_H
#define D9DI_ENGINE_EVALUATE_H

#include "d9d/job/preemption.h"
#include "engine/engine.h"

/* Values "valid/tokens" ... "valid/ms", then those of metrics. */
enum {
    D9DI_EVALUATION_TOKENS,
    D9DI_EVALUATION_SAMPLES,
    D9DI_EVALUATION_INTEGERS, /* values before this one are integers */
    D9DI_EVALUATION_LOSS = D9DI_EVALUATION_INTEGERS,
    D9DI_EVALUATION_MS,
    D9DI_EVALUATION_VALUES
};

typedef struct d9di_evaluation {
    const d9d_job_evaluation_section *c;
    const struct d9d_job_data_loading_section *loading_section;
    d9di_run_data data;
    d9di_run_metrics metrics;
    const char *where;      /* prefix of metric errors, "evaluation.valid.metrics"; in the arena */
    int64_t samples, micro; /* of the evaluation; of a micro-batch */
    const char **names;     /* [n], in the arena */
    double *values;         /* [n] */
    size_t n;
    int64_t done_step; /* step of the last evaluation; -1: none */
} d9di_evaluation;

typedef struct d9di_evaluation_opts {
    d9di_engine *engine;
    d9di_task *task; /* the engine's; its predictions go to the evaluation's metrics meanwhile */
    d9d_preemption *preemption;
    int64_t step; /* the training step, for the log */
    const d9d_log *log;
} d9di_evaluation_opts;

typedef struct d9di_evaluations {
    d9di_evaluation *v; /* [n], in the arena */
    size_t n;
} d9di_evaluations;

/* Opens all evaluations of a configuration, which is borrowed.  Datasets are opened and padded for
 * the ranks of `mesh`; no model memory is allocated.  With mesh NULL only the sections are checked.
 * After a failure the list must still be released. */
d9d_status d9di_evaluations_open(const d9d_train_config *c, const d9di_task *task,
                                 const d9d_parallel_degrees *mesh, d9d_arena *a,
                                 d9di_evaluations *out);
void d9di_evaluations_release(d9di_evaluations *list);
/* EMISMATCH for datasets that do not fit the model. */
d9d_status d9di_evaluations_check(const d9di_evaluations *list, const d9di_task *task,
                                  const d9d_model *m, const char *source, const char *hf_config);
/* ECONFIG for metrics that do not accept this head's scores.  Call before the first evaluation. */
d9d_status d9di_evaluations_check_head(d9di_evaluations *list, const d9d_head *head);

/* True if it is due after `step` of `total` steps, and was not done at this step. */
bool d9di_evaluation_is_due(const d9di_evaluation *v, int64_t step, int64_t total);
/* Runs it.  *cut: a rank was asked to exit meanwhile, and there are no values.  Collective. */
d9d_status d9di_evaluation_run(d9di_evaluation *v, const d9di_evaluation_opts *opts, bool *cut);

#endif /* D9DI_ENGINE_EVALUATE_H */
