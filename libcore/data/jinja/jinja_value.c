/* jinja_value.c - see jinja_value.h: making values; truth, length, iteration, membership. */
#include "data/jinja/jinja_value.h"

#include <string.h>

#include "data/jinja/jinja_run.h"
#include "data/jinja/jinja_text.h"
#include "data/tokenizer/utf8.h"

/* --- making ----------------------------------------------------------------------------------- */

d9d_status d9di_jinja_seq_new(d9di_jinja_run *r, d9di_jinja_kind kind, size_t n,
                              d9di_jinja_value *out)
{
    d9di_jinja_seq *s;

    D9D_TRY(d9di_jinja_alloc(r, 1, sizeof(*s), &s));
    D9D_TRY(d9di_jinja_alloc(r, n, sizeof(*s->items), &s->items));
    s->cap = n;
    *out = (d9di_jinja_value){.kind = kind, .seq = s};
    return D9D_OK;
}

static d9d_status grow(d9di_jinja_run *r, d9di_jinja_value **list, size_t n, size_t cap)
{
    d9di_jinja_value *more;

    D9D_TRY(d9di_jinja_alloc(r, cap, sizeof(*more), &more));
    if (n > 0)
        memcpy(more, *list, n * sizeof(*more));
    *list = more;
    return D9D_OK;
}

d9d_status d9di_jinja_seq_append(d9di_jinja_run *r, d9di_jinja_seq *s, d9di_jinja_value v)
{
    if (s->n == s->cap) {
        const size_t cap = s->cap < 4 ? 4 : 2 * s->cap;

        D9D_TRY(grow(r, &s->items, s->n, cap));
        s->cap = cap;
    }
    s->items[s->n++] = v;
    return D9D_OK;
}

d9d_status d9di_jinja_pair(d9di_jinja_run *r, d9di_jinja_value a, d9di_jinja_value b,
                           d9di_jinja_value *out)
{
    D9D_TRY(d9di_jinja_seq_new(r, D9DI_JINJA_TUPLE, 2, out));
    D9D_TRY(d9di_jinja_seq_append(r, out->seq, a));
    return d9di_jinja_seq_append(r, out->seq, b);
}

d9d_status d9di_jinja_dict_new(d9di_jinja_run *r, d9di_jinja_kind kind, d9di_jinja_value *out)
{
    d9di_jinja_dict *d;

    D9D_TRY(d9di_jinja_alloc(r, 1, sizeof(*d), &d));
    *out = (d9di_jinja_value){.kind = kind, .dict = d};
    return D9D_OK;
}

d9d_status d9di_jinja_dict_put(d9di_jinja_run *r, d9di_jinja_dict *d, d9di_jinja_value key,
                               d9di_jinja_value v)
{
    const d9di_jinja_value *old;

    if (!d9di_jinja_is_hashable(&key))
        return d9di_jinja_fail(r, "a %s cannot be a key", d9di_jinja_type(&key));
    D9D_TRY(d9di_jinja_step(r, d->n / 16));
    old = d9di_jinja_dict_find(r, d, &key);
    if (old != NULL) {
        d->values[old - d->values] = v;
        return D9D_OK;
    }
    if (d->n == d->cap) {
        const size_t cap = d->cap < 4 ? 4 : 2 * d->cap;

        D9D_TRY(grow(r, &d->keys, d->n, cap));
        D9D_TRY(grow(r, &d->values, d->n, cap));
        d->cap = cap;
    }
    d->keys[d->n] = key;
    d->values[d->n++] = v;
    return D9D_OK;
}

/* Keys of dicts are compared without an error: what cannot be compared differs. */
static bool same_key(d9di_jinja_run *r, const d9di_jinja_value *a, const d9di_jinja_value *b)
{
    bool same = false;

    if (a->kind == D9DI_JINJA_STRING && b->kind == D9DI_JINJA_STRING)
        return a->n == b->n && memcmp(a->text, b->text, a->n) == 0;
    return d9di_jinja_equal(r, a, b, &same) == D9D_OK && same;
}

