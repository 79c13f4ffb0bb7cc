/* jinja_attr.c - members of values: `v.name`, `v[key]`, slices. */
#include <string.h>

#include "data/jinja/jinja_exec.h"
#include "data/jinja/jinja_text.h"

/* Methods that change their object; the immutable sandbox hides them. */
static const char *const dict_changes[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
static const char *const list_changes[] = {"append", "clear",   "extend", "insert", "pop",
                                           "remove", "reverse", "sort",   NULL};

static const struct {
    const d9di_jinja_builtin *methods;
    const char *const *changes;
} members[D9DI_JINJA_KINDS] = {
    [D9DI_JINJA_STRING] = {d9di_jinja_str_methods, NULL},
    [D9DI_JINJA_DICT] = {d9di_jinja_dict_methods, dict_changes},
    [D9DI_JINJA_LIST] = {d9di_jinja_list_methods, list_changes},
    [D9DI_JINJA_TUPLE] = {d9di_jinja_list_methods, NULL},
    [D9DI_JINJA_LOOP] = {d9di_jinja_loop_methods, NULL},
};

static bool has(const char *const *names, const char *name, size_t n)
{
    for (; names != NULL && *names != NULL; names++)
        if (strlen(*names) == n && memcmp(*names, name, n) == 0)
            return true;
    return false;
}

/* What getattr() of Python finds, or UNSET. */
static d9d_status get_member(d9di_jinja_run *r, const d9di_jinja_value *v, const char *name,
                             size_t n, d9di_jinja_value *out)
{
    const d9di_jinja_builtin *table = members[v->kind].methods, *found;
    struct d9di_jinja_method *bound;

    *out = (d9di_jinja_value){.kind = D9DI_JINJA_UNSET};
    if (v->kind == D9DI_JINJA_LOOP) {
        D9D_TRY(d9di_jinja_loop_attr(r, v->loop, name, n, out));
        if (out->kind != D9DI_JINJA_UNSET)
            return D9D_OK;
    }
    if (v->kind == D9DI_JINJA_NAMESPACE) {
        const d9di_jinja_value key = d9di_jinja_str(name, n);
        const d9di_jinja_value *at = d9di_jinja_dict_find(r, v->dict, &key);

        if (at != NULL)
            *out = *at;
        return D9D_OK;
    }
    found = table != NULL ? d9di_jinja_find(table, name, n) : NULL;
    if (found != NULL) {
        D9D_TRY(d9di_jinja_alloc(r, 1, sizeof(*bound), &bound));
        *bound = (struct d9di_jinja_method){found, *v};
        *out = (d9di_jinja_value){.kind = D9DI_JINJA_METHOD, .method = bound};
    } else if (has(members[v->kind].changes, name, n) || (n > 1 && memcmp(name, "__", 2) == 0)) {
        *out = d9di_jinja_undefined(D9DI_JINJA_NOT_SAFE, name, n);
    }
    return D9D_OK;
}

/* What v[key] of Python finds, or UNSET. */
static d9d_status get_subscript(d9di_jinja_run *r, const d9di_jinja_value *v,
                                const d9di_jinja_value *key, d9di_jinja_value *out)
{
    size_t n;
    int64_t i;

    *out = (d9di_jinja_value){.kind = D9DI_JINJA_UNSET};
    if (v->kind == D9DI_JINJA_DICT) {
        const d9di_jinja_value *at = NULL;

        D9D_TRY(d9di_jinja_step(r, v->dict->n / 16));
        if (d9di_jinja_is_hashable(key))
            at = d9di_jinja_dict_find(r, v->dict, key);
        if (at != NULL)
            *out = *at;
        return D9D_OK;
    }
    if (!d9di_jinja_is_integer(key) ||
        (v->kind != D9DI_JINJA_STRING && v->kind != D9DI_JINJA_LIST &&
         v->kind != D9DI_JINJA_TUPLE && v->kind != D9DI_JINJA_RANGE))
        return D9D_OK;
    D9D_TRY(d9di_jinja_length(r, v, &n));
    i = d9di_jinja_as_int(key);
    i += i < 0 ? (int64_t)n : 0;
    if (i < 0 || i >= (int64_t)n)
        return D9D_OK;
    if (v->kind == D9DI_JINJA_STRING) {
        const size_t at = d9di_jinja_offset(v, (size_t)i);

        *out = *v;
        out->text = v->text + at;
        out->n = d9di_jinja_offset(v, (size_t)i + 1) - at;
    } else {
        *out = v->seq->items[i];
    }
    return D9D_OK;
}

/* The name under which a missing item is reported. */
static d9d_status make_missing(d9di_jinja_run *r, const d9di_jinja_value *key,
                               d9di_jinja_value *out)
{
    const size_t mark = d9di_jinja_mark(r);

    if (key->kind == D9DI_JINJA_STRING || !d9di_jinja_is_number(key)) {
        *out = key->kind == D9DI_JINJA_STRING
                   ? d9di_jinja_undefined(D9DI_JINJA_NO_ATTRIBUTE, key->text, key->n)
                   : d9di_jinja_undefined(D9DI_JINJA_NO_ITEM, "this key", 8);
        return D9D_OK;
    }
    D9D_TRY(d9di_jinja_put_text(r, "index "));
    D9D_TRY(d9di_jinja_put_repr(r, key));
    D9D_TRY(d9di_jinja_take(r, mark, out));
    *out = d9di_jinja_undefined(D9DI_JINJA_NO_ITEM, out->text, out->n);
    return D9D_OK;
}

d9d_status d9di_jinja_get_attr(d9di_jinja_run *r, const d9di_jinja_value *v, const char *name,
                               size_t n, d9di_jinja_value *out)
{
    const d9di_jinja_value key = d9di_jinja_str(name, n);

    if (v->kind == D9DI_JINJA_UNDEFINED)
        return d9di_jinja_fail_undefined(r, v);
    D9D_TRY(get_member(r, v, name, n, out));
    if (out->kind == D9DI_JINJA_UNSET)
        D9D_TRY(get_subscript(r, v, &key, out));
    if (out->kind == D9DI_JINJA_UNSET)
        *out = d9di_jinja_undefined(D9DI_JINJA_NO_ATTRIBUTE, name, n);
    return D9D_OK;
}

d9d_status d9di_jinja_get_item(d9di_jinja_run *r, const d9di_jinja_value *v,
                               const d9di_jinja_value *key, d9di_jinja_value *out)
{
    if (v->kind == D9DI_JINJA_UNDEFINED)
        return d9di_jinja_fail_undefined(r, v);
    D9D_TRY(get_subscript(r, v, key, out));
    if (out->kind == D9DI_JINJA_UNSET && key->kind == D9DI_JINJA_STRING)
        D9D_TRY(get_member(r, v, key->text, key->n, out));
    return out->kind == D9DI_JINJA_UNSET ? make_missing(r, key, out) : D9D_OK;
}

/* --- slices ----------------------------------------------------------------------------------- */

/* A bound of a slice, brought into [low, high]. */
static d9d_status read_bound(d9di_jinja_run *r, const d9di_jinja_value *v, int64_t n,
                             int64_t absent, int64_t low, int64_t high, int64_t *out)
{
    if (v->kind == D9DI_JINJA_UNSET || v->kind == D9DI_JINJA_NONE) {
        *out = absent;
        return D9D_OK;
    }
    if (!d9di_jinja_is_integer(v))
        return d9di_jinja_fail(r, "a slice needs integers, not a %s", d9di_jinja_type(v));
    *out = d9di_jinja_as_int(v);
    if (*out < 0)
        *out += n;
    *out = *out < low ? low : *out > high ? high : *out;
    return D9D_OK;
}

static d9d_status slice_string(d9di_jinja_run *r, const d9di_jinja_value *v, int64_t from,
                               int64_t to, int64_t step, d9di_jinja_value *out)
{
    const size_t mark = d9di_jinja_mark(r);

    if (step == 1) {
        const size_t at = d9di_jinja_offset(v, (size_t)from);

        *out = *v;
        out->text = v->text + at;
        out->n = to > from ? d9di_jinja_offset(v, (size_t)to) - at : 0;
        return D9D_OK;
    }
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
        const size_t at = d9di_jinja_offset(v, (size_t)i);

        D9D_TRY(d9di_jinja_step(r, 1 + at / 256));
        D9D_TRY(d9di_jinja_put(r, v->text + at, d9di_jinja_offset(v, (size_t)i + 1) - at));
        if (step > 0 ? i > INT64_MAX - step : i < INT64_MIN - step)
            break;
    }
    return d9di_jinja_take(r, mark, out);
}

