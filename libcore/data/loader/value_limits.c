/* value_limits.c - see data/loader/value_limits.h. */
#include "data/loader/value_limits.h"

#include <stdlib.h>

#include "data/dataset/dataset_private.h"

/* The limits that a split's values are known to leave. */
typedef struct sample_walk {
    d9d_dataset *ds;
    const d9di_value_limits *limits;
    size_t left[D9D_FIELDS_MAX]; /* [n_left] of the requests */
    size_t n_left;
    int64_t classes;    /* 0: labels are not read */
    bool expands;       /* arrays of the sample are needed */
    int32_t *positions; /* [4, the longest sample] */
} sample_walk;

/* A sample, and its arrays where they are needed. */
typedef struct walk_sample {
    d9d_sample s;
    int64_t k;
    int32_t *labels, *segments;
    d9d_sample_fields *values; /* NULL: no field is read */
} walk_sample;

static bool is_beyond(const d9d_field_range *r, int64_t min, int64_t limit)
{
    return r->known && (r->min < min || r->max >= limit);
}

/* --- fields ----------------------------------------------------------------------------------- */

/* True if the values of a field of targets count where there is a label. */
static bool has_targets(const d9d_dataset *ds, const d9d_field *f)
{
    return f->per == D9D_FIELD_PER_TARGET && ds->manifest.labels;
}

/* Values at tokens that are no targets are not read: the first of a document, or without label. */
static void range_add_targets(d9d_field_range *range, const d9d_field *f, const char *data,
                              int64_t rows, const int32_t *labels)
{
    for (int64_t i = labels == NULL; i < rows; i++)
        if (labels == NULL || labels[i] != D9D_FIELD_IGNORED)
            d9di_field_range_add(range, f, data + (size_t)i * d9d_field_bytes(f), 1);
}

static d9d_field_range range_find(const sample_walk *w, const walk_sample *x, size_t index)
{
    const d9d_field *f = &d9d_dataset_fields(w->ds).v[index];
    const int32_t *labels = has_targets(w->ds, f) ? x->labels : NULL;
    d9d_field_range range = {.known = false};

    for (size_t i = 0; i < x->s.n_segments; i++) {
        const d9d_field_values *v = d9d_sample_fields_get(x->values, i);
        const int64_t rows = v->rows[index];

        if (f->per == D9D_FIELD_PER_TARGET)
            range_add_targets(&range, f, v->data[index], rows, labels);
        else
            d9di_field_range_add(&range, f, v->data[index], rows);
        labels = labels != NULL ? labels + rows : NULL;
    }
    return range;
}

static d9d_status check_field(const sample_walk *w, const walk_sample *x, size_t i)
{
    const d9d_field_request *r = &w->limits->requests[i];
    const d9d_field_range range = range_find(w, x, w->limits->index[i]);

    if (!is_beyond(&range, INT64_MIN, r->limit))
        return D9D_OK;
    return D9D_FAIL(D9D_EMISMATCH,
                    "%s: sample %lld has %lld in the field \"%s\", and %s must be below %lld",
                    d9d_dataset_dir(w->ds), (long long)x->k, (long long)range.max, r->name,
                    r->where, (long long)r->limit);
}

/* --- labels ----------------------------------------------------------------------------------- */

static d9d_status check_class(const sample_walk *w, const walk_sample *x)
{
    int32_t last = D9D_FIELD_IGNORED;

    for (int64_t i = 0; i < x->s.length; i++) {
        last = x->labels[i] != D9D_FIELD_IGNORED ? x->labels[i] : last;
        if (i + 1 < x->s.length && x->segments[i + 1] == x->segments[i])
            continue;
        if (last != D9D_FIELD_IGNORED && (last < 0 || last >= w->classes))
            return D9D_FAIL(D9D_EMISMATCH,
                            "%s: sample %lld has the label %d, and the task's classes are 0 to "
                            "%lld",
                            d9d_dataset_dir(w->ds), (long long)x->k, (int)last,
                            (long long)w->classes - 1);
        last = D9D_FIELD_IGNORED;
    }
    return D9D_OK;
}

/* --- the walk --------------------------------------------------------------------------------- */

static d9d_status check_values(const sample_walk *w, const walk_sample *x)
{
    for (size_t i = 0; i < w->n_left; i++)
        D9D_TRY(check_field(w, x, w->left[i]));
    return w->classes > 0 ? check_class(w, x) : D9D_OK;
}

static d9d_status check_sample(const sample_walk *w, int64_t k)
{
    walk_sample x = {.k = k};
    int32_t *at = w->positions;
    d9d_status st;

    D9D_TRY(d9d_dataset_sample(w->ds, k, &x.s));
    x.labels = at + x.s.length;
    x.segments = at + 3 * x.s.length;
    if (w->expands)
        D9D_TRY(d9d_sample_expand(w->ds, &x.s, at, x.labels, at + 2 * x.s.length, x.segments));
    if (w->n_left > 0)
        D9D_TRY(d9d_sample_fields_open(w->ds, &x.s, &x.values));
    st = check_values(w, &x);
    if (x.values != NULL)
        d9d_sample_fields_close(x.values);
    return st;
}

static d9d_status samples_walk(sample_walk *w, const d9d_index_set *skip)
{
    const int64_t n = d9d_dataset_count(w->ds);
    d9d_status st = D9D_OK;

    w->positions = calloc((size_t)d9d_dataset_max_length(w->ds) + 1, 4 * sizeof(*w->positions));
    if (w->positions == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for its longest sample", d9d_dataset_dir(w->ds));
    for (int64_t k = 0; k < n && st == D9D_OK; k++)
        if (skip == NULL || !d9d_index_set_has(skip, k))
            st = check_sample(w, k);
    free(w->positions);
    return st;
}

d9d_status d9di_value_limits_check(const d9d_loader_source *source, const d9di_value_limits *limits)
{
    sample_walk w = {.ds = source->dataset, .limits = limits};
    const d9d_field_list fields = d9d_dataset_fields(w.ds);

    for (size_t i = 0; i < limits->n; i++) {
        const d9d_field *f = &fields.v[limits->index[i]];

        if (limits->requests[i].limit == 0 ||
            !is_beyond(d9di_dataset_field_range(w.ds, w.ds->split, limits->index[i]), INT64_MIN,
                       limits->requests[i].limit))
            continue;
        w.left[w.n_left++] = i;
        w.expands = w.expands || has_targets(w.ds, f);
    }
    if (limits->classes > 0 &&
        is_beyond(d9di_dataset_label_range(w.ds, w.ds->split), 0, limits->classes)) {
        w.classes = limits->classes;
        w.expands = true;
    }
    return w.n_left > 0 || w.classes > 0 ? samples_walk(&w, source->skip) : D9D_OK;
}
