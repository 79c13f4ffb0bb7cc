/* jinja_filter_select.c - filters that apply other filters and tests to items. */
#include <string.h>

#include "data/jinja/jinja_filter.h"

/* --- map -------------------------------------------------------------------------------------- */

static const d9di_jinja_value *find_keyword(const d9di_jinja_call *c, const char *name)
{
    for (size_t i = 0; i < c->n_kw; i++)
        if (strcmp(c->kw[i].name, name) == 0)
            return &c->kw[i].value;
    return NULL;
}

static d9d_status map_attribute(const d9di_jinja_call *c, const d9di_jinja_value *path,
                                const d9di_jinja_value *v, d9di_jinja_value *out)
{
    const d9di_jinja_value *absent = find_keyword(c, "default");

    D9D_TRY(d9di_jinja_follow_path(c->run, v, path, out));
    if (out->kind == D9DI_JINJA_UNDEFINED && absent != NULL && absent->kind != D9DI_JINJA_NONE)
        *out = *absent;
    return D9D_OK;
}

static d9d_status map_filter(const d9di_jinja_call *c, const d9di_jinja_value *v,
                             d9di_jinja_value *out)
{
    const d9di_jinja_builtin *f;
    d9di_jinja_call inner = {.run = c->run,
                             .self = *v,
                             .pos = c->n > 1 ? c->pos + 1 : NULL,
                             .n = c->n > 0 ? c->n - 1 : 0,
                             .kw = c->kw,
                             .n_kw = c->n_kw};

    if (c->n == 0 || c->pos[0].kind != D9DI_JINJA_STRING)
        return d9di_jinja_fail(c->run, "map: needs the name of a filter or \"attribute\"");
    f = d9di_jinja_find_filter(c->pos[0].text, c->pos[0].n);
    if (f == NULL || f->call == NULL)
        return d9di_jinja_fail(c->run, "map: the filter \"%.*s\" is not supported",
                               (int)(c->pos[0].n < 60 ? c->pos[0].n : 60), c->pos[0].text);
    return d9di_jinja_apply(f, &inner, out);
}

static d9d_status filter_map(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const d9di_jinja_value *path = c->n == 0 ? find_keyword(c, "attribute") : NULL;
    d9di_jinja_seq s = {0};

    D9D_TRY(d9di_jinja_seq_new(c->run, D9DI_JINJA_GENERATOR, 0, out));
    if (!d9di_jinja_truth(&c->self))
        return D9D_OK;
    D9D_TRY(d9di_jinja_iterate(c->run, &c->self, &s));
    for (size_t i = 0; i < s.n; i++) {
        d9di_jinja_value v = {.kind = D9DI_JINJA_UNSET};

        D9D_TRY(d9di_jinja_step(c->run, 1));
        D9D_TRY(path != NULL ? map_attribute(c, path, &s.items[i], &v)
                             : map_filter(c, &s.items[i], &v));
        D9D_TRY(d9di_jinja_seq_append(c->run, out->seq, v));
    }
    return D9D_OK;
}

/* --- select, reject --------------------------------------------------------------------------- */

/* The test that argument `at` names; NULL: none is named, so truth is tested. */
static d9d_status find_test(const d9di_jinja_call *c, size_t at, const d9di_jinja_builtin **out)
{
    *out = NULL;
    if (c->n <= at)
        return D9D_OK;
    if (c->pos[at].kind == D9DI_JINJA_STRING)
        *out = d9di_jinja_find(d9di_jinja_tests, c->pos[at].text, c->pos[at].n);
    return *out != NULL ? D9D_OK
                        : d9di_jinja_fail(c->run, "there is no test \"%.*s\"",
                                          c->pos[at].kind == D9DI_JINJA_STRING && c->pos[at].n < 60
                                              ? (int)c->pos[at].n
                                              : 0,
                                          c->pos[at].text);
}

/* by_attr: the first argument is a path, and the test is of what is there. */
static d9d_status select_items(const d9di_jinja_call *c, bool by_attr, bool keep,
                               d9di_jinja_value *out)
{
    const d9di_jinja_value none = {.kind = D9DI_JINJA_UNSET};
    const size_t at = by_attr;
    const d9di_jinja_builtin *test;
    d9di_jinja_seq s;

    D9D_TRY(d9di_jinja_seq_new(c->run, D9DI_JINJA_GENERATOR, 0, out));
    if (!d9di_jinja_truth(&c->self))
        return D9D_OK;
    if (c->n < at)
        return d9di_jinja_fail(c->run, "selectattr, rejectattr: an attribute is missing");
    D9D_TRY(find_test(c, at, &test));
    D9D_TRY(d9di_jinja_iterate(c->run, &c->self, &s));
    for (size_t i = 0; i < s.n; i++) {
        d9di_jinja_value v = {.kind = D9DI_JINJA_UNSET};

        D9D_TRY(d9di_jinja_step(c->run, 1));
        D9D_TRY(d9di_jinja_follow_path(c->run, &s.items[i], by_attr ? &c->pos[0] : &none, &v));
        if (test != NULL) {
            const d9di_jinja_value subject = v;

            D9D_TRY(
                d9di_jinja_apply_to(c->run, test, &subject, c->pos + at + 1, c->n - at - 1, &v));
        }
        if (d9di_jinja_truth(&v) == keep)
            D9D_TRY(d9di_jinja_seq_append(c->run, out->seq, s.items[i]));
    }
    return D9D_OK;
}

static d9d_status filter_select(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return select_items(c, false, true, out);
}

static d9d_status filter_reject(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return select_items(c, false, false, out);
}

static d9d_status filter_selectattr(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return select_items(c, true, true, out);
}

static d9d_status filter_rejectattr(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return select_items(c, true, false, out);
}

const d9di_jinja_builtin d9di_jinja_select_filters[] = {{"map", filter_map, NULL, 0},
                                                        {"select", filter_select, NULL, 0},
                                                        {"reject", filter_reject, NULL, 0},
                                                        {"selectattr", filter_selectattr, NULL, 0},
                                                        {"rejectattr", filter_rejectattr, NULL, 0},
                                                        {NULL, NULL, NULL, 0}};
