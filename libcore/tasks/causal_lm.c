/* causal_lm.c - next-token prediction, of targets that may have weights.
 *
 *     "task": {"name": "causal_lm", "loss_weights": "weight"}
 *
 *     loss of a step = sum of weight loss over all targets / number of targets
 */
#include <stdlib.h>

#include "d9d/op/math.h"
#include "d9d/op/op.h"
#include "tasks/tasks.h"

typedef struct causal_lm_section {
    const char *loss_weights;
} causal_lm_section;

typedef struct causal_lm {
    d9d_field_request weights;
} causal_lm;

static d9d_status causal_lm_open(const void *config, void **self)
{
    const causal_lm_section *c = config;
    causal_lm *t = calloc(1, sizeof(*t));

    if (t == NULL)
        return D9D_FAIL(D9D_ENOMEM, "task causal_lm: no memory");
    t->weights = (d9d_field_request){.name = c->loss_weights,
                                     .per = D9D_FIELD_PER_TARGET,
                                     .dtype = D9D_F32,
                                     .elements = 1,
                                     .spread = true,
                                     .where = "task.loss_weights"};
    *self = t;
    return D9D_OK;
}

static void causal_lm_close(void *self)
{
    free(self);
}

static const d9d_field_request *causal_lm_fields(void *self, size_t *n)
{
    const causal_lm *t = self;

    *n = t->weights.name != NULL;
    return &t->weights;
}

/* losses [B*S] times weights [B, S, ...] of one number each. */
static d9d_status weigh_losses(d9d_tape *t, const d9d_tensor *weights, d9d_var *loss, d9d_var **y)
{
    d9d_var *w;

    D9D_TRY(d9d_tape_leaf(t, weights, false, &w));
    D9D_TRY(d9d_op_reshape(t, w, d9d_var_tensor(loss)->shape, &w));
    return d9d_op_mul(t, loss, w, y);
}

/* A loss with weights is a root only once it has them. */
static d9d_status causal_lm_forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                                    d9d_model_out *out)
{
    const causal_lm *task = self;
    d9d_model_in plain = *in;

    if (task->weights.name == NULL)
        return m->ops->forward(m, t, in, out);
    plain.loss_is_root = false;
    D9D_TRY(m->ops->forward(m, t, &plain, out));
    return out->loss != NULL ? weigh_losses(t, &d9d_model_find_field(in, task->weights.name)->value,
                                            out->loss, &out->loss)
                             : D9D_OK;
}

static const d9d_train_task causal_lm_task = {.size = sizeof(d9d_train_task),
                                              .table = &d9di_causal_lm_table,
                                              .open = causal_lm_open,
                                              .close = causal_lm_close,
                                              .forward = causal_lm_forward,
                                              .fields = causal_lm_fields,
                                              .no_logits = true};

static const d9d_key causal_lm_keys[] = {
    D9D_KEY_STR(causal_lm_section, loss_weights, "null",
                "field of the samples whose numbers, per target or sample, the losses are "
                "multiplied with; null: none",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_END,
};
const d9d_table d9di_causal_lm_table = {.name = "causal_lm",
                                        .size = sizeof(causal_lm_section),
                                        .keys = causal_lm_keys,
                                        .doc = "next-token prediction",
                                        .row = &causal_lm_task};
