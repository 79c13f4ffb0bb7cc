/* tasks.h - an open task.  See d9d/tasks/task.h. */
#ifndef D9DI_TASKS_TASKS_H
#define D9DI_TASKS_TASKS_H

#include "d9d/data/tokenizer/tokenizer.h"
#include "d9d/tasks/grpo.h"
#include "tasks/run_data.h"
#include "tasks/run_metrics.h"

typedef struct d9di_task {
    const d9d_train_task *kind;
    void *self;
    d9di_run_metrics *metrics; /* receive its predictions; NULL: none */
} d9di_task;

/* Built-in inference tasks; "generate" has no table. */
extern const d9d_infer_task_kind d9di_infer_task_logprobs, d9di_infer_task_perplexity;
/* Appends "logprobs": [...] of a row's targets, "loss" and "tokens", without the object's end. */
d9d_status d9di_infer_task_put_logprobs(const d9d_infer_task_row *x, d9d_buf *b);
/* head_tasks.c: training and inference. */
#define D9DI_TASK_CLASSIFIER_DROPOUT_DOC                                                           \
    "probability with which training drops an element of what the head multiplies"
extern const d9d_table d9di_head_task_train_classification_table,
    d9di_head_task_train_embedding_table;
extern const d9d_table d9di_head_task_infer_classification_table,
    d9di_head_task_infer_embedding_table, d9di_head_task_infer_hidden_states_table;

/* heads.c */
extern const d9d_table d9di_heads_train_table, d9di_heads_infer_table;

/* causal_lm.c */
extern const d9d_table d9di_causal_lm_table;

/* masked_lm.c */
extern const d9d_table d9di_masked_lm_train_table, d9di_masked_lm_infer_table;
/* A task's mask: as the tokenizer spells it, NULL for the usual words, or its id. */
typedef struct d9di_masked_lm_mask {
    const char *token;
    int64_t id; /* D9D_INT_NULL: that of `token` */
} d9di_masked_lm_mask;
#define D9DI_MASKED_LM_MASK_KEYS(S)                                                                \
    D9D_KEY_STR(S, mask_token, "null",                                                             \
                "the mask, as the tokenizer spells it; null: \"[MASK]\" or \"<mask>\"",            \
                .flags = D9D_NULLABLE, .min = 1),                                                  \
        D9D_KEY_INT(S, mask_token_id, "null", 0, INT32_MAX - 1,                                    \
                    "id of the mask; null: that of mask_token", .flags = D9D_NULLABLE)
/* ECONFIG if the model's vocabulary has no such id. */
d9d_status d9di_masked_lm_check_mask(const d9di_masked_lm_mask *m, const d9d_model *model);
/* The id by the first of n datasets that has a tokenizer, which is set and borrowed; `*at` is that
 * dataset's number. */
d9d_status d9di_masked_lm_find_mask(const d9di_masked_lm_mask *m, d9d_dataset *const *datasets,
                                    size_t n, const d9d_tokenizer **tok, size_t *at, int32_t *id);

/* preference.c, distillation.c, reward.c, reference_key.c */
extern const d9d_table d9di_preference_table, d9di_distillation_table, d9di_reward_table,
    d9di_reward_infer_table;
extern const d9d_key_custom d9di_task_reference_key_kind;

/* grpo.c; reward_functions.c, reward_command.c */
extern const d9d_table d9di_grpo_table;
extern const d9d_table d9di_reward_command_table;

/* answers.c: the rows [M, 7] that the metric "rewards" takes, of columns [M, 1]: rewards of the
 * chosen and the rejected answer, their log-probabilities, 1 or 0 for each that is there, kl. */
enum { D9DI_ANSWERS_COLUMNS = 7 };
d9d_status d9di_answers_columns(d9d_tape *t, d9d_var *const column[D9DI_ANSWERS_COLUMNS],
                                d9d_var **y);
/* answers.c: documents of a record, or 1 where documents are not of records; records of a batch,
 * or of its sequence `seq` if that is not negative, that count; EMISMATCH unless each sample has
 * whole records of this width. */
static inline int64_t d9di_answers_width(d9d_task_answers kind)
{
    static const int64_t widths[] = {1, 2, 4};

    return widths[kind];
}
int64_t d9di_answers_count(const d9d_batch *b, d9d_task_answers kind, int64_t seq);
d9d_status d9di_answers_check(const d9d_batch *b, int64_t width);

/* fill_mask.c */
extern const d9d_table d9di_fill_mask_table;

d9d_status d9di_task_open(const d9d_union *section, d9di_task *out);
/* Rows of pooled texts [M, H] times a matrix [N, H]: [M, N].  Dropout of its adapter counts texts.
 */
d9d_status d9di_task_linear_of_texts(d9d_tape *t, const d9d_op_pool_index *pool, d9d_var *rows,
                                     d9d_param *w, d9d_var **y);

