/* adapter_write.c - writes adapters as a directory that peft reads.  See d9d/model/lora/adapters.h.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "d9d/base/num_format.h"
#include "model/lora/adapter_private.h"

enum { KINDS = 2 }; /* of targets: modules and parameters */
typedef struct adapter_writer {
    const d9d_adapters *ad;
    const d9d_model_matrices *matrices;
    d9di_peft_modules modules;
    d9d_safetensors_writer *tensors;
    size_t n_tensors; /* tensors written */
    json_t *doc, *targets[KINDS], *ranks, *alphas;
    /* Ends of names; value: not all of that end have an adapter. */
    d9d_map leaves[KINDS];
    d9d_arena arena;
} adapter_writer;

static const char partly_adapted[] = "partly";

static d9d_status no_memory(void)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", D9DI_ADAPTER_CONFIG);
}

/* --- numbers ------------------------------------------------------------------------------- */

static d9d_status tensor_declare(adapter_writer *w, d9d_dtype dtype, const char *module,
                                 const char *end, int ndim, int64_t rows, int64_t columns)
{
    const char *name = d9d_arena_printf(&w->arena, D9DI_ADAPTER_PREFIX "%s%s", module, end);

    if (name == NULL)
        return no_memory();
    return d9d_safetensors_writer_declare(w->tensors, name, dtype, ndim,
                                          (int64_t[]){rows, columns});
}

static d9d_status values_write(adapter_writer *w, d9d_dtype dtype, const float *from, int64_t n)
{
    return d9di_adapters_values_write(w->tensors, w->n_tensors++, dtype, from, n);
}

static const d9d_model_matrix_place *place_of(const d9di_peft_module *x)
{
    return &x->parts[0].matrix->module;
}

/* The tensor that a parameter of a module's adapter becomes. */
typedef struct peft_tensor {
    const char *end; /* of its name; NULL: the adapter has none of this role */
    int64_t rows, columns;
    int ndim;
} peft_tensor;

static peft_tensor own_tensor_of(adapter_writer *w, const d9di_peft_module *x, int i)
{
    const d9di_adapters_factors *f = x->parts[0].factors;
    const d9d_shape s = d9di_adapters_shape(f, i);

    return (peft_tensor){.end = d9d_arena_printf(&w->arena, ".%s", d9di_peft_own_name(f->own, i)),
                         .rows = s.dim[0],
                         .columns = s.ndim > 1 ? s.dim[1] : 1,
                         .ndim = s.ndim};
}

static peft_tensor tensor_of(adapter_writer *w, const d9di_peft_module *x, int role)
{
    const int64_t ranks = x->r * x->experts, in = x->parts[0].matrix->in,
                  features = place_of(x)->features;
    const peft_tensor embedding[D9D_ADAPTER_PARAMS] = {
        [D9D_ADAPTER_A] = {".lora_embedding_B", in, ranks, 2},
        [D9D_ADAPTER_B] = {".lora_embedding_A", ranks, features, 2},
    };
    const peft_tensor all[D9D_ADAPTER_PARAMS] = {
        [D9D_ADAPTER_A] = {".lora_A.weight", ranks, in, 2},
        [D9D_ADAPTER_B] = {".lora_B.weight", features, ranks, 2},
        [D9D_ADAPTER_MAGNITUDE] = {".lora_magnitude_vector", features, 1, 1},
        [D9D_ADAPTER_OUTPUT] = {".ia3_l", features, 1, 2},
        [D9D_ADAPTER_INPUT] = {".ia3_l", 1, in, 2},
    };

    if (!d9di_adapters_has_param(x->parts[0].factors, role) ||
        d9di_adapters_is_shared(x->parts[0].factors, role))
        return (peft_tensor){0};
    if (x->parts[0].factors->own != NULL)
        return own_tensor_of(w, x, role);
    return x->is_embedding ? embedding[role] : all[role];
}

