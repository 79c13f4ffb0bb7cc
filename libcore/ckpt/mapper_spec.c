/* mapper_spec.c - a description meets the names of a source.  See d9d/ckpt/mapper_spec.h.
 *
 * Stage by stage: each step's patterns are matched against the names that are there, every
 * match becomes a leaf of the stage's mapper, and the stage follows those before it. */
#include "d9d/ckpt/mapper_spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/name_glob.h"
#include "ckpt/spec_tables.h"

enum { MAX_TENSORS = 1 << 22 }; /* that a description may make */

struct build {
    d9d_arena arena;
    uint64_t n_tensors;
};

/* What a step is declared with. */
struct step {
    struct build *b;
    const d9di_spec_step *s;
    const d9di_spec_op *op;
    const char *where; /* "qkv.json: stages[0][2] (concat)" */
    const d9d_map *live;
    d9d_mapper *m;
    d9di_map_args args;
};

static d9d_status no_memory(const char *where)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
}

/* Names are kept in maps, with the tensor of the source that each is, or NULL. */
static void *tensor_value(const d9d_st_tensor *t)
{
    return (void *)(uintptr_t)t;
}

/* A failure of the mapper, told where it was asked for. */
static d9d_status blame(const char *where, d9d_status st)
{
    static const char said[] = "mapper: ";
    d9d_err_copy e;

    if (st == D9D_OK || st == D9D_ENOMEM)
        return st;
    d9d_err_save(&e, st);
    return D9D_FAIL(D9D_ECONFIG, "%s: %s", where,
                    e.text + (strncmp(e.text, said, sizeof(said) - 1) == 0 ? sizeof(said) - 1 : 0));
}

/* --- matches ----------------------------------------------------------------------------- */

/* A name and what its captures are, in the order that the caller chose. */
struct match {
    const char *name;
    const d9d_st_tensor *tensor; /* of the source; NULL where a step made it */
    size_t n;
    const char *value[D9DI_MAX_CAPTURES];
    size_t length; /* of what was matched, for a prefix */
};

struct matches {
    D9D_VEC(struct match) v;
};

static int by_values(const void *a, const void *b)
{
    const struct match *x = a, *y = b;
    int c = 0;

    for (size_t i = 0; i < x->n && c == 0; i++)
        c = d9di_name_compare(x->value[i], y->value[i]);
    return c;
}

static bool same_values(const struct match *x, const struct match *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(x->value[i], y->value[i]) != 0)
            return false;
    return true;
}

/* Append every name that matches, its captures in the given order. */
static d9d_status find_matches(struct build *b, const d9di_glob *p, const d9d_map *live,
                               const char *const *order, struct matches *out)
{
    for (size_t i = 0; i < live->len; i++) {
        struct match m = {
            .name = live->entries[i].key, .tensor = live->entries[i].value, .n = p->n};
        const char *values[D9DI_MAX_CAPTURES];
        bool matches;

        D9D_TRY(d9di_glob_match(p, m.name, &b->arena, values, &m.length, &matches));
        if (!matches)
            continue;
        for (size_t k = 0; k < p->n; k++)
            m.value[k] = values[d9di_glob_find(p, order[k])];
        D9D_TRY(D9D_VEC_PUSH(&out->v, m));
    }
    return D9D_OK;
}

static void sort_matches(struct matches *m)
{
    if (m->v.len > 0)
        qsort(m->v.data, m->v.len, sizeof(*m->v.data), by_values);
}

d9d_status d9di_spec_nothing_matches(const char *where, const char *pattern, const d9d_map *live)
{
    const char **names = calloc(live->len + 1, sizeof(*names)), *near;
    d9d_status st;

    if (names == NULL)
        return no_memory(where);
    for (size_t i = 0; i < live->len; i++)
        names[i] = live->entries[i].key;
    near = d9d_config_nearest(pattern, names);
    st = D9D_FAIL(D9D_ECONFIG, "%s: no tensor matches \"%s\"%s%s%s", where, pattern,
                  near != NULL ? "; did you mean \"" : "", near != NULL ? near : "",
                  near != NULL ? "\"?" : "");
    free(names);
    return st;
}

/* --- leaves --------------------------------------------------------------------------------- */

