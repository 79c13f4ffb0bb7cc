/* adapters_merge.c - a tensor source with adapters merged.  See d9d/model/lora/adapters.h.
 *
 * In any layout, a tensor is changed in one or several parts: a linear layer in one, a stack of
 * experts in one for each expert, fused gate and up in two for each expert.  A part is some of the
 * tensor's rows and columns, to which left [rows, r] times right [r, columns] is added and whose
 * rows and columns are then multiplied by factors, so that any span of any tensor can be computed
 * by itself.  A magnitude and kinds of their own make a row of all of it, which is then read.  What
 * was trained whole replaces its part of the tensor.  Numbers are float32 until the one that is
 * stored.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/base/plugin_call.h"
#include "model/lora/adapter_private.h"

enum {
    MAX_COLUMNS = 1024, /* columns computed at a time */
    BLOCK = 1 << 20     /* elements of a tensor read at a time */
};

/* Where rows or columns of a part are in a tensor: as the features of d9d_model_matrix_place. */
typedef struct place_map {
    int64_t group, stride, offset;
} place_map;

/* In rows [first, first + rows) of a tensor. */
typedef struct change {
    int64_t first, rows;
    place_map row, column;
    const float *left; /* element (i, k) at i * left_row + k * left_k */
    int64_t left_row, left_k;
    const float *right; /* [r, columns] */
    int64_t r, columns; /* r 0: nothing is added */
    float scale;
    const float *row_factor, *column_factor; /* of the part's; NULL: 1 */
    /* What makes a row of the part, whose columns are all of the tensor's; NULL: the above */
    d9d_status (*make)(const d9d_adapter_arrays *a, int64_t row, float *w);
    d9d_adapter_arrays arrays;
    const char *who;    /* in messages */
    const float *whole; /* what the part becomes, element (i, j) at i * whole_row + j *
                           whole_column; NULL: what it is changes */
    int64_t whole_row, whole_column;
} change;

typedef struct merged_tensor {
    size_t index; /* index in the source */
    int64_t rows, columns;
    change *changes; /* NULL: unchanged */
    size_t n;
    bool optional;             /* the source may lack it: a bias, a task's head */
    d9d_safetensors_tensor as; /* what it becomes, if it is changed and its header was read */
} merged_tensor;

struct d9d_adapters_merge {
    const d9d_adapters *ad;
    const d9d_model_matrices *of; /* until it is made */
    const d9d_hf_prefixes *as;    /* how the source begins its names */
    d9d_tensor_source src;
    d9d_map by_name; /* tensors with changes: merged_tensor */
    merged_tensor *tensors;
    size_t n;
    bool as_float32;
    d9d_arena arena;
};

/* --- which changes --------------------------------------------------------------------------- */

static d9d_status no_memory(const char *name)
{
    return D9D_FAIL(D9D_ENOMEM, "adapter of %s: no memory to merge it", name);
}

/* Reserve n more products for the tensor `name`, which is added if new. */
static d9d_status changes_reserve(d9d_adapters_merge *m, const char *of, const char *name, size_t n,
                                  merged_tensor **out)
{
    merged_tensor *t = d9d_map_get(&m->by_name, name, strlen(name));
    change *more;

    if (t == NULL) {
        t = d9d_arena_alloc(&m->arena, sizeof(*t));
        if (t == NULL)
            return no_memory(of);
        D9D_TRY(d9d_map_put(&m->by_name, name, strlen(name), t));
    }
    more = d9d_arena_alloc(&m->arena, (t->n + n) * sizeof(*more));
    if (more == NULL)
        return no_memory(of);
    if (t->n > 0)
        memcpy(more, t->changes, t->n * sizeof(*more));
    t->changes = more;
    *out = t;
    return D9D_OK;
}

static place_map map_whole(int64_t n)
{
    return (place_map){n, n, 0};
}

static place_map map_features(const d9d_model_matrix_place *p)
{
    return (place_map){p->group, p->stride, p->offset};
}

static const float *numbers_of(const d9di_adapters_factors *f, d9d_param_adapter_role role,
                               int64_t e)
{
    return f->v[role] == NULL ? NULL : f->v[role] + e * d9di_adapters_numel(f, role);
}

