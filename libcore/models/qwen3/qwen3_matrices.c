/* qwen3_matrices.c - Qwen3's matrices that can have LoRA adapters.  See
 * d9d/models/qwen3/qwen3_map.h.
 */
#include <stdlib.h>
#include <string.h>

#include "d9d/models/qwen3/qwen3_map.h"
#include "models/qwen3/qwen3_names.h"

typedef struct matrix_list {
    const d9d_qwen3_config *c;
    d9d_arena *arena;
    D9D_VEC(d9d_model_matrix) list;
} matrix_list;

static const char weight[] = ".weight";

/* Expand the layer in a pattern; "{e}" stays, and a suffix ".weight" is removed. */
static const char *pattern_expand(const matrix_list *l, const d9di_qwen3_tensor *t,
                                  const char *pattern)
{
    const char *e = strstr(pattern, "{e}");
    char head[D9DI_QWEN3_NAME_MAX], name[D9DI_QWEN3_NAME_MAX];
    size_t n;

    if (pattern == NULL)
        return NULL;
    (void)snprintf(head, sizeof(head), "%.*s",
                   e != NULL ? (int)(e - pattern) : (int)strlen(pattern), pattern);
    d9di_qwen3_name(t, head, 0, name);
    n = strlen(name);
    if (e != NULL)
        return d9d_arena_printf(l->arena, "%s%.*s", name, (int)(strlen(e) - strlen(weight)), e);
    return d9d_arena_strndup(
        l->arena, name, strcmp(name + n - strlen(weight), weight) == 0 ? n - strlen(weight) : n);
}

static d9d_status matrix_add(void *arg, const d9di_qwen3_tensor *t)
{
    matrix_list *l = arg;
    const d9di_qwen3_row *r = t->row;
    const bool stack = r->fused != NULL;
    int64_t shape[D9D_MAX_DIMS];
    d9d_model_matrix m;
    bool up, pair;

    if (r->hf == NULL || strlen(r->hf_shape) != 2 || t->split != NULL)
        return D9D_OK;
    (void)d9di_qwen3_shape(l->c, t, r->hf_shape, shape);
    up = stack && strstr(r->d9d, ".up_proj.") != NULL;
    pair = up || (stack && strstr(r->d9d, ".gate_proj.") != NULL);
    m = (d9d_model_matrix){
        .name = pattern_expand(l, t, r->d9d),
        .in = shape[1],
        .out = shape[0],
        .experts = stack ? l->c->experts : 0,
        .hf = pattern_expand(l, t, r->hf),
        .fused = stack ? pattern_expand(l, t, r->fused) : NULL,
        .fused_row = up ? shape[0] : 0,
        .fused_rows = pair ? 2 * shape[0] : shape[0],
    };
    if (m.name == NULL || m.hf == NULL || (stack && m.fused == NULL))
        return D9D_FAIL(D9D_ENOMEM, "qwen3: the names of its matrices");
    return D9D_VEC_PUSH(&l->list, m);
}

d9d_status d9d_qwen3_matrices(const d9d_qwen3_config *c, d9d_arena *a, d9d_model_matrices *out)
{
    matrix_list l = {.c = c, .arena = a};
    d9d_status st = d9di_qwen3_each(c, D9D_WHOLE_MODEL, matrix_add, &l);
    d9d_model_matrix *items = d9d_arena_alloc(a, (l.list.len + 1) * sizeof(*items));

    if (st == D9D_OK && items == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "qwen3: a list of %zu matrices", l.list.len);
    if (st == D9D_OK && l.list.len > 0)
        memcpy(items, l.list.data, l.list.len * sizeof(*items));
    if (st == D9D_OK)
        *out = (d9d_model_matrices){items, l.list.len};
    D9D_VEC_RELEASE(&l.list);
    return st;
}
