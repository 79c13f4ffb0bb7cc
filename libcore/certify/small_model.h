/* small_model.h - a small model in memory, with tokens, a loss and its gradient.
 *
 *     D9D_TRY(d9di_small_model_write(config, &opts, folder));   // random weights
 *     D9D_TRY(d9di_small_model_open(&m, folder, &opts));
 *     D9D_TRY(d9di_small_model_backward(&m, &loss));     // m.params have gradients
 *     D9D_TRY(d9di_small_model_loss(&m, &loss));         // forward alone
 *     d9di_small_model_close(&m);
 *
 * The loss is the mean of the targets' losses, by the model's own head or by that of a task.  It is
 * summed in float64.
 */
#ifndef D9DI_SMALL_MODEL_H
#define D9DI_SMALL_MODEL_H

#include "certify/small_task.h"

enum { D9DI_SMALL_ROWS = 3, D9DI_SMALL_LENGTH = 13 };

typedef struct d9di_small_model {
    d9d_arena arena;
    d9d_model_spec spec;
    d9d_device *dev;
    d9d_model *model;
    d9d_params params;
    d9d_tape *tape;
    d9di_task task;                        /* kind NULL: the model's own losses */
    d9d_op_pool_index pool;                /* where the task pools */
    d9d_tensor ids, positions, labels;     /* [B, S] */
    d9d_tensor seed;                       /* gradient of what the loss is a sum of */
    float *weight;                         /* the same on the host, in the arena */
    float *value;                          /* what the loss is a sum of */
    int64_t rows, length, targets, losses; /* losses: how many */
    int64_t n_ids;                         /* its tokens are below; 0: all ids */
} d9di_small_model;

typedef struct d9di_small_model_opts {
    const d9d_table *const *choices; /* of model_provider */
    d9d_model_recompute_mode recompute;
    uint64_t seed;             /* of its tokens */
    int64_t rows;              /* of tokens; 0: D9DI_SMALL_ROWS */
    const char *device;        /* NULL: "cpu" */
    bool base;                 /* without its head, as a base model, and without losses */
    const d9d_head_kind *head; /* that of the task whose losses are the model's; NULL: its own */
} d9di_small_model_opts;

/* Write the model of a config.json with random weights to `folder`, as HuggingFace's files.  Norms
 * and biases are random too, and experts are well apart, so that a small step seldom changes which
 * a token takes.  opts->head: a task's head, which the files have too. */
d9d_status d9di_small_model_write(const char *config, const d9di_small_model_opts *opts,
                                  const char *folder);

/* Load the folder's model in float32.  A model that was loaded, even in part, must be closed; that
 * returns how many bytes of its device are still in use. */
d9d_status d9di_small_model_load(d9di_small_model *m, const char *folder,
                                 const d9di_small_model_opts *opts);
/* Load it, with random tokens and labels. */
d9d_status d9di_small_model_open(d9di_small_model *m, const char *folder,
                                 const d9di_small_model_opts *opts);
uint64_t d9di_small_model_close(d9di_small_model *m);

d9d_status d9di_small_model_loss(d9di_small_model *m, double *loss);
d9d_status d9di_small_model_backward(d9di_small_model *m, double *loss);

/* Its gradients as numbers, in the order of the parameters.  A trainable parameter that no gradient
 * reached has zeros, a frozen one is NULL. */
typedef struct d9di_small_gradients {
    float **of;    /* [n], each of count numbers */
    size_t *count; /* [n] */
    size_t n;
} d9di_small_gradients;
/* To be released whether it succeeds or not. */
d9d_status d9di_small_gradients_read(const d9di_small_model *m, d9di_small_gradients *out);
void d9di_small_gradients_release(d9di_small_gradients *g);

#endif /* D9DI_SMALL_MODEL_H */
