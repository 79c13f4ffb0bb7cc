/* task.h - training and inference tasks, as tables of functions.
 *
 *     "task": {"name": "causal_lm"}
 *
 * A task runs the model's forward with its own inputs, and computes the losses.  The built-in
 * causal_lm uses the model's own losses for next-token prediction.  A task may add parameters, such
 * as a head. They are placed by the model's parallel plan, initialised at random if the loaded
 * checkpoint lacks them, and saved and exported under their own names.
 *
 *     loss of a step = sum of out->loss over all micro-batches and ranks / sum of targets()
 *
 * Plugins can add tasks: {"plugin": "libclassify.so", "task": {"name": "classify", ...}}.
 */
#ifndef D9D_TASKS_TASK_H
#define D9D_TASKS_TASK_H

#include "d9d/checkpointer/checkpointer.h"
#include "d9d/data/loader/pooling.h"
#include "d9d/job/events.h"
#include "d9d/job/job.h"
#include "d9d/model/hf/sentence_modules.h"
#include "d9d/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The second model that a task compares with, which is not trained (in->reference of its forward).
 */
typedef struct d9d_task_reference {
    bool wanted;
    const char *checkpoint; /* a model folder; NULL: the weights that the run begins with */
    bool losses;            /* its losses of tokens are wanted, else its hidden states */
} d9d_task_reference;

/* What a task learns of. */
typedef enum d9d_task_answers {
    D9D_TASK_ANSWERS_NONE,  /* tokens, or texts */
    D9D_TASK_ANSWERS_PAIRS, /* documents 2i and 2i + 1 of a sample: a chosen and a rejected answer
                             */
    D9D_TASK_ANSWERS_SINGLE /* the same, of which one may be absent, without a target */
} d9d_task_answers;

enum { D9D_TASK_PARTS_MAX = 16 };

/* What metrics compare the outputs [R, C] of a head with. */
typedef enum d9d_task_targets {
    D9D_TASK_TARGETS_CLASSES, /* [R] int32, one of C classes each; the metrics read the logits */
    D9D_TASK_TARGETS_LABELS,  /* [R, C] float32, 0 or 1 of each class; they read probabilities, the
                                 sigmoid of the logits */
    D9D_TASK_TARGETS_VALUES   /* [R, C] float32 */
} d9d_task_targets;

/* A head among several: records have NAME.loss, and NAME.METRIC of each of its metrics. */
typedef struct d9d_task_head_record {
    const char *name;
    const d9d_list *metrics; /* d9d_union; empty: none */
    int64_t columns;         /* outputs that the metrics read */
    d9d_task_targets targets;
    const char *label; /* inference: the field that has them; NULL: the text's class */
} d9d_task_head_record;

