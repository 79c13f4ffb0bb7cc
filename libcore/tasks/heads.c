/* heads.c - several named heads on one model: sections, targets, lines of inference.  See
 * d9d/tasks/heads.h. */
#include "d9d/tasks/heads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/metric/metric.h"
#include "tasks/heads_forward.h"
#include "tasks/tasks.h"

const char *const d9di_heads_kind_names[] = {
    "causal_lm", "token_classification", "classification", "regression", "embedding", NULL};
const char *const d9di_heads_loss_names[] = {
    "cross_entropy", "soft_cross_entropy", "bce", "mse", "l1", "huber", "info_nce", NULL};

const d9di_heads_kind d9di_heads_kinds[] = {
    [D9D_HEADS_CAUSAL_LM] = {"a causal_lm head", false, false, D9D_HEADS_CROSS_ENTROPY,
                             D9D_HEADS_SOFT_CROSS_ENTROPY},
    [D9D_HEADS_TOKEN_CLASSIFICATION] = {"a token_classification head", false, true,
                                        D9D_HEADS_CROSS_ENTROPY, D9D_HEADS_SOFT_CROSS_ENTROPY},
    [D9D_HEADS_CLASSIFICATION] = {"a classification head", true, false, D9D_HEADS_CROSS_ENTROPY,
                                  D9D_HEADS_MSE},
    [D9D_HEADS_REGRESSION] = {"a regression head", true, true, D9D_HEADS_MSE, D9D_HEADS_INFO_NCE},
    [D9D_HEADS_EMBEDDING] = {"an embedding head", true, false, D9D_HEADS_INFO_NCE,
                             D9D_HEADS_INFO_NCE + 1},
};

static d9d_heads_loss loss_of(const d9d_heads_head_section *c)
{
    return (d9d_heads_loss)(c->loss >= 0 ? c->loss : d9di_heads_kinds[c->kind].first_loss);
}

/* --- opening -----------------------------------------------------------------------------------
 */

static void request_add(d9di_heads *h, const char *name, d9d_field_request r)
{
    if (name == NULL)
        return;
    r.name = name;
    h->fields[h->n_fields++] = r;
}

static d9d_task_targets targets_of(const d9d_heads_head_section *c)
{
    const d9d_heads_loss loss = loss_of(c);

    if (d9di_heads_loss_is_of_classes(loss))
        return D9D_TASK_TARGETS_CLASSES;
    return loss == D9D_HEADS_BCE ? D9D_TASK_TARGETS_LABELS : D9D_TASK_TARGETS_VALUES;
}

/* Inference reads labels for metrics alone. */
static void requests_add(d9di_heads *h, const d9di_heads_head *x)
{
    const d9d_heads_head_section *c = x->c;
    const bool classes = d9di_heads_loss_is_of_classes(x->loss);
    const d9d_field_per per = x->kind->pooled ? D9D_FIELD_PER_SAMPLE : D9D_FIELD_PER_TOKEN;

    if (d9di_heads_is_inference(h) && c->metrics.n == 0)
        return;
    request_add(h, c->label,
                (d9d_field_request){.per = per,
                                    .dtype = classes ? D9D_I32 : D9D_F32,
                                    .elements = classes ? 1 : c->outputs,
                                    .classes = classes,
                                    .limit = classes ? c->outputs : 0,
                                    .where = x->label_key});
    request_add(
        h, c->loss_weights,
        (d9d_field_request){.per = c->kind == D9D_HEADS_CAUSAL_LM ? D9D_FIELD_PER_TARGET : per,
                            .dtype = D9D_F32,
                            .elements = 1,
                            .spread = c->kind == D9D_HEADS_CAUSAL_LM,
                            .drops_labels = c->kind == D9D_HEADS_CAUSAL_LM,
                            .where = x->weight_key});
}

