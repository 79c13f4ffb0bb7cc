/* evaluate.h - another dataset, on which a model is measured between two steps of its training.
 *
 *     D9D_TRY(d9di_evaluations_open(config, &task, &config->mesh, &arena, &list));
 *     D9D_TRY(d9di_evaluations_check(&list, engine.whole));
 *     of each v, when d9di_evaluation_is_due(v, step, total):
 *         D9D_TRY(d9di_evaluation_run(v, &how, &cut));      // v->values, unless it was cut
 *
 * Samples are dealt over the ranks as a step's are, batch by batch; ranks that are left without one
 * compute along.  The forward is the training's without its backward, on the same stages, and
 * touches nothing of it: no gradient, no random number, no position in the data.  Losses are summed
 * on the host, in float64, in the order of ranks.
 *
 * The step at which it was last done is a cell of checkpoints: one that a signal has cut is done
 * where the run goes on, and none is done twice.
 */
#ifndef D9DI_ENGINE_EVALUATE_H
#define D9DI_ENGINE_EVALUATE_H

#include "d9d/job/preemption.h"
#include "engine/engine.h"

/* "valid/tokens" ... "valid/ms", and those of metrics. */
enum {
    D9DI_EVALUATION_TOKENS,
    D9DI_EVALUATION_SAMPLES,
    D9DI_EVALUATION_INTEGERS, /* numbers until here */
    D9DI_EVALUATION_LOSS = D9DI_EVALUATION_INTEGERS,
    D9DI_EVALUATION_MS,
    D9DI_EVALUATION_VALUES
};

typedef struct d9di_evaluation {
    const d9d_job_evaluation_section *c;
    const struct d9d_job_data_loading_section *loading_section;
    d9di_run_data data;
    d9di_run_metrics metrics;
    const char *where;      /* of these: "evaluation.valid.metrics"; in the arena */
    int64_t samples, micro; /* of all; of a micro-batch */
    const char **names;     /* [n], in the arena */
    double *values;         /* [n] */
    size_t n;
    int64_t done_step; /* the step at which it was done last; -1: never */
} d9di_evaluation;

typedef struct d9di_evaluation_opts {
    d9di_engine *engine;
    d9di_task *task; /* of the engine; its metrics see these predictions meanwhile */
    d9d_preemption *preemption;
    int64_t step; /* that the weights are of, for the log */
    const d9d_log *log;
} d9di_evaluation_opts;

typedef struct d9di_evaluations {
    d9di_evaluation *v; /* [n], in the arena */
    size_t n;
} d9di_evaluations;

/* All of a configuration, which is borrowed.  Data are opened, padded for the ranks of `mesh`, and
 * no memory for a model is taken; NULL: what the sections say is checked, without data.  A failure
 * leaves what is to be released. */
d9d_status d9di_evaluations_open(const d9d_train_config *c, const d9di_task *task,
                                 const d9d_parallel_degrees *mesh, d9d_arena *a,
                                 d9di_evaluations *out);
void d9di_evaluations_release(d9di_evaluations *list);
/* EMISMATCH for data that do not fit the model. */
d9d_status d9di_evaluations_check(const d9di_evaluations *list, const d9d_model *m);
/* ECONFIG for metrics that do not take the scores of this head: before any is evaluated. */
d9d_status d9di_evaluations_check_head(d9di_evaluations *list, const d9d_head *head);

/* After `step` of `total` steps, and not done there yet. */
bool d9di_evaluation_is_due(const d9di_evaluation *v, int64_t step, int64_t total);
/* *cut: a rank was told to leave meanwhile, and nothing has come of it.  Collective. */
d9d_status d9di_evaluation_run(d9di_evaluation *v, const d9di_evaluation_opts *how, bool *cut);

#endif /* D9DI_ENGINE_EVALUATE_H */
