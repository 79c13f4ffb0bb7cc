/* heads_forward.h - the open task of several heads: its forward.  See d9d/tasks/heads.h. */
#ifndef D9DI_TASKS_HEADS_FORWARD_H
#define D9DI_TASKS_HEADS_FORWARD_H

#include "d9d/tasks/heads.h"

/* What the heads of a kind are. */
typedef struct d9di_heads_kind {
    const char *words;        /* "a regression head" */
    bool pooled;              /* of texts, not of tokens */
    bool labelled;            /* `label` is required */
    int first_loss, end_loss; /* its losses are a range of d9d_heads_loss */
} d9di_heads_kind;
extern const d9di_heads_kind d9di_heads_kinds[];
extern const char *const d9di_heads_kind_names[], *const d9di_heads_loss_names[];

typedef struct d9di_heads_head {
    const d9d_heads_head_section *c;
    const d9di_heads_kind *kind;
    d9d_heads_loss loss;
    char matrix[80];                    /* "heads.NAME" */
    char label_key[40], weight_key[40]; /* "task.heads[0].label", for messages */
} d9di_heads_head;

typedef struct d9di_heads {
    const d9d_heads_section *c;
    d9di_heads_head head[D9D_HEADS_MAX];
    size_t n;
    d9d_field_request fields[2 * D9D_HEADS_MAX];
    size_t n_fields;
    d9d_task_head_record record[D9D_HEADS_MAX];
    d9d_model_head_out out[D9D_HEADS_MAX]; /* of the newest forward */
    d9d_model_columns columns;             /* the same in inference */
} d9di_heads;

/* True if the loss is of classes, int32. */
static inline bool d9di_heads_loss_is_of_classes(d9d_heads_loss loss)
{
    return loss == D9D_HEADS_CROSS_ENTROPY;
}
static inline bool d9di_heads_is_inference(const d9di_heads *h)
{
    return h->c->output.output != NULL;
}
/* The head that is the model's own; NULL: none. */
const d9di_heads_head *d9di_heads_find_lm(const d9di_heads *h);

/* As d9d_train_task.forward. */
d9d_status d9di_heads_forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                              d9d_model_out *out);

#endif /* D9DI_TASKS_HEADS_FORWARD_H */
