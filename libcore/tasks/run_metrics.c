/* run_metrics.c - see tasks/run_metrics.h. */
#include "tasks/run_metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/kernels/sim.h"
#include "d9d/model/model.h"
#include "tasks/token_predictions.h"

/* --- opening ------------------------------------------------------------------------- */

static bool has_same_label(const d9d_metric *a, const d9d_metric *b)
{
    char label[64], other[64];

    for (size_t k = 0; k < d9d_metric_width(a); k++)
        for (size_t l = 0; l < d9d_metric_width(b); l++)
            if (strcmp(d9d_metric_label(a, k, label, sizeof(label)),
                       d9d_metric_label(b, l, other, sizeof(other))) == 0)
                return true;
    return false;
}

/* True if metric i has a value with the same name as one of an earlier metric of its source. */
static bool is_name_taken(const d9di_run_metrics *m, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (m->source[j] == m->source[i] &&
            strcmp(d9d_metric_name(m->metric[j]), d9d_metric_name(m->metric[i])) == 0 &&
            has_same_label(m->metric[i], m->metric[j]))
            return true;
    return false;
}

/* Appends the value names of the newest metric, which is number `k` of its source. */
static d9d_status names_make(d9di_run_metrics *m, const d9di_run_metrics_source *s,
                             const char *word, size_t k, d9d_arena *a)
{
    const size_t i = m->n - 1, n = d9d_metric_width(m->metric[i]);
    char label[64], place[24] = "";

    if (k != SIZE_MAX && is_name_taken(m, i))
        (void)snprintf(place, sizeof(place), "[%zu]", k);
    for (size_t v = 0; v < n; v++) {
        m->names[m->width + v] = d9d_arena_printf(
            a, "%s%s%s%s%s", s->head != NULL ? s->head : "", s->head != NULL ? "." : "", word,
            place, d9d_metric_label(m->metric[i], v, label, sizeof(label)));
        if (m->names[m->width + v] == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: its names", m->place[i]);
    }
    m->width += n;
    return D9D_OK;
}

static int64_t target_columns(d9d_task_targets targets, int64_t columns)
{
    return targets == D9D_TASK_TARGETS_CLASSES ? 1 : columns;
}

/* An update with no rows checks the columns: EINVAL if the metric does not accept them. */
static d9d_status columns_check(d9d_metric *m, const char *where, int64_t columns,
                                d9d_task_targets targets)
{
    static const double none[1];
    const d9d_predictions b = {.prediction = none,
                               .target = none,
                               .prediction_columns = columns,
                               .target_columns = target_columns(targets, columns)};
    const d9d_status st = d9d_metric_update(m, &b);

    if (st == D9D_EINVAL)
        return D9D_FAIL(D9D_ECONFIG, "%s: the %s has %lld %s: %s", where,
                        targets == D9D_TASK_TARGETS_CLASSES ? "model" : "head", (long long)columns,
                        targets == D9D_TASK_TARGETS_VALUES ? "outputs" : "classes",
                        d9d_err_message());
    D9D_TRY(st);
    d9d_metric_reset(m);
    return D9D_OK;
}

static d9d_status metric_add(d9di_run_metrics *m, const d9d_union *section, size_t source,
                             d9d_task_targets targets, const char *place)
{
    m->place[m->n] = place;
    m->source[m->n] = source;
    m->targets[m->n] = targets;
    m->section[m->n] = section;
    if (place == NULL)
        return D9D_FAIL(D9D_ENOMEM, "metrics: the place of one");
    D9D_TRY(d9d_metric_create(section, place, &m->metric[m->n]));
    m->n++;
    return D9D_OK;
}

/* The mean of a head's losses. */
static d9d_status loss_add(d9di_run_metrics *m, const d9di_run_metrics_source *s, size_t source,
                           d9d_arena *a)
{
    const d9d_table *const *mean = d9d_metric_choices;

    d9d_union *section = d9d_arena_alloc(a, sizeof(*section));

    if (section == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its loss", s->where);
    while (strcmp((*mean)->name, "mean") != 0)
        mean++;
    *section = (d9d_union){.choice = *mean, .choices = d9d_metric_choices};
    return metric_add(m, section, source, s->targets, d9d_arena_printf(a, "%s.loss", s->where));
}

static d9d_status source_add(d9di_run_metrics *m, const d9di_run_metrics_source *s, size_t source,
                             d9d_arena *a)
{
    const d9d_union *section = s->list->items;

    for (size_t i = 0; i < s->list->n; i++) {
        D9D_TRY(metric_add(m, &section[i], source, s->targets,
                           d9d_arena_printf(a, "%s[%zu]", s->where, i)));
        if (!s->of_tokens && d9d_metric_input_of(m->metric[m->n - 1]) == D9D_METRIC_TOKENS)
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: %s is of a language model's next tokens, and the task has other "
                            "predictions",
                            m->place[m->n - 1], d9d_metric_name(m->metric[m->n - 1]));
        if (s->columns > 0)
            D9D_TRY(columns_check(m->metric[m->n - 1], m->place[m->n - 1], s->columns, s->targets));
    }
    return D9D_OK;
}

static d9d_status arrays_alloc(d9di_run_metrics *m, const d9di_run_metrics_source *sources,
                               size_t n, d9d_arena *a)
{
    size_t all = n;

    for (size_t i = 0; i < n; i++)
        all += sources[i].list->n;
    m->metric = d9d_arena_alloc(a, all * sizeof(d9d_metric *));
    m->source = d9d_arena_alloc(a, all * sizeof(*m->source));
    m->targets = d9d_arena_alloc(a, all * sizeof(*m->targets));
    m->place = d9d_arena_alloc(a, all * sizeof(char *));
    m->section = d9d_arena_alloc(a, all * sizeof(*m->section));
    if (m->metric == NULL || m->source == NULL || m->targets == NULL || m->place == NULL ||
        m->section == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %zu of them", sources[0].where, all);
    return D9D_OK;
}

/* The names of all values, once the number of values is known. */
static d9d_status values_alloc(d9di_run_metrics *m, const d9di_run_metrics_source *sources,
                               d9d_arena *a)
{
    const size_t n = m->n;
    size_t width = 1, k = 0;

    for (size_t i = 0; i < n; i++)
        width += d9d_metric_width(m->metric[i]);
    m->names = d9d_arena_alloc(a, width * sizeof(char *));
    m->values = d9d_arena_alloc(a, width * sizeof(double));
    if (m->names == NULL || m->values == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %zu names", sources[0].where, width);
    for (m->n = 0; m->n < n;) {
        const size_t i = m->n++;
        const d9di_run_metrics_source *s = &sources[m->source[i]];
        const bool first = i == 0 || m->source[i - 1] != m->source[i];

        k = first ? 0 : k + 1;
        D9D_TRY(s->has_loss && first
                    ? names_make(m, s, "loss", SIZE_MAX, a)
                    : names_make(m, s, d9d_metric_name(m->metric[i]), k - s->has_loss, a));
    }
    return D9D_OK;
}

d9d_status d9di_run_metrics_open(const d9di_run_metrics_source *sources, size_t n, d9d_arena *a,
                                 d9di_run_metrics *out)
{
    D9D_TRY(arrays_alloc(out, sources, n, a));
    out->of_tokens = sources[0].of_tokens;
    for (size_t i = 0; i < n; i++) {
        if (sources[i].has_loss)
            D9D_TRY(loss_add(out, &sources[i], i, a));
        D9D_TRY(source_add(out, &sources[i], i, a));
    }
    return values_alloc(out, sources, a);
}

d9d_status d9di_run_metrics_check_losses(d9di_run_metrics *m)
{
    static const double none[1];
    const d9d_predictions b = {.prediction = none, .prediction_columns = 1};

    for (size_t i = 0; i < m->n; i++) {
        const d9d_status st = d9d_metric_update(m->metric[i], &b);

        if (st == D9D_EINVAL)
            return D9D_FAIL(D9D_ECONFIG, "%s: the task has losses, and no classes: %s", m->place[i],
                            d9d_err_message());
        D9D_TRY(st);
        d9d_metric_reset(m->metric[i]);
    }
    return D9D_OK;
}

d9d_status d9di_run_metrics_check_head(d9di_run_metrics *m, const d9d_head *head)
{
    if (head->kind != D9D_HEAD_CLASSIFICATION || head->size == 1) /* a score, and no classes */
        return D9D_OK;
    for (size_t i = 0; i < m->n; i++)
        if (m->source[i] == 0)
            D9D_TRY(columns_check(m->metric[i], m->place[i], head->size, m->targets[i]));
    return D9D_OK;
}

d9d_status d9di_run_metrics_check_vocab(d9di_run_metrics *m, int64_t vocab)
{
    for (size_t i = 0; i < m->n && m->of_tokens; i++) {
        const bool tokens = d9d_metric_input_of(m->metric[i]) == D9D_METRIC_TOKENS;

        D9D_TRY(columns_check(m->metric[i], m->place[i], tokens ? D9D_METRIC_TOKEN_COLUMNS : vocab,
                              D9D_TASK_TARGETS_CLASSES));
    }
    return D9D_OK;
}

/* A copy of each metric that reads the logits of tokens, which has counted nothing; [n], NULL for
 * others. */
static void copies_free(d9d_metric **copy, size_t n)
{
    for (size_t i = 0; copy != NULL && i < n; i++)
        d9d_metric_free(copy[i]);
    free(copy);
}

static d9d_status copies_make(const d9di_run_metrics *m, d9d_metric ***out)
{
    d9d_metric **copy = calloc(m->n + 1, sizeof(d9d_metric *));
    d9d_status st = D9D_OK;

    if (copy == NULL)
        return D9D_FAIL(D9D_ENOMEM, "metrics: %zu of them", m->n);
    for (size_t i = 0; i < m->n && st == D9D_OK; i++)
        if (d9d_metric_input_of(m->metric[i]) == D9D_METRIC_SCORES)
            st = d9d_metric_create(m->section[i], m->place[i], &copy[i]);
    if (st == D9D_OK)
        *out = copy;
    else
        copies_free(copy, m->n);
    return st;
}

static void pending_release(d9di_run_metrics_pending *w, size_t n)
{
    copies_free(w->counted, n);
    d9d_readback_free(w->logits);
    d9d_readback_free(w->labels);
    d9d_readback_free(w->mask);
    *w = (d9di_run_metrics_pending){0};
}

void d9di_run_metrics_release(d9di_run_metrics *m)
{
    for (size_t i = 0; i < m->watched.len; i++)
        pending_release(&m->watched.data[i], m->n);
    for (size_t i = 0; i < m->n; i++)
        d9d_metric_free(m->metric[i]);
    D9D_VEC_RELEASE(&m->watched);
    D9D_VEC_RELEASE(&m->logits);
    D9D_VEC_RELEASE(&m->prediction);
    D9D_VEC_RELEASE(&m->target);
    D9D_VEC_RELEASE(&m->token);
    *m = (d9di_run_metrics){0};
}

/* --- pending predictions ------------------------------------------------------------- */

static d9d_status enqueue_readback(const d9d_tensor *t, d9d_readback **out)
{
    D9D_TRY(d9d_readback_create(d9d_tensor_device(t), d9d_tensor_bytes(t), out));
    return d9d_readback_enqueue(*out, d9d_tensor_data(t));
}

static bool is_read(const d9di_run_metrics *m, size_t source)
{
    for (size_t i = 0; i < m->n; i++)
        if (m->source[i] == source)
            return true;
    return false;
}

static d9d_status pending_add(d9di_run_metrics *m, d9di_run_metrics_pending w,
                              const d9d_tensor *logits, const d9d_tensor *labels,
                              const d9d_tensor *mask)
{
    d9d_status st;

    D9D_TRY_OR(st, enqueue_readback(logits, &w.logits), out);
    if (labels != NULL)
        D9D_TRY_OR(st, enqueue_readback(labels, &w.labels), out);
    if (mask != NULL)
        D9D_TRY_OR(st, enqueue_readback(mask, &w.mask), out);
    D9D_TRY_OR(st, D9D_VEC_PUSH(&m->watched, w), out);
    w = (d9di_run_metrics_pending){0};
out:
    pending_release(&w, m->n);
    return st;
}

d9d_status d9di_run_metrics_enqueue(d9di_run_metrics *m, size_t source, const d9d_tensor *logits,
                                    const d9d_tensor *labels, const d9d_tensor *mask)
{
    d9di_run_metrics_pending w;

    if (!is_read(m, source))
        return D9D_OK;
    if (logits->shape.ndim < 1 || (logits->dtype != D9D_F32 && logits->dtype != D9D_BF16) ||
        (labels->dtype != D9D_I32 && labels->dtype != D9D_F32))
        return D9D_FAIL(D9D_EINVAL,
                        "metrics: predictions of %s in %d dimensions and labels of %s, not float32 "
                        "or bfloat16 [rows, classes] and int32 or float32",
                        d9d_dtype_name(logits->dtype), logits->shape.ndim,
                        d9d_dtype_name(labels->dtype));
    w = (d9di_run_metrics_pending){.source = source,
                                   .dtype = logits->dtype,
                                   .label_dtype = labels->dtype,
                                   .classes = logits->shape.dim[logits->shape.ndim - 1]};
    w.rows = d9d_tensor_numel(labels) / (labels->dtype == D9D_F32 ? w.classes : 1);
    if (w.rows * w.classes != d9d_tensor_numel(logits))
        return D9D_FAIL(D9D_EINVAL, "metrics: predictions for %lld positions, labels for %lld",
                        (long long)(d9d_tensor_numel(logits) / w.classes), (long long)w.rows);
    return pending_add(m, w, logits, labels, mask);
}

d9d_status d9di_run_metrics_enqueue_mean(d9di_run_metrics *m, size_t source, const d9d_tensor *mean,
                                         const d9d_tensor *count)
{
    return pending_add(
        m, (d9di_run_metrics_pending){.source = source, .dtype = D9D_F32, .rows = 1, .classes = 1},
        mean, NULL, count);
}

/* Predictions on the host. */
typedef struct host_rows {
    d9d_dtype dtype;
    int64_t rows, classes;
    const void *logits;    /* [rows, classes] */
    const int32_t *labels; /* [rows], or NULL */
    const float *values;   /* [rows, classes], in place of labels */
    const float *mask;     /* [rows], or NULL */
} host_rows;

static bool row_counts(const host_rows *w, int64_t i)
{
    if (w->mask != NULL && w->mask[i] == 0)
        return false;
    return w->labels == NULL ||
           (w->labels[i] != D9D_IGNORE_INDEX && (w->mask == NULL || w->labels[i] >= 0));
}

static d9d_status row_keep_targets(d9di_run_metrics *m, const host_rows *w, int64_t i)
{
    if (w->labels != NULL)
        return D9D_VEC_PUSH(&m->target, (double)w->labels[i]);
    for (int64_t c = 0; c < w->classes; c++)
        D9D_TRY(D9D_VEC_PUSH(&m->target, (double)w->values[i * w->classes + c]));
    return D9D_OK;
}

/* Keeps the rows that count, in the form of d9d_predictions. */
static d9d_status rows_keep(d9di_run_metrics *m, const host_rows *w)
{
    const size_t n_scores = (size_t)(w->rows * w->classes);

    m->prediction.len = m->target.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&m->logits, n_scores));
    D9D_TRY(D9D_VEC_RESERVE(&m->prediction, n_scores));
    d9d_tensor_elements_to_f32(w->dtype, w->logits, (int64_t)n_scores, m->logits.data);
    for (int64_t i = 0; i < w->rows; i++) {
        if (!row_counts(w, i))
            continue;
        for (int64_t c = 0; c < w->classes; c++)
            m->prediction.data[m->prediction.len++] = (double)m->logits.data[i * w->classes + c];
        D9D_TRY(row_keep_targets(m, w, i));
    }
    return D9D_OK;
}

/* The rows of a micro-batch that count. */
static d9d_status collect_rows(d9di_run_metrics *m, const d9di_run_metrics_pending *w)
{
    host_rows r = {.dtype = w->dtype, .rows = w->rows, .classes = w->classes};
    const void *back;

    D9D_TRY(d9d_readback_wait(w->logits, &r.logits));
    D9D_TRY(d9d_readback_wait(w->labels, &back));
    if (w->label_dtype == D9D_F32)
        r.values = back;
    else
        r.labels = back;
    if (w->mask != NULL) {
        D9D_TRY(d9d_readback_wait(w->mask, &back));
        r.mask = back;
    }
    return rows_keep(m, &r);
}

static d9d_predictions kept_rows(const d9di_run_metrics *m, int64_t columns)
{
    const int64_t rows = (int64_t)m->prediction.len / columns;

    return (d9d_predictions){.rows = rows,
                             .prediction = m->prediction.data,
                             .prediction_columns = columns,
                             .target = m->target.data,
                             .target_columns = rows > 0 ? (int64_t)m->target.len / rows : 1};
}

static d9d_task_targets targets_of(const d9di_run_metrics *m, size_t source)
{
    for (size_t i = 0; i < m->n; i++)
        if (m->source[i] == source)
            return m->targets[i];
    return D9D_TASK_TARGETS_CLASSES;
}

/* Of classes that are not exclusive, predictions are probabilities. */
static void take_probabilities(d9di_run_metrics *m)
{
    for (size_t i = 0; i < m->prediction.len; i++)
        m->prediction.data[i] = 1 / (1 + exp(-m->prediction.data[i]));
}

/* The rows that were kept, in all metrics of a source but the first `skip`. */
static d9d_status update_source(d9di_run_metrics *m, size_t source, int64_t columns, size_t skip)
{
    d9d_predictions b;
    size_t k = 0;

    if (targets_of(m, source) == D9D_TASK_TARGETS_LABELS)
        take_probabilities(m);
    b = kept_rows(m, columns);
    for (size_t i = 0; i < m->n && b.rows > 0; i++)
        if (m->source[i] == source && k++ >= skip)
            D9D_TRY(d9d_metric_update(m->metric[i], &b));
    return D9D_OK;
}

/* A head's loss is the first metric of its source, and has its number of targets as weight. */
static d9d_status update_mean(d9di_run_metrics *m, const d9di_run_metrics_pending *w)
{
    double mean, count;
    const d9d_predictions b = {
        .rows = 1, .prediction = &mean, .weight = &count, .prediction_columns = 1};
    const void *back;
    size_t i = 0;

    D9D_TRY(d9d_readback_wait(w->logits, &back));
    mean = (double)*(const float *)back;
    D9D_TRY(d9d_readback_wait(w->mask, &back));
    count = (double)*(const float *)back;
    while (m->source[i] != w->source)
        i++;
    return count > 0 ? d9d_metric_update(m->metric[i], &b) : D9D_OK;
}

/* Columns of tokens, or what has read their logits. */
static d9d_status update_tokens(d9di_run_metrics *m, const d9di_run_metrics_pending *w)
{
    const d9d_predictions b = kept_rows(m, w->classes);
    const int64_t at = w->classes > 1 ? D9D_METRIC_TOKEN_CLASS : 0;
    d9d_predictions classes = b;

    if (m->failed.st != D9D_OK)
        return d9d_err_restore(&m->failed);
    m->token.len = 0;
    for (int64_t i = 0; i < b.rows; i++)
        D9D_TRY(D9D_VEC_PUSH(&m->token, b.prediction[i * w->classes + at]));
    classes.prediction = m->token.data;
    classes.prediction_columns = 1;
    for (size_t i = 0; i < m->n && b.rows > 0; i++)
        if (d9d_metric_input_of(m->metric[i]) == D9D_METRIC_TOKENS)
            D9D_TRY(d9d_metric_update(m->metric[i], &b));
        else if (d9d_metric_input_of(m->metric[i]) == D9D_METRIC_CLASSES)
            D9D_TRY(d9d_metric_update(m->metric[i], &classes));
        else
            d9d_metric_merge(m->metric[i], w->counted[i]);
    return D9D_OK;
}

static d9d_status update_one(d9di_run_metrics *m, const d9di_run_metrics_pending *w)
{
    if (w->labels == NULL)
        return update_mean(m, w);
    D9D_TRY(collect_rows(m, w));
    /* the first of a head's metrics is its loss */
    return w->of_tokens ? update_tokens(m, w)
                        : update_source(m, w->source, w->classes, w->source > 0);
}

d9d_status d9di_run_metrics_count(d9di_run_metrics *m, size_t source, int64_t rows, int64_t columns,
                                  const double *outputs, const double *targets)
{
    const int64_t n = rows * target_columns(targets_of(m, source), columns);

    m->prediction.len = m->target.len = 0;
    for (int64_t i = 0; i < rows * columns; i++)
        D9D_TRY(D9D_VEC_PUSH(&m->prediction, outputs[i]));
    for (int64_t i = 0; i < n; i++)
        D9D_TRY(D9D_VEC_PUSH(&m->target, targets[i]));
    return update_source(m, source, columns, 0);
}

d9d_status d9di_run_metrics_update(d9di_run_metrics *m, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        D9D_TRY(update_one(m, &m->watched.data[i]));
        pending_release(&m->watched.data[i], m->n);
    }
    if (n > 0) {
        m->watched.len -= n;
        memmove(m->watched.data, m->watched.data + n,
                m->watched.len * sizeof(d9di_run_metrics_pending));
    }
    return D9D_OK;
}

