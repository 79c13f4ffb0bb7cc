/* hf_mapper.c - mappings between a model's parameters and HuggingFace's files.  See
 * d9d/model/hf/hf_tensors.h.
 *
 * From the files to parameters a tensor goes through up to five steps, each a mapper of all
 * tensors; the mappers are composed.  To the files they are undone in reverse:
 *
 *     NAME     rename, or stack the experts' tensors
 *     SWAP     transpose the last two dimensions, or remove one of size 1
 *     GROUP    unflatten: groups become a dimension
 *     PART     split into the parameters
 *     MERGE    flatten: groups become rows again
 */
#include <stdlib.h>
#include <string.h>

#include "model/hf/hf_names.h"

typedef enum map_step { NAME, SWAP, GROUP, PART, MERGE, N_STEPS } map_step;

typedef struct map_build {
    const d9d_hf_naming *naming;
    const d9d_hf_mapping *mapping;
    const d9d_hf_params *params;
    d9d_arena arena;
    d9d_map by_name; /* of the parameters: index + 1 */
    d9d_mapper *step[N_STEPS];
} map_build;

static d9d_status no_memory(const map_build *b)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: a mapping of %zu tensors", b->naming->name, b->params->n);
}

/* --- a row and its parameters ---------------------------------------------------------------- */

/* A tensor of the files, or one for each expert, and the parameters that it has. */
typedef struct map_row {
    d9di_hf_place place;
    int n;
    const char *own[D9D_HF_PARTS];
    const d9d_shape *shape[D9D_HF_PARTS];
    int64_t
        rows[D9D_HF_PARTS]; /* of each parameter along dim; of a group, where there are several */
    int64_t groups;
    int dim;
    bool transposed;
} map_row;

static d9d_status row_parameter(map_build *b, map_row *r, int i)
{
    const char *name =
        d9d_arena_printf(&b->arena, "%s%s", r->place.own_prefix, r->place.row->own[i]);
    size_t at;

    if (name == NULL)
        return no_memory(b);
    at = (size_t)(uintptr_t)d9d_map_get(&b->by_name, name, strlen(name));
    if (at == 0)
        return D9D_FAIL(D9D_EMISMATCH, "%s: %s has %s too, which the model lacks", b->naming->name,
                        r->place.hf, name);
    r->own[i] = b->params->p[at - 1].name;
    r->shape[i] = &b->params->p[at - 1].shape;
    return D9D_OK;
}

static d9d_status row_find(map_build *b, const d9d_hf_param *p, map_row *r)
{
    *r = (map_row){.n = 1, .groups = 1};
    D9D_TRY(d9di_hf_place_find(b->naming, p->name, b->mapping->layout, b->mapping->prefixes,
                               &b->arena, &r->place));
    r->own[0] = p->name;
    r->shape[0] = &p->shape;
    if (r->place.row == NULL)
        return D9D_OK;
    r->n = d9di_hf_row_parts(r->place.row);
    r->dim = r->place.row->dim;
    r->transposed = r->place.row->transposed;
    for (int i = 0; i < r->n; i++)
        D9D_TRY(row_parameter(b, r, i));
    r->groups = d9di_hf_row_groups(b->naming, r->place.row, r->shape[0]);
    for (int i = 0; i < r->n; i++) {
        r->rows[i] = r->shape[i]->dim[r->dim] / r->groups;
        if (r->rows[i] * r->groups != r->shape[i]->dim[r->dim])
            return D9D_FAIL(D9D_ECONFIG, "%s: %s has %lld rows, no multiple of %lld groups",
                            b->naming->name, r->own[i], (long long)r->shape[i]->dim[r->dim],
                            (long long)r->groups);
    }
    return D9D_OK;
}

/* A dimension of size 1 that only the file's tensor has. */
static void unit_dim_add(const map_row *r, d9d_shape *s)
{
    const int at = r->place.row != NULL ? r->place.row->unit_dim : 0;

    if (at == 0)
        return;
    for (int d = s->ndim++; d > at; d--)
        s->dim[d] = s->dim[d - 1];
    s->dim[at] = 1;
}

/* The shape of the file's tensor, or of all experts' together. */
static d9d_shape file_shape(const map_row *r)
{
    d9d_shape s = *r->shape[0];

    for (int i = 1; i < r->n; i++)
        s.dim[r->dim] += r->shape[i]->dim[r->dim];
    if (r->transposed) {
        const int64_t last = s.dim[s.ndim - 1];

        s.dim[s.ndim - 1] = s.dim[s.ndim - 2];
        s.dim[s.ndim - 2] = last;
    }
    unit_dim_add(r, &s);
    return s;
}

/* --- steps in either direction -------------------------------------------------------------- */

/* Names of the experts' tensors. */
static d9d_status expert_names(map_build *b, const map_row *r, const char ***out)
{
    const int64_t n = r->shape[0]->dim[0];
    const char **names = d9d_arena_alloc(&b->arena, (size_t)n * sizeof(*names));

    for (int64_t e = 0; names != NULL && e < n; e++) {
        names[e] = d9di_hf_expert_name(r->place.hf, e, &b->arena);
        if (names[e] == NULL)
            return no_memory(b);
    }
    *out = names;
    return names != NULL ? D9D_OK : no_memory(b);
}