static d9d_status module_declare(adapter_writer *w, const d9di_peft_module *x)
{
    for (int role = 0; role < D9D_ADAPTER_PARAMS; role++) {
        const peft_tensor t = tensor_of(w, x, role);

        if (t.end != NULL)
            D9D_TRY(tensor_declare(w, x->parts[0].factors->dtype, x->name, t.end, t.ndim, t.rows,
                                   t.columns));
    }
    return D9D_OK;
}

/* Has the adapter all features of its tensor, with the same columns for all? */
static bool is_whole(const d9di_peft_module *x)
{
    int64_t features = 0;

    for (int i = 0; i < x->n; i++)
        features += x->parts[i].matrix->out;
    return features == place_of(x)->features && x->r == x->parts[0].factors->r;
}

/* Record which columns are those of each matrix of the tensor, of which some may have none. */
static d9d_status columns_record(adapter_writer *w, const d9di_peft_module *x)
{
    const bool low_rank = d9di_adapters_has(x->parts[0].factors, D9D_ADAPTER_A);

    for (size_t i = 0; i < w->matrices->n && low_rank && !is_whole(x) && x->expert <= 0; i++) {
        const d9d_model_matrix *m = &w->matrices->items[i];
        int64_t first = 0, count = 0;
        const char *key;
        char value[64];

        if (strcmp(m->module.tensor, place_of(x)->tensor) != 0)
            continue;
        key = d9d_arena_printf(&w->arena, D9DI_ADAPTER_COLUMNS "%s", m->name);
        for (int k = 0; k < x->n; k++)
            if (x->parts[k].matrix == m) {
                first = x->parts[k].first;
                count = x->parts[k].factors->r;
            }
        (void)snprintf(value, sizeof(value), "%lld %lld", (long long)first, (long long)count);
        if (key == NULL)
            return no_memory();
        D9D_TRY(d9d_safetensors_writer_metadata(w->tensors, key, value));
    }
    return D9D_OK;
}

/* Put the numbers of one part and expert e of the tensor where the tensor's adapter has them. */
static void part_pack(const d9di_peft_module *x, const d9di_peft_part *part, int64_t e,
                      d9d_param_adapter_role role, float *to)
{
    const d9di_adapters_factors *f = part->factors;
    const int64_t from = x->expert >= 0 ? x->expert : e, ranks = x->r * x->experts;
    const float *v = f->v[role];

    if (role == D9D_ADAPTER_A)
        memcpy(to + (e * x->r + part->first) * f->in, v + from * f->r * f->in,
               (size_t)(f->r * f->in) * sizeof(*to));
    if (role == D9D_ADAPTER_INPUT)
        memcpy(to, v, (size_t)f->in * sizeof(*to));
    for (int64_t i = 0; i < f->out; i++) {
        const int64_t row = d9di_peft_place_feature(&part->matrix->module, i);

        if (role == D9D_ADAPTER_MAGNITUDE || role == D9D_ADAPTER_OUTPUT)
            to[row] = v[i];
        for (int64_t k = 0; role == D9D_ADAPTER_B && k < f->r; k++)
            to[row * ranks + e + (part->first + k) * x->experts] =
                v[(from * f->out + i) * f->r + k];
    }
}

/* The same of a kind of its own, whose matrix has all features of its tensor in some order. */
static void own_pack(const d9di_peft_part *part, int i, float *to)
{
    const d9di_adapters_factors *f = part->factors;
    const d9d_shape s = d9di_adapters_shape(f, i);
    const int64_t columns = s.ndim > 1 ? s.dim[1] : 1;
    const bool by_output = f->own->params[i].dim[0] == D9D_ADAPTER_OUT;

    for (int64_t k = 0; k < s.dim[0]; k++)
        memcpy(to + (by_output ? d9di_peft_place_feature(&part->matrix->module, k) : k) * columns,
               f->v[i] + k * columns, (size_t)columns * sizeof(*to));
}

