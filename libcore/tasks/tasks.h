/* tasks.h - a task while it runs.  See d9d/tasks/task.h. */
#ifndef D9DI_TASKS_TASKS_H
#define D9DI_TASKS_TASKS_H

#include "d9d/tasks/task.h"
#include "tasks/run_data.h"
#include "tasks/run_metrics.h"

typedef struct d9di_task {
    const d9d_train_task *kind;
    void *self;
    d9di_run_metrics *metrics; /* that see its predictions; NULL: none */
} d9di_task;

/* Of inference, beside "generate", which is no table. */
extern const d9d_infer_task_kind d9di_infer_task_logprobs, d9di_infer_task_perplexity;
/* head_tasks.c: both of training and of inference. */
extern const d9d_table d9di_head_task_train_classification_table,
    d9di_head_task_train_embedding_table;
extern const d9d_table d9di_head_task_infer_classification_table,
    d9di_head_task_infer_embedding_table, d9di_head_task_infer_hidden_states_table;

d9d_status d9di_task_open(const d9d_union *section, d9di_task *out);
/* One of this kind with this section. */
d9d_status d9di_task_open_kind(const d9d_train_task *kind, const void *section, d9di_task *out);
void d9di_task_close(d9di_task *t);

/* Of the rest `t` may be NULL: the model's own losses.  The head that it wants. */
d9d_head d9di_task_head(const d9di_task *t);
d9d_pooling d9di_task_pooling(const d9di_task *t);
/* So many samples of a micro-batch: ECONFIG, after `where`, if the task learns nothing of them. */
d9d_status d9di_task_check_micro_batch(const d9di_task *t, const char *where, int64_t micro);
/* ECONFIG for what sections of a configuration say about batches, against each other, the mesh and
 * the task, and about traces.  Training and plans check the same. */
d9d_status d9di_task_check_config(const d9di_task *t, const d9d_train_config *c);
/* Training's data, as the task takes them; so many samples of the stream will be.  ECONFIG if they
 * are not what it learns from. */
d9d_status d9di_task_set_data(const d9di_task *t, const d9di_run_data *data, int64_t taken);
d9d_status d9di_task_check_batch(const d9di_task *t, const d9d_batch *b);
/* ECONFIG, after `where`, if there are metrics and nothing that they could see; some tasks show it
 * later. */
d9d_status d9di_task_check_metrics(const d9di_task *t, const char *where,
                                   const d9di_run_metrics *m);
/* Units of the task's own, whose parameters are marked as added. */
d9d_status d9di_task_extend(const d9di_task *t, d9d_model *m, const d9d_model_opts *options);
d9d_status d9di_task_forward(const d9di_task *t, d9d_model *m, d9d_tape *tape,
                             const d9d_model_in *in, d9d_model_out *out);
int64_t d9di_task_targets(const d9di_task *t, const d9d_batch *b);
/* What it keeps, as cells of a checkpoint, in the arena; appended. */
d9d_status d9di_task_rank_state(const d9di_task *t, d9d_arena *a, d9d_checkpointer_set *set);
d9d_status d9di_task_finalize(const d9di_task *t);

#endif /* D9DI_TASKS_TASKS_H */
