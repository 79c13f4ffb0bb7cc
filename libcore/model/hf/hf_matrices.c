/* hf_matrices.c - matrices that can have LoRA adapters, and their places in HuggingFace's files.
 * See d9d/model/hf/hf_tensors.h.
 */
#include <string.h>

#include "model/hf/hf_names.h"

static const char weight[] = ".weight";

/* The name of the module that has a parameter "weight". */
static const char *module_name(const char *name, d9d_arena *a)
{
    const size_t n = strlen(name), k = strlen(weight);

    return d9d_arena_strndup(a, name, n > k && strcmp(name + n - k, weight) == 0 ? n - k : n);
}

/* "{expert}" as d9d_model_matrix writes it. */
static const char *short_pattern(const char *name, d9d_arena *a)
{
    static const char expert[] = "{expert}";
    const char *at = strstr(name, expert);

    return at == NULL
               ? name
               : d9d_arena_printf(a, "%.*s{e}%s", (int)(at - name), name, at + strlen(expert));
}

/* Fill in the fused tensor of a stack of experts, if files have such a layout. */
static d9d_status fused_find(const d9d_hf_naming *n, const d9d_hf_param *p, d9d_arena *a,
                             d9d_model_matrix *m)
{
    d9di_hf_place fused;

    D9D_TRY(d9di_hf_place_find(n, p->name, D9D_LAYOUT_HF_FUSED, NULL, a, &fused));
    if (fused.row == NULL || fused.has_experts || fused.row->groups != 0)
        return D9D_OK;
    m->fused = fused.hf;
    m->fused_row = fused.part * m->out;
    m->fused_rows = d9di_hf_row_parts(fused.row) * m->out;
    return D9D_OK;
}

/* A tensor of its own in the files, [out, in] or, of experts, one for each? */
static bool has_own_tensor(const d9di_hf_place *place, bool stack)
{
    return stack == place->has_experts &&
           (place->row == NULL ||
            (d9di_hf_row_parts(place->row) == 1 && (stack || !place->row->transposed)));
}

/* Sets m->name to NULL for a matrix that is a part of another tensor in the files, or transposed
 * there. */
static d9d_status matrix_find(const d9d_hf_naming *n, const d9d_hf_param *p, d9d_arena *a,
                              d9d_model_matrix *m)
{
    const bool stack = p->shape.ndim == 3;
    d9di_hf_place place;
    d9d_status st;

    *m = (d9d_model_matrix){.in = p->shape.dim[stack ? 1 : p->shape.ndim - 1],
                            .out = p->shape.dim[stack ? 2 : 0],
                            .experts = stack ? p->shape.dim[0] : 0};
    st = d9di_hf_place_find(n, p->name, D9D_LAYOUT_HF, NULL, a, &place);
    if (st == D9D_ENOTSUP) /* its adapter is kept in the suite's own layout */
        return D9D_OK;
    D9D_TRY(st);
    if (!has_own_tensor(&place, stack))
        return D9D_OK;
    m->name = module_name(p->name, a);
    m->hf = short_pattern(place.hf, a);
    if (m->hf != NULL)
        m->hf = module_name(m->hf, a);
    if (m->name == NULL || m->hf == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: the names of its matrices", n->name);
    return stack ? fused_find(n, p, a, m) : D9D_OK;
}

d9d_status d9d_hf_matrices(const d9d_hf_naming *n, const d9d_hf_params *params, d9d_arena *a,
                           d9d_model_matrices *out)
{
    d9d_model_matrix *items = d9d_arena_alloc(a, (params->n + 1) * sizeof(*items));
    size_t count = 0;

    if (items == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: a list of %zu matrices", n->name, params->n);
    for (size_t i = 0; i < params->n; i++) {
        if (!params->p[i].adaptable)
            continue;
        D9D_TRY(matrix_find(n, &params->p[i], a, &items[count]));
        count += items[count].name != NULL;
    }
    *out = (d9d_model_matrices){items, count};
    return D9D_OK;
}