static float scale_of(const d9di_adapters_factors *f)
{
    return d9di_adapters_has(f, D9D_ADAPTER_A) ? (float)(f->alpha / (double)f->r) : 0;
}

/* Of an adapter that makes whole rows; `make` is NULL of another. */
static change change_of_rows(const d9di_adapters_factors *f, const d9d_model_matrix_place *p)
{
    const bool magnitude = d9di_adapters_has(f, D9D_ADAPTER_MAGNITUDE);
    change x = {.rows = p->features,
                .row = map_features(p),
                .column = map_whole(f->in),
                .columns = f->in,
                .make = f->own != NULL ? f->own->merge
                        : magnitude    ? d9d_adapter_merge_magnitude
                                       : NULL,
                .arrays = {.in = f->in,
                           .out = f->out,
                           .r = f->r,
                           .scale = f->r > 0 ? (float)(f->alpha / (double)f->r) : 0},
                .who = f->own != NULL ? f->own->name : "dora"};

    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++)
        x.arrays.v[i] = f->v[i];
    return x;
}

/* Of expert e, in a tensor [features, in]. */
static change change_of(const d9di_adapters_factors *f, int64_t e, const d9d_model_matrix_place *p)
{
    const change rows = change_of_rows(f, p);

    if (rows.make != NULL)
        return rows;
    return (change){.rows = p->features,
                    .row = map_features(p),
                    .column = map_whole(f->in),
                    .left = numbers_of(f, D9D_ADAPTER_B, e),
                    .left_row = f->r,
                    .left_k = 1,
                    .right = numbers_of(f, D9D_ADAPTER_A, e),
                    .r = d9di_adapters_has(f, D9D_ADAPTER_A) ? f->r : 0,
                    .columns = f->in,
                    .scale = scale_of(f),
                    .row_factor = f->v[D9D_ADAPTER_OUTPUT],
                    .column_factor = f->v[D9D_ADAPTER_INPUT]};
}

/* The same in a tensor [in, features]; needs B transposed. */
static d9d_status change_transposed(d9d_adapters_merge *m, const d9di_adapters_factors *f,
                                    int64_t e, const d9d_model_matrix_place *p, change *out)
{
    const bool adds = d9di_adapters_has(f, D9D_ADAPTER_A);
    const float *b = numbers_of(f, D9D_ADAPTER_B, e);
    const change rows = change_of_rows(f, p);
    float *bt = d9d_arena_alloc(&m->arena, (size_t)(f->r * f->out + 1) * sizeof(*bt));

    if (rows.make != NULL)
        return D9D_FAIL(D9D_ENOTSUP,
                        "adapter of %s: %s is stored [in, out], and the kind %s is merged into "
                        "[out, in]; convert the model with --to d9d before",
                        f->name, p->tensor != NULL ? p->tensor : "its tensor", rows.who);
    if (bt == NULL)
        return no_memory(f->name);
    for (int64_t i = 0; adds && i < f->out; i++)
        for (int64_t k = 0; k < f->r; k++)
            bt[k * f->out + i] = b[i * f->r + k];
    *out = (change){.rows = f->in,
                    .row = map_whole(f->in),
                    .column = map_features(p),
                    .left = numbers_of(f, D9D_ADAPTER_A, e),
                    .left_row = 1,
                    .left_k = f->in,
                    .right = bt,
                    .r = adds ? f->r : 0,
                    .columns = f->out,
                    .scale = scale_of(f),
                    .row_factor = f->v[D9D_ADAPTER_INPUT],
                    .column_factor = f->v[D9D_ADAPTER_OUTPUT]};
    return D9D_OK;
}