/* Transpose [columns, rows] in place. */
static d9d_status values_transpose(float *v, int64_t rows, int64_t columns)
{
    float *turned = malloc((size_t)(rows * columns) * sizeof(*turned) + 1);

    if (turned == NULL)
        return no_memory();
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            turned[i * columns + j] = v[j * rows + i];
    memcpy(v, turned, (size_t)(rows * columns) * sizeof(*turned));
    free(turned);
    return D9D_OK;
}

/* Features of a tensor without a factor keep what they are. */
static void tensor_fill(const d9di_peft_module *x, int role, float *to, int64_t n)
{
    const bool factors = role == D9D_ADAPTER_OUTPUT && x->parts[0].factors->own == NULL;

    for (int64_t i = 0; factors && i < n; i++)
        to[i] = 1;
}

static d9d_status module_write(adapter_writer *w, const d9di_peft_module *x)
{
    d9d_status st = D9D_OK;

    for (int role = 0; role < D9D_ADAPTER_PARAMS && st == D9D_OK; role++) {
        const peft_tensor t = tensor_of(w, x, role);
        const int64_t n = t.rows * t.columns;
        float *to;

        if (t.end == NULL)
            continue;
        to = calloc((size_t)n + 1, sizeof(*to));
        if (to == NULL)
            return D9D_FAIL(D9D_ENOMEM, "adapter of %s: %lld numbers", x->tensor, (long long)n);
        tensor_fill(x, role, to, n);
        if (w->modules.own != NULL)
            own_pack(&x->parts[0], role, to);
        for (int i = 0; i < x->n && w->modules.own == NULL; i++)
            for (int64_t e = 0; e < x->experts; e++)
                part_pack(x, &x->parts[i], e, role, to);
        if (x->is_embedding)
            st = values_transpose(to, t.rows, t.columns);
        if (st == D9D_OK)
            st = values_write(w, x->parts[0].factors->dtype, to, n);
        free(to);
    }
    return st;
}

/* --- arrays that matrices share ----------------------------------------------------------------
 */

static bool is_shared(const adapter_writer *w, int i)
{
    const d9d_adapter_kind *own = w->modules.own;

    return own != NULL && own->params[i].name != NULL && own->params[i].shared;
}

/* Of all numbers that any matrix needs. */
static d9d_shape shared_shape(const adapter_writer *w, int i)
{
    const d9d_shape largest = d9di_adapters_largest(w->ad);

    return d9d_adapter_shape(w->modules.own, i, &largest, w->ad->list.data[0].r);
}

static d9d_status shared_declare(adapter_writer *w)
{
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++)
        if (is_shared(w, i)) {
            const d9d_shape s = shared_shape(w, i);

            D9D_TRY(d9d_safetensors_writer_declare(w->tensors,
                                                   d9di_peft_own_name(w->modules.own, i),
                                                   w->ad->list.data[0].dtype, s.ndim, s.dim));
        }
    return D9D_OK;
}

/* Put a matrix's part into the array, of which `seen` are there, rows and columns: they agree. */
static d9d_status shared_pack(const d9di_adapters_factors *f, int i, const d9d_shape *all,
                              const float *from, float *to, int64_t *seen)
{
    const d9d_shape s = d9di_adapters_shape(f, i);
    const int64_t rows = s.dim[0], n = s.ndim > 1 ? s.dim[1] : 1,
                  columns = all->ndim > 1 ? all->dim[1] : 1;

    for (int64_t k = 0; k < rows; k++) {
        const int64_t known = k < seen[0] ? (n < seen[1] ? n : seen[1]) : 0;

        if (memcmp(to + k * columns, from + k * n, (size_t)known * sizeof(*to)) != 0)
            return D9D_FAIL(D9D_EVERIFY,
                            "adapter of %s: its part of %s, which matrices share, is not that of "
                            "the others",
                            f->name, f->own->params[i].name);
        memcpy(to + k * columns, from + k * n, (size_t)n * sizeof(*to));
    }
    seen[0] = rows > seen[0] ? rows : seen[0];
    seen[1] = n > seen[1] ? n : seen[1];
    return D9D_OK;
}