static d9d_status heads_open(const void *config, void **self)
{
    const d9d_heads_section *c = config;
    const d9d_heads_head_section *list = c->heads.items;
    d9di_heads *h = calloc(1, sizeof(*h));

    if (h == NULL)
        return D9D_FAIL(D9D_ENOMEM, "task heads: %zu bytes", sizeof(*h));
    h->c = c;
    for (; h->n < c->heads.n; h->n++) {
        d9di_heads_head *x = &h->head[h->n];

        *x = (d9di_heads_head){.c = &list[h->n],
                               .kind = &d9di_heads_kinds[list[h->n].kind],
                               .loss = loss_of(&list[h->n])};
        (void)snprintf(x->matrix, sizeof(x->matrix), D9D_HEAD_NAMED "%s", x->c->name);
        (void)snprintf(x->label_key, sizeof(x->label_key), "task.heads[%zu].label", h->n);
        (void)snprintf(x->weight_key, sizeof(x->weight_key), "task.heads[%zu].loss_weights", h->n);
        h->record[h->n] = (d9d_task_head_record){x->c->name, &x->c->metrics, x->c->outputs,
                                                 targets_of(x->c), x->c->label};
        requests_add(h, x);
    }
    *self = h;
    return D9D_OK;
}

const d9di_heads_head *d9di_heads_find_lm(const d9di_heads *h)
{
    for (size_t i = 0; i < h->n; i++)
        if (h->head[i].c->kind == D9D_HEADS_CAUSAL_LM)
            return &h->head[i];
    return NULL;
}

static bool has_texts(const d9di_heads *h)
{
    for (size_t i = 0; i < h->n; i++)
        if (h->head[i].kind->pooled)
            return true;
    return false;
}

static void heads_head(void *self, d9d_head *out)
{
    *out = (d9d_head){.kind = d9di_heads_find_lm(self) != NULL ? D9D_HEAD_CAUSAL_LM
                                                               : D9D_HEAD_EMBEDDING};
}

static d9d_pooling heads_pooling(void *self)
{
    const d9di_heads *h = self;

    return has_texts(h) ? (d9d_pooling)(h->c->pooling + D9D_POOLING_LAST) : D9D_POOLING_NONE;
}

static bool heads_has_pairs(void *self)
{
    const d9di_heads *h = self;

    for (size_t i = 0; i < h->n && !d9di_heads_is_inference(h); i++)
        if (h->head[i].c->kind == D9D_HEADS_EMBEDDING)
            return true;
    return false;
}

static const d9d_field_request *heads_fields(void *self, size_t *n)
{
    const d9di_heads *h = self;

    *n = h->n_fields;
    return h->fields;
}

static const d9d_task_head_record *heads_records(void *self, size_t *n)
{
    const d9di_heads *h = self;

    *n = h->n;
    return h->record;
}

/* True if a head compares what it predicts of texts with the datasets' labels. */
static bool reads_labels(const d9di_heads *h, const d9d_heads_head_section *c)
{
    return c->kind == D9D_HEADS_CLASSIFICATION && c->label == NULL &&
           (!d9di_heads_is_inference(h) || c->metrics.n > 0);
}

/* Where a head learns the labels of the datasets' texts. */
static int64_t heads_classes(void *self)
{
    const d9di_heads *h = self;
    int64_t n = 0;

    for (size_t i = 0; i < h->n; i++) {
        const d9d_heads_head_section *c = h->head[i].c;

        if (reads_labels(h, c) && (n == 0 || c->outputs < n))
            n = c->outputs;
    }
    return n;
}

static d9d_status heads_extend(void *self, d9d_model *m, const d9d_model_opts *options)
{
    const d9di_heads *h = self;

    for (size_t i = 0; i < h->n && d9d_stage_is_last(m->stage); i++) {
        const d9di_heads_head *x = &h->head[i];

        if (x->c->kind == D9D_HEADS_CAUSAL_LM || x->c->outputs == D9D_INT_NULL)
            continue;
        D9D_TRY(d9d_model_add_linear(m, x->matrix, options->dtype, 0, m->hidden, x->c->outputs));
        if (x->c->bias)
            D9D_TRY(d9d_model_add_bias(m, x->matrix));
        m->dropout = m->dropout || x->c->classifier_dropout > 0;
    }
    return D9D_OK;
}

/* Where nothing else has the classes of texts, the datasets' labels do. */
static d9d_status heads_set_data(void *self, d9d_dataset *const *datasets, size_t n)
{
    const d9di_heads *h = self;

    for (size_t i = 0; i < h->n; i++)
        for (size_t k = 0; k < n; k++)
            if (reads_labels(h, h->head[i].c) && !d9d_dataset_has_labels(datasets[k]))
                return D9D_FAIL(D9D_ECONFIG,
                                "task.heads[%zu].label: null, and %s has no labels; d9d-shard "
                                "--label-key takes them from the texts' lines",
                                i, d9d_dataset_dir(datasets[k]));
    return D9D_OK;
}