static d9d_status add_leaf(struct step *x, const char *const *in, size_t n_in,
                           const char *const *out, size_t n_out)
{
    d9di_map_op_kind kind = x->op->kind;

    if (kind == D9DI_DROP)
        n_out = 0;
    if (kind == D9DI_RENAME && strcmp(*in, *out) == 0)
        kind = D9DI_IDENTITY;
    if (kind == D9DI_IDENTITY && strcmp(*in, *out) != 0)
        kind = D9DI_RENAME;
    x->b->n_tensors += n_in + n_out;
    if (x->b->n_tensors > MAX_TENSORS)
        return D9D_FAIL(D9D_ECONFIG, "%s: more than %d tensors", x->where, (int)MAX_TENSORS);
    return blame(x->where, d9di_mapper_add(x->m, kind, in, n_in, out, n_out, &x->args));
}

/* The patterns of a list, ready for matching or for filling in. */
static d9d_status parse_all(struct step *x, const d9di_spec_names *names, const char *key,
                            bool compile, d9di_glob **out)
{
    d9di_glob *p = d9d_arena_alloc(&x->b->arena, (names->n + 1) * sizeof(*p));

    *out = p;
    if (p == NULL)
        return no_memory(x->where);
    for (size_t i = 0; i < names->n; i++) {
        char *where =
            d9d_arena_printf(&x->b->arena, "%s: %s \"%.200s\"", x->where, key, names->item[i]);

        if (where == NULL)
            return no_memory(x->where);
        D9D_TRY(d9di_glob_parse(names->item[i], where, &x->b->arena, &p[i]));
        if (compile)
            D9D_TRY(d9di_glob_compile(&p[i], where, false));
    }
    return D9D_OK;
}

static void release_all(d9di_glob *p, size_t n)
{
    for (size_t i = 0; p != NULL && i < n; i++)
        d9di_glob_release(&p[i]);
}

/* Every capture of a template must be one of `from`, or `over`. */
static d9d_status check_templates(const struct step *x, const d9di_glob *from, const d9di_glob *to,
                                  size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < to[i].n; k++) {
            const char *name = to[i].piece[k].capture;

            if (d9di_glob_find(from, name) < 0 &&
                (x->op->arity != D9DI_SPREAD || x->s->over == NULL ||
                 strcmp(name, x->s->over) != 0))
                return D9D_FAIL(D9D_ECONFIG, "%s: to \"%s\": {%s} is not a capture of \"%s\"",
                                x->where, to[i].text, name, from->text);
        }
    return D9D_OK;
}

static d9di_bindings bind(const char *const *names, const struct match *m, size_t n)
{
    d9di_bindings b = {.n = n};

    for (size_t i = 0; i < n; i++) {
        b.name[i] = names[i];
        b.value[i] = m->value[i];
    }
    return b;
}

/* The captures of a pattern in its order, `over` last: how many come before it. */
static size_t capture_order(const d9di_glob *p, const char *over, const char **order)
{
    size_t n = 0;

    for (size_t i = 0; i < p->n; i++)
        if (over == NULL || strcmp(p->piece[i].capture, over) != 0)
            order[n++] = p->piece[i].capture;
    if (n < p->n)
        order[n] = over;
    return n;
}

/* --- one into one, one into several ---------------------------------------------------------- */

static bool is_numbered(const struct step *x)
{
    return x->op->arity == D9DI_SPREAD && x->s->over != NULL;
}

/* How many tensors a match gives; what is unstacked has as many as its shape says. */
static d9d_status count_outputs(const struct step *x, const struct match *m, size_t n_to, size_t *n)
{
    const d9d_st_tensor *t = m->tensor;
    int64_t count = is_numbered(x) ? x->s->count : (int64_t)n_to, dim = x->s->dim;

    if (count == D9D_INT_NULL) {
        if (t == NULL)
            return D9D_FAIL(D9D_ECONFIG, "%s: count is needed: %s is not as in the source",
                            x->where, m->name);
        dim += dim < 0 ? t->ndim : 0;
        count = dim >= 0 && dim < t->ndim ? t->shape[dim] : 1;
    }
    if (count > MAX_TENSORS)
        return D9D_FAIL(D9D_ECONFIG, "%s: more than %d tensors", x->where, (int)MAX_TENSORS);
    *n = (size_t)count;
    return D9D_OK;
}