static d9d_status shared_write(adapter_writer *w)
{
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++) {
        const d9d_shape s = is_shared(w, i) ? shared_shape(w, i) : D9D_SHAPE(0);
        const int64_t n = d9d_shape_numel(&s);
        int64_t seen[2] = {0, 0};
        d9d_status st = D9D_OK;
        float *all;

        if (!is_shared(w, i))
            continue;
        all = calloc((size_t)n + 1, sizeof(*all));
        if (all == NULL)
            return no_memory();
        for (size_t k = 0; k < w->ad->list.len && st == D9D_OK; k++)
            st = shared_pack(&w->ad->list.data[k], i, &s, w->ad->list.data[k].v[i], all, seen);
        if (st == D9D_OK)
            st = values_write(w, w->ad->list.data[0].dtype, all, n);
        free(all);
        D9D_TRY(st);
    }
    return D9D_OK;
}

/* --- modules that are saved whole --------------------------------------------------------------
 */

/* A tensor of a saved module, by the first of the parameters that it has, under this name. */
typedef d9d_status (*saved_visitor)(adapter_writer *w, const d9d_model_matrix *m, const char *name);

static bool is_first_of_tensor(const adapter_writer *w, const d9d_model_matrix *m)
{
    const d9d_model_matrix *first = w->matrices->params;

    while (strcmp(first->module.tensor, m->module.tensor) != 0)
        first++;
    return first == m;
}

/* Visit all tensors.  A tied embedding is the head too. */
static d9d_status saved_each(adapter_writer *w, saved_visitor visit)
{
    const d9d_model_matrices *of = w->matrices;

    for (size_t i = 0; i < of->n_params; i++) {
        const d9d_model_matrix *m = &of->params[i];
        const char *name;

        if (d9di_adapters_saved_find(w->ad, m->name) == NULL || !is_first_of_tensor(w, m))
            continue;
        name = d9di_peft_name(of, m->module.tensor, &w->arena);
        if (name == NULL)
            return no_memory();
        D9D_TRY(visit(w, m, name));
        if (!of->tied || !d9di_adapters_is_embedding(of, m))
            continue;
        name = d9d_arena_printf(&w->arena, "%s.weight", of->parts->hf.head);
        if (name == NULL)
            return no_memory();
        D9D_TRY(visit(w, m, name));
    }
    return D9D_OK;
}

static d9d_status saved_declare(adapter_writer *w, const d9d_model_matrix *m, const char *name)
{
    const d9d_shape s = d9di_peft_place_shape(m, &m->module);
    const char *whole = d9d_arena_printf(&w->arena, D9DI_ADAPTER_PREFIX "%s", name);

    if (whole == NULL)
        return no_memory();
    return d9d_safetensors_writer_declare(
        w->tensors, whole, d9di_adapters_saved_find(w->ad, m->name)->dtype, s.ndim, s.dim);
}

static d9d_status saved_write(adapter_writer *w, const d9d_model_matrix *m, const char *name)
{
    const d9d_model_matrices *of = w->matrices;
    const d9d_shape s = d9di_peft_place_shape(m, &m->module);
    const int64_t n = d9d_shape_numel(&s);
    float *all = malloc((size_t)n * sizeof(*all) + 1);
    d9d_status st;

    (void)name;
    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %lld numbers", m->name, (long long)n);
    for (size_t i = 0; i < of->n_params; i++)
        if (strcmp(of->params[i].module.tensor, m->module.tensor) == 0)
            d9di_adapters_saved_pack(d9di_adapters_saved_find(w->ad, of->params[i].name),
                                     &of->params[i], &of->params[i].module, all);
    st = values_write(w, d9di_adapters_saved_find(w->ad, m->name)->dtype, all, n);
    free(all);
    return st;
}

/* --- adapter_model.safetensors -----------------------------------------------------------------
 */

