/* jinja_filter_seq.c - filters of sequences and dicts. */
#include <string.h>

#include "data/jinja/jinja_filter.h"
#include "data/jinja/jinja_text.h"

/* --- attribute= of filters -------------------------------------------------------------------- */

d9d_status d9di_jinja_follow_path(d9di_jinja_run *r, const d9di_jinja_value *v,
                                  const d9di_jinja_value *path, d9di_jinja_value *out)
{
    const char *at = path->text;

    *out = *v;
    if (path->kind == D9DI_JINJA_UNSET || path->kind == D9DI_JINJA_NONE)
        return D9D_OK;
    if (path->kind != D9DI_JINJA_STRING)
        return d9di_jinja_get_item(r, v, path, out);
    if (memchr(path->text, ',', path->n) != NULL)
        return d9di_jinja_fail(r, "an attribute with \",\" is not supported");
    for (size_t left = path->n;;) {
        const char *dot = memchr(at, '.', left);
        d9di_jinja_value part = d9di_jinja_str(at, dot != NULL ? (size_t)(dot - at) : left);
        const d9di_jinja_value outer = *out;
        int64_t i;
        bool big, digits = part.n > 0;

        for (size_t k = 0; k < part.n; k++)
            digits = digits && part.text[k] >= '0' && part.text[k] <= '9';
        if (digits && d9di_jinja_parse_int(&part, 10, &i, &big))
            part = d9di_jinja_int(i);
        D9D_TRY(d9di_jinja_get_item(r, &outer, &part, out));
        if (dot == NULL)
            return D9D_OK;
        left -= (size_t)(dot + 1 - at);
        at = dot + 1;
    }
}

/* The value by which unique, sort and dictsort compare. */
static d9d_status make_key(const d9di_jinja_call *c, const d9di_jinja_value *v,
                           const d9di_jinja_value *path, bool case_sensitive, d9di_jinja_value *out)
{
    d9di_jinja_value at;

    D9D_TRY(d9di_jinja_follow_path(c->run, v, path, &at));
    *out = at;
    return at.kind == D9DI_JINJA_STRING && !case_sensitive
               ? d9di_jinja_to_case(c->run, &at, D9DI_JINJA_LOWER, out)
               : D9D_OK;
}

/* --- ends ------------------------------------------------------------------------------------- */

static d9d_status filter_first(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    d9di_jinja_seq s;

    D9D_TRY(d9di_jinja_iterate(c->run, &c->self, &s));
    *out = s.n > 0 ? s.items[0] : d9di_jinja_undefined(D9DI_JINJA_NO_ITEM, "an empty sequence", 17);
    d9di_jinja_give_back(&c->self, &s, 1);
    return D9D_OK;
}

static d9d_status filter_last(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    d9di_jinja_seq s;

    if (c->self.kind == D9DI_JINJA_GENERATOR)
        return d9di_jinja_fail(c->run, "last: a generator has no last item; add |list");
    D9D_TRY(d9di_jinja_iterate(c->run, &c->self, &s));
    *out = s.n > 0 ? s.items[s.n - 1]
                   : d9di_jinja_undefined(D9DI_JINJA_NO_ITEM, "an empty sequence", 17);
    return D9D_OK;
}

/* --- lists ------------------------------------------------------------------------------------ */

static d9d_status copy_items(const d9di_jinja_call *c, d9di_jinja_kind kind, d9di_jinja_value *out)
{
    d9di_jinja_seq s;

    D9D_TRY(d9di_jinja_iterate(c->run, &c->self, &s));
    D9D_TRY(d9di_jinja_seq_new(c->run, kind, s.n, out));
    if (s.n > 0)
        memcpy(out->seq->items, s.items, s.n * sizeof(*s.items));
    out->seq->n = s.n;
    return D9D_OK;
}

static d9d_status filter_list(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return copy_items(c, D9DI_JINJA_LIST, out);
}

static d9d_status filter_reverse(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const size_t mark = d9di_jinja_mark(c->run);
    const bool text = c->self.kind == D9DI_JINJA_STRING;

    D9D_TRY(copy_items(c, D9DI_JINJA_GENERATOR, out));
    for (size_t i = 0, n = out->seq->n; i < n / 2; i++) {
        const d9di_jinja_value v = out->seq->items[i];

        out->seq->items[i] = out->seq->items[n - 1 - i];
        out->seq->items[n - 1 - i] = v;
    }
    for (size_t i = 0; text && i < out->seq->n; i++)
        D9D_TRY(d9di_jinja_put_str(c->run, &out->seq->items[i]));
    return text ? d9di_jinja_take(c->run, mark, out) : D9D_OK;
}