/* The names that one match gives. */
static d9d_status expand_outputs(struct step *x, const d9di_glob *to, const d9di_bindings *bound,
                                 const char **out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        d9di_bindings b = *bound;
        char number[24];

        if (is_numbered(x)) {
            (void)snprintf(number, sizeof(number), "%zu", i);
            b.name[b.n] = x->s->over;
            b.value[b.n++] = number;
        }
        D9D_TRY(d9di_glob_expand(is_numbered(x) ? to : &to[i], &b, &x->b->arena, &out[i]));
    }
    return D9D_OK;
}

static d9d_status declare_match(struct step *x, const struct match *m, const char *const *order,
                                const d9di_glob *to, size_t n_to)
{
    const d9di_bindings b = bind(order, m, m->n);
    const char **out;
    size_t n = 0;

    D9D_TRY(count_outputs(x, m, n_to, &n));
    out = d9d_arena_alloc(&x->b->arena, (n + 1) * sizeof(*out));
    if (out == NULL)
        return no_memory(x->where);
    D9D_TRY(expand_outputs(x, to, &b, out, n));
    return add_leaf(x, &m->name, 1, out, n);
}

static d9d_status declare_one(struct step *x, const d9di_glob *from, const d9di_glob *to,
                              size_t n_to)
{
    const char *order[D9DI_MAX_CAPTURES];
    struct matches found = {0};
    d9d_status st;

    (void)capture_order(from, NULL, order);
    D9D_TRY_OR(st, find_matches(x->b, from, x->live, order, &found), out);
    if (found.v.len == 0 && !x->s->optional)
        st = d9di_spec_nothing_matches(x->where, from->text, x->live);
    sort_matches(&found);
    for (size_t i = 0; i < found.v.len && st == D9D_OK; i++)
        st = declare_match(x, &found.v.data[i], order, to, n_to);
out:
    D9D_VEC_RELEASE(&found.v);
    return st;
}

/* What numbers the parts stands in their template, and nowhere else. */
static d9d_status check_numbering(const struct step *x, const d9di_glob *from, size_t n,
                                  const d9di_glob *to)
{
    if (!is_numbered(x))
        return D9D_OK;
    if (d9di_glob_find(to, x->s->over) < 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: to \"%s\": {%s} is needed to number the parts", x->where,
                        to->text, x->s->over);
    for (size_t i = 0; i < n; i++)
        if (d9di_glob_find(&from[i], x->s->over) >= 0)
            return D9D_FAIL(D9D_ECONFIG, "%s: from \"%s\": {%s} numbers the parts, not the whole",
                            x->where, from[i].text, x->s->over);
    return D9D_OK;
}

/* The patterns to take: under their parent where there is one. */
static d9d_status full_names(const struct step *x, d9di_spec_names *out)
{
    *out = x->s->from;
    if (x->s->parent == NULL)
        return D9D_OK;
    out->item = d9d_arena_alloc(&x->b->arena, out->n * sizeof(*out->item));
    for (size_t i = 0; out->item != NULL && i < out->n; i++) {
        out->item[i] = d9d_arena_printf(&x->b->arena, "%s.%s", x->s->parent, x->s->from.item[i]);
        if (out->item[i] == NULL)
            return no_memory(x->where);
    }
    return out->item != NULL ? D9D_OK : no_memory(x->where);
}

static d9d_status declare_each(struct step *x)
{
    const bool own = x->s->to.n == 0; /* names stay, or lose their parent */
    d9di_spec_names from;
    d9di_glob *p = NULL, *to = NULL;
    d9d_status st;

    D9D_TRY(full_names(x, &from));
    D9D_TRY_OR(st, parse_all(x, &from, "from", true, &p), out);
    D9D_TRY_OR(st, parse_all(x, own ? &x->s->from : &x->s->to, "to", false, &to), out);
    D9D_TRY_OR(st, check_numbering(x, p, from.n, to), out);
    for (size_t i = 0; i < from.n && st == D9D_OK; i++) {
        const d9di_glob *its = own ? &to[i] : to;
        const size_t n = own ? 1 : x->s->to.n;

        st = check_templates(x, &p[i], its, n);
        if (st == D9D_OK)
            st = declare_one(x, &p[i], its, n);
    }
out:
    release_all(p, from.n);
    return st;
}

/* --- several into one ------------------------------------------------------------------------- */