static d9d_status tensors_write(adapter_writer *w, const char *dir)
{
    d9d_arena a = {0};
    const char *path = d9d_fs_join(&a, dir, D9DI_ADAPTER_TENSORS);
    d9d_status st = path != NULL ? d9d_safetensors_writer_create(&w->tensors) : no_memory();

    if (st != D9D_OK)
        goto out;
    D9D_TRY_OR(st, d9d_safetensors_writer_metadata(w->tensors, "format", "pt"), out);
    D9D_TRY_OR(st, shared_declare(w), out);
    for (size_t i = 0; i < w->modules.list.len; i++) {
        D9D_TRY_OR(st, module_declare(w, &w->modules.list.data[i]), out);
        D9D_TRY_OR(st, columns_record(w, &w->modules.list.data[i]), out);
    }
    D9D_TRY_OR(st, saved_each(w, saved_declare), out);
    D9D_TRY_OR(st, d9d_safetensors_writer_begin(w->tensors, path), out);
    D9D_TRY_OR(st, shared_write(w), out);
    for (size_t i = 0; i < w->modules.list.len; i++)
        D9D_TRY_OR(st, module_write(w, &w->modules.list.data[i]), out);
    D9D_TRY_OR(st, saved_each(w, saved_write), out);
    st = d9d_safetensors_writer_end(w->tensors);
out:
    d9d_safetensors_writer_free(w->tensors);
    d9d_arena_release(&a);
    return st;
}

/* --- adapter_config.json --------------------------------------------------------------------- */

/* The name by which peft finds it: of the module, or of the parameter. */
static const char *target_name(adapter_writer *w, const char *tensor, bool is_parameter)
{
    return is_parameter ? tensor
                        : d9d_arena_strndup(&w->arena, tensor, d9di_peft_module_length(tensor));
}

/* The end of a name that all layers share: of a module the last component, of a parameter what
 * follows the layer's number. */
static const char *leaf_name(const char *target, bool is_parameter)
{
    const char *dot = strrchr(target, '.');

    for (const char *at = target; is_parameter && (at = strchr(at, '.')) != NULL;) {
        const size_t digits = strspn(++at, "0123456789");

        if (digits > 0 && at[digits] == '.')
            return at + digits + 1;
    }
    return dot != NULL && !is_parameter ? dot + 1 : target;
}

/* Find the ends of names of which all have adapters. */
static d9d_status leaf_add(adapter_writer *w, const d9d_model_matrix *m)
{
    const bool kind = d9di_peft_is_target_parameter(w->matrices, w->modules.own, m);
    const char *tensor =
        d9di_peft_name(w->matrices, d9di_peft_place_tensor(&m->module, 0, &w->arena), &w->arena);
    const char *target = tensor != NULL ? target_name(w, tensor, kind) : NULL;
    const char *leaf = target != NULL ? leaf_name(target, kind) : NULL;
    d9d_map *leaves = &w->leaves[kind];
    void *value = NULL;

    if (leaf == NULL)
        return no_memory();
    if (d9d_map_get(&w->modules.by_tensor, tensor, strlen(tensor)) == NULL)
        value = (void *)(uintptr_t)partly_adapted;
    for (size_t i = 0; i < leaves->len; i++)
        if (strcmp(leaves->entries[i].key, leaf) == 0) {
            if (value != NULL)
                leaves->entries[i].value = value;
            return D9D_OK;
        }
    return d9d_map_put(leaves, leaf, strlen(leaf), value);
}

static d9d_status target_add(adapter_writer *w, int kind, const char *name)
{
    return json_array_append_new(w->targets[kind], json_string(name)) == 0 ? D9D_OK : no_memory();
}

/* An integer if the value is one, as peft writes it. */
static json_t *json_number_of(double v)
{
    return v == floor(v) && fabs(v) < 1e9 ? json_integer((json_int_t)v) : json_real(v);
}

/* Add a pattern with the whole name of a target whose rank or alpha differs from the first's. */
static d9d_status patterns_add(adapter_writer *w, const d9di_peft_module *x, const char *target)
{
    const d9di_peft_module *first = &w->modules.list.data[0];
    int rc = 0;

    if (x->r != first->r)
        rc |= json_object_set_new(w->ranks, target, json_integer(x->r));
    if (x->alpha != first->alpha)
        rc |= json_object_set_new(w->alphas, target, json_number_of(x->alpha));
    return rc == 0 ? D9D_OK : no_memory();
}