/* --- next tokens ------------------------------------------------------------------------- */

#define HOST_ELEMENTS (INT64_C(1) << 22) /* of logits that are read back at a time */

/* Metrics that read the logits of a micro-batch's tokens. */
typedef struct logits_reader {
    d9di_run_metrics *m;
    d9d_metric **copy;
    const int32_t *labels;
} logits_reader;

/* What is wrong with the predictions waits until the step is known to be finite. */
static void copies_update(const logits_reader *r, const d9d_predictions *b)
{
    d9d_status st = D9D_OK;

    if (r->m->failed.st != D9D_OK)
        return;
    for (size_t i = 0; i < r->m->n && b->rows > 0 && st == D9D_OK; i++)
        st = r->copy[i] != NULL ? d9d_metric_update(r->copy[i], b) : D9D_OK;
    if (st != D9D_OK)
        d9d_err_save(&r->m->failed, st);
}

/* Waits for logits [n, V] of the tokens from `first`, and counts them. */
static d9d_status logits_count(const logits_reader *r, const d9d_tensor *logits, int64_t first)
{
    const int64_t n = logits->shape.dim[0], v = logits->shape.dim[1];
    host_rows rows = {.dtype = D9D_F32, .rows = n, .classes = v, .labels = r->labels + first};
    d9d_readback *back = NULL;
    d9d_predictions b;
    d9d_status st;

    D9D_TRY_OR(st, enqueue_readback(logits, &back), out);
    D9D_TRY_OR(st, d9d_readback_wait(back, &rows.logits), out);
    D9D_TRY_OR(st, rows_keep(r->m, &rows), out);
    b = kept_rows(r->m, v);
    copies_update(r, &b);
out:
    d9d_readback_free(back);
    return st;
}

