/* run_metrics.c - see tasks/run_metrics.h. */
#include "tasks/run_metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/model/model.h"

/* True if metric i has a value with the same name as one of an earlier metric. */
static bool is_name_taken(const d9di_run_metrics *m, const d9d_union *section, size_t i)
{
    char label[64], other[64];

    for (size_t j = 0; j < i; j++) {
        if (strcmp(section[j].choice->name, section[i].choice->name) != 0)
            continue;
        for (size_t k = 0; k < d9d_metric_width(m->metric[i]); k++)
            for (size_t l = 0; l < d9d_metric_width(m->metric[j]); l++)
                if (strcmp(d9d_metric_label(m->metric[i], k, label, sizeof(label)),
                           d9d_metric_label(m->metric[j], l, other, sizeof(other))) == 0)
                    return true;
    }
    return false;
}

/* Sets the value names of metric i, beginning at index `at`. */
static d9d_status names_make(d9di_run_metrics *m, const d9d_union *section, size_t i, size_t at,
                             d9d_arena *a)
{
    char label[64], place[24] = "";

    if (is_name_taken(m, section, i))
        (void)snprintf(place, sizeof(place), "[%zu]", i);
    for (size_t k = 0; k < d9d_metric_width(m->metric[i]); k++) {
        m->names[at + k] =
            d9d_arena_printf(a, "%s%s%s", section[i].choice->name, place,
                             d9d_metric_label(m->metric[i], k, label, sizeof(label)));
        if (m->names[at + k] == NULL)
            return D9D_FAIL(D9D_ENOMEM, "metrics[%zu]: its names", i);
    }
    return D9D_OK;
}

d9d_status d9di_run_metrics_open(const d9d_list *list, const char *where, d9d_arena *a,
                                 d9di_run_metrics *out)
{
    const d9d_union *section = list->items;
    size_t at = 0;

    out->metric = d9d_arena_alloc(a, (list->n + 1) * sizeof(d9d_metric *));
    if (out->metric == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %zu of them", where, list->n);
    for (size_t i = 0; i < list->n; i++) {
        const char *one = d9d_arena_printf(a, "%s[%zu]", where, i);

        D9D_TRY(d9d_metric_create(&section[i], one != NULL ? one : where, &out->metric[i]));
        out->n++;
        out->width += d9d_metric_width(out->metric[i]);
    }
    out->names = d9d_arena_alloc(a, (out->width + 1) * sizeof(char *));
    out->values = d9d_arena_alloc(a, (out->width + 1) * sizeof(double));
    if (out->names == NULL || out->values == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %zu names", where, out->width);
    for (size_t i = 0; i < out->n; i++) {
        D9D_TRY(names_make(out, section, i, at, a));
        at += d9d_metric_width(out->metric[i]);
    }
    return D9D_OK;
}

/* An update with no rows checks the columns: EINVAL if the metric does not accept them. */
d9d_status d9di_run_metrics_check_head(d9di_run_metrics *m, const char *where, const d9d_head *head)
{
    static const double none[1];
    const d9d_predictions b = {
        .prediction = none, .target = none, .prediction_columns = head->size, .target_columns = 1};

    if (head->kind != D9D_HEAD_CLASSIFICATION || head->size == 1) /* a score, and no classes */
        return D9D_OK;
    for (size_t i = 0; i < m->n; i++) {
        const d9d_status st = d9d_metric_update(m->metric[i], &b);

        if (st == D9D_EINVAL)
            return D9D_FAIL(D9D_ECONFIG, "%s[%zu]: the model has %lld classes: %s", where, i,
                            (long long)head->size, d9d_err_message());
        D9D_TRY(st);
        d9d_metric_reset(m->metric[i]);
    }
    return D9D_OK;
}

static void pending_release(d9di_run_metrics_pending *w)
{
    d9d_readback_free(w->logits);
    d9d_readback_free(w->labels);
    *w = (d9di_run_metrics_pending){0};
}

void d9di_run_metrics_release(d9di_run_metrics *m)
{
    for (size_t i = 0; i < m->watched.len; i++)
        pending_release(&m->watched.data[i]);
    for (size_t i = 0; i < m->n; i++)
        d9d_metric_free(m->metric[i]);
    D9D_VEC_RELEASE(&m->watched);
    D9D_VEC_RELEASE(&m->logits);
    D9D_VEC_RELEASE(&m->prediction);
    D9D_VEC_RELEASE(&m->target);
    *m = (d9di_run_metrics){0};
}

/* --- pending predictions ------------------------------------------------------------- */

static d9d_status enqueue_readback(const d9d_tensor *t, d9d_readback **out)
{
    D9D_TRY(d9d_readback_create(d9d_tensor_device(t), d9d_tensor_bytes(t), out));
    return d9d_readback_enqueue(*out, d9d_tensor_data(t));
}

d9d_status d9di_run_metrics_enqueue(d9di_run_metrics *m, const d9d_tensor *logits,
                                    const d9d_tensor *labels)
{
    d9di_run_metrics_pending w;
    d9d_status st;

    if (logits->shape.ndim < 1 || (logits->dtype != D9D_F32 && logits->dtype != D9D_BF16) ||
        labels->dtype != D9D_I32)
        return D9D_FAIL(D9D_EINVAL,
                        "metrics: predictions of %s in %d dimensions and labels of %s, not float32 "
                        "or bfloat16 [rows, classes] and int32",
                        d9d_dtype_name(logits->dtype), logits->shape.ndim,
                        d9d_dtype_name(labels->dtype));
    w = (d9di_run_metrics_pending){.dtype = logits->dtype,
                                   .rows = d9d_tensor_numel(labels),
                                   .classes = logits->shape.dim[logits->shape.ndim - 1]};
    if (w.rows * w.classes != d9d_tensor_numel(logits))
        return D9D_FAIL(D9D_EINVAL, "metrics: predictions for %lld positions, labels for %lld",
                        (long long)(d9d_tensor_numel(logits) / w.classes), (long long)w.rows);
    D9D_TRY_OR(st, enqueue_readback(logits, &w.logits), out);
    D9D_TRY_OR(st, enqueue_readback(labels, &w.labels), out);
    D9D_TRY_OR(st, D9D_VEC_PUSH(&m->watched, w), out);
    w = (d9di_run_metrics_pending){0};
out:
    pending_release(&w);
    return st;
}

/* Collects the rows that count, in the form of d9d_predictions. */
static d9d_status collect_rows(d9di_run_metrics *m, const d9di_run_metrics_pending *w)
{
    const size_t n_scores = (size_t)(w->rows * w->classes);
    const void *logits, *back;
    const int32_t *labels;

    D9D_TRY(d9d_readback_wait(w->logits, &logits));
    D9D_TRY(d9d_readback_wait(w->labels, &back));
    labels = back;
    m->prediction.len = m->target.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&m->logits, n_scores));
    D9D_TRY(D9D_VEC_RESERVE(&m->prediction, n_scores));
    d9d_tensor_elements_to_f32(w->dtype, logits, (int64_t)n_scores, m->logits.data);
    for (int64_t i = 0; i < w->rows; i++) {
        if (labels[i] == D9D_IGNORE_INDEX)
            continue;
        for (int64_t c = 0; c < w->classes; c++)
            m->prediction.data[m->prediction.len++] = (double)m->logits.data[i * w->classes + c];
        D9D_TRY(D9D_VEC_PUSH(&m->target, (double)labels[i]));
    }
    return D9D_OK;
}