/* Add the changes of experts [e, e + n) to a tensor. */
static d9d_status changes_add(d9d_adapters_merge *m, const d9di_adapters_factors *f,
                              const d9d_model_matrix_place *p, const char *name, int64_t e,
                              int64_t n)
{
    merged_tensor *t = NULL;

    if (name == NULL)
        return no_memory(f->name);
    D9D_TRY(changes_reserve(m, f->name, name, (size_t)n, &t));
    t->columns = p->in_first ? p->features : f->in;
    t->rows = n * (p->in_first ? f->in : p->features);
    for (int64_t i = 0; i < n; i++) {
        change x = change_of(f, e + i, p);

        if (p->in_first)
            D9D_TRY(change_transposed(m, f, e + i, p, &x));
        x.first = i * x.rows;
        t->changes[t->n++] = x;
    }
    return D9D_OK;
}

/* Factors of the output are those of a bias too, if there is one. */
static d9d_status bias_add(d9d_adapters_merge *m, const d9di_adapters_factors *f,
                           const d9d_model_matrix_place *p, const char *weights)
{
    static const char end[] = ".weight";
    const size_t n = weights != NULL ? strlen(weights) : 0, k = sizeof(end) - 1;
    merged_tensor *t = NULL;
    const char *name;

    if (!d9di_adapters_has(f, D9D_ADAPTER_OUTPUT) || n <= k || strcmp(weights + n - k, end) != 0)
        return D9D_OK;
    name = d9d_arena_printf(&m->arena, "%.*s.bias", (int)(n - k), weights);
    if (name == NULL)
        return no_memory(f->name);
    D9D_TRY(changes_reserve(m, f->name, name, 1, &t));
    t->columns = p->features;
    t->rows = 1;
    t->optional = true;
    t->changes[t->n++] = (change){.rows = 1,
                                  .row = map_whole(1),
                                  .column = map_features(p),
                                  .columns = f->out,
                                  .column_factor = f->v[D9D_ADAPTER_OUTPUT]};
    return D9D_OK;
}

/* The name that the source has for a tensor. */
static const char *name_in_source(d9d_adapters_merge *m, const d9d_model_matrix_place *p, int64_t e)
{
    const char *name = d9di_peft_place_tensor(p, e, &m->arena);

    return name != NULL && m->of->parts != NULL
               ? d9d_hf_name_as(m->of->parts, m->as, name, &m->arena)
               : name;
}

/* Files of a tied model may have the head too, a copy of the embedding: what it is called.  NULL:
 * this is no such embedding. */
static d9d_status tied_head_name(d9d_adapters_merge *m, const d9d_model_matrix *at,
                                 d9d_weights_layout layout, const char **out)
{
    static const char table[] = ".token_embedding.";
    const char *split = strstr(at->name, table), *head = NULL;
    const size_t n = split != NULL ? strcspn(split + strlen(table), ".") : 0;

    *out = NULL;
    if (!m->of->tied || split == NULL || !d9di_adapters_is_embedding(m->of, at))
        return D9D_OK;
    if (layout != D9D_LAYOUT_D9D && m->of->parts != NULL)
        head = d9d_hf_name_as(m->of->parts, m->as, m->of->parts->hf.head, &m->arena);
    if (layout == D9D_LAYOUT_D9D || head != NULL)
        *out = layout == D9D_LAYOUT_D9D ? d9d_arena_printf(&m->arena, "lm_head.lm_head.%.*s.weight",
                                                           (int)n, split + strlen(table))
                                        : d9d_arena_printf(&m->arena, "%s.weight", head);
    return *out != NULL ? D9D_OK : no_memory(at->name);
}

/* Add the changes of a tied embedding to a copy of it, if the source has one. */
static d9d_status tied_head_add(d9d_adapters_merge *m, const d9di_adapters_factors *f,
                                const d9d_model_matrix *at, const d9d_model_matrix_place *p,
                                d9d_weights_layout layout)
{
    const char *name = NULL;

    if (at != NULL)
        D9D_TRY(tied_head_name(m, at, layout, &name));
    if (name == NULL)
        return D9D_OK;
    D9D_TRY(changes_add(m, f, p, name, 0, 1));
    ((merged_tensor *)d9d_map_get(&m->by_name, name, strlen(name)))->optional = true;
    return D9D_OK;
}

