/* spec_leaves.c - expands a described step into leaf steps of a mapper.  See spec_step.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/mapper/spec_step.h"

/* --- leaves --------------------------------------------------------------------------------- */

static d9d_status add_leaf(d9di_mapper_spec_context *x, const char *const *in, size_t n_in,
                           const char *const *out, size_t n_out)
{
    d9di_mapper_op_kind kind = x->op->kind;

    if (kind == D9DI_DROP)
        n_out = 0;
    if (kind == D9DI_RENAME && strcmp(*in, *out) == 0)
        kind = D9DI_IDENTITY;
    if (kind == D9DI_IDENTITY && strcmp(*in, *out) != 0)
        kind = D9DI_RENAME;
    x->b->n_tensors += n_in + n_out;
    if (x->b->n_tensors > D9DI_SPEC_TENSORS)
        return D9D_FAIL(D9D_ECONFIG, "%s: more than %d tensors", x->where, (int)D9DI_SPEC_TENSORS);
    return d9di_mapper_spec_locate_failure(
        x->where, d9di_mapper_add(x->m, kind, in, n_in, out, n_out, &x->args));
}

/* Parses and compiles the patterns of a list. */
static d9d_status parse_all(d9di_mapper_spec_context *x, const d9di_mapper_spec_names *names,
                            const char *key, bool compile, d9di_glob **out)
{
    d9di_glob *p = d9d_arena_alloc(&x->b->arena, (names->n + 1) * sizeof(*p));

    *out = p;
    if (p == NULL)
        return d9di_mapper_spec_no_memory(x->where);
    for (size_t i = 0; i < names->n; i++) {
        char *where =
            d9d_arena_printf(&x->b->arena, "%s: %s \"%.200s\"", x->where, key, names->item[i]);

        if (where == NULL)
            return d9di_mapper_spec_no_memory(x->where);
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

/* --- one to one, one to several ---------------------------------------------------------- */

static bool is_numbered(const d9di_mapper_spec_context *x)
{
    return x->op->arity == D9DI_SPREAD && x->s->over != NULL;
}

/* Number of tensors that a match produces; for unstack it may come from the shape. */
static d9d_status count_outputs(const d9di_mapper_spec_context *x, const d9di_mapper_spec_match *m,
                                size_t n_to, size_t *n)
{
    const d9d_safetensors_tensor *t = m->tensor;
    int64_t count = is_numbered(x) ? x->s->count : (int64_t)n_to, dim = x->s->dim;

    if (count == D9D_INT_NULL) {
        if (t == NULL)
            return D9D_FAIL(D9D_ECONFIG, "%s: count is needed: %s is not as in the source",
                            x->where, m->name);
        dim += dim < 0 ? t->ndim : 0;
        count = dim >= 0 && dim < t->ndim ? t->shape[dim] : 1;
    }
    if (count > D9DI_SPEC_TENSORS)
        return D9D_FAIL(D9D_ECONFIG, "%s: more than %d tensors", x->where, (int)D9DI_SPEC_TENSORS);
    *n = (size_t)count;
    return D9D_OK;
}

/* Expands the output names of one match. */
static d9d_status expand_outputs(d9di_mapper_spec_context *x, const d9di_glob *to,
                                 const d9di_glob_bindings *bound, const char **out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        d9di_glob_bindings b = *bound;
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

static d9d_status declare_match(d9di_mapper_spec_context *x, const d9di_mapper_spec_match *m,
                                const char *const *order, const d9di_glob *to, size_t n_to)
{
    const d9di_glob_bindings b = d9di_mapper_spec_bind_match(order, m, m->n);
    const char **out;
    size_t n = 0;

    D9D_TRY(count_outputs(x, m, n_to, &n));
    out = d9d_arena_alloc(&x->b->arena, (n + 1) * sizeof(*out));
    if (out == NULL)
        return d9di_mapper_spec_no_memory(x->where);
    D9D_TRY(expand_outputs(x, to, &b, out, n));
    return add_leaf(x, &m->name, 1, out, n);
}

static d9d_status declare_pattern(d9di_mapper_spec_context *x, const d9di_glob *from,
                                  const d9di_glob *to, size_t n_to)
{
    const char *order[D9DI_MAX_CAPTURES];
    d9di_mapper_spec_matches found = {0};
    d9d_status st;

    (void)d9di_mapper_spec_capture_order(from, NULL, order);
    D9D_TRY_OR(st, d9di_mapper_spec_find_matches(&x->b->arena, from, x->live, order, &found), out);
    if (found.v.len == 0 && !x->s->optional)
        st = d9di_mapper_spec_fail_no_match(x->where, from->text, x->live);
    d9di_mapper_spec_sort_matches(&found);
    for (size_t i = 0; i < found.v.len && st == D9D_OK; i++)
        st = declare_match(x, &found.v.data[i], order, to, n_to);
out:
    D9D_VEC_RELEASE(&found.v);
    return st;
}

/* Checks that the numbering capture occurs in the parts' template and nowhere else. */
static d9d_status check_numbering(const d9di_mapper_spec_context *x, const d9di_glob *from,
                                  size_t n, const d9di_glob *to)
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

/* The full input patterns, prefixed with the parent if there is one. */
static d9d_status full_names(const d9di_mapper_spec_context *x, d9di_mapper_spec_names *out)
{
    *out = x->s->from;
    if (x->s->parent == NULL)
        return D9D_OK;
    out->item = d9d_arena_alloc(&x->b->arena, out->n * sizeof(*out->item));
    for (size_t i = 0; out->item != NULL && i < out->n; i++) {
        out->item[i] = d9d_arena_printf(&x->b->arena, "%s.%s", x->s->parent, x->s->from.item[i]);
        if (out->item[i] == NULL)
            return d9di_mapper_spec_no_memory(x->where);
    }
    return out->item != NULL ? D9D_OK : d9di_mapper_spec_no_memory(x->where);
}

d9d_status d9di_mapper_spec_declare_each(d9di_mapper_spec_context *x)
{
    const bool own = x->s->to.n == 0; /* names are unchanged, or without their parent */
    d9di_mapper_spec_names from;
    d9di_glob *p = NULL, *to = NULL;
    d9d_status st;

    D9D_TRY(full_names(x, &from));
    D9D_TRY_OR(st, parse_all(x, &from, "from", true, &p), out);
    D9D_TRY_OR(st, parse_all(x, own ? &x->s->from : &x->s->to, "to", false, &to), out);
    D9D_TRY_OR(st, check_numbering(x, p, from.n, to), out);
    for (size_t i = 0; i < from.n && st == D9D_OK; i++) {
        const d9di_glob *its = own ? &to[i] : to;
        const size_t n = own ? 1 : x->s->to.n;

        st = d9di_mapper_spec_check_templates(x, &p[i], its, n);
        if (st == D9D_OK)
            st = declare_pattern(x, &p[i], its, n);
    }
out:
    release_all(p, from.n);
    return st;
}

/* --- several to one ------------------------------------------------------------------------- */

/* Number of parts: `count`, or up to the last existing one. */
static d9d_status count_parts(const d9di_mapper_spec_context *x,
                              const d9di_mapper_spec_match *first, size_t n, size_t key,
                              const char *out, size_t *total)
{
    const uint64_t there = strtoull(first[n - 1].value[key], NULL, 10) + 1;
    const bool known = x->s->count != D9D_INT_NULL;

    if (known && there > (uint64_t)x->s->count)
        return D9D_FAIL(D9D_ECONFIG, "%s: %s has a part %s, count is %lld", x->where, out,
                        first[n - 1].value[key], (long long)x->s->count);
    *total = known ? (size_t)x->s->count : (size_t)there;
    if (*total > D9DI_SPEC_TENSORS)
        return D9D_FAIL(D9D_ECONFIG, "%s: more than %d tensors", x->where, (int)D9DI_SPEC_TENSORS);
    return D9D_OK;
}

/* Declares one output from n matches, of which `first` is the first.  A missing part is declared
 * too; the plan lists what is missing. */
static d9d_status join_numbered(d9di_mapper_spec_context *x, const d9di_glob *from,
                                const d9di_glob *to, const char *const *order,
                                const d9di_mapper_spec_match *first, size_t n)
{
    const size_t key = from->n - 1;
    d9di_glob_bindings b = d9di_mapper_spec_bind_match(order, first, key);
    const char **in, *out;
    size_t total = 0, k = 0;

    D9D_TRY(d9di_glob_expand(to, &b, &x->b->arena, &out));
    D9D_TRY(count_parts(x, first, n, key, out, &total));
    in = d9d_arena_alloc(&x->b->arena, total * sizeof(*in));
    D9D_TRY(in != NULL ? D9D_OK : d9di_mapper_spec_no_memory(x->where));
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

static d9d_status join_listed(d9di_mapper_spec_context *x, const d9di_glob *from,
                              const d9di_glob *to, const char *const *order,
                              const d9di_mapper_spec_match *first)
{
    const size_t n = x->s->from.n;
    const char **in = d9d_arena_alloc(&x->b->arena, n * sizeof(*in)), *out;
    const d9di_glob_bindings b = d9di_mapper_spec_bind_match(order, first, from->n);

    D9D_TRY(in != NULL ? D9D_OK : d9di_mapper_spec_no_memory(x->where));
    D9D_TRY(d9di_glob_expand(to, &b, &x->b->arena, &out));
    for (size_t i = 0; i < n; i++)
        D9D_TRY(d9di_glob_expand(&from[i], &b, &x->b->arena, &in[i]));
    return add_leaf(x, in, n, &out, 1);
}

static d9d_status check_parts(const d9di_mapper_spec_context *x, d9di_glob *from)
{
    for (size_t i = 1; i < x->s->from.n; i++)
        for (size_t k = 0; k < D9DI_MAX_CAPTURES && (k < from->n || k < from[i].n); k++)
            if (from[i].n != from->n || d9di_glob_find(&from[i], from->tokens[k].capture) < 0)
                return D9D_FAIL(D9D_ECONFIG, "%s: from \"%s\" and \"%s\" have other captures",
                                x->where, from->text, from[i].text);
    if (x->s->over == NULL)
        return D9D_OK;
    for (size_t k = 0; k < from->n; k++)
        if (strcmp(from->tokens[k].capture, x->s->over) == 0) {
            from->tokens[k].capture_class = D9DI_CAPTURE_INT;
            return D9D_OK;
        }
    return D9D_FAIL(D9D_ECONFIG, "%s: over \"%s\" is not a capture of \"%s\"", x->where, x->s->over,
                    from->text);
}

/* Sorts the matches of all patterns by their captures; each run of equal captures is one output. */
static d9d_status join_matches(d9di_mapper_spec_context *x, d9di_glob *from, const d9di_glob *to)
{
    const char *order[D9DI_MAX_CAPTURES];
    size_t keys = d9di_mapper_spec_capture_order(from, x->s->over, order), end;
    d9di_mapper_spec_matches found = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < x->s->from.n; i++) {
        size_t before = found.v.len;

        D9D_TRY_OR(st, d9di_glob_compile(&from[i], x->where, false), out);
        D9D_TRY_OR(
            st, d9di_mapper_spec_find_matches(&x->b->arena, &from[i], x->live, order, &found), out);
        if (found.v.len == before && !x->s->optional)
            D9D_TRY_OR(st, d9di_mapper_spec_fail_no_match(x->where, from[i].text, x->live), out);
    }
    d9di_mapper_spec_sort_matches(&found);
    for (size_t i = 0; i < found.v.len && st == D9D_OK; i = end) {
        const d9di_mapper_spec_match *first = &found.v.data[i];

        for (end = i + 1; end < found.v.len; end++)
            if (!d9di_mapper_spec_same_captures(first, &found.v.data[end], keys))
                break;
        st = x->s->over != NULL ? join_numbered(x, from, to, order, first, end - i)
                                : join_listed(x, from, to, order, first);
    }
out:
    D9D_VEC_RELEASE(&found.v);
    return st;
}

d9d_status d9di_mapper_spec_declare_joined(d9di_mapper_spec_context *x)
{
    d9di_glob *from = NULL, *to = NULL;
    d9d_status st;

    D9D_TRY(parse_all(x, &x->s->from, "from", false, &from));
    D9D_TRY(parse_all(x, &x->s->to, "to", false, &to));
    D9D_TRY(check_parts(x, from));
    D9D_TRY(d9di_mapper_spec_check_templates(x, from, to, 1));
    if (x->s->over != NULL && d9di_glob_find(to, x->s->over) >= 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: to \"%s\": {%s} numbers the parts, not the whole",
                        x->where, to->text, x->s->over);
    st = join_matches(x, from, to);
    release_all(from, x->s->from.n);
    return st;
}