/* How many parts there are to be: as many as said, or up to the last one that is there. */
static d9d_status count_parts(const struct step *x, const struct match *first, size_t n, size_t key,
                              const char *out, size_t *total)
{
    const uint64_t there = strtoull(first[n - 1].value[key], NULL, 10) + 1;
    const bool told = x->s->count != D9D_INT_NULL;

    if (told && there > (uint64_t)x->s->count)
        return D9D_FAIL(D9D_ECONFIG, "%s: %s has a part %s, count is %lld", x->where, out,
                        first[n - 1].value[key], (long long)x->s->count);
    *total = told ? (size_t)x->s->count : (size_t)there;
    if (*total > MAX_TENSORS)
        return D9D_FAIL(D9D_ECONFIG, "%s: more than %d tensors", x->where, (int)MAX_TENSORS);
    return D9D_OK;
}

/* One output: `first` is the first of its matches, which are n.  A part that is not there is
 * named all the same: the plan lists what is missing. */
static d9d_status join_numbered(struct step *x, const d9di_glob *from, const d9di_glob *to,
                                const char *const *order, const struct match *first, size_t n)
{
    const size_t key = from->n - 1;
    d9di_bindings b = bind(order, first, key);
    const char **in, *out;
    size_t total = 0, k = 0;

    D9D_TRY(d9di_glob_expand(to, &b, &x->b->arena, &out));
    D9D_TRY(count_parts(x, first, n, key, out, &total));
    in = d9d_arena_alloc(&x->b->arena, total * sizeof(*in));
    D9D_TRY(in != NULL ? D9D_OK : no_memory(x->where));
    b.name[b.n++] = x->s->over;
    for (size_t i = 0; i < total; i++) {
        char number[24];

        (void)snprintf(number, sizeof(number), "%zu", i);
        b.value[key] = number;
        if (k < n && strcmp(first[k].value[key], number) == 0)
            in[i] = first[k++].name;
        else
            D9D_TRY(d9di_glob_expand(from, &b, &x->b->arena, &in[i]));
    }
    return add_leaf(x, in, total, &out, 1);
}

static d9d_status join_listed(struct step *x, const d9di_glob *from, const d9di_glob *to,
                              const char *const *order, const struct match *first)
{
    const size_t n = x->s->from.n;
    const char **in = d9d_arena_alloc(&x->b->arena, n * sizeof(*in)), *out;
    const d9di_bindings b = bind(order, first, from->n);

    D9D_TRY(in != NULL ? D9D_OK : no_memory(x->where));
    D9D_TRY(d9di_glob_expand(to, &b, &x->b->arena, &out));
    for (size_t i = 0; i < n; i++)
        D9D_TRY(d9di_glob_expand(&from[i], &b, &x->b->arena, &in[i]));
    return add_leaf(x, in, n, &out, 1);
}

static d9d_status check_parts(const struct step *x, d9di_glob *from)
{
    for (size_t i = 1; i < x->s->from.n; i++)
        for (size_t k = 0; k < D9DI_MAX_CAPTURES && (k < from->n || k < from[i].n); k++)
            if (from[i].n != from->n || d9di_glob_find(&from[i], from->piece[k].capture) < 0)
                return D9D_FAIL(D9D_ECONFIG, "%s: from \"%s\" and \"%s\" have other captures",
                                x->where, from->text, from[i].text);
    if (x->s->over == NULL)
        return D9D_OK;
    for (size_t k = 0; k < from->n; k++)
        if (strcmp(from->piece[k].capture, x->s->over) == 0) {
            from->piece[k].what = D9DI_CAPTURE_INT;
            return D9D_OK;
        }
    return D9D_FAIL(D9D_ECONFIG, "%s: over \"%s\" is not a capture of \"%s\"", x->where, x->s->over,
                    from->text);
}

