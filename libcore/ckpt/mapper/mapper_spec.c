/* mapper_spec.c - builds a mapper from a description and the names of a source.  See
 * d9d/ckpt/mapper/mapper_spec.h.
 *
 * Stage by stage, each step's patterns are matched against the current names.  Every match becomes
 * a leaf step of the stage's mapper, which is composed with the stages before it. */
#include "d9d/ckpt/mapper/mapper_spec.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/mapper/spec_step.h"

d9d_status d9di_mapper_spec_no_memory(const char *where)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
}

d9d_status d9di_mapper_spec_locate_failure(const char *where, d9d_status st)
{
    static const char said[] = "mapper: ";
    d9d_err_copy e;

    if (st == D9D_OK || st == D9D_ENOMEM)
        return st;
    d9d_err_save(&e, st);
    return D9D_FAIL(D9D_ECONFIG, "%s: %s", where,
                    e.text + (strncmp(e.text, said, sizeof(said) - 1) == 0 ? sizeof(said) - 1 : 0));
}

/* Names are keys of maps; the value is the source tensor of that name, or NULL. */
static void *tensor_value(const d9d_safetensors_tensor *t)
{
    return (void *)(uintptr_t)t;
}

d9d_status d9di_mapper_spec_check_templates(const d9di_mapper_spec_context *x,
                                            const d9di_glob *from, const d9di_glob *to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < to[i].n; k++) {
            const char *name = to[i].tokens[k].capture;

            if (d9di_glob_find(from, name) < 0 &&
                (x->op->arity != D9DI_SPREAD || x->s->over == NULL ||
                 strcmp(name, x->s->over) != 0))
                return D9D_FAIL(D9D_ECONFIG, "%s: to \"%s\": {%s} is not a capture of \"%s\"",
                                x->where, to[i].text, name, from->text);
        }
    return D9D_OK;
}

/* --- nested stages --------------------------------------------------------------------- */

static d9d_status build_body(d9di_mapper_spec_builder *b, const d9di_mapper_spec_body *body,
                             const char *where, const d9d_map *live, d9d_mapper **out);

/* Strips a prefix from the names that have it, for one match of the prefix pattern. */
static d9d_status scope_prefix(d9di_mapper_spec_context *x, const d9di_mapper_spec_match *first,
                               size_t n, const char *to_prefix)
{
    char *prefix = d9d_arena_strndup(&x->b->arena, first->name, first->length), *where;
    d9d_map names = {0};
    d9d_mapper *part;
    d9d_status st = D9D_OK;

    where = d9d_arena_printf(&x->b->arena, "%s: \"%s\"", x->where, prefix != NULL ? prefix : "");
    if (prefix == NULL || where == NULL)
        return d9di_mapper_spec_no_memory(x->where);
    for (size_t i = 0; i < n && st == D9D_OK; i++) {
        const char *name = first[i].name + first[i].length;

        st = d9d_map_put(&names, name, strlen(name), tensor_value(first[i].tensor));
    }
    if (st == D9D_OK)
        st = build_body(x->b, &x->s->body, where, &names, &part);
    if (st == D9D_OK)
        st =
            d9di_mapper_spec_locate_failure(where, d9d_mapper_union(x->m, part, prefix, to_prefix));
    d9d_map_release(&names);
    return st;
}

static d9d_status scope_matches(d9di_mapper_spec_context *x, const d9di_glob *from,
                                const d9di_glob *to)
{
    const char *order[D9DI_MAX_CAPTURES], *prefix;
    d9di_mapper_spec_matches found = {0};
    d9d_status st;
    size_t end;

    (void)d9di_mapper_spec_capture_order(from, NULL, order);
    D9D_TRY_OR(st, d9di_mapper_spec_find_matches(&x->b->arena, from, x->live, order, &found), out);
    if (found.v.len == 0 && !x->s->optional)
        st = d9di_mapper_spec_fail_no_match(x->where, from->text, x->live);
    d9di_mapper_spec_sort_matches(&found);
    for (size_t i = 0; i < found.v.len && st == D9D_OK; i = end) {
        const d9di_glob_bindings b = d9di_mapper_spec_bind_match(order, &found.v.data[i], from->n);

        for (end = i + 1; end < found.v.len; end++)
            if (!d9di_mapper_spec_same_captures(&found.v.data[i], &found.v.data[end], from->n))
                break;
        st = d9di_glob_expand(to, &b, &x->b->arena, &prefix);
        if (st == D9D_OK)
            st = scope_prefix(x, &found.v.data[i], end - i, prefix);
    }
out:
    D9D_VEC_RELEASE(&found.v);
    return st;
}