/* --- targets -----------------------------------------------------------------------------------
 */

/* A walk over the rows that a head's losses have: tokens, texts or pairs. */
typedef struct row_walk {
    const d9d_batch *b;
    const int32_t *classes; /* [rows]; NULL: all rows count */
    const float *values;    /* [rows, columns]; NULL: all rows count */
    const float *weights;   /* [rows]; NULL: all rows count */
    int64_t columns;
    int64_t seq; /* of which rows are counted; -1: all */
    int64_t n;
} row_walk;

/* True if a row has a class, all its values, and a weight. */
static bool is_target(const row_walk *w, int64_t row)
{
    return (w->classes == NULL || w->classes[row] >= 0) &&
           (w->values == NULL ||
            d9d_field_row_is_present(w->values + row * w->columns, w->columns)) &&
           (w->weights == NULL || d9d_field_row_is_present(w->weights + row, 1));
}

static void count_row(row_walk *w, int64_t row, int64_t seq, bool present)
{
    if (w->seq < 0 || w->seq == seq)
        w->n += present && is_target(w, row);
}

static void count_tokens(row_walk *w)
{
    const d9d_batch *b = w->b;

    for (int64_t s = 0; s < b->seqs; s++)
        for (int64_t i = 0; i < b->lengths[s]; i++)
            count_row(w, s * b->length + i, s, true);
}

static void count_texts(row_walk *w)
{
    d9d_batch_document d = D9D_BATCH_DOCUMENT_NONE;

    for (int64_t i = 0; d9d_batch_next_document(w->b, &d); i++)
        count_row(w, i, d.seq, d.end > d.first);
}

/* Texts whose class is the last label that counts. */
static void count_labelled_texts(row_walk *w)
{
    d9d_batch_document d = D9D_BATCH_DOCUMENT_NONE;

    for (int64_t i = 0; d9d_batch_next_document(w->b, &d); i++)
        count_row(w, i, d.seq, d9d_batch_count_targets(w->b, &d) > 0);
}

static void count_pairs(row_walk *w)
{
    d9d_batch_document first, d = D9D_BATCH_DOCUMENT_NONE;

    while (d9d_batch_next_document(w->b, &d) && (first = d, d9d_batch_next_document(w->b, &d)))
        count_row(w, 0, d.seq, first.end > first.first && d.end > d.first);
}

static int64_t count_targets(const d9di_heads_head *h, const d9d_batch *b, int64_t seq)
{
    row_walk w = {.b = b, .seq = seq};

    if (h->c->label != NULL) {
        const d9d_batch_field *f = d9d_batch_find_field(b, h->c->label);

        if (d9di_heads_loss_is_of_classes(h->loss))
            w.classes = f->data;
        else
            w.values = f->data;
        w.columns = (int64_t)(d9d_batch_field_row_bytes(f, 1) / sizeof(*w.values));
    }
    if (h->c->kind == D9D_HEADS_CAUSAL_LM)
        w.classes = b->labels;
    else if (h->c->loss_weights != NULL)
        w.weights = d9d_batch_find_field(b, h->c->loss_weights)->data;
    if (!h->kind->pooled)
        count_tokens(&w);
    else if (h->loss == D9D_HEADS_INFO_NCE)
        count_pairs(&w);
    else if (d9di_heads_loss_is_of_classes(h->loss) && h->c->label == NULL)
        count_labelled_texts(&w);
    else
        count_texts(&w);
    return w.n;
}

static size_t heads_parts(void *self, const d9d_batch *b, int64_t seq, int64_t *n)
{
    const d9di_heads *h = self;

    for (size_t i = 0; b != NULL && i < h->n; i++)
        n[i] += count_targets(&h->head[i], b, seq);
    return h->n;
}

static int64_t heads_targets(void *self, const d9d_batch *b)
{
    int64_t n[D9D_HEADS_MAX] = {0}, sum = 0;
    const size_t parts = heads_parts(self, b, -1, n);

    for (size_t i = 0; i < parts; i++)
        sum += n[i];
    return sum;
}

