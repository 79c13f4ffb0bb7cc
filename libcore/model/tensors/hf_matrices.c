/* hf_matrices.c - matrices that can have LoRA adapters, and their places in HuggingFace's tensors.
 * See d9d/model/tensors/hf_tensors.h.
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

/* Does a row of another layout have it?  Then its own name is none of this layout. */
static bool is_of_other_rows(const d9d_hf_naming *n, const d9di_hf_row *r, const d9d_hf_param *p)
{
    return r->place.row == NULL && d9d_hf_has_row(n, p->name);
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
    out->in_first = r->transposed != stack;
    out->order = r->place.row != NULL ? (size_t)(r->place.row - n->tensors) : 0;
    out->tensor = r->place.hf;
}

/* Find the place in the tensors of a view; none for a matrix that files cannot have. */
static d9d_status place_find(const d9di_hf_index *x, const d9d_hf_param *p, d9di_hf_view view,
                             d9d_model_matrix_place *out)
{
    d9di_hf_row r;
    const d9d_status st = d9di_hf_row_find(x, p, view, NULL, &r);

    if (st == D9D_OK)
        place_fill(x->naming, p, &r, out);
    return st == D9D_ENOTSUP ? D9D_OK : st;
}

/* Sets m->name to NULL for a matrix without a place. */
static d9d_status matrix_find(const d9di_hf_index *x, const d9d_hf_param *p, d9d_model_matrix *m)
{
    const bool stack = p->shape.ndim == 3;

    *m = (d9d_model_matrix){.in = p->shape.dim[stack ? 1 : p->shape.ndim - 1],
                            .out = p->shape.dim[stack ? 2 : 0],
                            .experts = stack ? p->shape.dim[0] : 0};
    D9D_TRY(place_find(x, p, D9DI_HF_SEPARATE, &m->hf));
    D9D_TRY(place_find(x, p, D9DI_HF_FUSED, &m->fused));
    D9D_TRY(place_find(x, p, D9DI_HF_MODEL, &m->module));
    if (m->module.tensor == NULL)
        return D9D_OK;
    m->name = module_name(p->name, x->arena);
    return m->name != NULL ? D9D_OK
                           : D9D_FAIL(D9D_ENOMEM, "%s: the names of its matrices", x->naming->name);
}

d9d_status d9d_hf_matrices(const d9d_hf_naming *n, const d9d_hf_params *params, d9d_arena *a,
                           d9d_model_matrices *out)
{
    d9d_model_matrix *items = d9d_arena_alloc(a, (params->n + 1) * sizeof(*items));
    d9di_hf_index x;
    size_t count = 0;
    d9d_status st = d9di_hf_index_init(&x, n, params, a);

    if (st == D9D_OK && items == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "%s: a list of %zu matrices", n->name, params->n);
    for (size_t i = 0; i < params->n && st == D9D_OK; i++) {
        if (!params->p[i].adaptable)
            continue;
        st = matrix_find(&x, &params->p[i], &items[count]);
        count += st == D9D_OK && items[count].name != NULL;
    }
    d9di_hf_index_release(&x);
    if (st == D9D_OK)
        *out = (d9d_model_matrices){.items = items, .n = count, .parts = n->parts};
    return st;
}
