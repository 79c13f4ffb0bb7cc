/* value_limits.c - see data/loader/value_limits.h. */
#include "data/loader/value_limits.h"

#include <stdlib.h>

#include "data/dataset/dataset_private.h"

/* Called with samples of a split, until it fails. */
typedef struct sample_walk {
    d9d_dataset *ds;
    d9d_status (*check)(const struct sample_walk *w, const d9d_sample *s, int64_t k);
    size_t index;
    const d9d_field_request *r;
    int64_t classes;
    int32_t *positions; /* [4, the longest sample] */
} sample_walk;

static d9d_status each_sample(const sample_walk *w, const d9d_index_set *skip)
{
    for (int64_t k = 0, n = d9d_dataset_count(w->ds); k < n; k++) {
        d9d_sample s;

        if (skip != NULL && d9d_index_set_has(skip, k))
            continue;
        D9D_TRY(d9d_dataset_sample(w->ds, k, &s));
        D9D_TRY(w->check(w, &s, k));
    }
    return D9D_OK;
}

static d9d_status samples_walk(sample_walk *w, const d9d_index_set *skip)
{
    d9d_status st;

    w->positions = calloc((size_t)d9d_dataset_max_length(w->ds) + 1, 4 * sizeof(*w->positions));
    st = w->positions != NULL
             ? each_sample(w, skip)
             : D9D_FAIL(D9D_ENOMEM, "%s: no memory for its longest sample", d9d_dataset_dir(w->ds));
    free(w->positions);
    return st;
}

static bool is_beyond(const d9d_field_range *r, int64_t min, int64_t limit)
{
    return r->known && (r->min < min || r->max >= limit);
}

/* --- fields ----------------------------------------------------------------------------------- */

/* The labels of a sample, for a field of targets where they are stored; else NULL. */
static d9d_status targets_read(const sample_walk *w, const d9d_field *f, const d9d_sample *s,
                               const int32_t **labels)
{
    int32_t *at = w->positions;

    *labels = NULL;
    if (f->per != D9D_FIELD_PER_TARGET || !w->ds->manifest.labels)
        return D9D_OK;
    *labels = at + s->length;
    return d9d_sample_expand(w->ds, s, at, at + s->length, at + 2 * s->length, NULL);
}

/* Values at tokens that are no targets are not read: the first of a document, or without label. */
static void range_add_targets(d9d_field_range *range, const d9d_field *f, const char *data,
                              int64_t rows, const int32_t *labels)
{
    for (int64_t i = labels == NULL; i < rows; i++)
        if (labels == NULL || labels[i] != D9D_FIELD_IGNORED)
            d9di_field_range_add(range, f, data + (size_t)i * d9d_field_bytes(f), 1);
}

static d9d_status range_find(const sample_walk *w, const d9d_sample *s, d9d_field_range *range)
{
    const d9d_field *f = &d9d_dataset_fields(w->ds).v[w->index];
    const int32_t *labels;
    d9d_sample_fields *values;

    D9D_TRY(targets_read(w, f, s, &labels));
    D9D_TRY(d9d_sample_fields_open(w->ds, s, &values));
    for (size_t i = 0; i < s->n_segments; i++) {
        const d9d_field_values *v = d9d_sample_fields_get(values, i);
        const int64_t rows = v->rows[w->index];

        if (f->per == D9D_FIELD_PER_TARGET)
            range_add_targets(range, f, v->data[w->index], rows, labels);
        else
            d9di_field_range_add(range, f, v->data[w->index], rows);
        labels = labels != NULL ? labels + rows : NULL;
    }
    d9d_sample_fields_close(values);
    return D9D_OK;
}

static d9d_status field_check(const sample_walk *w, const d9d_sample *s, int64_t k)
{
    d9d_field_range range = {.known = false};

    D9D_TRY(range_find(w, s, &range));
    if (!is_beyond(&range, INT64_MIN, w->r->limit))
        return D9D_OK;
    return D9D_FAIL(D9D_EMISMATCH,
                    "%s: sample %lld has %lld in the field \"%s\", and %s must be below %lld",
                    d9d_dataset_dir(w->ds), (long long)k, (long long)range.max, w->r->name,
                    w->r->where, (long long)w->r->limit);
}

d9d_status d9di_value_limits_check_field(const d9d_loader_source *source, size_t index,
                                         const d9d_field_request *r)
{
    const d9d_field *f = &d9d_dataset_fields(source->dataset).v[index];
    sample_walk w = {.ds = source->dataset, .check = field_check, .index = index, .r = r};

    return r->limit > 0 && is_beyond(&f->range, INT64_MIN, r->limit)
               ? samples_walk(&w, source->skip)
               : D9D_OK;
}

/* --- labels ----------------------------------------------------------------------------------- */

static d9d_status class_check(const sample_walk *w, const d9d_sample *s, int64_t k)
{
    int32_t *ids = w->positions, *labels = ids + s->length, *positions = labels + s->length,
            *segments = positions + s->length, last = D9D_FIELD_IGNORED;

    D9D_TRY(d9d_sample_expand(w->ds, s, ids, labels, positions, segments));
    for (int64_t i = 0; i < s->length; i++) {
        last = labels[i] != D9D_FIELD_IGNORED ? labels[i] : last;
        if (i + 1 < s->length && segments[i + 1] == segments[i])
            continue;
        if (last != D9D_FIELD_IGNORED && (last < 0 || last >= w->classes))
            return D9D_FAIL(D9D_EMISMATCH,
                            "%s: sample %lld has the label %d, and the task's classes are 0 to "
                            "%lld",
                            d9d_dataset_dir(w->ds), (long long)k, (int)last,
                            (long long)w->classes - 1);
        last = D9D_FIELD_IGNORED;
    }
    return D9D_OK;
}

d9d_status d9di_value_limits_check_classes(const d9d_loader_source *source, int64_t n)
{
    sample_walk w = {.ds = source->dataset, .check = class_check, .classes = n};

    return is_beyond(&w.ds->manifest.label_range, 0, n) ? samples_walk(&w, source->skip) : D9D_OK;
}