/* The file's names; the tensor is called as its first parameter from here on. */
static d9d_status name_step(map_build *b, const map_row *r)
{
    const size_t n = (size_t)r->shape[0]->dim[0];
    const d9d_shape s = file_shape(r);
    d9d_mapper *m = b->step[NAME];
    const char **names;

    if (!r->place.has_experts && !b->mapping->to_own)
        return d9d_mapper_rename(m, r->own[0], r->place.hf);
    if (!r->place.has_experts) {
        D9D_TRY(d9d_mapper_rename(m, r->place.hf, r->own[0]));
        return d9d_mapper_expect(m, r->place.hf, s.ndim, s.dim);
    }
    D9D_TRY(expert_names(b, r, &names));
    if (!b->mapping->to_own)
        return d9d_mapper_unstack(m, r->own[0], names, n, 0);
    D9D_TRY(d9d_mapper_stack(m, names, n, r->own[0], 0));
    for (size_t e = 0; e < n; e++)
        D9D_TRY(d9d_mapper_expect(m, names[e], s.ndim - 1, s.dim + 1));
    return D9D_OK;
}

/* Several parameters are one tensor in the files. */
static d9d_status parts_step(map_build *b, const map_row *r)
{
    const bool grouped = r->groups > 1;
    const int64_t sizes[] = {r->groups, -1};
    const int dim = r->dim + grouped;

    if (b->mapping->to_own && grouped)
        D9D_TRY(d9d_mapper_unflatten(b->step[GROUP], r->own[0], r->dim, sizes, 2));
    for (int i = 0; i < r->n && grouped; i++)
        D9D_TRY(b->mapping->to_own
                    ? d9d_mapper_flatten(b->step[MERGE], r->own[i], r->dim, r->dim + 1)
                    : d9d_mapper_unflatten(b->step[MERGE], r->own[i], r->dim, sizes, 2));
    if (!b->mapping->to_own && grouped)
        D9D_TRY(d9d_mapper_flatten(b->step[GROUP], r->own[0], r->dim, r->dim + 1));
    return b->mapping->to_own
               ? d9d_mapper_split(b->step[PART], r->own[0], r->own, r->rows, (size_t)r->n, dim)
               : d9d_mapper_concat(b->step[PART], r->own, (size_t)r->n, r->own[0], dim);
}

/* Shapes are checked where parameters are the input. */
static d9d_status own_expect(map_build *b, const map_row *r)
{
    const map_step first = r->n > 1 && r->groups > 1 ? MERGE
                           : r->n > 1                ? PART
                           : r->transposed || (r->place.row != NULL && r->place.row->unit_dim > 0)
                               ? SWAP
                               : NAME;

    for (int i = 0; i < r->n && !b->mapping->to_own; i++)
        D9D_TRY(d9d_mapper_expect(b->step[first], r->own[i], r->shape[i]->ndim, r->shape[i]->dim));
    return D9D_OK;
}

static d9d_status row_map(map_build *b, const map_row *r)
{
    const int unit = r->place.row != NULL ? r->place.row->unit_dim : 0;

    D9D_TRY(name_step(b, r));
    if (r->transposed)
        D9D_TRY(d9d_mapper_transpose(b->step[SWAP], r->own[0], -2, -1));
    if (unit > 0)
        D9D_TRY(b->mapping->to_own ? d9d_mapper_squeeze(b->step[SWAP], r->own[0], unit)
                                   : d9d_mapper_unsqueeze(b->step[SWAP], r->own[0], unit));
    if (r->n > 1)
        D9D_TRY(parts_step(b, r));
    return own_expect(b, r);
}

/* --- the whole ------------------------------------------------------------------------------ */

static d9d_status params_map(map_build *b)
{
    for (size_t i = 0; i < b->params->n; i++)
        D9D_TRY(d9d_map_put(&b->by_name, b->params->p[i].name, strlen(b->params->p[i].name),
                            (void *)(uintptr_t)(i + 1)));
    for (size_t i = 0; i < b->params->n; i++) {
        map_row r;

        D9D_TRY(row_find(b, &b->params->p[i], &r));
        if (r.place.part == 0) /* the first parameter of a row stands for all of them */
            D9D_TRY(row_map(b, &r));
    }
    return D9D_OK;
}

/* Compose the steps into one mapper. */
static d9d_status steps_compose(map_build *b, d9d_mapper **out)
{
    d9d_mapper *m = NULL;

    for (int i = 0; i < N_STEPS; i++) {
        const int k = b->mapping->to_own ? i : N_STEPS - 1 - i;
        d9d_mapper *next = b->step[k];
        d9d_status st;

        b->step[k] = NULL;
        if (m == NULL) {
            m = next;
            continue;
        }
        st = d9d_mapper_compose(m, next);
        if (st != D9D_OK) {
            d9d_mapper_free(m);
            return st;
        }
    }
    *out = m;
    return D9D_OK;
}

d9d_status d9d_hf_mapper(const d9d_hf_naming *n, const d9d_hf_params *params,
                         const d9d_hf_mapping *mapping, d9d_mapper **out)
{
    map_build b = {.naming = n, .mapping = mapping, .params = params};
    d9d_status st = D9D_OK;

    for (int i = 0; i < N_STEPS && st == D9D_OK; i++)
        st = d9d_mapper_create(&b.step[i]);
    if (st == D9D_OK)
        st = params_map(&b);
    if (st == D9D_OK)
        st = steps_compose(&b, out);
    for (int i = 0; i < N_STEPS; i++)
        d9d_mapper_free(b.step[i]);
    d9d_map_release(&b.by_name);
    d9d_arena_release(&b.arena);
    return st;
}
