/* run_metrics.c - see loop/run_metrics.h. */
#include "loop/run_metrics.h"

#include <stdlib.h>

#include "d9d/model/model.h"

/* Names of the values of metric i, which begin at `at`. */
static d9d_status names_make(d9di_metrics *m, size_t i, const char *name, size_t at, d9d_arena *a)
{
    char label[64];

    for (size_t k = 0; k < d9d_metric_width(m->metric[i]); k++) {
        m->names[at + k] = d9d_arena_printf(
            a, "%s%s", name, d9d_metric_label(m->metric[i], k, label, sizeof(label)));
        if (m->names[at + k] == NULL)
            return D9D_FAIL(D9D_ENOMEM, "metrics[%zu]: its names", i);
    }
    return D9D_OK;
}

d9d_status d9di_metrics_open(const d9d_list *list, d9d_arena *a, d9di_metrics *out)
{
    const d9d_union *section = list->items;
    size_t at = 0;

    out->metric = d9d_arena_alloc(a, (list->n + 1) * sizeof(d9d_metric *));
    if (out->metric == NULL)
        return D9D_FAIL(D9D_ENOMEM, "metrics: %zu of them", list->n);
    for (size_t i = 0; i < list->n; i++) {
        const char *where = d9d_arena_printf(a, "metrics[%zu]", i);

        D9D_TRY(d9d_metric_create(&section[i], where != NULL ? where : "metrics", &out->metric[i]));
        out->n++;
        out->width += d9d_metric_width(out->metric[i]);
    }
    out->names = d9d_arena_alloc(a, (out->width + 1) * sizeof(char *));
    if (out->names == NULL)
        return D9D_FAIL(D9D_ENOMEM, "metrics: %zu names", out->width);
    for (size_t i = 0; i < out->n; i++) {
        D9D_TRY(names_make(out, i, section[i].choice->name, at, a));
        at += d9d_metric_width(out->metric[i]);
    }
    return D9D_OK;
}

void d9di_metrics_release(d9di_metrics *m)
{
    for (size_t i = 0; i < m->n; i++)
        d9d_metric_free(m->metric[i]);
    D9D_VEC_RELEASE(&m->logits);
    D9D_VEC_RELEASE(&m->labels);
    D9D_VEC_RELEASE(&m->prediction);
    D9D_VEC_RELEASE(&m->target);
    *m = (d9di_metrics){0};
}

d9d_status d9di_metrics_update(d9di_metrics *m, const d9d_tensor *logits, const d9d_tensor *labels)
{
    const int64_t classes = logits->shape.dim[logits->shape.ndim - 1];
    const int64_t cells = d9d_tensor_numel(logits);
    d9d_predictions b = {.prediction_columns = classes, .target_columns = 1};

    if (d9d_tensor_numel(labels) != cells / classes)
        return D9D_FAIL(D9D_EINVAL, "metrics: predictions for %lld positions, labels for %lld",
                        (long long)(cells / classes), (long long)d9d_tensor_numel(labels));
    m->logits.len = m->labels.len = m->prediction.len = m->target.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&m->logits, (size_t)cells));
    D9D_TRY(D9D_VEC_RESERVE(&m->prediction, (size_t)cells));
    D9D_TRY(D9D_VEC_RESERVE(&m->labels, (size_t)(cells / classes)));
    D9D_TRY(d9d_tensor_to_f32(logits, m->logits.data));
    D9D_TRY(d9d_device_download(d9d_tensor_device(labels), m->labels.data, d9d_tensor_data(labels),
                                (uint64_t)(cells / classes) * sizeof(int32_t)));
    for (int64_t i = 0; i < cells / classes; i++) {
        if (m->labels.data[i] == D9D_IGNORE_INDEX)
            continue;
        for (int64_t c = 0; c < classes; c++)
            m->prediction.data[m->prediction.len++] = (double)m->logits.data[i * classes + c];
        D9D_TRY(D9D_VEC_PUSH(&m->target, (double)m->labels.data[i]));
    }
    b.rows = (int64_t)m->target.len;
    b.prediction = m->prediction.data;
    b.target = m->target.data;
    for (size_t i = 0; i < m->n && b.rows > 0; i++)
        D9D_TRY(d9d_metric_update(m->metric[i], &b));
    return D9D_OK;
}

d9d_status d9di_metrics_take(d9di_metrics *m, d9d_device *dev, d9d_comm *world, double *values)
{
    for (size_t i = 0; i < m->n; i++) {
        D9D_TRY(d9d_metric_sync(m->metric[i], dev, world));
        d9d_metric_compute(m->metric[i], values);
        d9d_metric_reset(m->metric[i]);
        values += d9d_metric_width(m->metric[i]);
    }
    return D9D_OK;
}