/* --- batches -----------------------------------------------------------------------------------
 */

static d9d_status check_class(const d9di_heads_head *h, const d9d_batch *b, int64_t row,
                              int64_t seq, int32_t class)
{
    if (class < h->c->outputs)
        return D9D_OK;
    return D9D_FAIL(D9D_EMISMATCH,
                    "sample %lld: a class of the head \"%s\" is %d (row %lld of the field \"%s\"), "
                    "and there are %lld",
                    (long long)(b->refs != NULL ? b->refs[seq].sample : seq), h->c->name,
                    (int)class, (long long)row, h->c->label, (long long)h->c->outputs);
}

static d9d_status check_field(const d9di_heads_head *h, const d9d_batch *b)
{
    const d9d_batch_field *f = d9d_batch_find_field(b, h->c->label);
    const int32_t *classes = f->data;
    d9d_batch_document d = D9D_BATCH_DOCUMENT_NONE;

    for (int64_t i = 0; f->is_sequence && i < b->seqs * b->length; i++)
        D9D_TRY(check_class(h, b, i % b->length, i / b->length, classes[i]));
    for (int64_t i = 0; !f->is_sequence && d9d_batch_next_document(b, &d); i++)
        D9D_TRY(check_class(h, b, d.index, d.seq, classes[i]));
    return D9D_OK;
}

static d9d_status heads_check(void *self, const d9d_batch *b)
{
    const d9di_heads *h = self;

    if (d9di_heads_is_inference(h))
        return D9D_OK;
    if (heads_has_pairs(self))
        D9D_TRY(d9d_batch_check_pairs(b));
    for (size_t i = 0; i < h->n; i++) {
        const d9di_heads_head *x = &h->head[i];

        if (!d9di_heads_loss_is_of_classes(x->loss) || x->c->kind == D9D_HEADS_CAUSAL_LM)
            continue;
        D9D_TRY(x->c->label != NULL ? check_field(x, b)
                                    : d9d_batch_check_classes(b, x->c->outputs));
    }
    return D9D_OK;
}

/* --- inference ---------------------------------------------------------------------------------
 */

static d9d_status put_numbers(d9d_buf *b, const float *v, int64_t n)
{
    D9D_TRY(d9d_buf_printf(b, "["));
    for (int64_t i = 0; i < n; i++) {
        D9D_TRY(d9d_buf_printf(b, "%s", i > 0 ? ", " : ""));
        D9D_TRY(d9d_json_put_f64(b, (double)v[i]));
    }
    return d9d_buf_printf(b, "]");
}

static d9d_status put_classes(d9d_buf *b, const float *z, int64_t n)
{
    double sum = 0;
    int64_t best = 0;

    for (int64_t i = 1; i < n; i++)
        best = z[i] > z[best] ? i : best;
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)z[i] - (double)z[best]);
    D9D_TRY(d9d_buf_printf(b, "{\"label\": %lld, \"prediction\": [", (long long)best));
    for (int64_t i = 0; i < n; i++) {
        D9D_TRY(d9d_buf_printf(b, "%s", i > 0 ? ", " : ""));
        D9D_TRY(d9d_json_put_f64(b, exp((double)z[i] - (double)z[best]) / sum));
    }
    return d9d_buf_printf(b, "]}");
}

/* Each class has a probability of its own; labels are those above 1/2. */
static d9d_status put_labels(d9d_buf *b, const float *z, int64_t n)
{
    const char *comma = "";

    D9D_TRY(d9d_buf_printf(b, "{\"labels\": ["));
    for (int64_t i = 0; i < n; i++) {
        if (!(z[i] > 0))
            continue;
        D9D_TRY(d9d_buf_printf(b, "%s%lld", comma, (long long)i));
        comma = ", ";
    }
    D9D_TRY(d9d_buf_printf(b, "], \"prediction\": ["));
    for (int64_t i = 0; i < n; i++) {
        D9D_TRY(d9d_buf_printf(b, "%s", i > 0 ? ", " : ""));
        D9D_TRY(d9d_json_put_f64(b, 1 / (1 + exp(-(double)z[i]))));
    }
    return d9d_buf_printf(b, "]}");
}