/* Opens a task of this kind with this section. */
d9d_status d9di_task_open_kind(const d9d_train_task *kind, const void *section, d9di_task *out);
void d9di_task_close(d9di_task *t);

/* For the functions below `t` may be NULL: the model's own losses.  The head that the task
 * requires. */
d9d_head d9di_task_head(const d9di_task *t);
d9d_pooling d9di_task_pooling(const d9di_task *t);
d9d_task_reference d9di_task_reference(const d9di_task *t);
d9d_task_answers d9di_task_answers(const d9di_task *t);
/* What it generates; NULL: nothing. */
const d9d_grpo_section *d9di_task_generation(const d9di_task *t);
void d9di_task_select(const d9di_task *t, int64_t iteration);
bool d9di_task_is_of_answers(const d9di_task *t);
/* Its losses are of pairs; of documents or pairs, not of tokens. */
bool d9di_task_has_pairs(const d9di_task *t);
bool d9di_task_loses_by_document(const d9di_task *t);
/* What of its loss is over a micro-batch; NULL: nothing.  Static.  put: the sentence about it. */
const char *d9di_task_micro_batch_term(const d9di_task *t);
d9d_status d9di_task_put_micro_batch_term(const char *term, int64_t rows, d9d_buf *out);
/* ECONFIG, beginning with `where`, if the task cannot learn from micro-batches of this size. */
d9d_status d9di_task_check_micro_batch(const d9di_task *t, const char *where, int64_t micro);
/* Checks the batch sizes of a configuration against each other, the mesh and the task, and the
 * profiling section: ECONFIG.  Training and plans run the same checks. */
d9d_status d9di_task_check_config(const d9di_task *t, const d9d_train_config *c);
/* Prepares the training data for the task, which will use `taken` samples of the stream.  ECONFIG
 * if the task cannot learn from them. */
d9d_status d9di_task_set_data(const d9di_task *t, const d9di_run_data *data, int64_t taken);
/* The fields that the task and the model want, without repetition, in out[D9D_FIELDS_MAX].  ECONFIG
 * if the two want one differently. */
d9d_status d9di_task_fields(const d9di_task *t, const d9d_model *m, d9d_field_request *out,
                            size_t *n);
/* Asks the datasets for them.  ECONFIG if one has no such field, EMISMATCH for values out of range
 * that are known. */
d9d_status d9di_task_set_fields(const d9di_task *t, const d9d_model *m, const d9di_run_data *data);
d9d_status d9di_task_check_batch(const d9di_task *t, const d9d_batch *b);
/* Its metrics are of the next tokens that the model's own head predicts. */
bool d9di_task_predicts_tokens(const d9di_task *t);
/* Its heads with records of their own; NULL, *n 0: none. */
const d9d_task_head_record *d9di_task_heads(const d9di_task *t, size_t *n);
/* The metrics of each, out[D9D_TASK_PARTS_MAX]; in the arena. */
d9d_status d9di_task_head_sources(const d9di_task *t, const char *where, bool has_loss,
                                  d9d_arena *a, d9di_run_metrics_source *out, size_t *n);
/* Opens the metrics of a section, and those of the task's heads.  ECONFIG, beginning with `where`,
 * if the section has metrics and the task has no predictions for them; some tasks report this
 * later. */
d9d_status d9di_task_open_metrics(const d9di_task *t, const d9d_list *list, const char *where,
                                  d9d_arena *a, d9di_run_metrics *out);
/* Adds the task's parameter units, and marks their parameters as added. */
d9d_status d9di_task_extend(const d9di_task *t, d9d_model *m, const d9d_model_opts *options);
/* What enters `stage`: the model's declarations, then the task's, D9D_STAGE_TENSORS_MAX at most.
 * ECONFIG. */
d9d_status d9di_task_stage_specs(const d9di_task *t, const d9d_model *m, int stage,
                                 d9d_stage_spec out[D9D_STAGE_TENSORS_MAX], size_t *n);
d9d_status d9di_task_forward(const d9di_task *t, d9d_model *m, d9d_tape *tape,
                             const d9d_model_in *in, d9d_model_out *out);
int64_t d9di_task_targets(const d9di_task *t, const d9d_batch *b);
/* As d9d_train_task.parts; 0 for a loss of one part. */
size_t d9di_task_parts(const d9di_task *t, const d9d_batch *b, int64_t seq, int64_t *n);
/* Appends the task's state as rank state of a checkpoint; in the arena. */
d9d_status d9di_task_rank_state(const d9di_task *t, d9d_arena *a, d9d_checkpointer_set *set);
d9d_status d9di_task_finalize(const d9di_task *t);

#endif /* D9DI_TASKS_TASKS_H */