static d9d_status update_one(d9di_run_metrics *m, const d9di_run_metrics_pending *w)
{
    d9d_predictions b = {.prediction_columns = w->classes, .target_columns = 1};

    D9D_TRY(collect_rows(m, w));
    b.rows = (int64_t)m->target.len;
    b.prediction = m->prediction.data;
    b.target = m->target.data;
    for (size_t i = 0; i < m->n && b.rows > 0; i++)
        D9D_TRY(d9d_metric_update(m->metric[i], &b));
    return D9D_OK;
}

d9d_status d9di_run_metrics_update(d9di_run_metrics *m, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        D9D_TRY(update_one(m, &m->watched.data[i]));
        pending_release(&m->watched.data[i]);
    }
    if (n > 0) {
        m->watched.len -= n;
        memmove(m->watched.data, m->watched.data + n,
                m->watched.len * sizeof(d9di_run_metrics_pending));
    }
    return D9D_OK;
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

d9d_status d9di_run_metrics_rank_state(const d9di_run_metrics *m, const char *where, d9d_arena *a,
                                       d9d_checkpointer_set *set)
{
    for (size_t i = 0; i < m->n; i++) {
        const d9d_metric_form *f = d9d_metric_form_of(m->metric[i]);
        const d9d_checkpointer_rank_state c = {
            .name = d9d_arena_printf(a, "%s[%zu].%s", where, i, d9d_metric_name(m->metric[i])),
            .dtype = f->dtype,
            .n = f->state_size,
            .reduce_op = f->reduce_op,
            .data = d9d_metric_local_state(m->metric[i]),
        };

        D9D_TRY(d9d_checkpointer_set_add_rank_state(set, &c, 1, a));
    }
    return D9D_OK;
}
