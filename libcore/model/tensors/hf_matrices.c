/* hf_matrices.c - matrices that can have adapters, and all parameters, and their places in
 * HuggingFace's tensors.  See d9d/model/tensors/hf_tensors.h.
 */
#include <string.h>

#include "model/tensors/hf_names.h"

/* The name of the module that has a parameter "weight". */
static const char *module_name(const char *name, d9d_arena *a)
{
    static const char weight[] = ".weight";
    const size_t n = strlen(name), k = strlen(weight);

    return d9d_arena_strndup(a, name, n > k && strcmp(name + n - k, weight) == 0 ? n - k : n);
}

/* Does a row of another layout have this parameter of a layer?  Then its own name is none of this
 * layout. */
static bool is_of_other_rows(const d9d_hf_naming *n, const d9di_hf_row *r, const d9d_hf_param *p)
{
    return r->place.row == NULL && r->place.own_prefix[0] != '\0' && d9d_hf_has_row(n, p->name);
}

/* Fill in a place; none in a tensor that has input features of several parameters. */
static void place_fill(const d9d_hf_naming *n, const d9d_hf_param *p, const d9di_hf_row *r,
                       d9d_model_matrix_place *out)
{
    const bool stack = p->shape.ndim == 3;
    const int out_dim = stack ? 2 : 0, part = r->place.part;

    if (is_of_other_rows(n, r, p) || (r->n > 1 && r->dim != out_dim))
        return;
    out->group = out->stride = p->shape.dim[out_dim];
    if (r->n > 1) {
        out->group = r->rows[part];
        out->stride = 0;
        for (int i = 0; i < r->n; i++)
            out->stride += r->rows[i];
        for (int i = 0; i < part; i++)
            out->offset += r->rows[i];
    }
    out->features = out->stride * (r->n > 1 ? r->groups : 1);
    out->in_first = p->shape.ndim == 1 || r->transposed != stack;
    out->unit_dim = r->place.row != NULL ? r->place.row->unit_dim : 0;
    out->order = r->place.row != NULL ? (size_t)(r->place.row - n->tensors) : 0;
    out->tensor = r->place.hf;
}

/* Find the place in the tensors of a view; none for a matrix that files cannot have. */
static d9d_status place_find(const d9di_hf_index *x, const d9d_hf_param *p, d9di_hf_view view,
                             d9d_model_matrix_place *out)
{
    d9di_hf_row r;
    const d9d_status st = d9di_hf_row_find(x, p, view, NULL, &r);

    if (st == D9D_OK && (!r.place.has_experts || p->shape.ndim == 3))
        place_fill(x->naming, p, &r, out);
    return st == D9D_ENOTSUP ? D9D_OK : st;
}

/* Find the places of a parameter of up to three dimensions; module.tensor is NULL for one that
 * transformers' model does not have. */
static d9d_status places_find(const d9di_hf_index *x, const d9d_hf_param *p, d9d_model_matrix *m)
{
    const int64_t *d = p->shape.dim;
    const int n = p->shape.ndim;

    *m = (d9d_model_matrix){.name = p->name,
                            .in = n == 1 ? 1 : d[1],
                            .out = d[n == 3 ? 2 : 0],
                            .experts = n == 3 ? d[0] : 0,
                            .vector = n == 1};
    if (n < 1 || n > 3)
        return D9D_OK;
    D9D_TRY(place_find(x, p, D9DI_HF_SEPARATE, &m->hf));
    D9D_TRY(place_find(x, p, D9DI_HF_FUSED, &m->fused));
    return place_find(x, p, D9DI_HF_MODEL, &m->module);
}

static d9d_status no_memory(const d9di_hf_index *x)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: a list of %zu parameters", x->naming->name, x->params->n);
}

/* Have two parameters one place, as two tables of a vocabulary? */
static bool is_same_place(const d9d_model_matrix *m, const d9d_model_matrix *o)
{
    return m->module.tensor != NULL && o->module.tensor != NULL &&
           m->module.offset == o->module.offset && strcmp(m->module.tensor, o->module.tensor) == 0;
}

static bool has_own_place(const d9d_model_matrix *all, size_t n, size_t at)
{
    for (size_t i = 0; i < n; i++)
        if (i != at && is_same_place(&all[i], &all[at]))
            return false;
    return all[at].module.tensor != NULL;
}

/* List what has a place of its own; `all` has the places of all parameters. */
static d9d_status params_list(const d9di_hf_index *x, const d9d_model_matrix *all,
                              d9d_model_matrices *out)
{
    for (size_t i = 0; i < x->params->n; i++) {
        d9d_model_matrix *whole = &out->params[out->n_params], *matrix = &out->items[out->n];

        if (!has_own_place(all, x->params->n, i))
            continue;
        *whole = *matrix = all[i];
        whole->name = d9d_arena_strdup(x->arena, all[i].name);
        matrix->name = module_name(all[i].name, x->arena);
        if (whole->name == NULL || matrix->name == NULL)
            return no_memory(x);
        out->n_params++;
        out->n += x->params->p[i].adaptable;
    }
    return D9D_OK;
}

static d9d_status all_places_find(const d9di_hf_index *x, d9d_model_matrix *all)
{
    for (size_t i = 0; i < x->params->n; i++)
        D9D_TRY(places_find(x, &x->params->p[i], &all[i]));
    return D9D_OK;
}

d9d_status d9d_hf_matrices(const d9d_hf_naming *n, const d9d_hf_params *params, d9d_arena *a,
                           d9d_model_matrices *out)
{
    const size_t bytes = (params->n + 1) * sizeof(d9d_model_matrix);
    d9d_model_matrix *all = d9d_arena_alloc(a, bytes);
    d9d_model_matrices of = {
        .items = d9d_arena_alloc(a, bytes), .params = d9d_arena_alloc(a, bytes), .parts = n->parts};
    d9di_hf_index x;
    d9d_status st = d9di_hf_index_init(&x, n, params, a);

    if (st == D9D_OK && (all == NULL || of.items == NULL || of.params == NULL))
        st = no_memory(&x);
    if (st == D9D_OK)
        st = all_places_find(&x, all);
    if (st == D9D_OK)
        st = params_list(&x, all, &of);
    d9di_hf_index_release(&x);
    if (st == D9D_OK)
        *out = of;
    return st;
}
