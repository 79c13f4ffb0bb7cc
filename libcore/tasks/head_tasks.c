/* head_tasks.c - tasks over whole texts: classification, embedding, hidden states.  See
 * d9d/tasks/head_tasks.h.
 *
 * All of them share one section struct, in training and inference, so one table of functions serves
 * both. */
#include "d9d/tasks/head_tasks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/op/loss.h"
#include "tasks/absent_values.h"
#include "tasks/tasks.h"

/* An open task; hidden_states has one value per layer, the others one. */
typedef struct head_task {
    const d9d_head_task_section *c;
    d9d_pooling pooling;
    bool normalize;
    int64_t size; /* number of outputs of its matrix */
    int64_t *layers;
    size_t n_layers;
    d9d_model_columns *values; /* [n_layers] */
    size_t n_values;
    const d9d_model *m; /* the model and its pooling while forward runs */
    const d9d_op_pool_index *pool;
    d9d_field_request soft; /* name NULL: none */
} head_task;

static void head_task_close(void *self)
{
    head_task *h = self;

    free(h->values);
    free(h->layers);
    free(h);
}

static d9d_status head_task_open(const void *config, void **self)
{
    const d9d_head_task_section *c = config;
    const size_t n = c->layers.n > 0 ? c->layers.n : 1;
    head_task *h = calloc(1, sizeof(*h));

    if (h == NULL)
        return D9D_FAIL(D9D_ENOMEM, "task: %zu bytes", sizeof(*h));
    h->c = c;
    h->pooling = c->pooling < 0 ? D9D_POOLING_LAST : (d9d_pooling)(c->pooling + D9D_POOLING_LAST);
    h->normalize = c->normalize;
    h->soft = (d9d_field_request){.name = c->soft_labels,
                                  .per = D9D_FIELD_PER_SAMPLE,
                                  .dtype = D9D_F32,
                                  .where = "task.soft_labels"};
    h->layers = calloc(n, sizeof(*h->layers));
    h->values = calloc(n, sizeof(*h->values));
    if (h->layers == NULL || h->values == NULL) {
        head_task_close(h);
        return D9D_FAIL(D9D_ENOMEM, "task: %zu layers", n);
    }
    *self = h;
    return D9D_OK;
}

static d9d_pooling head_task_pooling(void *self)
{
    return ((const head_task *)self)->pooling;
}

static bool is_inference(const head_task *h)
{
    return h->c->output.output != NULL;
}

/* Sets the values of inference. */
static void set_values(head_task *h, d9d_var *v, d9d_model_out *out)
{
    if (!is_inference(h))
        return;
    h->values[0] = (d9d_model_columns){.v = v};
    out->values = h->values;
    out->n_values = 1;
}

/* Runs the model without its losses; on the last stage, pools to a row per document. */
static d9d_status forward_pooled(d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                                 d9d_model_out *out, d9d_var **rows)
{
    d9d_model_in unlabelled = *in;

    unlabelled.labels = NULL;
    *rows = NULL;
    D9D_TRY(m->ops->forward(m, t, &unlabelled, out));
    return d9d_stage_is_last(m->stage) ? d9d_model_pool(m, t, out->hidden, in->pool, rows) : D9D_OK;
}

/* Adds the head's matrix to the last stage. */
static d9d_status add_head_weight(head_task *h, d9d_model *m, const char *name,
                                  const d9d_model_opts *options)
{
    h->size = options->head.size;
    if (!d9d_stage_is_last(m->stage) || h->size == 0)
        return D9D_OK;
    return d9d_model_add_linear(m, name, options->dtype, 0, m->hidden, h->size);
}

/* --- classification -------------------------------------------------------------------- */

static void classes_head(void *self, d9d_head *out)
{
    const int64_t labels = ((const head_task *)self)->c->num_labels;

    *out = (d9d_head){D9D_HEAD_CLASSIFICATION, labels == D9D_INT_NULL ? 0 : labels};
}

static d9d_status classes_extend(void *self, d9d_model *m, const d9d_model_opts *options)
{
    d9d_block_linear *score;

    if (options->head.size < 2)
        return D9D_FAIL(D9D_ECONFIG,
                        "task classification: the model has %lld label; classes are 2 "
                        "or more",
                        (long long)options->head.size);
    D9D_TRY(add_head_weight(self, m, D9D_HEAD_SCORE, options));
    score = d9d_model_find_linear(m, D9D_HEAD_SCORE);
    if (score == NULL)
        return D9D_OK;
    score->weight.spec.adaptable = false; /* the loss bypasses LoRA */
    m->dropout = m->dropout || ((const head_task *)self)->c->classifier_dropout > 0;
    return D9D_OK;
}