static d9d_status factors_add(d9d_adapters_merge *m, const d9di_adapters_factors *f,
                              d9d_weights_layout layout)
{
    const d9d_model_matrix *at = d9di_adapters_matrix_of(m->of, f);
    const d9d_model_matrix_place own = {.features = f->out,
                                        .group = f->out,
                                        .stride = f->out,
                                        .in_first = f->stack},
                                 *p;

    const char *name = d9d_arena_printf(&m->arena, "%s.weight", f->name);

    if (layout == D9D_LAYOUT_D9D) {
        D9D_TRY(changes_add(m, f, &own, name, 0, f->experts));
        D9D_TRY(tied_head_add(m, f, at, &own, layout));
        return bias_add(m, f, &own, name);
    }
    p = at == NULL ? NULL : layout == D9D_LAYOUT_HF_FUSED ? &at->fused : &at->hf;
    if (p == NULL || p->tensor == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "adapter of %s: the matrix is not in HuggingFace's files",
                        f->name);
    if (!d9di_peft_place_is_each(p)) {
        name = name_in_source(m, p, 0);
        D9D_TRY(changes_add(m, f, p, name, 0, f->experts));
        D9D_TRY(tied_head_add(m, f, at, p, layout));
        return bias_add(m, f, p, name);
    }
    for (int64_t e = 0; e < f->experts; e++)
        D9D_TRY(changes_add(m, f, p, name_in_source(m, p, e), e, 1));
    return D9D_OK;
}

/* --- what was trained whole ------------------------------------------------------------------- */

/* Replace the part of a tensor that is a parameter, or its experts [e, e + n). */
static d9d_status whole_add(d9d_adapters_merge *m, const d9di_adapters_saved *x,
                            const d9d_model_matrix *at, const d9d_model_matrix_place *p,
                            const char *name, int64_t e, int64_t n, bool optional)
{
    const bool stack = at->experts > 0;
    const int64_t by_out = stack ? 1 : at->in, by_in = stack ? at->out : 1;
    const place_map features = map_features(p), in = map_whole(at->in);
    merged_tensor *t = NULL;

    if (name == NULL)
        return no_memory(x->name);
    D9D_TRY(changes_reserve(m, x->name, name, (size_t)n, &t));
    t->optional = optional;
    t->columns = p->in_first ? p->features : at->in;
    t->rows = n * (p->in_first ? at->in : p->features);
    for (int64_t i = 0; i < n; i++)
        t->changes[t->n++] = (change){.first = i * (t->rows / n),
                                      .rows = t->rows / n,
                                      .row = p->in_first ? in : features,
                                      .column = p->in_first ? features : in,
                                      .columns = p->in_first ? at->out : at->in,
                                      .whole = x->v + (e + i) * at->in * at->out,
                                      .whole_row = p->in_first ? by_in : by_out,
                                      .whole_column = p->in_first ? by_out : by_in};
    return D9D_OK;
}

static d9d_status saved_add(d9d_adapters_merge *m, const d9di_adapters_saved *x,
                            d9d_weights_layout layout)
{
    const d9d_model_matrix *at = d9di_adapters_param_of(m->of, x->name);
    const d9d_model_matrix_place own = {.features = at != NULL ? at->out : 0,
                                        .group = at != NULL ? at->out : 0,
                                        .stride = at != NULL ? at->out : 0,
                                        .in_first = at != NULL && (at->vector || at->experts > 0)};
    const d9d_model_matrix_place *p = at == NULL                      ? NULL
                                      : layout == D9D_LAYOUT_D9D      ? &own
                                      : layout == D9D_LAYOUT_HF_FUSED ? &at->fused
                                                                      : &at->hf;
    const int64_t experts = at != NULL && at->experts > 0 ? at->experts : 1;
    const bool head = strcmp(x->name, D9D_HEAD_SCORE ".weight") == 0;
    const char *tied;

    if (p == NULL || (p != &own && p->tensor == NULL))
        return D9D_FAIL(D9D_ENOTSUP, "%s was trained whole, and is not in HuggingFace's files",
                        x->name);
    if (p == &own || !d9di_peft_place_is_each(p))
        D9D_TRY(whole_add(m, x, at, p, p == &own ? x->name : name_in_source(m, p, 0), 0, experts,
                          head));
    for (int64_t e = 0; p != &own && d9di_peft_place_is_each(p) && e < experts; e++)
        D9D_TRY(whole_add(m, x, at, p, name_in_source(m, p, e), e, 1, false));
    D9D_TRY(tied_head_name(m, at, layout, &tied));
    return tied != NULL ? whole_add(m, x, at, p, tied, 0, 1, true) : D9D_OK;
}

