/* causal_lm.c - next-token prediction, of targets that may have weights, or of distributions.
 *
 *     "task": {"name": "causal_lm", "loss_weights": "weight"}
 *     "task": {"name": "causal_lm", "soft_labels": "probabilities", "soft_ids": "ids",
 *              "soft_weight": 0.9, "label_smoothing": 0.1}
 *
 *     loss of a step = sum of weight loss over all targets / number of targets
 */
#include <stdlib.h>

#include "d9d/op/math.h"
#include "d9d/op/op.h"
#include "tasks/soft_labels.h"
#include "tasks/tasks.h"

typedef struct causal_lm_section {
    const char *loss_weights, *soft_labels, *soft_ids;
    double soft_weight, label_smoothing;
} causal_lm_section;

enum { FIELDS = 3 };

typedef struct causal_lm {
    d9d_field_request fields[FIELDS];
    size_t n_fields;
    const char *weights; /* field; NULL: none */
    d9di_soft_labels soft;
    int64_t vocab;
} causal_lm;

static void request_add(causal_lm *t, const char *name, d9d_field_request r)
{
    r.name = name;
    r.per = D9D_FIELD_PER_TARGET;
    if (name != NULL)
        t->fields[t->n_fields++] = r;
}

static d9d_status causal_lm_open(const void *config, void **self)
{
    const causal_lm_section *c = config;
    causal_lm *t = calloc(1, sizeof(*t));

    if (t == NULL)
        return D9D_FAIL(D9D_ENOMEM, "task causal_lm: no memory");
    t->weights = c->loss_weights;
    t->soft = (d9di_soft_labels){.ids = c->soft_ids,
                                 .probabilities = c->soft_labels,
                                 .weight = (float)c->soft_weight,
                                 .smoothing = (float)c->label_smoothing};
    request_add(t, c->loss_weights,
                (d9d_field_request){.dtype = D9D_F32,
                                    .elements = 1,
                                    .spread = true,
                                    .drops_labels = true,
                                    .where = "task.loss_weights"});
    request_add(
        t, c->soft_labels,
        (d9d_field_request){.dtype = D9D_F32, .drops_labels = true, .where = "task.soft_labels"});
    request_add(t, c->soft_ids, (d9d_field_request){.dtype = D9D_I32, .where = "task.soft_ids"});
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

    *n = t->n_fields;
    return t->fields;
}

static int64_t elements_of(const d9d_dataset *ds, const char *name)
{
    const d9d_field *f = d9d_field_find(d9d_dataset_fields(ds), name);

    return f != NULL ? d9d_field_elements(f) : 0;
}

/* A field that is not there is an error later. */
static d9d_status causal_lm_set_data(void *self, d9d_dataset *const *datasets, size_t n)
{
    const causal_lm *t = self;

    for (size_t i = 0; i < n && t->soft.ids != NULL; i++) {
        const int64_t ids = elements_of(datasets[i], t->soft.ids),
                      all = elements_of(datasets[i], t->soft.probabilities);

        if (ids > 0 && all > 0 && ids != all)
            return D9D_FAIL(D9D_ECONFIG,
                            "task.soft_ids: the field \"%s\" of %s has %lld ids of a target, and "
                            "\"%s\" %lld probabilities",
                            t->soft.ids, d9d_dataset_dir(datasets[i]), (long long)ids,
                            t->soft.probabilities, (long long)all);
    }
    return D9D_OK;
}

/* Probabilities without ids are of the whole vocabulary. */
static d9d_status causal_lm_extend(void *self, d9d_model *m, const d9d_model_opts *options)
{
    causal_lm *t = self;

    (void)options;
    t->vocab = m->vocab;
    for (size_t i = 0; i < t->n_fields; i++)
        if (t->fields[i].name == t->soft.ids)
            t->fields[i].limit = m->vocab;
    for (size_t i = 0; i < t->n_fields && t->soft.ids == NULL; i++)
        if (t->fields[i].name == t->soft.probabilities)
            t->fields[i].elements = m->vocab;
    return d9di_soft_labels_extend(&t->soft, m);
}