static const d9d_field_request *classes_fields(void *self, size_t *n)
{
    head_task *h = self;

    *n = h->soft.name != NULL;
    h->soft.elements = h->size;
    return &h->soft;
}

static d9d_status classes_check(void *self, const d9d_batch *b)
{
    const head_task *h = self;

    return h->soft.name != NULL ? D9D_OK : d9d_batch_check_classes(b, h->size);
}

static int64_t classes_count(void *self)
{
    const head_task *h = self;

    return h->soft.name != NULL ? 0 : h->size;
}

/* Texts with a class; of soft labels all that have a position and their probabilities. */
static int64_t classes_targets(void *self, const d9d_batch *b)
{
    const head_task *h = self;
    d9d_batch_document d = D9D_BATCH_DOCUMENT_NONE;
    const float *row;
    int64_t n = 0;

    if (h->soft.name == NULL)
        return d9d_batch_count_classes(b);
    row = d9d_batch_find_field(b, h->soft.name)->data;
    for (; d9d_batch_next_document(b, &d); row += h->size)
        n += d.end > d.first && d9d_field_row_is_present(row, h->size);
    return n;
}

/* Every rank has the probabilities of all texts; only the first of those that share the texts has
 * their rows, and so their losses.  A text without positions or without a probability has
 * none. */
static d9d_status soft_loss(const head_task *h, const d9d_model *m, d9d_tape *t,
                            const d9d_model_in *in, d9d_var *logits, d9d_var **loss)
{
    d9d_var *q, *mask;

    D9D_TRY(d9d_tape_leaf(t, &d9d_model_find_field(in, h->soft.name)->value, false, &q));
    D9D_TRY(d9d_model_pool_mask(m, t, in->pool, &mask));
    D9D_TRY(d9di_absent_values_mask(t, h->size, &q, &mask));
    D9D_TRY(d9d_op_soft_cross_entropy(t, logits, q, loss));
    return d9d_op_mul(t, *loss, mask, loss);
}

static d9d_status classes_loss(const head_task *h, const d9d_model *m, d9d_tape *t,
                               const d9d_model_in *in, d9d_var *rows, d9d_param *w,
                               d9d_model_out *out)
{
    if (h->soft.name != NULL)
        return soft_loss(h, m, t, in, out->logits, &out->loss);
    return d9d_op_linear_cross_entropy(t, rows, &w, 1, &in->pool->labels,
                                       &(d9d_op_vocab_opts){.ignore = D9D_IGNORE_INDEX},
                                       &out->loss);
}

static d9d_status classes_forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                                  d9d_model_out *out)
{
    d9d_block_linear *score = d9d_model_find_linear(m, D9D_HEAD_SCORE);
    d9d_param *w = score != NULL ? &score->weight : NULL;
    d9d_var *rows;

    D9D_TRY(forward_pooled(m, t, in, out, &rows));
    if (rows == NULL)
        return D9D_OK;
    D9D_TRY(d9d_op_dropout(
        t, rows,
        &(d9d_op_dropout_opts){.p = (float)((const head_task *)self)->c->classifier_dropout,
                               .site = w,
                               .rows = &in->pool->number},
        &rows));
    D9D_TRY(d9d_param_unit_unshard(&score->module, t));
    D9D_TRY(d9d_op_linear(t, rows, w, &out->logits));
    if (!is_inference(self))
        D9D_TRY(classes_loss(self, m, t, in, rows, w, out));
    D9D_TRY(d9d_param_unit_reshard(&score->module, t));
    out->labels = &in->pool->labels;
    set_values(self, out->logits, out);
    return D9D_OK;
}

/* {"sample": 0, "label": 2, "prediction": [0.1, 0.2, 0.7], "target": 2}; null for missing values,
 * which makes d9d-metrics leave the row out. */
static d9d_status classes_row(const void *config, const d9d_infer_task_row *x, d9d_buf *b)
{
    int64_t best = 0;
    double sum = 0;

    (void)config;
    for (int64_t i = 1; i < x->width; i++)
        best = x->values[i] > x->values[best] ? i : best;
    for (int64_t i = 0; i < x->width; i++)
        sum += exp((double)x->values[i] - (double)x->values[best]);
    D9D_TRY(d9d_buf_printf(b, "{\"sample\": %lld, ", (long long)x->sample));
    if (x->blended)
        D9D_TRY(d9d_buf_printf(b, "\"dataset\": %d, ", x->dataset));
    if (x->length == 0)
        return d9d_buf_printf(b, "\"label\": null, \"prediction\": null, \"target\": null}\n");
    D9D_TRY(d9d_buf_printf(b, "\"label\": %lld, \"prediction\": [", (long long)best));
    for (int64_t i = 0; i < x->width; i++) {
        D9D_TRY(d9d_buf_printf(b, "%s", i > 0 ? ", " : ""));
        D9D_TRY(d9d_json_put_f64(b, exp((double)x->values[i] - (double)x->values[best]) / sum));
    }
    if (x->label == D9D_IGNORE_INDEX)
        return d9d_buf_printf(b, "], \"target\": null}\n");
    return d9d_buf_printf(b, "], \"target\": %d}\n", x->label);
}