static d9d_status put_head(d9d_buf *b, const d9d_heads_head_section *c, const float *z, int64_t n)
{
    if (c->kind != D9D_HEADS_CLASSIFICATION)
        return put_numbers(b, z, n);
    return loss_of(c) == D9D_HEADS_BCE ? put_labels(b, z, n) : put_classes(b, z, n);
}

/* {"sample": 0, "topic": {"label": 2, "prediction": [...]}, "score": [3.5]}; a text without
 * positions has null. */
static d9d_status heads_row(const void *config, const d9d_infer_task_row *x, d9d_buf *b)
{
    const d9d_heads_section *c = config;
    const d9d_heads_head_section *list = c->heads.items;
    const float *at = x->values;
    int64_t fixed = 0;

    for (size_t i = 0; i < c->heads.n; i++)
        fixed += list[i].outputs != D9D_INT_NULL ? list[i].outputs : 0;
    D9D_TRY(d9d_buf_printf(b, "{\"sample\": %lld", (long long)x->sample));
    if (x->blended)
        D9D_TRY(d9d_buf_printf(b, ", \"dataset\": %d", x->dataset));
    for (size_t i = 0; i < c->heads.n; i++) {
        const int64_t n = list[i].outputs != D9D_INT_NULL ? list[i].outputs : x->width - fixed;

        D9D_TRY(d9d_buf_printf(b, ", \"%s\": ", list[i].name));
        if (x->length == 0)
            D9D_TRY(d9d_buf_printf(b, "null"));
        else
            D9D_TRY(put_head(b, &list[i], at, n));
        at += n;
    }
    return d9d_buf_printf(b, "}\n");
}

/* --- sections ----------------------------------------------------------------------------------
 */

typedef d9d_heads_head_section head_section;

/* What the checks of one head are called with. */
typedef struct head_place {
    const d9d_heads_head_section *c;
    const char *path; /* of the task */
    size_t i;
} head_place;

/* Names stand in parameters' names and before those of metrics. */
static d9d_status check_name(const head_place *p)
{
    const char *name = p->c->name;
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

    if (name[strspn(name, letters)] != '\0' || strcmp(name, "sample") == 0 ||
        strcmp(name, "dataset") == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s.heads[%zu].name: \"%s\"; a name has letters, digits, _ and -, and is "
                        "not sample or dataset",
                        p->path, p->i, name);
    for (size_t k = 1; k <= p->i; k++)
        if (strcmp(p->c[-(ptrdiff_t)k].name, name) == 0)
            return D9D_FAIL(D9D_ECONFIG, "%s.heads: [%zu] and [%zu] are both called \"%s\"",
                            p->path, p->i - k, p->i, name);
    return D9D_OK;
}

static d9d_status check_outputs(const head_place *p)
{
    const d9d_heads_head_section *c = p->c;
    const bool own = c->kind == D9D_HEADS_CAUSAL_LM, given = c->outputs != D9D_INT_NULL;
    const int64_t least = loss_of(c) <= D9D_HEADS_SOFT_CROSS_ENTROPY ? 2 : 1;

    if (own && (given || c->bias || c->classifier_dropout > 0))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s.heads[%zu]: a causal_lm head is the model's own, without outputs, bias "
                        "and classifier_dropout of the task",
                        p->path, p->i);
    if (!own && c->kind != D9D_HEADS_EMBEDDING && !given)
        return D9D_FAIL(D9D_ECONFIG, "%s.heads[%zu].outputs: how many has %s?", p->path, p->i,
                        d9di_heads_kinds[c->kind].words);
    if (given && c->outputs < least)
        return D9D_FAIL(D9D_ECONFIG, "%s.heads[%zu].outputs: %lld; classes are %lld or more",
                        p->path, p->i, (long long)c->outputs, (long long)least);
    if (c->kind == D9D_HEADS_EMBEDDING && (c->bias || c->classifier_dropout > 0) && !given)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s.heads[%zu].outputs: without them there is no matrix for bias or "
                        "classifier_dropout",
                        p->path, p->i);
    return D9D_OK;
}