/* Matches of all patterns, sorted by their captures; each run of equal ones is an output. */
static d9d_status join_all(struct step *x, d9di_glob *from, const d9di_glob *to)
{
    const char *order[D9DI_MAX_CAPTURES];
    size_t keys = capture_order(from, x->s->over, order), end;
    struct matches found = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < x->s->from.n; i++) {
        size_t before = found.v.len;

        D9D_TRY_OR(st, d9di_glob_compile(&from[i], x->where, false), out);
        D9D_TRY_OR(st, find_matches(x->b, &from[i], x->live, order, &found), out);
        if (found.v.len == before && !x->s->optional)
            D9D_TRY_OR(st, d9di_spec_nothing_matches(x->where, from[i].text, x->live), out);
    }
    sort_matches(&found);
    for (size_t i = 0; i < found.v.len && st == D9D_OK; i = end) {
        const struct match *first = &found.v.data[i];

        for (end = i + 1; end < found.v.len; end++)
            if (!same_values(first, &found.v.data[end], keys))
                break;
        st = x->s->over != NULL ? join_numbered(x, from, to, order, first, end - i)
                                : join_listed(x, from, to, order, first);
    }
out:
    D9D_VEC_RELEASE(&found.v);
    return st;
}

static d9d_status declare_join(struct step *x)
{
    d9di_glob *from = NULL, *to = NULL;
    d9d_status st;

    D9D_TRY(parse_all(x, &x->s->from, "from", false, &from));
    D9D_TRY(parse_all(x, &x->s->to, "to", false, &to));
    D9D_TRY(check_parts(x, from));
    D9D_TRY(check_templates(x, from, to, 1));
    if (x->s->over != NULL && d9di_glob_find(to, x->s->over) >= 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: to \"%s\": {%s} numbers the parts, not the whole",
                        x->where, to->text, x->s->over);
    st = join_all(x, from, to);
    release_all(from, x->s->from.n);
    return st;
}

/* --- stages within stages ----------------------------------------------------------------------
 */

static d9d_status build_body(struct build *b, const d9di_spec_body *body, const char *where,
                             const d9d_map *live, d9d_mapper **out);

/* The names that a prefix is taken off of, for one reading of it. */
static d9d_status scope_one(struct step *x, const struct match *first, size_t n,
                            const char *to_prefix)
{
    char *prefix = d9d_arena_strndup(&x->b->arena, first->name, first->length), *where;
    d9d_map names = {0};
    d9d_mapper *part;
    d9d_status st = D9D_OK;

    where = d9d_arena_printf(&x->b->arena, "%s: \"%s\"", x->where, prefix != NULL ? prefix : "");
    if (prefix == NULL || where == NULL)
        return no_memory(x->where);
    for (size_t i = 0; i < n && st == D9D_OK; i++) {
        const char *name = first[i].name + first[i].length;

        st = d9d_map_put(&names, name, strlen(name), tensor_value(first[i].tensor));
    }
    if (st == D9D_OK)
        st = build_body(x->b, &x->s->body, where, &names, &part);
    if (st == D9D_OK)
        st = blame(where, d9d_mapper_beside(x->m, part, prefix, to_prefix));
    d9d_map_release(&names);
    return st;
}

static d9d_status scope_all(struct step *x, const d9di_glob *from, const d9di_glob *to)
{
    const char *order[D9DI_MAX_CAPTURES], *prefix;
    struct matches found = {0};
    d9d_status st;
    size_t end;

    (void)capture_order(from, NULL, order);
    D9D_TRY_OR(st, find_matches(x->b, from, x->live, order, &found), out);
    if (found.v.len == 0 && !x->s->optional)
        st = d9di_spec_nothing_matches(x->where, from->text, x->live);
    sort_matches(&found);
    for (size_t i = 0; i < found.v.len && st == D9D_OK; i = end) {
        const d9di_bindings b = bind(order, &found.v.data[i], from->n);

        for (end = i + 1; end < found.v.len; end++)
            if (!same_values(&found.v.data[i], &found.v.data[end], from->n))
                break;
        st = d9di_glob_expand(to, &b, &x->b->arena, &prefix);
        if (st == D9D_OK)
            st = scope_one(x, &found.v.data[i], end - i, prefix);
    }
out:
    D9D_VEC_RELEASE(&found.v);
    return st;
}

static d9d_status declare_scope(struct step *x)
{
    d9di_glob from, to;
    d9d_status st;

    D9D_TRY(d9di_glob_parse(x->s->from_prefix, x->where, &x->b->arena, &from));
    D9D_TRY(d9di_glob_parse(x->s->to_prefix, x->where, &x->b->arena, &to));
    D9D_TRY(check_templates(x, &from, &to, 1));
    D9D_TRY(d9di_glob_compile(&from, x->where, true));
    st = scope_all(x, &from, &to);
    d9di_glob_release(&from);
    return st;
}

