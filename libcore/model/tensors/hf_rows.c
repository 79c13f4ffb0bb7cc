/* hf_rows.c - the parameters of one tensor in HuggingFace's files.  See hf_names.h. */
#include <string.h>

#include "model/tensors/hf_names.h"

d9d_status d9di_hf_index_init(d9di_hf_index *x, const d9d_hf_naming *n, const d9d_hf_params *params,
                              d9d_arena *a)
{
    *x = (d9di_hf_index){.naming = n, .params = params, .arena = a};
    for (size_t i = 0; i < params->n; i++)
        D9D_TRY(d9d_map_put(&x->by_name, params->p[i].name, strlen(params->p[i].name),
                            (void *)(uintptr_t)(i + 1)));
    return D9D_OK;
}

void d9di_hf_index_release(d9di_hf_index *x)
{
    d9d_map_release(&x->by_name);
}

static d9d_status parameter_find(const d9di_hf_index *x, d9di_hf_row *r, int i)
{
    const char *name =
        d9d_arena_printf(x->arena, "%s%s", r->place.own_prefix, r->place.row->own[i]);
    size_t at;

    if (name == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: a mapping of %zu tensors", x->naming->name, x->params->n);
    at = (size_t)(uintptr_t)d9d_map_get(&x->by_name, name, strlen(name));
    if (at == 0)
        return D9D_FAIL(D9D_EMISMATCH, "%s: %s has %s too, which the model lacks", x->naming->name,
                        r->place.hf, name);
    r->own[i] = x->params->p[at - 1].name;
    r->shape[i] = &x->params->p[at - 1].shape;
    return D9D_OK;
}

/* Number of interleaved groups of a row; 1: not interleaved. */
static int64_t groups_of(const d9d_hf_naming *n, const d9d_hf_tensor *row, const d9d_shape *of_part)
{
    int64_t groups;

    if (row->groups == 0)
        return 1;
    if (row->groups == D9D_HF_EACH)
        return of_part->dim[row->dim];
    memcpy(&groups, (const char *)n->dims + row->groups, sizeof(groups));
    return groups;
}

d9d_status d9di_hf_row_find(const d9di_hf_index *x, const d9d_hf_param *p, d9di_hf_view view,
                            const d9d_hf_prefixes *as, d9di_hf_row *r)
{
    *r = (d9di_hf_row){.n = 1, .groups = 1};
    D9D_TRY(d9di_hf_place_find(x->naming, p->name, view, as, x->arena, &r->place));
    r->own[0] = p->name;
    r->shape[0] = &p->shape;
    if (r->place.row == NULL)
        return D9D_OK;
    r->dim = r->place.row->dim;
    r->transposed = r->place.row->transposed;
    for (r->n = 0; r->n < D9D_HF_PARTS && r->place.row->own[r->n] != NULL; r->n++)
        D9D_TRY(parameter_find(x, r, r->n));
    r->groups = groups_of(x->naming, r->place.row, r->shape[0]);
    for (int i = 0; i < r->n; i++) {
        r->rows[i] = r->shape[i]->dim[r->dim] / r->groups;
        if (r->rows[i] * r->groups != r->shape[i]->dim[r->dim])
            return D9D_FAIL(D9D_ECONFIG, "%s: %s has %lld rows, no multiple of %lld groups",
                            x->naming->name, r->own[i], (long long)r->shape[i]->dim[r->dim],
                            (long long)r->groups);
    }
    return D9D_OK;
}