static d9d_status check_loss_of_kind(const head_place *p)
{
    const d9d_heads_head_section *c = p->c;
    const d9di_heads_kind *k = &d9di_heads_kinds[c->kind];
    const d9d_heads_loss loss = loss_of(c);

    if ((int)loss < k->first_loss || (int)loss >= k->end_loss)
        return D9D_FAIL(
            D9D_ECONFIG, "%s.heads[%zu].loss: %s has %s%s%s, not %s", p->path, p->i, k->words,
            d9di_heads_loss_names[k->first_loss], k->end_loss - k->first_loss > 1 ? " to " : "",
            k->end_loss - k->first_loss > 1 ? d9di_heads_loss_names[k->end_loss - 1] : "",
            d9di_heads_loss_names[loss]);
    return D9D_OK;
}

static bool is_labelled(const d9d_heads_head_section *c)
{
    return c->kind != D9D_HEADS_CAUSAL_LM && c->kind != D9D_HEADS_EMBEDDING;
}

/* A head of distributions has no right answers. */
static d9d_status check_metrics(const head_place *p)
{
    const d9d_heads_head_section *c = p->c;

    if (c->metrics.n == 0 || (is_labelled(c) && loss_of(c) != D9D_HEADS_SOFT_CROSS_ENTROPY))
        return D9D_OK;
    return D9D_FAIL(
        D9D_ECONFIG,
        "%s.heads[%zu].metrics: those are of classes and of numbers, and %s of the loss "
        "%s has none; its loss is in every record",
        p->path, p->i, d9di_heads_kinds[c->kind].words, d9di_heads_loss_names[loss_of(c)]);
}

static d9d_status check_label(const head_place *p)
{
    const d9d_heads_head_section *c = p->c;
    const d9di_heads_kind *k = &d9di_heads_kinds[c->kind];

    if (!is_labelled(c) && c->label != NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s.heads[%zu].label: %s has no field of labels", p->path,
                        p->i, k->words);
    if (is_labelled(c) && c->label == NULL &&
        (k->labelled || !d9di_heads_loss_is_of_classes(loss_of(c))))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s.heads[%zu].label: name the field of the samples that %s of "
                        "the loss %s learns from",
                        p->path, p->i, k->words, d9di_heads_loss_names[loss_of(c)]);
    return D9D_OK;
}

static d9d_status check_loss(const head_place *p)
{
    const d9d_heads_head_section *c = p->c;
    const d9di_heads_kind *k = &d9di_heads_kinds[c->kind];
    const d9d_heads_loss loss = loss_of(c);

    D9D_TRY(check_loss_of_kind(p));
    D9D_TRY(check_label(p));
    if (c->label_smoothing > 0 &&
        (!d9di_heads_loss_is_of_classes(loss) || c->kind == D9D_HEADS_CAUSAL_LM))
        return D9D_FAIL(D9D_ECONFIG, "%s.heads[%zu].label_smoothing: %s of the loss %s has none",
                        p->path, p->i, k->words, d9di_heads_loss_names[loss]);
    if (c->loss_weights != NULL && loss == D9D_HEADS_INFO_NCE)
        return D9D_FAIL(D9D_ECONFIG, "%s.heads[%zu].loss_weights: pairs have none", p->path, p->i);
    return check_metrics(p);
}

/* Heads that cannot be trained together. */
static d9d_status check_together(const d9d_heads_section *c, const char *path)
{
    const d9d_heads_head_section *list = c->heads.items;
    int n[D9D_HEADS_EMBEDDING + 1] = {0}, unnamed = 0;

    for (size_t i = 0; i < c->heads.n; i++) {
        n[list[i].kind]++;
        unnamed += list[i].kind == D9D_HEADS_CLASSIFICATION && list[i].label == NULL;
    }
    if (n[D9D_HEADS_CAUSAL_LM] > 1)
        return D9D_FAIL(D9D_ECONFIG, "%s.heads: %d are causal_lm, and a model has one", path,
                        n[D9D_HEADS_CAUSAL_LM]);
    if (n[D9D_HEADS_CAUSAL_LM] > 0 && unnamed > 0)
        return D9D_FAIL(
            D9D_ECONFIG,
            "%s.heads: beside a causal_lm head the labels of a dataset are next tokens; "
            "name the field with the classes as label",
            path);
    if (n[D9D_HEADS_EMBEDDING] > 0 && n[D9D_HEADS_CLASSIFICATION] + n[D9D_HEADS_REGRESSION] > 0)
        return D9D_FAIL(
            D9D_ECONFIG,
            "%s.heads: an embedding head learns from pairs of texts, and classification "
            "and regression from single ones; train them in two runs",
            path);
    return D9D_OK;
}

