/* spec_match.c - see spec_match.h. */
#include "ckpt/mapper/spec_match.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/mapper/spec_tables.h"

static int compare_values(const void *a, const void *b)
{
    const d9di_mapper_spec_match *x = a, *y = b;
    int c = 0;

    for (size_t i = 0; i < x->n && c == 0; i++)
        c = d9di_mapper_name_compare(x->value[i], y->value[i]);
    return c;
}

bool d9di_mapper_spec_same_captures(const d9di_mapper_spec_match *x,
                                    const d9di_mapper_spec_match *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(x->value[i], y->value[i]) != 0)
            return false;
    return true;
}

d9d_status d9di_mapper_spec_find_matches(d9d_arena *a, const d9di_glob *p, const d9d_map *live,
                                         const char *const *order, d9di_mapper_spec_matches *out)
{
    for (size_t i = 0; i < live->len; i++) {
        d9di_mapper_spec_match m = {
            .name = live->entries[i].key, .tensor = live->entries[i].value, .n = p->n};
        const char *values[D9DI_MAX_CAPTURES];
        bool matches;

        D9D_TRY(d9di_glob_match(p, m.name, a, values, &m.length, &matches));
        if (!matches)
            continue;
        for (size_t k = 0; k < p->n; k++)
            m.value[k] = values[d9di_glob_find(p, order[k])];
        D9D_TRY(D9D_VEC_PUSH(&out->v, m));
    }
    return D9D_OK;
}

void d9di_mapper_spec_sort_matches(d9di_mapper_spec_matches *m)
{
    if (m->v.len > 0)
        qsort(m->v.data, m->v.len, sizeof(*m->v.data), compare_values);
}

d9d_status d9di_mapper_spec_fail_no_match(const char *where, const char *pattern,
                                          const d9d_map *live)
{
    const char **names = calloc(live->len + 1, sizeof(*names)), *near;
    d9d_status st;

    if (names == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
    for (size_t i = 0; i < live->len; i++)
        names[i] = live->entries[i].key;
    near = d9d_config_did_you_mean(pattern, names);
    st = D9D_FAIL(D9D_ECONFIG, "%s: no tensor matches \"%s\"%s%s%s", where, pattern,
                  near != NULL ? "; did you mean \"" : "", near != NULL ? near : "",
                  near != NULL ? "\"?" : "");
    free(names);
    return st;
}

d9di_glob_bindings d9di_mapper_spec_bind_match(const char *const *names,
                                               const d9di_mapper_spec_match *m, size_t n)
{
    d9di_glob_bindings b = {.n = n};

    for (size_t i = 0; i < n; i++) {
        b.name[i] = names[i];
        b.value[i] = m->value[i];
    }
    return b;
}

size_t d9di_mapper_spec_capture_order(const d9di_glob *p, const char *over, const char **order)
{
    size_t n = 0;

    for (size_t i = 0; i < p->n; i++)
        if (over == NULL || strcmp(p->tokens[i].capture, over) != 0)
            order[n++] = p->tokens[i].capture;
    if (n < p->n)
        order[n] = over;
    return n;
}