/* --- the source ------------------------------------------------------------------------------ */

/* What a changed tensor becomes. */
static void tensor_describe(const d9d_adapters_merge *m, merged_tensor *t)
{
    const d9d_safetensors_tensor *from = m->src.at(m->src.self, t->index);

    t->as = *from;
    if (!m->as_float32 || from->ndim == 0)
        return;
    t->as.bytes = from->bytes / d9d_dtype_size(from->dtype) * sizeof(float);
    t->as.dtype = D9D_F32;
}

static d9d_status tensors_list(d9d_adapters_merge *m)
{
    size_t wanted = 0, used = 0;

    m->tensors = d9d_arena_alloc(&m->arena, (m->src.n + 1) * sizeof(*m->tensors));
    if (m->tensors == NULL)
        return D9D_FAIL(D9D_ENOMEM, "merging: no memory for records of %zu tensors", m->src.n);
    for (size_t i = 0; i < m->src.n; i++) {
        const char *name = m->src.at(m->src.self, i)->name;
        const merged_tensor *t = d9d_map_get(&m->by_name, name, strlen(name));
        merged_tensor *to = &m->tensors[m->n];

        if (d9di_adapters_is_param(m->ad, name))
            continue;
        if (t != NULL)
            *to = *t;
        used += t != NULL && !t->optional;
        to->index = i;
        if (to->changes != NULL)
            tensor_describe(m, to);
        m->n++;
    }
    for (size_t i = 0; i < m->by_name.len; i++)
        wanted += !((const merged_tensor *)m->by_name.entries[i].value)->optional;
    if (used < wanted)
        return D9D_FAIL(D9D_EMISMATCH,
                        "merging: of %zu tensor%s that adapters change %zu are there", wanted,
                        D9D_PLURAL(wanted), used);
    return D9D_OK;
}

/* One row of left times right, columns [from, from + n): bit for bit that of its transpose. */
static void change_row(const change *p, int64_t row, int64_t from, int64_t n, float *sum)
{
    memset(sum, 0, (size_t)n * sizeof(*sum));
    for (int64_t k = 0; k < p->r; k++) {
        const float l = p->left[row * p->left_row + k * p->left_k];
        const float *r = p->right + k * p->columns + from;

        for (int64_t j = 0; j < n; j++)
            sum[j] += l * r[j];
    }
}

/* How many rows or columns of a part are before position `at` of the tensor? */
static int64_t count_before(const place_map *m, int64_t at)
{
    const int64_t in = at % m->stride - m->offset;

    return at / m->stride * m->group + (in < 0 ? 0 : in > m->group ? m->group : in);
}

static float value_get(d9d_dtype t, const void *p, int64_t i)
{
    return t == D9D_F32 ? ((const float *)p)[i] : d9d_bf16_to_f32(((const uint16_t *)p)[i]);
}

static void value_put(d9d_dtype t, void *p, int64_t i, float v)
{
    if (t == D9D_F32)
        ((float *)p)[i] = v;
    else
        ((uint16_t *)p)[i] = d9d_bf16_from_f32(v);
}

/* The smallest magnitude that is infinite in this type. */
static float overflow_from(d9d_dtype t)
{
    return t == D9D_BF16 ? 0x1.ffp127f : INFINITY;
}

/* Change `n` columns of one row of a part, from its column `from` on, in those of the tensor's row
 * at x, which begins with column `start`. */