static d9d_status target_note(adapter_writer *w, const d9di_peft_module *x)
{
    const char *target = target_name(w, x->tensor, x->is_parameter), *leaf;

    if (target == NULL)
        return no_memory();
    D9D_TRY(patterns_add(w, x, target));
    leaf = leaf_name(target, x->is_parameter);
    return d9d_map_get(&w->leaves[x->is_parameter], leaf, strlen(leaf)) != NULL
               ? target_add(w, x->is_parameter, target)
               : D9D_OK;
}

static d9d_status targets_build(adapter_writer *w)
{
    for (size_t i = 0; i < w->matrices->n; i++)
        D9D_TRY(leaf_add(w, &w->matrices->items[i]));
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t i = 0; i < w->leaves[kind].len; i++)
            if (w->leaves[kind].entries[i].value == NULL)
                D9D_TRY(target_add(w, kind, w->leaves[kind].entries[i].key));
    for (size_t i = 0; i < w->modules.list.len; i++)
        D9D_TRY(target_note(w, &w->modules.list.data[i]));
    return D9D_OK;
}

/* Add the name of a saved tensor's module, once. */
static d9d_status saved_note(adapter_writer *w, const d9d_model_matrix *m, const char *name)
{
    json_t *list = json_object_get(w->doc, "modules_to_save");
    const char *module = d9d_arena_strndup(&w->arena, name, d9di_peft_module_length(name));
    const json_t *v;
    size_t i;

    (void)m;
    if (module == NULL)
        return no_memory();
    json_array_foreach(list, i, v) if (strcmp(json_string_value(v), module) == 0) return D9D_OK;
    return json_array_append_new(list, json_string(module)) == 0 ? D9D_OK : no_memory();
}

/* List the modules that peft trains and saves whole, by their whole names. */
static d9d_status saved_modules_note(adapter_writer *w)
{
    int rc = 0;

    for (size_t i = 0; w->matrices->tied && i < w->modules.list.len; i++)
        if (w->modules.list.data[i].is_embedding)
            rc |= json_object_set_new(w->doc, "ensure_weight_tying", json_true());
    if (w->ad->saved.len == 0)
        return rc == 0 ? D9D_OK : no_memory();
    rc |= json_object_set_new(w->doc, "modules_to_save", json_array());
    if (d9d_adapters_have_saved(w->ad, D9D_HEAD_SCORE ".weight"))
        rc |= json_object_set_new(w->doc, "task_type", json_string("SEQ_CLS"));
    if (w->matrices->tied)
        rc |= json_object_set_new(w->doc, "ensure_weight_tying", json_true());
    return rc == 0 ? saved_each(w, saved_note) : no_memory();
}

/* peft has no dropout in front of a parameter. */
static double dropout_of(const adapter_writer *w)
{
    for (size_t i = 0; i < w->modules.list.len; i++)
        if (w->modules.list.data[i].is_parameter)
            return 0;
    return w->ad->list.data[0].dropout;
}

static const char *task_of(const adapter_writer *w)
{
    return w->matrices->base ? "FEATURE_EXTRACTION" : "CAUSAL_LM";
}

/* Has a module its matrix [in, out], as Conv1D of GPT-2?  peft does not take it beside parameters.
 */
static bool is_fan_in_fan_out(const adapter_writer *w)
{
    bool is = false;

    for (size_t i = 0; i < w->modules.list.len; i++) {
        if (w->modules.list.data[i].is_parameter)
            return false;
        is |= place_of(&w->modules.list.data[i])->in_first;
    }
    return is;
}