static d9d_status logits_read(void *arg, const d9d_tensor *logits, int64_t first)
{
    const int64_t n = logits->shape.dim[0], fit = HOST_ELEMENTS / logits->shape.dim[1],
                  step = fit > 0 ? fit : 1;
    d9d_status st = D9D_OK;

    for (int64_t at = 0; at < n && st == D9D_OK; at += step) {
        d9d_tensor some = d9d_tensor_rows(logits, at, n - at < step ? n - at : step);

        st = logits_count(arg, &some, first + at);
        d9d_tensor_release(&some);
    }
    return st;
}

static bool has_input(const d9di_run_metrics *m, d9d_metric_input input)
{
    for (size_t i = 0; i < m->n; i++)
        if (d9d_metric_input_of(m->metric[i]) == input)
            return true;
    return false;
}

/* The columns of all tokens; *copy are the metrics that have read the logits, if any do. */
static d9d_status tokens_predict(d9di_run_metrics *m, d9d_block_vocab *head, const d9d_tensor *h,
                                 const d9d_tensor *labels, bool reads, d9d_metric ***copy,
                                 d9d_tensor *columns)
{
    d9di_token_predictions p = {.labels = labels,
                                .classes_alone = !has_input(m, D9D_METRIC_TOKENS)};
    logits_reader r = {.m = m};
    d9d_readback *back = NULL;
    const void *host;
    d9d_status st;

    if (!reads)
        return d9di_token_predictions_make(&p, head, h, columns);
    D9D_TRY_OR(st, copies_make(m, copy), out);
    D9D_TRY_OR(st, enqueue_readback(labels, &back), out);
    D9D_TRY_OR(st, d9d_readback_wait(back, &host), out);
    r.copy = *copy;
    r.labels = host;
    p.logits = logits_read;
    p.arg = &r;
    st = d9di_token_predictions_make(&p, head, h, columns);
out:
    d9d_readback_free(back);
    return st;
}