/* Ids of targets that count are of the vocabulary, or negative for none. */
static d9d_status causal_lm_check(void *self, const d9d_batch *b)
{
    const causal_lm *t = self;
    const d9d_batch_field *f = t->soft.ids != NULL ? d9d_batch_find_field(b, t->soft.ids) : NULL;
    const int32_t *ids = f != NULL ? f->data : NULL;
    const int64_t k = f != NULL ? (int64_t)(d9d_batch_field_row_bytes(f, 2) / sizeof(*ids)) : 0;

    for (int64_t i = 0; i < b->seqs * b->length * k; i++)
        if (b->labels[i / k] != D9D_IGNORE_INDEX && ids[i] >= t->vocab)
            return D9D_FAIL(D9D_EMISMATCH,
                            "sample %lld: \"%s\" has the id %d, and the vocabulary %lld",
                            (long long)(b->refs != NULL ? b->refs[i / k / b->length].sample
                                                        : i / k / b->length),
                            t->soft.ids, (int)ids[i], (long long)t->vocab);
    return D9D_OK;
}

/* losses [B*S] times weights [B, S, ...] of one number each. */
static d9d_status weigh_losses(d9d_tape *t, const d9d_tensor *weights, d9d_var *loss, d9d_var **y)
{
    d9d_var *w;

    D9D_TRY(d9d_tape_leaf(t, weights, false, &w));
    D9D_TRY(d9d_op_reshape(t, w, d9d_var_tensor(loss)->shape, &w));
    return d9d_op_mul(t, loss, w, y);
}

/* A loss that is changed is a root only once it is. */
static d9d_status causal_lm_forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                                    d9d_model_out *out)
{
    causal_lm *task = self;
    const bool soft = d9di_soft_labels_are_on(&task->soft);
    d9d_model_in plain = *in;

    if (task->weights == NULL && !soft)
        return m->ops->forward(m, t, in, out);
    plain.loss_is_root = false;
    if (soft)
        plain.labels = NULL;
    D9D_TRY(m->ops->forward(m, t, &plain, out));
    if (!d9d_stage_is_last(m->stage))
        return D9D_OK;
    if (soft)
        D9D_TRY(d9di_soft_labels_loss(&task->soft, m, t, in, out->hidden, &out->loss));
    return task->weights != NULL ? weigh_losses(t, &d9d_model_find_field(in, task->weights)->value,
                                                out->loss, &out->loss)
                                 : D9D_OK;
}

static d9d_status causal_lm_section_check(const void *value, const char *path)
{
    const causal_lm_section *c = value;

    return c->soft_ids != NULL && c->soft_labels == NULL
               ? D9D_FAIL(D9D_ECONFIG,
                          "%s.soft_labels: name the field with the probabilities of %s", path,
                          c->soft_ids)
               : D9D_OK;
}

static const d9d_train_task causal_lm_task = {.size = sizeof(d9d_train_task),
                                              .table = &d9di_causal_lm_table,
                                              .open = causal_lm_open,
                                              .close = causal_lm_close,
                                              .forward = causal_lm_forward,
                                              .fields = causal_lm_fields,
                                              .set_data = causal_lm_set_data,
                                              .extend = causal_lm_extend,
                                              .check = causal_lm_check,
                                              .no_logits = true};

static const d9d_key causal_lm_keys[] = {
    D9D_KEY_STR(causal_lm_section, loss_weights, "null",
                "field of the samples whose numbers, per target or sample, the losses are "
                "multiplied with, and where it is NaN a target has none; null: none",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_STR(causal_lm_section, soft_labels, "null",
                "field of the samples with probabilities of each target: of the vocabulary, or of "
                "the tokens in soft_ids; null: the next token alone",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_STR(causal_lm_section, soft_ids, "null",
                "field of the samples with the ids that the probabilities are of, such as a "
                "teacher's top k; negative: none",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_REAL(causal_lm_section, soft_weight, "1", 0, 1,
                 "of the soft labels; the next token has the rest", .flags = D9D_FLOAT32),
    D9D_KEY_REAL(causal_lm_section, label_smoothing, "0", 0, 1,
                 "share of the probability that all tokens get alike", .flags = D9D_FLOAT32),
    D9D_KEY_END,
};
const d9d_table d9di_causal_lm_table = {.name = "causal_lm",
                                        .size = sizeof(causal_lm_section),
                                        .keys = causal_lm_keys,
                                        .doc = "next-token prediction",
                                        .check = causal_lm_section_check,
                                        .row = &causal_lm_task};
