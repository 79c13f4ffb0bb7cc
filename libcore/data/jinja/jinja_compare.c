/* jinja_compare.c - equality and order of values as in Python, and sorting by them. */
#include <math.h>
#include <string.h>

#include "data/jinja/jinja_run.h"

static d9d_status equal(d9di_jinja_run *r, const d9di_jinja_value *a, const d9di_jinja_value *b,
                        int depth, bool *out);

static d9d_status enter(d9di_jinja_run *r, int depth)
{
    if (depth == D9DI_JINJA_MAX_NESTING)
        return d9di_jinja_fail(r, "a value is nested deeper than %d levels",
                               D9DI_JINJA_MAX_NESTING);
    return d9di_jinja_step(r, 1);
}

/* An integer and a float, exactly: < 0, 0, > 0. */
static int compare_int_float(int64_t i, double f)
{
    int64_t whole;

    if (isnan(f))
        return 1;
    if (f >= 9223372036854775808.0)
        return -1;
    if (f < -9223372036854775808.0)
        return 1;
    whole = (int64_t)f;
    if (i != whole)
        return i < whole ? -1 : 1;
    return f > (double)whole ? -1 : f < (double)whole;
}

static int compare_numbers(const d9di_jinja_value *a, const d9di_jinja_value *b)
{
    if (a->kind == D9DI_JINJA_FLOAT && b->kind == D9DI_JINJA_FLOAT)
        return a->f < b->f ? -1 : a->f > b->f;
    if (b->kind == D9DI_JINJA_FLOAT)
        return compare_int_float(d9di_jinja_as_int(a), b->f);
    if (a->kind == D9DI_JINJA_FLOAT)
        return -compare_int_float(d9di_jinja_as_int(b), a->f);
    return d9di_jinja_as_int(a) < d9di_jinja_as_int(b)
               ? -1
               : d9di_jinja_as_int(a) > d9di_jinja_as_int(b);
}

static bool is_nan(const d9di_jinja_value *v)
{
    return v->kind == D9DI_JINJA_FLOAT && isnan(v->f);
}

/* --- equality --------------------------------------------------------------------------------- */

static d9d_status equal_items(d9di_jinja_run *r, const d9di_jinja_seq *a, const d9di_jinja_seq *b,
                              int depth, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++)
        D9D_TRY(equal(r, &a->items[i], &b->items[i], depth, out));
    return D9D_OK;
}

static d9d_status equal_dicts(d9di_jinja_run *r, const d9di_jinja_dict *a, const d9di_jinja_dict *b,
                              int depth, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++) {
        const d9di_jinja_value *other;

        D9D_TRY(d9di_jinja_step(r, b->n / 16));
        other = d9di_jinja_dict_find(r, b, &a->keys[i]);
        *out = other != NULL;
        if (*out)
            D9D_TRY(equal(r, &a->values[i], other, depth, out));
    }
    return D9D_OK;
}

static d9d_status equal(d9di_jinja_run *r, const d9di_jinja_value *a, const d9di_jinja_value *b,
                        int depth, bool *out)
{
    D9D_TRY(enter(r, depth));
    if (d9di_jinja_is_number(a) && d9di_jinja_is_number(b)) {
        *out = !is_nan(a) && !is_nan(b) && compare_numbers(a, b) == 0;
        return D9D_OK;
    }
    *out = false;
    if (a->kind != b->kind)
        return D9D_OK;
    switch (a->kind) {
    case D9DI_JINJA_UNDEFINED:
    case D9DI_JINJA_NONE: *out = true; return D9D_OK;
    case D9DI_JINJA_STRING:
        *out = a->n == b->n && memcmp(a->text, b->text, a->n) == 0;
        return D9D_OK;
    case D9DI_JINJA_LIST:
    case D9DI_JINJA_TUPLE:
    case D9DI_JINJA_RANGE: return equal_items(r, a->seq, b->seq, depth + 1, out);
    case D9DI_JINJA_DICT: return equal_dicts(r, a->dict, b->dict, depth + 1, out);
    case D9DI_JINJA_VIEW: return d9di_jinja_fail(r, "views of dicts cannot be compared");
    default: *out = a->seq == b->seq; return D9D_OK; /* the same object */
    }
}

d9d_status d9di_jinja_equal(d9di_jinja_run *r, const d9di_jinja_value *a, const d9di_jinja_value *b,
                            bool *out)
{
    return equal(r, a, b, 0, out);
}