bool d9di_run_metrics_wants_tokens(const d9di_run_metrics *m)
{
    return m != NULL && m->n > 0 && m->of_tokens && !m->pauses_tokens;
}

/* A plan has no predictions to count. */
d9d_status d9di_run_metrics_enqueue_tokens(d9di_run_metrics *m, d9d_block_vocab *head,
                                           const d9d_tensor *h, const d9d_tensor *labels,
                                           bool is_counted)
{
    d9di_run_metrics_pending w = {.dtype = D9D_F32,
                                  .label_dtype = D9D_I32,
                                  .rows = d9d_tensor_numel(labels),
                                  .of_tokens = true};
    const bool counts = is_counted && d9d_tensor_device(h)->kernels != d9d_kernels_sim();
    d9d_tensor columns = {0};
    d9d_status st = tokens_predict(m, head, h, labels, counts && has_input(m, D9D_METRIC_SCORES),
                                   &w.counted, &columns);

    w.classes = st == D9D_OK ? columns.shape.dim[1] : 0;
    if (st == D9D_OK && counts)
        st = pending_add(m, w, &columns, labels, NULL);
    else
        copies_free(w.counted, m->n);
    d9d_tensor_release(&columns);
    return st;
}

/* --- values ---------------------------------------------------------------------------- */