/* What other workers take is dropped here, so that it counts as used. */
static d9d_status keep_share(struct step *x, d9d_mapper *part)
{
    const size_t n = part->inputs.len;
    const char **names = d9d_arena_alloc(&x->b->arena, (n + 1) * sizeof(*names));

    D9D_TRY(names != NULL ? D9D_OK : no_memory(x->where));
    for (size_t i = 0; i < n; i++) {
        names[i] = d9d_arena_strdup(&x->b->arena, part->inputs.entries[i].key);
        D9D_TRY(names[i] != NULL ? D9D_OK : no_memory(x->where));
    }
    D9D_TRY(d9d_mapper_shard(part, (uint64_t)x->s->total, (uint64_t)x->s->current));
    for (size_t i = 0; i < n; i++)
        if (!d9d_map_has(&part->inputs, names[i], strlen(names[i])))
            D9D_TRY(d9d_mapper_drop(x->m, names[i]));
    return D9D_OK;
}

static d9d_status declare_share(struct step *x)
{
    d9d_mapper *part;
    d9d_status st;

    D9D_TRY(build_body(x->b, &x->s->body, x->where, x->live, &part));
    st = keep_share(x, part);
    if (st == D9D_OK)
        return blame(x->where, d9d_mapper_beside(x->m, part, "", ""));
    d9d_mapper_free(part);
    return blame(x->where, st);
}

/* --- steps, stages
 * -------------------------------------------------------------------------------- */

static int as_dim(int64_t dim)
{
    return dim == D9D_INT_NULL ? D9D_SQUEEZE_ALL : (int)dim;
}

/* The args of a leaf; `list` has room for a mesh. */
static d9di_map_args leaf_args(const d9di_spec_step *s, d9di_map_op_kind kind, int64_t *list)
{
    const d9d_placement *placed = s->placements.items;
    const int64_t *dims = s->dims.items, *parts = s->mesh.items;
    d9d_placement mesh[D9D_MAX_MESH];

    for (size_t k = 0; k < s->mesh.n; k++)
        mesh[k] = (d9d_placement){parts[k], placed[k].shard, placed[k].dim};
    switch (kind) {
    case D9DI_TRANSPOSE: return (d9di_map_args){.a = (int)dims[0], .b = (int)dims[1]};
    case D9DI_CAST: return (d9di_map_args){.a = s->dtype};
    case D9DI_SPLIT: return (d9di_map_args){(int)s->dim, 0, s->sizes.items, s->sizes.n};
    case D9DI_DISTRIBUTE:
    case D9DI_GATHER: return d9di_map_mesh(mesh, s->coordinate.items, (int)s->mesh.n, list);
    default: return (d9di_map_args){.a = as_dim(s->dim)};
    }
}

static d9d_status declare(struct step *x)
{
    int64_t list[D9D_MAX_MESH * D9DI_AXIS_LEN];

    x->args = leaf_args(x->s, x->op->kind, list);
    switch (x->op->arity) {
    case D9DI_JOIN: return declare_join(x);
    case D9DI_SCOPE: return declare_scope(x);
    case D9DI_SHARE: return declare_share(x);
    case D9DI_EACH:
    case D9DI_SPREAD: break;
    }
    return declare_each(x);
}

static d9d_status build_stage(struct build *b, const d9d_list *steps, const char *where,
                              const d9d_map *live, d9d_mapper *m)
{
    for (size_t i = 0; i < steps->n; i++) {
        const d9d_union *u = &((const d9d_union *)steps->items)[i];
        const d9di_spec_op *op = &d9di_spec_ops[u->which];
        struct step x = {.b = b, .s = u->value, .op = op, .live = live, .m = m};

        x.where = d9d_arena_printf(&b->arena, "%s[%zu] (%s)", where, i, op->name);
        if (x.where == NULL)
            return no_memory(where);
        D9D_TRY(declare(&x));
    }
    return D9D_OK;
}