static d9d_status declare_scope(d9di_mapper_spec_context *x)
{
    d9di_glob from, to;
    d9d_status st;

    D9D_TRY(d9di_glob_parse(x->s->from_prefix, x->where, &x->b->arena, &from));
    D9D_TRY(d9di_glob_parse(x->s->to_prefix, x->where, &x->b->arena, &to));
    D9D_TRY(d9di_mapper_spec_check_templates(x, &from, &to, 1));
    D9D_TRY(d9di_glob_compile(&from, x->where, true));
    st = scope_matches(x, &from, &to);
    d9di_glob_release(&from);
    return st;
}

/* Drops what other workers take, so that it counts as used. */
static d9d_status select_share(d9di_mapper_spec_context *x, d9d_mapper *part)
{
    const size_t n = part->inputs.len;
    const char **names = d9d_arena_alloc(&x->b->arena, (n + 1) * sizeof(*names));

    D9D_TRY(names != NULL ? D9D_OK : d9di_mapper_spec_no_memory(x->where));
    for (size_t i = 0; i < n; i++) {
        names[i] = d9d_arena_strdup(&x->b->arena, part->inputs.entries[i].key);
        D9D_TRY(names[i] != NULL ? D9D_OK : d9di_mapper_spec_no_memory(x->where));
    }
    D9D_TRY(d9d_mapper_shard(part, (uint64_t)x->s->total, (uint64_t)x->s->current));
    for (size_t i = 0; i < n; i++)
        if (!d9d_map_has(&part->inputs, names[i], strlen(names[i])))
            D9D_TRY(d9d_mapper_drop(x->m, names[i]));
    return D9D_OK;
}

static d9d_status declare_share(d9di_mapper_spec_context *x)
{
    d9d_mapper *part;
    d9d_status st;

    D9D_TRY(build_body(x->b, &x->s->body, x->where, x->live, &part));
    st = select_share(x, part);
    if (st == D9D_OK)
        return d9di_mapper_spec_locate_failure(x->where, d9d_mapper_union(x->m, part, "", ""));
    d9d_mapper_free(part);
    return d9di_mapper_spec_locate_failure(x->where, st);
}

/* --- steps, stages ---------------------------------------------------------------------------- */

static int to_dim(int64_t dim)
{
    return dim == D9D_INT_NULL ? D9D_SQUEEZE_ALL : (int)dim;
}

/* Computes the args of a leaf; `list` must hold a mesh. */
static d9di_mapper_args leaf_args(const d9di_mapper_spec_step *s, d9di_mapper_op_kind kind,
                                  int64_t *list)
{
    const d9d_mapper_placement *placed = s->placements.items;
    const int64_t *dims = s->dims.items, *parts = s->mesh.items;
    d9d_mapper_placement mesh[D9D_MAX_MESH];

    for (size_t k = 0; k < s->mesh.n; k++)
        mesh[k] = (d9d_mapper_placement){parts[k], placed[k].shard, placed[k].dim};
    switch (kind) {
    case D9DI_TRANSPOSE: return (d9di_mapper_args){.a = (int)dims[0], .b = (int)dims[1]};
    case D9DI_CAST: return (d9di_mapper_args){.a = s->dtype};
    case D9DI_FLATTEN: return (d9di_mapper_args){.a = (int)s->start_dim, .b = (int)s->end_dim};
    case D9DI_UNFLATTEN:
    case D9DI_SPLIT: return (d9di_mapper_args){(int)s->dim, 0, s->sizes.items, s->sizes.n};
    case D9DI_DISTRIBUTE:
    case D9DI_GATHER: return d9di_mapper_mesh_args(mesh, s->coordinate.items, (int)s->mesh.n, list);
    default: return (d9di_mapper_args){.a = to_dim(s->dim)};
    }
}