/* Members that may be NULL say so.  Every function runs on every rank. */
typedef struct d9d_train_task {
    size_t size;            /* sizeof(d9d_train_task) */
    const d9d_table *table; /* of its section */
    /* `config` is the bound section; *self becomes the task's state.  NULL: `self` is the
     * section. */
    d9d_status (*open)(const void *config, void **self);
    void (*close)(void *self); /* called before the device is closed; NULL: nothing to free */
    /* Adds parameter units to the model, usually to the last stage: d9d_model_add_linear() makes
     * one, which the model owns.  Called first for the whole model (with a pipeline only its
     * structure is used), then for each stage of this rank.  NULL: adds none. */
    d9d_status (*extend)(void *self, d9d_model *m, const d9d_model_opts *options);
    /* Calls m->ops->forward(), and on the last stage sets out->loss: float32, of any shape, and a
     * root of the backward unless it is one already.  `in->labels` are the dataset's.  out->logits
     * [B*S, C], if set, is passed to the metrics at the positions whose label counts.  NULL: the
     * model's own forward. */
    d9d_status (*forward)(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                          d9d_model_out *out);
    /* The number of targets of a batch, the divisor of its losses; other weights belong into the
     * losses. NULL: the number of labels that count. */
    int64_t (*targets)(void *self, const d9d_batch *b);
    /* Called after all steps.  NULL: nothing. */
    d9d_status (*finalize)(void *self);
    const d9d_job_event_handler *events; /* called with `self`; NULL: none */
    /* The task's own state that checkpoints store: *n arrays in the task's memory, valid as long as
     * the task.  They are loaded before "train.ready"; without a checkpoint they keep open()'s
     * values.  Each rank saves and loads its own; on another number of ranks, rank 0 gets the
     * reduction of all and the others keep open()'s values.  A step may change them until
     * "train.step.post"; evaluations must not. NULL: no state. */
    const d9d_checkpointer_rank_state *(*state)(void *self, size_t *n);
    /* The head that replaces the model's own: its parameters are the task's, and the model's
     * forward ends after the final norm.  extend() receives its size as options->head.  NULL: the
     * model's own head. */
    void (*head)(void *self, d9d_head *out);
    /* How the positions of a document are pooled; in->pool is then set.  NULL: no pooling. */
    d9d_pooling (*pooling)(void *self);
    /* Checks a batch before it is used, on each rank that has samples of it.  NULL: any batch is
     * valid. */
    d9d_status (*check)(void *self, const d9d_batch *b);
    bool labels; /* needs a dataset with labels, unless it reads fields; others are refused */
    bool paired; /* in->pool: samples 2k and 2k + 1 form a pair; a micro-batch has at least two
                    pairs */
    /* Looks at the n datasets of the training, then of its evaluation, before any sample is read.
     * NULL: nothing. */
    d9d_status (*set_data)(void *self, d9d_dataset *const *datasets, size_t n);
    /* The task makes the labels of each sequence, as d9d_loader_collator.row: whole texts then
     * arrive without targets.  A function of its arguments and of what set_data() left.  NULL: the
     * labels are the dataset's. */
    void (*collate)(void *self, const d9d_dataset *ds, int64_t sample, int64_t n, int32_t *ids,
                    int32_t *labels);
    /* The named tensors of samples that the task reads (d9d/data/dataset/field.h): *n requests in
     * its memory.  A dataset without one is an error before anything is allocated; forward() finds
     * them by d9d_model_find_field(), targets() and check() by d9d_batch_find_field().  NULL: none.
     */
    const d9d_field_request *(*fields)(void *self, size_t *n);
    /* forward() sets no logits.  Metrics are of the next tokens that the model predicts
     * (d9d_metric_input), or refused at once if its head is another. */
    bool no_logits;
    /* The frozen second model that forward() needs.  NULL: none. */
    void (*reference)(void *self, d9d_task_reference *out);
    /* Its datasets have answers in pairs (d9d-shard --format preference), and in->documents is set;
     * out->loss has an element for each pair, or each answer, that is 0 where it does not count.
     * NULL: none. */
    d9d_task_answers (*answers)(void *self);
    /* The task learns from completions of the data's prompts, which the job samples by the weights
     * as they are (d9d/tasks/grpo.h).  NULL: from the data itself. */
    const struct d9d_grpo_section *(*generation)(void *self);
    /* With generation: a round's step `iteration` comes to forward() next; in->micro is the number
     * of its micro-batch.  NULL: nothing. */
    void (*select)(void *self, int64_t iteration);
    /* The loss is a sum of parts, each divided by targets of its own.  Adds those of sequence `seq`
     * of a batch (-1: of all) to n[], and returns the number of parts, at most
     * D9D_TASK_PARTS_MAX; b NULL: returns it alone.  forward() finds the sums over the step in
     * in->part_targets; targets() is their sum.  NULL: one part. */
    size_t (*parts)(void *self, const d9d_batch *b, int64_t seq, int64_t *n);
    /* Heads with records of their own, as many as out->heads.  NULL: none. */
    const d9d_task_head_record *(*heads)(void *self, size_t *n);
    bool (*has_pairs)(
        void *self); /* as `paired`, where it depends on the section; NULL: `paired` */
    /* What the task passes from stage to stage beside what the model does, as
     * d9d_model_ops.stage_tensors: its forward() finds them by d9d_model_find_passed() and gives
     * them by d9d_model_pass().  NULL: nothing. */
    d9d_status (*stage_tensors)(void *self, const d9d_model *m, int stage, d9d_stage_spec *out,
                                size_t *n);
    /* After extend(): the labels of its datasets' documents are classes below this number; 0: they
     * are not.  A dataset that is known to have another is an error before anything is allocated.
     * NULL: 0. */
    int64_t (*classes)(void *self);
    /* What of the loss is over a micro-batch, such as "the KL of kto", so that another
     * microbatch_size is another loss: logs and plans say so.  NULL, also returned: nothing, or of
     * pairs their negatives. */
    const char *(*micro_batch_term)(void *self);
    /* Of inference: what the folder of source_checkpoint says of vectors of texts, `says`, whose
     * file is NULL where it says nothing.  NULL: the task does not ask. */
    d9d_status (*set_source)(void *self, const d9d_hf_sentence_modules *says);
} d9d_train_task;