static d9d_status heads_section_check(const void *value, const char *path)
{
    const d9d_heads_section *c = value;

    for (size_t i = 0; i < c->heads.n; i++) {
        const head_place p = {(const d9d_heads_head_section *)c->heads.items + i, path, i};

        D9D_TRY(check_name(&p));
        D9D_TRY(check_outputs(&p));
        D9D_TRY(check_loss(&p));
    }
    return check_together(c, path);
}

static d9d_status infer_section_check(const void *value, const char *path)
{
    const d9d_heads_section *c = value;
    int64_t open = 0;

    for (size_t i = 0; i < c->heads.n; i++) {
        const head_place p = {(const d9d_heads_head_section *)c->heads.items + i, path, i};

        D9D_TRY(check_name(&p));
        D9D_TRY(check_loss_of_kind(&p));
        D9D_TRY(check_metrics(&p));
        if (p.c->metrics.n > 0)
            D9D_TRY(check_label(&p));
        if (!d9di_heads_kinds[p.c->kind].pooled)
            return D9D_FAIL(D9D_ECONFIG,
                            "%s.heads[%zu].kind: a line is a text, and %s is of tokens; a model's "
                            "own head has the tasks logprobs, perplexity and generate",
                            path, i, d9di_heads_kinds[p.c->kind].words);
        if (p.c->outputs == D9D_INT_NULL && (p.c->kind != D9D_HEADS_EMBEDDING || open++ > 0))
            return D9D_FAIL(D9D_ECONFIG, "%s.heads[%zu].outputs: how many has %s?", path, i,
                            d9di_heads_kinds[p.c->kind].words);
    }
    return D9D_OK;
}

static const d9d_key metric_elem = {.kind = D9D_KIND_UNION,
                                    .names = d9d_metric_tag,
                                    .choices = d9d_metric_choices,
                                    .doc = "a metric"};

#define STRUCTURE_KEYS                                                                             \
    D9D_KEY_STR(head_section, name, D9D_REQUIRED, "names its parameters, heads.NAME, and records", \
                .min = 1, .max = 64),                                                              \
        D9D_KEY_ENUM(head_section, kind, D9D_REQUIRED, d9di_heads_kind_names, "what it is"),       \
        D9D_KEY_INT(                                                                               \
            head_section, outputs, "null", 1, 1 << 20,                                             \
            "classes, numbers or features; null: of causal_lm, or of an embedding without "        \
            "a matrix",                                                                            \
            .flags = D9D_NULLABLE),                                                                \
        D9D_KEY_BOOL(head_section, bias, "false", "a number is added to each output")

