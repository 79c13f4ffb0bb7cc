/* hf_mapper.c - mappings between a model's parameters and HuggingFace's files.  See
 * d9d/model/tensors/hf_tensors.h.
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

#include "model/tensors/hf_names.h"

typedef enum map_step { NAME, SWAP, GROUP, PART, MERGE, N_STEPS } map_step;

typedef struct map_build {
    const d9d_hf_naming *naming;
    const d9d_hf_mapping *mapping;
    const d9d_hf_params *params;
    d9d_arena arena;
    d9di_hf_index index;
    d9d_mapper *step[N_STEPS];
} map_build;

static d9d_status no_memory(const map_build *b)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: a mapping of %zu tensors", b->naming->name, b->params->n);
}

/* --- shapes in the files --------------------------------------------------------------------- */

/* A dimension of size 1 that only the file's tensor has. */
static void unit_dim_add(const d9di_hf_row *r, d9d_shape *s)
{
    const int at = r->place.row != NULL ? r->place.row->unit_dim : 0;

    if (at == 0)
        return;
    for (int d = s->ndim++; d > at; d--)
        s->dim[d] = s->dim[d - 1];
    s->dim[at] = 1;
}

/* The shape of the file's tensor, or of all experts' together. */
static d9d_shape file_shape(const d9di_hf_row *r)
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
static d9d_status expert_names(map_build *b, const d9di_hf_row *r, const char ***out)
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
static d9d_status name_step(map_build *b, const d9di_hf_row *r)
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
static d9d_status parts_step(map_build *b, const d9di_hf_row *r)
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
static d9d_status own_expect(map_build *b, const d9di_hf_row *r)
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

static d9d_status row_map(map_build *b, const d9di_hf_row *r)
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
    const d9di_hf_view view = d9di_hf_view_of(b->mapping->layout);

    D9D_TRY(d9di_hf_index_init(&b->index, b->naming, b->params, &b->arena));
    for (size_t i = 0; i < b->params->n; i++) {
        d9di_hf_row r;

        D9D_TRY(d9di_hf_row_find(&b->index, &b->params->p[i], view, b->mapping->prefixes, &r));
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
    d9di_hf_index_release(&b.index);
    d9d_arena_release(&b.arena);
    return st;
}