static void columns_change(const change *p, const float *whole, const float *sum, float factor,
                           int64_t from, int64_t n, int64_t start, float *x)
{
    int64_t in = from % p->column.group;
    int64_t at = from / p->column.group * p->column.stride + p->column.offset + in - start;

    for (int64_t j = 0; j < n; j++, at++) {
        if (whole != NULL)
            x[at] = whole[(from + j) * p->whole_column];
        if (sum != NULL)
            x[at] += p->scale * sum[j];
        if (p->column_factor != NULL)
            x[at] *= p->column_factor[from + j];
        if (p->row_factor != NULL)
            x[at] *= factor;
        if (++in == p->column.group) {
            in = 0;
            at += p->column.stride - p->column.group;
        }
    }
}

/* Elements [from, from + n) of one row of a tensor; `factor`: of the row. */
static void part_change(const change *p, int64_t own_row, float factor, int64_t from, int64_t n,
                        float *x)
{
    const int64_t end = count_before(&p->column, from + n);
    float sum[MAX_COLUMNS];

    for (int64_t c = count_before(&p->column, from); c < end; c += MAX_COLUMNS) {
        const int64_t some = end - c < MAX_COLUMNS ? end - c : MAX_COLUMNS;

        if (p->r > 0)
            change_row(p, own_row, c, some, sum);
        columns_change(p, p->whole != NULL ? p->whole + own_row * p->whole_row : NULL,
                       p->r > 0 ? sum : NULL, factor, c, some, from, x);
    }
}

static d9d_status elements_read(const d9d_adapters_merge *m, const merged_tensor *t, int64_t from,
                                int64_t n, void *raw, float *x)
{
    const d9d_dtype type = m->src.at(m->src.self, t->index)->dtype;
    const uint64_t width = d9d_dtype_size(type);

    D9D_TRY(m->src.read(m->src.self, t->index, (uint64_t)from * width, raw, (uint64_t)n * width));
    for (int64_t i = 0; i < n; i++)
        x[i] = value_get(type, raw, i);
    return D9D_OK;
}

/* Elements [from, from + n) of a row that is made as a whole. */
static d9d_status row_make(const d9d_adapters_merge *m, const merged_tensor *t, const change *p,
                           int64_t row, int64_t own_row, int64_t from, int64_t n, float *x)
{
    const bool whole = n == t->columns;
    float *w = x;
    d9d_status st = D9D_OK;

    if (!whole) {
        w = malloc(2 * (size_t)t->columns * sizeof(*w) + 1);
        if (w == NULL)
            return D9D_FAIL(D9D_ENOMEM, "merging: a row of %lld numbers", (long long)t->columns);
        st = elements_read(m, t, row * t->columns, t->columns, w + t->columns, w);
    }
    if (st == D9D_OK)
        st = D9D_PLUGIN_CALL(p->who, p, make, &p->arrays, own_row, w);
    if (!whole) {
        if (st == D9D_OK)
            memcpy(x, w + from, (size_t)n * sizeof(*x));
        free(w);
    }
    return st;
}

static d9d_status row_change(const d9d_adapters_merge *m, const merged_tensor *t, int64_t row,
                             int64_t from, int64_t n, float *x)
{
    for (size_t i = 0; i < t->n; i++) {
        const change *p = &t->changes[i];
        const int64_t at = row - p->first, own_row = at < 0 ? 0 : count_before(&p->row, at);
        float factor = 1;

        if (at < 0 || at >= p->rows || count_before(&p->row, at + 1) == own_row)
            continue;
        if (p->row_factor != NULL)
            factor = p->row_factor[own_row];
        if (p->make != NULL)
            D9D_TRY(row_make(m, t, p, row, own_row, from, n, x));
        else
            part_change(p, own_row, factor, from, n, x);
    }
    return D9D_OK;
}

static bool is_described(const merged_tensor *t)
{
    return t->changes != NULL && t->as.ndim > 0;
}

static const d9d_safetensors_tensor *merged_at(void *self, size_t i)
{
    const d9d_adapters_merge *m = self;
    const merged_tensor *t = &m->tensors[i];

    return is_described(t) ? &t->as : m->src.at(m->src.self, t->index);
}

static const char *merged_place(void *self, size_t i)
{
    const d9d_adapters_merge *m = self;

    return m->src.path(m->src.self, m->tensors[i].index);
}