static d9d_status lora_config_build(adapter_writer *w, const char *base)
{
    const d9di_peft_module *first = &w->modules.list.data[0];

    w->doc = json_pack(
        "{s:s, s:s, s:o, s:I, s:o, s:f, s:s, s:b, s:b, s:b, s:b, s:b, s:n, s:[], "
        "s:[], s:{}, s:{}}",
        "peft_type", "LORA", "task_type", task_of(w), "base_model_name_or_path", d9d_json_str(base),
        "r", (json_int_t)first->r, "lora_alpha", json_number_of(first->alpha), "lora_dropout",
        dropout_of(w), "bias", "none", "fan_in_fan_out", is_fan_in_fan_out(w), "inference_mode", 1,
        "init_lora_weights", 1, "use_dora", w->modules.type == D9DI_PEFT_DORA, "use_rslora", 0,
        "modules_to_save", "target_modules", "target_parameters", "rank_pattern", "alpha_pattern");
    w->targets[false] = json_object_get(w->doc, "target_modules");
    w->targets[true] = json_object_get(w->doc, "target_parameters");
    w->ranks = json_object_get(w->doc, "rank_pattern");
    w->alphas = json_object_get(w->doc, "alpha_pattern");
    if (w->doc == NULL)
        return no_memory();
    D9D_TRY(saved_modules_note(w));
    return targets_build(w);
}

/* Modules are listed by their whole names, since the two lists must agree. */
static d9d_status ia3_config_build(adapter_writer *w, const char *base)
{
    json_t *targets, *feedforward;

    w->doc =
        json_pack("{s:s, s:s, s:o, s:b, s:b, s:b, s:n, s:[], s:[]}", "peft_type", "IA3",
                  "task_type", task_of(w), "base_model_name_or_path", d9d_json_str(base),
                  "fan_in_fan_out", is_fan_in_fan_out(w), "inference_mode", 1, "init_ia3_weights",
                  1, "modules_to_save", "target_modules", "feedforward_modules");
    targets = json_object_get(w->doc, "target_modules");
    feedforward = json_object_get(w->doc, "feedforward_modules");
    if (w->doc == NULL)
        return no_memory();
    for (size_t i = 0; i < w->modules.list.len; i++) {
        const d9di_peft_module *x = &w->modules.list.data[i];
        const char *name = target_name(w, x->tensor, false);
        int rc = name != NULL ? json_array_append_new(targets, json_string(name)) : -1;

        if (d9di_adapters_has(x->parts[0].factors, D9D_ADAPTER_INPUT) && rc == 0)
            rc = json_array_append_new(feedforward, json_string(name));
        if (rc != 0)
            return no_memory();
    }
    return saved_modules_note(w);
}

/* Add the fields of a JSON object of a kind. */
static d9d_status fields_add(adapter_writer *w, const char *fields)
{
    json_t *more = NULL;
    int rc;

    if (fields == NULL)
        return D9D_OK;
    D9D_TRY(d9d_json_parse(w->modules.own->name, fields, strlen(fields), &more));
    rc = json_object_update(w->doc, more);
    json_decref(more);
    return rc == 0 ? D9D_OK
                   : D9D_FAIL(D9D_EINVAL, "%s: the fields of its files are no JSON object",
                              w->modules.own->name);
}

static d9d_status own_config_build(adapter_writer *w, const char *base)
{
    const d9d_adapter_files *files = w->modules.own->files;
    const d9di_peft_module *first = &w->modules.list.data[0];
    int rc = 0;

    w->doc = json_pack("{s:s, s:s, s:o, s:b, s:n, s:[], s:[], s:{}, s:{}}", "peft_type",
                       files->peft_type, "task_type", task_of(w), "base_model_name_or_path",
                       d9d_json_str(base), "inference_mode", 1, "modules_to_save", "target_modules",
                       "target_parameters", "rank_pattern", "alpha_pattern");
    if (w->doc == NULL)
        return no_memory();
    w->targets[false] = json_object_get(w->doc, "target_modules");
    w->targets[true] = json_object_get(w->doc, "target_parameters");
    w->ranks = json_object_get(w->doc, "rank_pattern");
    w->alphas = json_object_get(w->doc, "alpha_pattern");
    if (files->rank != NULL)
        rc |= json_object_set_new(w->doc, files->rank, json_integer((json_int_t)first->r));
    if (files->alpha != NULL)
        rc |= json_object_set_new(w->doc, files->alpha, json_number_of(first->alpha));
    if (files->seed != NULL)
        rc |= json_object_set_new(w->doc, files->seed,
                                  json_integer((json_int_t)w->ad->list.data[0].seed));
    if (files->has_shared != NULL)
        rc |= json_object_set_new(w->doc, files->has_shared, json_true());
    if (rc != 0)
        return no_memory();
    D9D_TRY(fields_add(w, files->fields));
    D9D_TRY(fields_add(w, files->needs));
    D9D_TRY(saved_modules_note(w));
    D9D_TRY(targets_build(w));
    rc |= json_object_del(w->doc, "target_parameters");
    rc |= files->rank == NULL || files->one_rank ? json_object_del(w->doc, "rank_pattern") : 0;
    rc |= files->alpha == NULL ? json_object_del(w->doc, "alpha_pattern") : 0;
    return rc == 0 ? D9D_OK : no_memory();
}