const d9di_jinja_value *d9di_jinja_dict_find(d9di_jinja_run *r, const d9di_jinja_dict *d,
                                             const d9di_jinja_value *key)
{
    for (size_t i = 0; i < d->n; i++)
        if (same_key(r, &d->keys[i], key))
            return &d->values[i];
    return NULL;
}

const d9di_jinja_value *d9di_jinja_dict_get(d9di_jinja_run *r, const d9di_jinja_dict *d,
                                            const char *key)
{
    const d9di_jinja_value k = d9di_jinja_str(key, strlen(key));

    return d9di_jinja_dict_find(r, d, &k);
}

/* --- kinds ------------------------------------------------------------------------------------ */

static const char *const types[D9DI_JINJA_KINDS] = {
    "Undefined", "Undefined", "NoneType", "bool",  "int",       "float",
    "str",       "list",      "tuple",    "range", "dict view", "generator",
    "dict",      "namespace", "loop",     "macro", "function",  "method"};

const char *d9di_jinja_type(const d9di_jinja_value *v)
{
    return types[v->kind];
}

bool d9di_jinja_is_integer(const d9di_jinja_value *v)
{
    return v->kind == D9DI_JINJA_BOOL || v->kind == D9DI_JINJA_INT;
}

bool d9di_jinja_is_number(const d9di_jinja_value *v)
{
    return d9di_jinja_is_integer(v) || v->kind == D9DI_JINJA_FLOAT;
}

int64_t d9di_jinja_as_int(const d9di_jinja_value *v)
{
    return v->kind == D9DI_JINJA_BOOL ? v->b : v->i;
}

double d9di_jinja_as_double(const d9di_jinja_value *v)
{
    return v->kind == D9DI_JINJA_FLOAT ? v->f : (double)d9di_jinja_as_int(v);
}

bool d9di_jinja_is(const d9di_jinja_value *v, const char *text)
{
    return v->kind == D9DI_JINJA_STRING && v->n == strlen(text) && memcmp(v->text, text, v->n) == 0;
}

bool d9di_jinja_is_hashable(const d9di_jinja_value *v)
{
    if (v->kind == D9DI_JINJA_TUPLE)
        for (size_t i = 0; i < v->seq->n; i++)
            if (!d9di_jinja_is_hashable(&v->seq->items[i]))
                return false;
    return v->kind != D9DI_JINJA_LIST && v->kind != D9DI_JINJA_DICT && v->kind != D9DI_JINJA_VIEW;
}

bool d9di_jinja_truth(const d9di_jinja_value *v)
{
    switch (v->kind) {
    case D9DI_JINJA_UNSET:
    case D9DI_JINJA_UNDEFINED:
    case D9DI_JINJA_NONE: return false;
    case D9DI_JINJA_BOOL: return v->b;
    case D9DI_JINJA_INT: return v->i != 0;
    case D9DI_JINJA_FLOAT: return v->f != 0;
    case D9DI_JINJA_STRING: return v->n > 0;
    case D9DI_JINJA_LIST:
    case D9DI_JINJA_TUPLE:
    case D9DI_JINJA_RANGE:
    case D9DI_JINJA_VIEW: return v->seq->n > 0;
    case D9DI_JINJA_DICT: return v->dict->n > 0;
    default: return true;
    }
}

/* --- iteration -------------------------------------------------------------------------------- */

static d9d_status list_chars(d9di_jinja_run *r, const d9di_jinja_value *v, d9di_jinja_seq *out)
{
    D9D_TRY(d9di_jinja_step(r, v->n / 16));
    for (size_t at = 0; at < v->n;) {
        const unsigned w = d9di_utf8_width((unsigned char)v->text[at]);

        D9D_TRY(d9di_jinja_seq_append(r, out, d9di_jinja_str(v->text + at, w)));
        at += w;
    }
    return D9D_OK;
}