#define HEAD_TASK_MEMBERS                                                                          \
    .size = sizeof(d9d_train_task), .open = head_task_open, .close = head_task_close,              \
    .pooling = head_task_pooling
static const d9d_train_task classification = {
    HEAD_TASK_MEMBERS,          .table = &d9di_head_task_train_classification_table,
    .head = classes_head,       .extend = classes_extend,
    .forward = classes_forward, .targets = classes_targets,
    .check = classes_check,     .labels = true,
    .fields = classes_fields,   .classes = classes_count};
static const d9d_infer_task_kind classify = {.size = sizeof(d9d_infer_task_kind),
                                             .table = &d9di_head_task_infer_classification_table,
                                             .body = &classification,
                                             .row = classes_row};

/* --- embedding ----------------------------------------------------------------------------- */

static void embedding_head(void *self, d9d_head *out)
{
    const int64_t features = ((const head_task *)self)->c->embedding_dim;

    *out = (d9d_head){D9D_HEAD_EMBEDDING, features == D9D_INT_NULL ? 0 : features};
}

static d9d_status embedding_extend(void *self, d9d_model *m, const d9d_model_opts *options)
{
    const int64_t n = options->head.size > 0 ? options->head.size : m->hidden;

    if (!is_inference(self) && n % 8 != 0)
        return D9D_FAIL(D9D_ECONFIG, "task embedding: %lld features are not a multiple of 8",
                        (long long)n);
    return add_head_weight(self, m, D9D_HEAD_PROJECTION, options);
}

static d9d_status embedding_forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                                    d9d_model_out *out)
{
    d9d_block_linear *projection = d9d_model_find_linear(m, D9D_HEAD_PROJECTION);
    d9d_var *rows;

    D9D_TRY(forward_pooled(m, t, in, out, &rows));
    if (rows == NULL)
        return D9D_OK;
    if (projection != NULL) {
        D9D_TRY(d9d_param_unit_unshard(&projection->module, t));
        D9D_TRY(d9di_task_linear_of_texts(t, in->pool, rows, &projection->weight, &rows));
        D9D_TRY(d9d_param_unit_reshard(&projection->module, t));
    }
    if (!is_inference(self))
        return d9d_op_info_nce(t, rows, (float)((const head_task *)self)->c->temperature,
                               &in->pool->labels, D9D_IGNORE_INDEX, &out->loss);
    set_values(self, rows, out);
    return D9D_OK;
}

static int64_t embedding_targets(void *self, const d9d_batch *b)
{
    (void)self;
    return d9d_batch_count_pairs(b);
}

static d9d_status embedding_check(void *self, const d9d_batch *b)
{
    return is_inference(self) ? D9D_OK : d9d_batch_check_pairs(b);
}

static int embedding_shape(void *self, const d9d_model *whole, int64_t *shape)
{
    const head_task *h = self;

    shape[0] = h->size > 0 ? h->size : whole->hidden;
    return 1;
}

/* The norm is at least 1e-12. */
static void embedding_finish(void *self, float *row, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)row[i] * (double)row[i];
    sum = sqrt(sum) > 1e-12 ? sqrt(sum) : 1e-12;
    for (int64_t i = 0; ((const head_task *)self)->normalize && i < n; i++)
        row[i] = (float)((double)row[i] / sum);
}

/* The vectors that the folder was trained for. */
static d9d_status embedding_set_source(void *self, const d9d_hf_sentence_modules *says)
{
    head_task *h = self;

    h->normalize |= says->normalize;
    if (says->pooling == D9D_POOLING_NONE)
        return D9D_OK;
    if (h->c->pooling >= 0 && h->pooling != says->pooling)
        return D9D_FAIL(D9D_ECONFIG,
                        "task.pooling is \"%s\", and %s has \"%s\"; leave the key out, or take a "
                        "folder without modules.json",
                        d9d_pooling_names[h->pooling - D9D_POOLING_LAST], says->pooling_file,
                        d9d_pooling_names[says->pooling - D9D_POOLING_LAST]);
    h->pooling = says->pooling;
    return D9D_OK;
}

