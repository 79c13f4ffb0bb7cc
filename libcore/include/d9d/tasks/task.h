/* task.h - what a model is trained on, as a table of functions.
 *
 *     "task": {"name": "causal_lm"}
 *
 * A task runs the model's forward with the inputs that it wants, and makes the losses that are
 * trained on; next-token prediction, which is built in, takes the model's own.  It may give the
 * model parameters besides, such as a head: they lie as the model's plan says, begin at random
 * where the checkpoint that is loaded has none of that name, and are saved and exported with the
 * rest under their own names.
 *
 *     loss of a step = sum of out->loss over all micro-batches and ranks / sum of targets()
 *
 * Others come from plugins: {"plugin": "libclassify.so", "task": {"name": "classify", ...}}.
 */
#ifndef D9D_TASKS_TASK_H
#define D9D_TASKS_TASK_H

#include "d9d/checkpointer/checkpointer.h"
#include "d9d/data/loader/pooling.h"
#include "d9d/job/events.h"
#include "d9d/job/job.h"
#include "d9d/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A member that may be NULL says so.  Every function runs on every rank. */
typedef struct d9d_train_task {
    size_t size;            /* sizeof(d9d_train_task) */
    const d9d_table *table; /* of its section */
    /* `config` is the section, bound.  NULL: `self` is the section. */
    d9d_status (*open)(const void *config, void **self);
    void (*close)(void *self); /* before the device is closed; NULL: nothing to free */
    /* Units besides the model's, of the last stage for instance; d9d_model_add_linear() makes one,
     * which the model owns.  For the model as a whole first, whose structure alone is looked at
     * where it is a pipeline, then for each stage of this rank.  NULL: none. */
    d9d_status (*extend)(void *self, d9d_model *m, const d9d_model_opts *options);
    /* Call m->ops->forward(), and on the last stage set out->loss: float32, of any shape; what is
     * not root yet becomes it.  `in->labels` are what the data have.  out->logits [B*S, C], if it
     * is set, is what metrics see, at the positions whose label counts.  NULL: the model's own. */
    d9d_status (*forward)(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                          d9d_model_out *out);
    /* How many things a batch trains on, which its losses count for; all that weighs more or less
     * than one is in the losses themselves.  NULL: the labels that count. */
    int64_t (*targets)(void *self, const d9d_batch *b);
    /* When all steps are done.  NULL: nothing. */
    d9d_status (*finalize)(void *self);
    const d9d_job_event_handler *events; /* with `self`; NULL: none */
    /* What it keeps from step to step, besides parameters: *n arrays in its own memory, which live
     * with it.  They are in checkpoints, and are filled from one before "train.ready"; in the run
     * they begin as open left them.  A rank reads and writes its own; on another number of ranks
     * rank 0 has all of it, joined, and the others what open left.  Changed no later than
     * "train.step.post" of a step, and not by evaluation.  NULL: nothing. */
    const d9d_checkpointer_rank_state *(*state)(void *self, size_t *n);
    /* The head that it has in place of the model's own: its parameters are the task's, and forward
     * ends with the final norm.  Its size comes back as options->head of extend().  NULL: none. */
    void (*head)(void *self, d9d_head *out);
    /* What stands for a document, so that in->pool is there.  NULL: nothing. */
    d9d_pooling (*pooling)(void *self);
    /* Is this batch one to learn from?  Before it is computed with, on each rank that has samples
     * of it.  NULL: any is. */
    d9d_status (*check)(void *self, const d9d_batch *b);
    bool labels; /* it needs a dataset that was given labels, and is refused one without */
    bool paired; /* of in->pool: samples 2k and 2k + 1 belong together, two pairs or more */
} d9d_train_task;

/* --- inference -------------------------------------------------------------------------- *
 *
 * What is made of each row: of its losses, or of what a task's own forward makes of it.  Text goes
 * to the file `output` of the section, whose struct begins with a d9d_job_output_section: a line a
 * row, in the order of samples whatever the ranks, and an interrupted run goes on behind the last;
 * or one text at the end. */

/* What was made of samples: losses, tokens, or rows of a task's own, of positions without losses.
 */
typedef enum d9d_infer_task_output {
    D9D_INFER_TASK_SCORES,
    D9D_INFER_TASK_TOKENS,
    D9D_INFER_TASK_VALUES
} d9d_infer_task_output;

typedef struct d9d_infer_task_summary {
    int64_t samples, first_sample; /* of the whole task; where this life began */
    int64_t tokens;                /* targets, what was generated, or positions, of this life */
    double loss, perplexity;       /* over this life; NaN without a target */
    double tokens_per_s;
    d9d_infer_task_output output;
} d9d_infer_task_summary;

typedef struct d9d_infer_task_row {
    int64_t sample;    /* number in its split */
    int32_t dataset;   /* of a blend */
    bool blended;      /* there are several datasets */
    bool packed;       /* there may be several documents; positions restart with each */
    int64_t length;    /* positions */
    const float *loss; /* [length] -log p of each label, 0 without one */
    const int32_t *labels, *positions; /* [length] */
    double sum;                        /* of losses */
    int64_t targets;                   /* labels that count */
    const float *values;               /* [width] of a task with a body, and no losses then */
    int64_t width;
    int32_t label; /* the row's class, or -100 */
} d9d_infer_task_row;

typedef struct d9d_infer_task_kind {
    size_t size;            /* sizeof(d9d_infer_task_kind) */
    const d9d_table *table; /* of its section */
    /* Append the line of a row, with its newline; on the rank that has it.  NULL: none. */
    d9d_status (*row)(const void *config, const d9d_infer_task_row *x, d9d_buf *line);
    /* Append what the file has, where there are no lines; on rank 0.  NULL: nothing. */
    d9d_status (*end)(const void *config, const d9d_infer_task_summary *s, d9d_buf *text);
    /* What is computed: its open, close, extend, forward, head and pooling are called, with the
     * section of inference, and forward sets out->values, a row for each document.  A row of the
     * dataset is one document.  NULL: the model's losses. */
    const d9d_train_task *body;
    /* The shape of a row's values, in `shape` of 8 at most; returns how many dimensions.  They are
     * the rows of a .npy file then, and there are no lines.  NULL: row() makes lines of them. */
    int (*shape)(void *self, const d9d_model *whole, int64_t *shape);
    void (*finish)(void *self, float *row, int64_t n); /* each row in place; NULL: as it is */
} d9d_infer_task_kind;

D9D_API extern const d9d_table *const d9d_infer_task_choices[]; /* NULL-ended */

/* --- training's choices --------------------------------------------------------------------- */

D9D_API extern const char *const d9d_train_task_tag[];
D9D_API extern const d9d_table *const d9d_train_task_choices[]; /* NULL-ended */

#ifdef __cplusplus
}
#endif
#endif /* D9D_TASKS_TASK_H */