/* The names that are there after a stage. */
static d9d_status next_names(const d9d_map *live, const d9d_mapper *stage, const char *where,
                             d9d_map *out)
{
    d9d_map next = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < live->len && st == D9D_OK; i++) {
        const struct d9d_map_entry *e = &live->entries[i];

        if (!d9d_map_has(&stage->inputs, e->key, e->key_len))
            st = d9d_map_put(&next, e->key, e->key_len, e->value);
    }
    for (size_t i = 0; i < stage->outputs.len && st == D9D_OK; i++) {
        const struct d9d_map_entry *e = &stage->outputs.entries[i];

        st = d9d_map_has(&next, e->key, e->key_len)
                 ? D9D_FAIL(D9D_ECONFIG, "%s: gives tensor %s, which is there and not taken", where,
                            e->key)
                 : d9d_map_put(&next, e->key, e->key_len, NULL);
    }
    if (st == D9D_OK)
        *out = next;
    else
        d9d_map_release(&next);
    return st;
}

static d9d_status add_rest(d9d_mapper *m, int rest, const d9d_map *live)
{
    for (size_t i = 0; i < live->len && rest != D9DI_REST_REFUSE; i++) {
        const struct d9d_map_entry *e = &live->entries[i];

        if (!d9d_map_has(&m->inputs, e->key, e->key_len))
            D9D_TRY(rest == D9DI_REST_KEEP ? d9d_mapper_identity(m, e->key)
                                           : d9d_mapper_drop(m, e->key));
    }
    return D9D_OK;
}

static d9d_status add_stage(struct build *b, const d9d_list *steps, const char *where,
                            d9d_map *live, d9d_mapper *m)
{
    d9d_mapper *stage = NULL;
    d9d_map next = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_mapper_create(&stage), out);
    D9D_TRY_OR(st, build_stage(b, steps, where, live, stage), out);
    D9D_TRY_OR(st, next_names(live, stage, where, &next), out);
    d9d_map_release(live);
    *live = next;
    st = blame(where, d9d_mapper_then(m, stage));
    stage = NULL;
out:
    d9d_mapper_free(stage);
    return st;
}

static d9d_status build_body(struct build *b, const d9di_spec_body *body, const char *where,
                             const d9d_map *names, d9d_mapper **out)
{
    const d9d_list *stages = body->stages.items;
    d9d_mapper *m = NULL, *none = NULL;
    d9d_map live = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_mapper_create(&none), out);
    D9D_TRY_OR(st, next_names(names, none, where, &live), out);
    D9D_TRY_OR(st, d9d_mapper_create(&m), out);
    for (size_t i = 0; i < body->stages.n; i++) {
        char *at = d9d_arena_printf(&b->arena, "%s: stages[%zu]", where, i);

        D9D_TRY_OR(st, at != NULL ? D9D_OK : no_memory(where), out);
        D9D_TRY_OR(st, add_stage(b, &stages[i], at, &live, m), out);
    }
    D9D_TRY_OR(st, blame(where, add_rest(m, body->rest, names)), out);
    *out = m;
    m = NULL;
out:
    d9d_map_release(&live);
    d9d_mapper_free(none);
    d9d_mapper_free(m);
    return st;
}

/* What a checkpoint can hold. */
static d9d_status check_names(const d9d_mapper *m, const char *where)
{
    for (size_t i = 0; i < m->outputs.len; i++) {
        const char *name = m->outputs.entries[i].key;

        if (*name == '\0' || strcmp(name, "__metadata__") == 0)
            return D9D_FAIL(D9D_ECONFIG, "%s: gives a tensor the name \"%s\"", where, name);
    }
    return D9D_OK;
}

d9d_status d9d_mapper_spec_build(const d9d_mapper_spec *s, const d9d_source *src, d9d_mapper **out)
{
    struct build b = {.n_tensors = src->n};
    d9d_mapper *m = NULL;
    d9d_map names = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < src->n && st == D9D_OK; i++) {
        const d9d_st_tensor *t = src->at(src->self, i);

        st = d9d_map_put(&names, t->name, strlen(t->name), tensor_value(t));
    }
    if (st == D9D_OK)
        st = d9di_spec_check_shapes(s, src, &names);
    if (st == D9D_OK)
        st = build_body(&b, &s->body, s->name, &names, &m);
    if (st == D9D_OK)
        st = check_names(m, s->name);
    if (st == D9D_OK)
        st = d9di_mapper_sort_outputs(m);
    if (st == D9D_OK)
        *out = m;
    else
        d9d_mapper_free(m);
    d9d_map_release(&names);
    d9d_arena_release(&b.arena);
    return st;
}