/* --- inference ------------------------------------------------------------------------ *
 *
 * An inference task turns each row (sample) into output: from its losses, or from the values that
 * the task's own forward computes.  Output goes to the file `output` of the section, whose struct
 * begins with a d9d_job_output_section.  It is a line per row, in sample order on any mesh, and an
 * interrupted run resumes after the last line; or a single text at the end. */

/* What a task computes of its samples: losses, generated tokens, or values of its own. */
typedef enum d9d_infer_task_output {
    D9D_INFER_TASK_SCORES,
    D9D_INFER_TASK_TOKENS,
    D9D_INFER_TASK_VALUES
} d9d_infer_task_output;

enum { D9D_INFER_TASK_METRICS_MAX = 64 }; /* values of all metrics of an inference */

typedef struct d9d_infer_task_metric {
    char name[64]; /* "accuracy", "f1/3" */
    double value;
} d9d_infer_task_metric;

typedef struct d9d_infer_task_summary {
    int64_t samples, first_sample; /* of the whole task; where this process began */
    int64_t tokens;                /* targets, generated tokens, or positions */
    double loss, perplexity;       /* over all samples; NaN without a target */
    double tokens_per_s;           /* of this process */
    d9d_infer_task_output output;
    size_t n_metrics;
    d9d_infer_task_metric metrics[D9D_INFER_TASK_METRICS_MAX]; /* over all samples */
    /* Tokens, loss and metrics are of the samples from here on: 0, unless an output was begun with
     * other metrics, or by a version that did not keep what it had counted. */
    int64_t counted_from;
} d9d_infer_task_summary;

typedef struct d9d_infer_task_row {
    int64_t sample;                    /* number in its split */
    int32_t dataset;                   /* its number in a blend */
    bool blended;                      /* there are several datasets */
    bool packed;                       /* may have several documents, each with positions from 0 */
    int64_t length;                    /* positions */
    const float *loss;                 /* [length] -log p of each label; 0 without a label */
    const int32_t *labels, *positions; /* [length] */
    double sum;                        /* of losses */
    int64_t targets;                   /* number of labels that count */
    const float *values;               /* [width], for a task with a body; `loss` is then NULL */
    int64_t width;
    int32_t label;              /* the row's class; -100: none */
    struct d9d_dataset *source; /* the sample's dataset, which has its tokenizer */
    const d9d_batch *batch; /* the row is its sequence `seq`; has the fields that were asked for */
    int64_t seq;
} d9d_infer_task_row;

typedef struct d9d_infer_task_kind {
    size_t size;            /* sizeof(d9d_infer_task_kind) */
    const d9d_table *table; /* of its section */
    /* Appends the line of a row, with its newline; called on the rank that has the row.  NULL: no
     * lines. */
    d9d_status (*row)(const void *config, const d9d_infer_task_row *x, d9d_buf *line);
    /* Appends the file's content if there are no lines; called on rank 0.  NULL: nothing. */
    d9d_status (*end)(const void *config, const d9d_infer_task_summary *s, d9d_buf *text);
    /* Another head, labels or values: its open, close, extend, forward, head, pooling, set_data and
     * collate are called with the inference section, and fields, heads, check and answers if it has
     * them.  The columns of a row are those of its heads, in their order.  forward
     * sets out->values, one row per document in place of losses, and a dataset row is one document;
     * without a forward, and where this is NULL, the model's losses count. */
    const d9d_train_task *body;
    /* Writes the shape of a row's values to `shape`, at most 8 dimensions; returns their number.
     * The output is then a .npy file with one record per row.  NULL: row() makes lines of them. */
    int (*shape)(void *self, const d9d_model *whole, int64_t *shape);
    void (*finish)(void *self, float *row, int64_t n); /* modifies a row; NULL: unchanged */
} d9d_infer_task_kind;

D9D_API extern const d9d_table *const d9d_infer_task_choices[]; /* NULL-terminated */

/* --- training's choices --------------------------------------------------------------------- */

D9D_API extern const char *const d9d_train_task_tag[];
D9D_API extern const d9d_table *const d9d_train_task_choices[]; /* NULL-terminated */

#ifdef __cplusplus
}
#endif
#endif /* D9D_TASKS_TASK_H */