static const d9d_key head_keys[] = {
    STRUCTURE_KEYS,
    D9D_KEY_STR(
        head_section, label, "null",
        "field of the samples with what it learns, of which a class of -100 and a text with "
        "a value that is null or NaN count for nothing; null: the next token, the text's "
        "class, or pairs",
        .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_ENUM(head_section, loss, "null", d9di_heads_loss_names, "null: the first of its kind",
                 .flags = D9D_NULLABLE),
    D9D_KEY_REAL(head_section, weight, "1", 0, 1e6, "of its mean loss in the loss of a step",
                 .flags = D9D_FLOAT32),
    D9D_KEY_STR(
        head_section, loss_weights, "null",
        "field of the samples whose numbers, per target, the losses are multiplied with, and "
        "where it is NaN a target counts for nothing; null: none",
        .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_REAL(head_section, classifier_dropout, "0", 0, 1, D9DI_TASK_CLASSIFIER_DROPOUT_DOC,
                 .flags = D9D_BELOW_MAX | D9D_FLOAT32),
    D9D_KEY_REAL(head_section, label_smoothing, "0", 0, 1,
                 "share of a class's probability that all classes get", .flags = D9D_FLOAT32),
    D9D_KEY_REAL(head_section, temperature, "0.05", 0, 1e6, "what cosines of pairs are divided by",
                 .flags = D9D_ABOVE_MIN | D9D_FLOAT32),
    D9D_KEY_LIST(head_section, metrics, "[]", &metric_elem,
                 "what its predictions are worth, in every record and evaluation"),
    D9D_KEY_END,
};
static const d9d_table head_table =
    D9D_TABLE(head_section, "head", head_keys, "a head on the model");
static const d9d_key head_elem = {
    .kind = D9D_KIND_TABLE, .def = "{}", .table = &head_table, .doc = "a head on the model"};

static const d9d_key computed_head_keys[] = {
    STRUCTURE_KEYS,
    D9D_KEY_ENUM(head_section, loss, "null", d9di_heads_loss_names,
                 "what it was trained with: of bce each class has a probability of its own, and a "
                 "text any of them; null: the first of its kind",
                 .flags = D9D_NULLABLE),
    D9D_KEY_STR(head_section, label, "null",
                "field of the samples that its metrics compare with; null: the text's class",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_LIST(head_section, metrics, "[]", &metric_elem,
                 "what its predictions are worth, of the texts that have a label"),
    D9D_KEY_END};
static const d9d_table computed_head_table =
    D9D_TABLE(head_section, "computed_head", computed_head_keys, "a head that is computed");
static const d9d_key computed_head_elem = {.kind = D9D_KIND_TABLE,
                                           .def = "{}",
                                           .table = &computed_head_table,
                                           .doc = "a head that is computed"};

#define POOLING_KEY                                                                                \
    D9D_KEY_ENUM(d9d_heads_section, pooling, "\"last\"", d9d_pooling_names,                        \
                 "what stands for a text: its last position, the mean of all, or the first one "   \
                 "(\"cls\")")

static const d9d_key train_keys[] = {
    POOLING_KEY,
    D9D_KEY_LIST(d9d_heads_section, heads, D9D_REQUIRED, &head_elem, "the heads", .min = 1,
                 .max = D9D_HEADS_MAX),
    D9D_KEY_END,
};
static const d9d_key infer_keys[] = {
    {.name = "output",
     .kind = D9D_KIND_STR,
     .offset = offsetof(d9d_heads_section, output.output),
     .def = D9D_REQUIRED,
     .min = 1,
     .doc = "JSONL file to write"},
    POOLING_KEY,
    D9D_KEY_LIST(d9d_heads_section, heads, D9D_REQUIRED, &computed_head_elem,
                 "the heads to compute, of whatever heads the checkpoint has", .min = 1,
                 .max = D9D_HEADS_MAX),
    D9D_KEY_END,
};

#define MEMBERS                                                                                    \
    .size = sizeof(d9d_train_task), .open = heads_open, .close = free, .head = heads_head,         \
    .pooling = heads_pooling, .extend = heads_extend, .forward = d9di_heads_forward
static const d9d_train_task task = {MEMBERS,
                                    .table = &d9di_heads_train_table,
                                    .targets = heads_targets,
                                    .check = heads_check,
                                    .set_data = heads_set_data,
                                    .fields = heads_fields,
                                    .no_logits = true,
                                    .parts = heads_parts,
                                    .heads = heads_records,
                                    .classes = heads_classes,
                                    .has_pairs = heads_has_pairs};
static const d9d_train_task body = {MEMBERS,
                                    .table = &d9di_heads_infer_table,
                                    .set_data = heads_set_data,
                                    .fields = heads_fields,
                                    .heads = heads_records,
                                    .classes = heads_classes};
static const d9d_infer_task_kind infer = {.size = sizeof(d9d_infer_task_kind),
                                          .table = &d9di_heads_infer_table,
                                          .body = &body,
                                          .row = heads_row};

const d9d_table d9di_heads_train_table = {.name = "heads",
                                          .size = sizeof(d9d_heads_section),
                                          .keys = train_keys,
                                          .doc = "several named heads on one model",
                                          .check = heads_section_check,
                                          .row = &task};
const d9d_table d9di_heads_infer_table = {.name = "heads",
                                          .size = sizeof(d9d_heads_section),
                                          .keys = infer_keys,
                                          .doc = "named heads, a line for each text",
                                          .check = infer_section_check,
                                          .row = &infer};