static d9d_status check_lost(const d9d_safetensors_tensor *t, int64_t lost)
{
    if (lost == 0)
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "tensor %s: %lld values, with their adapter or head merged, are beyond %s",
                    t->name, (long long)lost, d9d_dtype_name(t->dtype));
}

/* Store n numbers; returns how many finite ones became infinite: of `before`, if given. */
static int64_t values_put(d9d_dtype type, const float *x, d9d_dtype was, const void *before,
                          int64_t n, void *dst)
{
    const float end = overflow_from(type);
    int64_t lost = 0;

    for (int64_t i = 0; i < n; i++) {
        lost += !(fabsf(x[i]) < end) && isfinite(before != NULL ? value_get(was, before, i) : x[i]);
        value_put(type, dst, i, x[i]);
    }
    return lost;
}

/* Elements [from, from + n), at most BLOCK, with the changes. */
static d9d_status block_read(const d9d_adapters_merge *m, const merged_tensor *t, int64_t from,
                             int64_t n, void *raw, float *x, void *dst)
{
    const int64_t end = from + n;

    D9D_TRY(elements_read(m, t, from, n, raw, x));
    for (int64_t k = from; k < end;) {
        const int64_t row = k / t->columns, column = k % t->columns;
        const int64_t some = end - k < t->columns - column ? end - k : t->columns - column;

        D9D_TRY(row_change(m, t, row, column, some, x + (k - from)));
        k += some;
    }
    return check_lost(
        &t->as, values_put(t->as.dtype, x, m->src.at(m->src.self, t->index)->dtype, raw, n, dst));
}

static d9d_status merged_read(void *self, size_t i, uint64_t at, void *dst, uint64_t n)
{
    const d9d_adapters_merge *m = self;
    const merged_tensor *t = &m->tensors[i];
    const d9d_dtype type = merged_at(self, i)->dtype;
    const int64_t width = (int64_t)d9d_dtype_size(type), first = (int64_t)at / width,
                  count = (int64_t)n / width, most = count < BLOCK ? count : BLOCK;
    d9d_status st = D9D_OK;
    float *x;

    if (t->changes == NULL)
        return m->src.read(m->src.self, t->index, at, dst, n);
    x = malloc(2 * (size_t)most * sizeof(*x) + 1);
    if (x == NULL)
        return D9D_FAIL(D9D_ENOMEM, "merging: %lld numbers", (long long)most);
    for (int64_t k = 0; k < count && st == D9D_OK; k += most)
        st = block_read(m, t, first + k, count - k < most ? count - k : most, x + most, x,
                        (char *)dst + k * width);
    free(x);
    return st;
}

static void merged_prefetch(void *self, size_t i, uint64_t at, uint64_t n)
{
    const d9d_adapters_merge *m = self;
    const size_t index = m->tensors[i].index;
    const uint64_t now = d9d_dtype_size(merged_at(self, i)->dtype),
                   was = d9d_dtype_size(m->src.at(m->src.self, index)->dtype);

    m->src.prefetch(m->src.self, index, at / now * was, n / now * was);
}

static void merged_identify(void *self, d9d_hasher *h)
{
    const d9d_adapters_merge *m = self;

    m->src.fingerprint(m->src.self, h);
    d9d_hasher_add(h, &m->as_float32, sizeof(m->as_float32));
    for (size_t i = 0; i < m->ad->list.len; i++) {
        const d9di_adapters_factors *f = &m->ad->list.data[i];

        d9d_hasher_add(h, f->name, strlen(f->name) + 1);
        d9d_hasher_add(h, &f->alpha, sizeof(f->alpha));
        d9d_hasher_add(h, &f->params, sizeof(f->params));
        if (f->own != NULL)
            d9d_hasher_add(h, f->own->name, strlen(f->own->name) + 1);
        for (int k = 0; k < D9D_ADAPTER_PARAMS; k++)
            if (f->v[k] != NULL)
                d9d_hasher_add(h, f->v[k],
                               (size_t)(f->experts * d9di_adapters_numel(f, k)) * sizeof(float));
    }
    for (size_t i = 0; i < m->ad->saved.len; i++) {
        const d9di_adapters_saved *x = &m->ad->saved.data[i];

        d9d_hasher_add(h, x->name, strlen(x->name) + 1);
        d9d_hasher_add(h, x->v, (size_t)d9d_shape_numel(&x->shape) * sizeof(float));
    }
}