static const d9d_train_task embedding = {HEAD_TASK_MEMBERS,
                                         .table = &d9di_head_task_infer_embedding_table,
                                         .head = embedding_head,
                                         .extend = embedding_extend,
                                         .forward = embedding_forward,
                                         .set_source = embedding_set_source};
static const d9d_train_task contrast = {HEAD_TASK_MEMBERS,
                                        .table = &d9di_head_task_train_embedding_table,
                                        .head = embedding_head,
                                        .extend = embedding_extend,
                                        .forward = embedding_forward,
                                        .targets = embedding_targets,
                                        .check = embedding_check,
                                        .paired = true,
                                        .no_logits = true};
static const d9d_infer_task_kind embed = {.size = sizeof(d9d_infer_task_kind),
                                          .table = &d9di_head_task_infer_embedding_table,
                                          .body = &embedding,
                                          .shape = embedding_shape,
                                          .finish = embedding_finish};

/* --- hidden states --------------------------------------------------------------------------- */

static void states_head(void *self, d9d_head *out)
{
    (void)self;
    *out = (d9d_head){.kind = D9D_HEAD_EMBEDDING};
}

/* Layer numbers of the whole model; negative ones count from its end. */
static d9d_status resolve_layers(head_task *h, const d9d_model *whole)
{
    const int64_t *given = h->c->layers.items, all = whole->layers + 1;

    h->n_layers = h->c->layers.n > 0 ? h->c->layers.n : (size_t)all;
    if (h->c->layers.n == 0) {
        free(h->layers);
        free(h->values);
        h->layers = calloc(h->n_layers, sizeof(*h->layers));
        h->values = calloc(h->n_layers, sizeof(*h->values));
        if (h->layers == NULL || h->values == NULL)
            return D9D_FAIL(D9D_ENOMEM, "task: %zu layers", h->n_layers);
    }
    for (size_t i = 0; i < h->n_layers; i++) {
        const int64_t k = h->c->layers.n > 0 ? given[i] : (int64_t)i;

        h->layers[i] = k < 0 ? all + k : k;
        if (h->layers[i] < 0 || h->layers[i] >= all)
            return D9D_FAIL(D9D_ECONFIG,
                            "task.layers[%zu] is %lld: the model has 0, its embedding, to %lld", i,
                            (long long)k, (long long)all - 1);
    }
    return D9D_OK;
}

static d9d_status states_extend(void *self, d9d_model *m, const d9d_model_opts *options)
{
    const d9d_model_ops *ops = m->ops;

    (void)options;
    if (ops->size <= offsetof(d9d_model_ops, hooks) || !ops->hooks)
        return D9D_FAIL(D9D_ENOTSUP, "task: %s does not tell what its layers compute", ops->name);
    return m->stage.count == 1 ? resolve_layers(self, m) : D9D_OK;
}

/* The first of the context-parallel ranks has them. */
static d9d_status states_collect_layer(void *self, d9d_tape *t, int64_t layer, d9d_var *x)
{
    head_task *h = self;
    d9d_var *rows = NULL;

    for (size_t i = 0; i < h->n_layers; i++) {
        if (h->layers[i] != layer)
            continue;
        if (rows == NULL)
            D9D_TRY(d9d_model_pool(h->m, t, x, h->pool, &rows));
        h->values[h->n_values++] = (d9d_model_columns){rows, (int64_t)i * h->m->hidden};
    }
    return D9D_OK;
}

static d9d_status states_forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                                 d9d_model_out *out)
{
    head_task *h = self;
    const d9d_hidden_state_hook tap = {states_collect_layer, self};
    d9d_model_in hooked = *in;

    h->m = m;
    h->pool = in->pool;
    h->n_values = 0;
    hooked.labels = NULL;
    hooked.hook = &tap;
    D9D_TRY(m->ops->forward(m, t, &hooked, out));
    out->values = h->values;
    out->n_values = h->n_values;
    return D9D_OK;
}

static int states_shape(void *self, const d9d_model *whole, int64_t *shape)
{
    shape[0] = (int64_t)((const head_task *)self)->n_layers;
    shape[1] = whole->hidden;
    return 2;
}

static const d9d_train_task states = {
    HEAD_TASK_MEMBERS, .table = &d9di_head_task_infer_hidden_states_table, .head = states_head,
    .extend = states_extend, .forward = states_forward};