d9d_status d9di_jinja_iterate(d9di_jinja_run *r, const d9di_jinja_value *v, d9di_jinja_seq *out)
{
    *out = (d9di_jinja_seq){0};
    switch (v->kind) {
    case D9DI_JINJA_UNDEFINED: return D9D_OK;
    case D9DI_JINJA_STRING: return list_chars(r, v, out);
    case D9DI_JINJA_DICT:
        out->items = v->dict->keys;
        out->n = v->dict->n;
        return D9D_OK;
    case D9DI_JINJA_GENERATOR:
        if (v->seq->spent)
            return D9D_OK;
        v->seq->spent = true;
        break;
    case D9DI_JINJA_LIST:
    case D9DI_JINJA_TUPLE:
    case D9DI_JINJA_RANGE:
    case D9DI_JINJA_VIEW: break;
    default: return d9di_jinja_fail(r, "a value of type %s cannot be iterated", d9di_jinja_type(v));
    }
    out->items = v->seq->items;
    out->n = v->seq->n;
    return D9D_OK;
}

void d9di_jinja_give_back(const d9di_jinja_value *v, const d9di_jinja_seq *taken, size_t n)
{
    if (v->kind != D9DI_JINJA_GENERATOR || n >= taken->n)
        return;
    v->seq->items = taken->items + n;
    v->seq->n = taken->n - n;
    v->seq->spent = false;
}

d9d_status d9di_jinja_length(d9di_jinja_run *r, const d9di_jinja_value *v, size_t *out)
{
    switch (v->kind) {
    case D9DI_JINJA_UNDEFINED: *out = 0; return D9D_OK;
    case D9DI_JINJA_STRING: *out = d9di_jinja_chars(v); return D9D_OK;
    case D9DI_JINJA_DICT: *out = v->dict->n; return D9D_OK;
    case D9DI_JINJA_LIST:
    case D9DI_JINJA_TUPLE:
    case D9DI_JINJA_RANGE:
    case D9DI_JINJA_VIEW: *out = v->seq->n; return D9D_OK;
    default: return d9di_jinja_fail(r, "a value of type %s has no length", d9di_jinja_type(v));
    }
}

d9d_status d9di_jinja_contains(d9di_jinja_run *r, const d9di_jinja_value *a,
                               const d9di_jinja_value *b, bool *out)
{
    d9di_jinja_seq items;
    size_t i = 0;

    *out = false;
    if (b->kind == D9DI_JINJA_STRING) {
        if (a->kind == D9DI_JINJA_UNDEFINED)
            return d9di_jinja_fail_undefined(r, a);
        if (a->kind != D9DI_JINJA_STRING)
            return d9di_jinja_fail(r, "\"in\" of a str needs a str, not a %s", d9di_jinja_type(a));
        D9D_TRY(d9di_jinja_step(r, b->n / 1024));
        *out = a->n == 0 || memmem(b->text, b->n, a->text, a->n) != NULL;
        return D9D_OK;
    }
    if (b->kind == D9DI_JINJA_DICT) {
        if (!d9di_jinja_is_hashable(a))
            return d9di_jinja_fail(r, "a %s cannot be a key", d9di_jinja_type(a));
        D9D_TRY(d9di_jinja_step(r, b->dict->n / 16));
        *out = d9di_jinja_dict_find(r, b->dict, a) != NULL;
        return D9D_OK;
    }
    D9D_TRY(d9di_jinja_iterate(r, b, &items));
    D9D_TRY(d9di_jinja_step(r, items.n / 16));
    for (; i < items.n && !*out; i++)
        D9D_TRY(d9di_jinja_equal(r, a, &items.items[i], out));
    d9di_jinja_give_back(b, &items, i);
    return D9D_OK;
}