d9d_status d9di_run_metrics_sync_begin(d9di_run_metrics *m, d9d_device *dev, d9d_comm *world)
{
    for (size_t i = 0; i < m->n; i++)
        D9D_TRY(d9d_metric_sync_begin(m->metric[i], dev, world));
    return D9D_OK;
}

d9d_status d9di_run_metrics_sync_end(d9di_run_metrics *m)
{
    double *values = m->values;

    for (size_t i = 0; i < m->n; i++) {
        D9D_TRY(d9d_metric_sync_end(m->metric[i]));
        d9d_metric_compute(m->metric[i], values);
        d9d_metric_reset(m->metric[i]);
        values += d9d_metric_width(m->metric[i]);
    }
    return D9D_OK;
}

d9d_status d9di_run_metrics_rank_state(const d9di_run_metrics *m, d9d_arena *a,
                                       d9d_checkpointer_set *set)
{
    for (size_t i = 0; i < m->n; i++) {
        const d9d_metric_form *f = d9d_metric_form_of(m->metric[i]);
        const d9d_checkpointer_rank_state c = {
            .name = d9d_arena_printf(a, "%s.%s", m->place[i], d9d_metric_name(m->metric[i])),
            .dtype = f->dtype,
            .n = f->state_size,
            .reduce_op = f->reduce_op,
            .data = d9d_metric_local_state(m->metric[i]),
        };

        D9D_TRY(d9d_checkpointer_set_add_rank_state(set, &c, 1, a));
    }
    return D9D_OK;
}