/* --- order ------------------------------------------------------------------------------------ */

static d9d_status order(d9di_jinja_run *r, const d9di_jinja_value *a, const d9di_jinja_value *b,
                        int depth, int *out);

static d9d_status order_items(d9di_jinja_run *r, const d9di_jinja_seq *a, const d9di_jinja_seq *b,
                              int depth, int *out)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool same;

        D9D_TRY(equal(r, &a->items[i], &b->items[i], depth, &same));
        if (!same)
            return order(r, &a->items[i], &b->items[i], depth, out);
    }
    *out = a->n < b->n ? -1 : a->n > b->n;
    return D9D_OK;
}

static d9d_status order(d9di_jinja_run *r, const d9di_jinja_value *a, const d9di_jinja_value *b,
                        int depth, int *out)
{
    D9D_TRY(enter(r, depth));
    if (a->kind == D9DI_JINJA_UNDEFINED || b->kind == D9DI_JINJA_UNDEFINED)
        return d9di_jinja_fail_undefined(r, a->kind == D9DI_JINJA_UNDEFINED ? a : b);
    if (d9di_jinja_is_number(a) && d9di_jinja_is_number(b)) {
        *out = compare_numbers(a, b);
        return D9D_OK;
    }
    if (a->kind == D9DI_JINJA_STRING && b->kind == D9DI_JINJA_STRING) {
        const int c = memcmp(a->text, b->text, a->n < b->n ? a->n : b->n);

        *out = c != 0 ? c : a->n < b->n ? -1 : a->n > b->n;
        return D9D_OK;
    }
    if (a->kind == b->kind && (a->kind == D9DI_JINJA_LIST || a->kind == D9DI_JINJA_TUPLE))
        return order_items(r, a->seq, b->seq, depth + 1, out);
    return d9di_jinja_fail(r, "a %s and a %s have no order", d9di_jinja_type(a),
                           d9di_jinja_type(b));
}

d9d_status d9di_jinja_order(d9di_jinja_run *r, const d9di_jinja_value *a, const d9di_jinja_value *b,
                            int *out)
{
    return order(r, a, b, 0, out);
}

/* --- sorting ---------------------------------------------------------------------------------- */

typedef struct sorting {
    d9di_jinja_run *run;
    const d9di_jinja_value *keys;
    size_t *index, *other; /* [n] */
    bool reverse;
} sorting;

/* Merges the sorted halves [from, middle) and [middle, to). */
static d9d_status merge(sorting *s, size_t from, size_t middle, size_t to)
{
    size_t a = from, b = middle;

    for (size_t i = from; i < to; i++) {
        int c = -1;

        if (a < middle && b < to) {
            const d9di_jinja_value *ka = &s->keys[s->index[a]], *kb = &s->keys[s->index[b]];

            D9D_TRY(s->reverse ? d9di_jinja_order(s->run, kb, ka, &c)
                               : d9di_jinja_order(s->run, ka, kb, &c));
        }
        s->other[i] = a < middle && (b == to || c <= 0) ? s->index[a++] : s->index[b++];
    }
    memcpy(s->index + from, s->other + from, (to - from) * sizeof(*s->index));
    return D9D_OK;
}

d9d_status d9di_jinja_sort(d9di_jinja_run *r, d9di_jinja_value *keys, d9di_jinja_value *items,
                           size_t n, bool reverse)
{
    sorting s = {.run = r, .keys = keys, .reverse = reverse};
    d9di_jinja_value *copy;

    D9D_TRY(d9di_jinja_alloc(r, n, sizeof(*s.index), &s.index));
    D9D_TRY(d9di_jinja_alloc(r, n, sizeof(*s.other), &s.other));
    D9D_TRY(d9di_jinja_alloc(r, n, sizeof(*copy), &copy));
    for (size_t i = 0; i < n; i++)
        s.index[i] = i;
    for (size_t width = 1; width < n; width *= 2)
        for (size_t from = 0; from + width < n; from += 2 * width)
            D9D_TRY(merge(&s, from, from + width, from + 2 * width < n ? from + 2 * width : n));
    for (size_t i = 0; i < n; i++)
        copy[i] = items[s.index[i]];
    if (n > 0)
        memcpy(items, copy, n * sizeof(*copy));
    return D9D_OK;
}