static d9d_status filter_sort(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    d9di_jinja_value *keys;

    D9D_TRY(copy_items(c, D9DI_JINJA_LIST, out));
    D9D_TRY(d9di_jinja_alloc(c->run, out->seq->n, sizeof(*keys), &keys));
    for (size_t i = 0; i < out->seq->n; i++)
        D9D_TRY(
            make_key(c, &out->seq->items[i], &c->arg[2], d9di_jinja_truth(&c->arg[1]), &keys[i]));
    return d9di_jinja_sort(c->run, keys, out->seq->items, out->seq->n,
                           d9di_jinja_truth(&c->arg[0]));
}

static d9d_status filter_unique(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    d9di_jinja_value seen;
    d9di_jinja_seq s;

    D9D_TRY(d9di_jinja_iterate(c->run, &c->self, &s));
    D9D_TRY(d9di_jinja_seq_new(c->run, D9DI_JINJA_GENERATOR, 0, out));
    D9D_TRY(d9di_jinja_dict_new(c->run, D9DI_JINJA_DICT, &seen));
    for (size_t i = 0; i < s.n; i++) {
        const size_t before = seen.dict->n;
        d9di_jinja_value key;

        D9D_TRY(make_key(c, &s.items[i], &c->arg[1], d9di_jinja_truth(&c->arg[0]), &key));
        D9D_TRY(d9di_jinja_dict_put(c->run, seen.dict, key, d9di_jinja_none()));
        if (seen.dict->n > before)
            D9D_TRY(d9di_jinja_seq_append(c->run, out->seq, s.items[i]));
    }
    return D9D_OK;
}

static d9d_status filter_join(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const bool given = c->arg[0].kind != D9DI_JINJA_UNSET;
    d9di_jinja_value sep = d9di_jinja_str("", 0), items;

    if (given)
        D9D_TRY(d9di_jinja_to_str(c->run, &c->arg[0], &sep));
    D9D_TRY(copy_items(c, D9DI_JINJA_LIST, &items));
    for (size_t i = 0; i < items.seq->n; i++) {
        const d9di_jinja_value v = items.seq->items[i];

        D9D_TRY(d9di_jinja_follow_path(c->run, &v, &c->arg[1], &items.seq->items[i]));
    }
    return d9di_jinja_join(c->run, &sep, &items, out);
}

static d9d_status filter_batch(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const d9di_jinja_value *fill = &c->arg[1];
    d9di_jinja_value row = {.kind = D9DI_JINJA_UNSET};
    d9di_jinja_seq s;
    int64_t n;

    if (!d9di_jinja_is_integer(&c->arg[0]) || (n = d9di_jinja_as_int(&c->arg[0])) < 1)
        return d9di_jinja_fail(c->run, "batch: \"linecount\" must be an int from 1 on");
    D9D_TRY(d9di_jinja_iterate(c->run, &c->self, &s));
    D9D_TRY(d9di_jinja_seq_new(c->run, D9DI_JINJA_GENERATOR, 0, out));
    for (size_t i = 0; i < s.n; i++) {
        if (i % (uint64_t)n == 0) {
            D9D_TRY(d9di_jinja_seq_new(c->run, D9DI_JINJA_LIST, 0, &row));
            D9D_TRY(d9di_jinja_seq_append(c->run, out->seq, row));
        }
        D9D_TRY(d9di_jinja_seq_append(c->run, row.seq, s.items[i]));
    }
    while (s.n > 0 && fill->kind != D9DI_JINJA_UNSET && fill->kind != D9DI_JINJA_NONE &&
           row.seq->n < (uint64_t)n) {
        D9D_TRY(d9di_jinja_step(c->run, 1));
        D9D_TRY(d9di_jinja_seq_append(c->run, row.seq, *fill));
    }
    return D9D_OK;
}

static d9d_status filter_sum(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    d9di_jinja_seq s;

    D9D_TRY(d9di_jinja_iterate(c->run, &c->self, &s));
    *out = c->arg[1].kind == D9DI_JINJA_UNSET ? d9di_jinja_int(0) : c->arg[1];
    for (size_t i = 0; i < s.n; i++) {
        d9di_jinja_value v;

        D9D_TRY(d9di_jinja_follow_path(c->run, &s.items[i], &c->arg[0], &v));
        D9D_TRY(d9di_jinja_binary(c->run, '+', out, &v, out));
    }
    return D9D_OK;
}