/* What the adapter changes is the model's. */
static d9d_status merged_is_spare(void *self, size_t i, bool *out)
{
    const d9d_adapters_merge *m = self;

    *out = false;
    return m->tensors[i].changes == NULL ? m->src.is_spare(m->src.self, m->tensors[i].index, out)
                                         : D9D_OK;
}

/* --- creation -------------------------------------------------------------------------------- */

/* Check types and shapes against the adapters; tensors of a file whose header was not read are
 * skipped. */
static d9d_status shapes_check(const d9d_adapters_merge *m)
{
    for (size_t i = 0; i < m->n; i++) {
        const d9d_safetensors_tensor *t = m->src.at(m->src.self, m->tensors[i].index);
        const int64_t want = m->tensors[i].rows;
        int64_t rows = 1;

        if (m->tensors[i].changes == NULL || t->ndim == 0)
            continue;
        if (t->dtype != D9D_F32 && t->dtype != D9D_BF16)
            return D9D_FAIL(D9D_ENOTSUP,
                            "tensor %s is %s; adapters are merged into float32 and bfloat16",
                            t->name, d9d_dtype_name(t->dtype));
        for (int d = 0; d + 1 < t->ndim; d++)
            rows *= t->shape[d];
        if (t->shape[t->ndim - 1] != m->tensors[i].columns || rows != want)
            return D9D_FAIL(D9D_EMISMATCH,
                            "tensor %s has %lld row%s of %lld, its adapter %lld of %lld", t->name,
                            (long long)rows, D9D_PLURAL(rows), (long long)t->shape[t->ndim - 1],
                            (long long)want, (long long)m->tensors[i].columns);
    }
    return D9D_OK;
}

d9d_status d9d_adapters_merge_create(const d9d_adapters *ad, const d9d_model_matrices *of,
                                     d9d_weights_layout layout, const d9d_tensor_source *src,
                                     bool as_float32, d9d_adapters_merge **out)
{
    d9d_adapters_merge *m;
    d9d_status st = D9D_OK;

    if (d9d_adapters_are_prompt(ad))
        return D9D_FAIL(
            D9D_ENOTSUP,
            "the adapter has virtual tokens (prompt tuning), which no weights can hold; "
            "d9d-infer takes them as source_adapter");
    m = calloc(1, sizeof(*m));
    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "merging: out of memory");
    m->ad = ad;
    m->of = of;
    m->src = *src;
    m->as_float32 = as_float32;
    if (of->parts != NULL)
        m->as = d9d_hf_prefixes_of(of->parts, src);
    for (size_t i = 0; i < ad->saved.len; i++)
        D9D_TRY_OR(st, saved_add(m, &ad->saved.data[i], layout), out);
    for (size_t i = 0; i < ad->list.len; i++)
        D9D_TRY_OR(st, factors_add(m, &ad->list.data[i], layout), out);
    D9D_TRY_OR(st, tensors_list(m), out);
    D9D_TRY_OR(st, shapes_check(m), out);
    m->of = NULL;
    *out = m;
    m = NULL;
out:
    d9d_adapters_merge_free(m);
    return st;
}

d9d_tensor_source d9d_adapters_merge_source(d9d_adapters_merge *m)
{
    return (d9d_tensor_source){.self = m,
                               .n = m->n,
                               .at = merged_at,
                               .path = merged_place,
                               .read = merged_read,
                               .prefetch = m->src.prefetch != NULL ? merged_prefetch : NULL,
                               .fingerprint = m->src.fingerprint != NULL ? merged_identify : NULL,
                               .is_spare = m->src.is_spare != NULL ? merged_is_spare : NULL};
}

void d9d_adapters_merge_free(d9d_adapters_merge *m)
{
    if (m == NULL)
        return;
    d9d_map_release(&m->by_name);
    d9d_arena_release(&m->arena);
    free(m);
}