static d9d_status config_build(adapter_writer *w, const char *base)
{
    return w->modules.type == D9DI_PEFT_OWN   ? own_config_build(w, base)
           : w->modules.type == D9DI_PEFT_IA3 ? ia3_config_build(w, base)
                                              : lora_config_build(w, base);
}

static bool is_adapter(const char *dir)
{
    return d9d_fs_head_has(dir, "adapter_config.json", "\"peft_type\"");
}

static bool is_partial(const char *dir)
{
    (void)dir;
    return false;
}

static const d9d_outdir_kind adapter_kind = {"adapter", is_adapter, is_partial};

static d9d_status prompt_write(const d9d_adapters *ad, const char *base, const char *dir,
                               const d9d_log *log)
{
    const d9di_adapters_saved *x = d9di_adapters_prompt(ad);
    d9d_outdir out = {0};
    d9d_status st = d9d_outdir_begin(&out, dir, D9D_OUTDIR_REPLACE, &adapter_kind);

    if (st == D9D_OK)
        st = d9di_adapters_prompt_write(x, base, out.tmp);
    if (st == D9D_OK)
        st = d9d_outdir_commit(&out);
    if (st == D9D_OK)
        d9d_log_info(log, "%s: %lld virtual token%s", dir, (long long)x->shape.dim[0],
                     D9D_PLURAL(x->shape.dim[0]));
    d9d_outdir_release(&out);
    return st;
}

d9d_status d9d_adapters_write(const d9d_adapters *ad, const d9d_model_matrices *of,
                              const char *base, const char *dir, const d9d_log *log)
{
    adapter_writer w = {.ad = ad, .matrices = of};
    d9d_outdir out = {0};
    d9d_status st;

    if (d9di_adapters_prompt(ad) != NULL)
        return prompt_write(ad, base, dir, log);
    if (ad->list.len == 0)
        return D9D_FAIL(D9D_EINVAL, "%s: there are no adapters to write", dir);
    D9D_TRY(d9di_adapters_saved_check(ad, of));
    D9D_TRY(d9di_peft_modules_make(ad, of, &w.modules));
    D9D_TRY_OR(st, d9d_outdir_begin(&out, dir, D9D_OUTDIR_REPLACE, &adapter_kind), done);
    D9D_TRY_OR(st, config_build(&w, base), done);
    D9D_TRY_OR(st, d9di_adapters_config_write(w.doc, out.tmp), done);
    D9D_TRY_OR(st, tensors_write(&w, out.tmp), done);
    st = d9d_outdir_commit(&out);
    if (st == D9D_OK)
        d9d_log_info(log, "%s: %zu adapter%s", dir, ad->list.len, D9D_PLURAL(ad->list.len));
done:
    json_decref(w.doc);
    d9d_map_release(&w.leaves[false]);
    d9d_map_release(&w.leaves[true]);
    d9d_arena_release(&w.arena);
    d9di_peft_modules_release(&w.modules);
    d9d_outdir_release(&out);
    return st;
}