/* The smallest item, or the largest. */
static d9d_status find_extreme(const d9di_jinja_call *c, int sign, d9di_jinja_value *out)
{
    d9di_jinja_value best = {.kind = D9DI_JINJA_UNSET};
    d9di_jinja_seq s;

    D9D_TRY(d9di_jinja_iterate(c->run, &c->self, &s));
    *out = d9di_jinja_undefined(D9DI_JINJA_NO_ITEM, "an empty sequence", 17);
    for (size_t i = 0; i < s.n; i++) {
        d9di_jinja_value key;
        int order = -1;

        D9D_TRY(make_key(c, &s.items[i], &c->arg[1], d9di_jinja_truth(&c->arg[0]), &key));
        if (i > 0)
            D9D_TRY(d9di_jinja_order(c->run, &key, &best, &order));
        if (i == 0 || order * sign < 0) {
            best = key;
            *out = s.items[i];
        }
    }
    return D9D_OK;
}

static d9d_status filter_min(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return find_extreme(c, 1, out);
}

static d9d_status filter_max(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return find_extreme(c, -1, out);
}

/* --- dicts ------------------------------------------------------------------------------------ */

static d9d_status filter_items(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    D9D_TRY(d9di_jinja_seq_new(c->run, D9DI_JINJA_GENERATOR, 0, out));
    if (c->self.kind == D9DI_JINJA_UNDEFINED)
        return D9D_OK;
    if (c->self.kind != D9DI_JINJA_DICT)
        return d9di_jinja_fail(c->run, "items: a %s is no mapping", d9di_jinja_type(&c->self));
    for (size_t i = 0; i < c->self.dict->n; i++) {
        d9di_jinja_value pair;

        D9D_TRY(d9di_jinja_pair(c->run, c->self.dict->keys[i], c->self.dict->values[i], &pair));
        D9D_TRY(d9di_jinja_seq_append(c->run, out->seq, pair));
    }
    return D9D_OK;
}

static d9d_status filter_dictsort(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const d9di_jinja_value *by = &c->arg[1], none = {.kind = D9DI_JINJA_UNSET};
    const bool by_value = d9di_jinja_is(by, "value");
    d9di_jinja_value *keys;

    if (c->self.kind == D9DI_JINJA_UNDEFINED)
        return d9di_jinja_fail_undefined(c->run, &c->self);
    if (by->kind != D9DI_JINJA_UNSET && !by_value && !d9di_jinja_is(by, "key"))
        return d9di_jinja_fail(c->run, "dictsort: \"by\" must be key or value");
    D9D_TRY(filter_items(c, out));
    out->kind = D9DI_JINJA_LIST;
    D9D_TRY(d9di_jinja_alloc(c->run, out->seq->n, sizeof(*keys), &keys));
    for (size_t i = 0; i < out->seq->n; i++)
        D9D_TRY(make_key(c, &out->seq->items[i].seq->items[by_value], &none,
                         d9di_jinja_truth(&c->arg[0]), &keys[i]));
    return d9di_jinja_sort(c->run, keys, out->seq->items, out->seq->n,
                           d9di_jinja_truth(&c->arg[2]));
}

static d9d_status filter_attr(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    if (c->arg[0].kind != D9DI_JINJA_STRING)
        return d9di_jinja_fail(c->run, "attr: the name must be a str");
    if (c->self.kind == D9DI_JINJA_DICT)
        return d9di_jinja_fail(c->run, "attr: a dict is not supported");
    return d9di_jinja_get_attr(c->run, &c->self, c->arg[0].text, c->arg[0].n, out);
}

const d9di_jinja_builtin d9di_jinja_seq_filters[] = {
    {"first", filter_first, "", 0},
    {"last", filter_last, "", 0},
    {"list", filter_list, "", 0},
    {"reverse", filter_reverse, "", 0},
    {"sort", filter_sort, "reverse case_sensitive attribute", 0},
    {"unique", filter_unique, "case_sensitive attribute", 0},
    {"join", filter_join, "d attribute", 0},
    {"batch", filter_batch, "linecount fill_with", 1},
    {"sum", filter_sum, "attribute start", 0},
    {"min", filter_min, "case_sensitive attribute", 0},
    {"max", filter_max, "case_sensitive attribute", 0},
    {"items", filter_items, "", 0},
    {"dictsort", filter_dictsort, "case_sensitive by reverse", 0},
    {"attr", filter_attr, "name", 1},
    {NULL, NULL, NULL, 0}};