d9d_status d9di_jinja_get_slice(d9di_jinja_run *r, const d9di_jinja_value *v,
                                const d9di_jinja_value part[3], d9di_jinja_value *out)
{
    int64_t from = 0, to = 0, step = 1, n;
    size_t size;

    if (v->kind == D9DI_JINJA_UNDEFINED)
        return d9di_jinja_fail_undefined(r, v);
    if (v->kind != D9DI_JINJA_STRING && v->kind != D9DI_JINJA_LIST && v->kind != D9DI_JINJA_TUPLE)
        return d9di_jinja_fail(r, "a value of type %s cannot be sliced", d9di_jinja_type(v));
    D9D_TRY(d9di_jinja_length(r, v, &size));
    n = (int64_t)size;
    D9D_TRY(read_bound(r, &part[2], 0, 1, INT64_MIN, INT64_MAX, &step));
    if (step == 0)
        return d9di_jinja_fail(r, "a slice has a step of 0");
    D9D_TRY(read_bound(r, &part[0], n, step > 0 ? 0 : n - 1, step > 0 ? 0 : -1,
                       step > 0 ? n : n - 1, &from));
    D9D_TRY(read_bound(r, &part[1], n, step > 0 ? n : -1, step > 0 ? 0 : -1, step > 0 ? n : n - 1,
                       &to));
    if (v->kind == D9DI_JINJA_STRING)
        return slice_string(r, v, from, to, step, out);
    D9D_TRY(d9di_jinja_seq_new(r, v->kind, 0, out));
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
        D9D_TRY(d9di_jinja_seq_append(r, out->seq, v->seq->items[i]));
        if (step > 0 ? i > INT64_MAX - step : i < INT64_MIN - step)
            break;
    }
    return D9D_OK;
}