static const d9d_infer_task_kind hidden_states = {.size = sizeof(d9d_infer_task_kind),
                                                  .table =
                                                      &d9di_head_task_infer_hidden_states_table,
                                                  .body = &states,
                                                  .shape = states_shape};

/* --- sections ------------------------------------------------------------------------------ */

typedef d9d_head_task_section section;
#define POOLING_KEY                                                                                \
    D9D_KEY_ENUM(section, pooling, "\"last\"", d9d_pooling_names,                                  \
                 "what stands for a text: its last position, the mean of all, or the first one "   \
                 "(\"cls\")")
#define LABELS_KEY                                                                                 \
    D9D_KEY_INT(section, num_labels, "null", 2, 1 << 16,                                           \
                "classes; null: as many as the model's configuration says", .flags = D9D_NULLABLE)
#define DIM_KEY                                                                                    \
    D9D_KEY_INT(section, embedding_dim, "null", 1, 1 << 20,                                        \
                "features that embeddings are projected to; null: as many as the model's "         \
                "configuration says, or no projection",                                            \
                .flags = D9D_NULLABLE)
#define OUTPUT_KEY(text)                                                                           \
    {                                                                                              \
        .name = "output", .kind = D9D_KIND_STR, .offset = offsetof(section, output.output),        \
        .def = D9D_REQUIRED, .min = 1, .doc = (text)                                               \
    }

static const d9d_key classification_keys[] = {
    LABELS_KEY, POOLING_KEY,
    D9D_KEY_STR(section, soft_labels, "null",
                "field of the samples that has a probability of each class; null: a text's class "
                "is its label",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_REAL(section, classifier_dropout, "0", 0, 1, D9DI_TASK_CLASSIFIER_DROPOUT_DOC,
                 .flags = D9D_BELOW_MAX | D9D_FLOAT32),
    D9D_KEY_END};
static const d9d_key classify_keys[] = {OUTPUT_KEY("JSONL file to write"), LABELS_KEY, POOLING_KEY,
                                        D9D_KEY_END};
static const d9d_key embedding_keys[] = {
    POOLING_KEY,
    DIM_KEY,
    D9D_KEY_REAL(section, temperature, "0.05", 0, 1e6, "what cosines are divided by",
                 .flags = D9D_ABOVE_MIN | D9D_FLOAT32),
    D9D_KEY_END,
};
static const d9d_key embed_keys[] = {
    OUTPUT_KEY(".npy file to write, float32 [samples, features]"),
    D9D_KEY_ENUM(section, pooling, "null", d9d_pooling_names,
                 "what stands for a text: its last position, the mean of all, or the first one "
                 "(\"cls\"); null: what the 1_Pooling of source_checkpoint says, or \"last\"",
                 .flags = D9D_NULLABLE),
    D9D_KEY_BOOL(section, normalize, "false",
                 "divide each embedding by its length; always where modules.json of "
                 "source_checkpoint has Normalize"),
    DIM_KEY,
    D9D_KEY_END,
};
static const d9d_key layer_elem = {
    .kind = D9D_KIND_INT, .min = -65536, .max = 65536, .doc = "a layer"};
static const d9d_key states_keys[] = {
    OUTPUT_KEY(".npy file to write, float32 [samples, layers, hidden]"),
    POOLING_KEY,
    D9D_KEY_LIST(section, layers, "[]", &layer_elem,
                 "after which layers: 0 is the embedding, 1 the first layer, -1 the last one; none "
                 "named: all"),
    D9D_KEY_END,
};

const d9d_table d9di_head_task_train_classification_table = {.name = "classification",
                                                             .size = sizeof(section),
                                                             .keys = classification_keys,
                                                             .doc = "the class of each text",
                                                             .row = &classification};
const d9d_table d9di_head_task_train_embedding_table = {
    .name = "embedding",
    .size = sizeof(section),
    .keys = embedding_keys,
    .doc = "vectors of texts, by pairs that belong together",
    .row = &contrast};
const d9d_table d9di_head_task_infer_classification_table = {
    .name = "classification",
    .size = sizeof(section),
    .keys = classify_keys,
    .doc = "probabilities of the classes of each text",
    .row = &classify};
const d9d_table d9di_head_task_infer_embedding_table = {.name = "embedding",
                                                        .size = sizeof(section),
                                                        .keys = embed_keys,
                                                        .doc = "one vector for each text",
                                                        .row = &embed};
const d9d_table d9di_head_task_infer_hidden_states_table = {
    .name = "hidden_states",
    .size = sizeof(section),
    .keys = states_keys,
    .doc = "what comes out of layers, one vector for each text",
    .row = &hidden_states};