static d9d_status (*const declare[])(d9di_mapper_spec_context *x) = {
    [D9DI_EACH] = d9di_mapper_spec_declare_each,
    [D9DI_SPREAD] = d9di_mapper_spec_declare_each,
    [D9DI_JOIN] = d9di_mapper_spec_declare_joined,
    [D9DI_SCOPE] = declare_scope,
    [D9DI_SHARE] = declare_share,
};

static d9d_status build_stage(d9di_mapper_spec_builder *b, const d9d_list *steps, const char *where,
                              const d9d_map *live, d9d_mapper *m)
{
    for (size_t i = 0; i < steps->n; i++) {
        const d9d_union *u = &((const d9d_union *)steps->items)[i];
        const d9di_mapper_spec_op *op = &d9di_mapper_spec_ops[u->which];
        d9di_mapper_spec_context x = {.b = b, .s = u->value, .op = op, .live = live, .m = m};
        int64_t list[D9D_MAX_MESH * D9DI_AXIS_LEN];

        x.where = d9d_arena_printf(&b->arena, "%s[%zu] (%s)", where, i, op->name);
        if (x.where == NULL)
            return d9di_mapper_spec_no_memory(where);
        x.args = leaf_args(x.s, op->kind, list);
        D9D_TRY(declare[op->arity](&x));
    }
    return D9D_OK;
}

/* Computes the names that exist after a stage. */
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

static d9d_status add_stage(d9di_mapper_spec_builder *b, const d9d_list *steps, const char *where,
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
    st = d9di_mapper_spec_locate_failure(where, d9d_mapper_compose(m, stage));
    stage = NULL;
out:
    d9d_mapper_free(stage);
    return st;
}

static d9d_status build_body(d9di_mapper_spec_builder *b, const d9di_mapper_spec_body *body,
                             const char *where, const d9d_map *names, d9d_mapper **out)
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

        D9D_TRY_OR(st, at != NULL ? D9D_OK : d9di_mapper_spec_no_memory(where), out);
        D9D_TRY_OR(st, add_stage(b, &stages[i], at, &live, m), out);
    }
    D9D_TRY_OR(st, d9di_mapper_spec_locate_failure(where, add_rest(m, body->rest, names)), out);
    *out = m;
    m = NULL;
out:
    d9d_map_release(&live);
    d9d_mapper_free(none);
    d9d_mapper_free(m);
    return st;
}

/* Checks that a checkpoint can hold the output names. */
static d9d_status check_names(const d9d_mapper *m, const char *where)
{
    for (size_t i = 0; i < m->outputs.len; i++) {
        const char *name = m->outputs.entries[i].key;

        if (*name == '\0' || strcmp(name, "__metadata__") == 0)
            return D9D_FAIL(D9D_ECONFIG, "%s: gives a tensor the name \"%s\"", where, name);
    }
    return D9D_OK;
}

d9d_status d9d_mapper_spec_build(const d9d_mapper_spec *s, const d9d_tensor_source *src,
                                 d9d_mapper **out)
{
    d9di_mapper_spec_builder b = {.n_tensors = src->n};
    d9d_mapper *m = NULL;
    d9d_map names = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < src->n && st == D9D_OK; i++) {
        const d9d_safetensors_tensor *t = src->at(src->self, i);

        st = d9d_map_put(&names, t->name, strlen(t->name), tensor_value(t));
    }
    if (st == D9D_OK)
        st = d9di_mapper_spec_check_shapes(s, src, &names);
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
