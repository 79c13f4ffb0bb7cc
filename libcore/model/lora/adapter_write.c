/* adapter_write.c - writes adapters as a directory that peft reads.  See d9d/model/lora/adapters.h.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "model/lora/adapter_private.h"

typedef struct adapter_writer {
    const d9d_adapters *ad;
    const d9d_model_matrices *matrices;
    d9d_safetensors_writer *tensors;
    size_t n_tensors; /* tensors written */
    json_t *doc, *targets, *ranks, *alphas, *heads;
    d9d_map
        leaves; /* last components of names; value: not all modules of that name have an adapter */
} adapter_writer;

static const char partly_adapted[] = "partly";

static d9d_status no_memory(void)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", D9DI_ADAPTER_CONFIG);
}

/* --- numbers ------------------------------------------------------------------------------- */

static d9d_status factor_declare(adapter_writer *w, const char *module, char which,
                                 const d9di_adapters_factors *f, int64_t rows, int64_t columns)
{
    char name[2 * D9DI_HF_MODULE_MAX];

    (void)snprintf(name, sizeof(name), D9DI_ADAPTER_PREFIX "%s.lora_%c.weight", module, which);
    return d9d_safetensors_writer_declare(w->tensors, name, f->dtype, 2,
                                          (int64_t[]){rows, columns});
}

static d9d_status values_write(adapter_writer *w, d9d_dtype dtype, const float *from, int64_t n)
{
    uint16_t *narrow;
    int64_t lost = 0;
    d9d_status st;

    if (dtype == D9D_F32)
        return d9d_safetensors_writer_write(w->tensors, w->n_tensors++, 0, from,
                                            (uint64_t)n * sizeof(*from));
    narrow = malloc((size_t)n * sizeof(*narrow) + 1);
    if (narrow == NULL)
        return no_memory();
    for (int64_t i = 0; i < n; i++) {
        narrow[i] = d9d_bf16_from_f32(from[i]);
        lost += isfinite(from[i]) && !isfinite(d9d_bf16_to_f32(narrow[i]));
    }
    if (lost > 0)
        st = D9D_FAIL(D9D_ECONFIG, "adapters: %lld of %lld values of a tensor are beyond bfloat16",
                      (long long)lost, (long long)n);
    else
        st = d9d_safetensors_writer_write(w->tensors, w->n_tensors++, 0, narrow,
                                          (uint64_t)n * sizeof(*narrow));
    free(narrow);
    return st;
}

static d9d_status factors_declare(adapter_writer *w, const d9di_adapters_factors *f)
{
    const d9d_model_matrix *m = d9di_adapters_matrix_of(w->matrices, f);

    if (m == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "%s has an adapter and no place in HuggingFace's files",
                        f->name);
    for (int64_t e = 0; e < f->experts; e++) {
        char module[D9DI_HF_MODULE_MAX];

        d9di_hf_module(m, e, module);
        D9D_TRY(factor_declare(w, module, 'A', f, f->r, f->in));
        D9D_TRY(factor_declare(w, module, 'B', f, f->out, f->r));
    }
    return D9D_OK;
}

static d9d_status head_declare(adapter_writer *w, const d9di_adapters_head *x)
{
    const d9d_model_matrix *m = d9di_adapters_find_matrix(w->matrices, x->name);
    char name[2 * D9DI_HF_MODULE_MAX];

    if (m == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "%s has no place in HuggingFace's files", x->name);
    (void)snprintf(name, sizeof(name), D9DI_ADAPTER_PREFIX "%s.weight", m->hf);
    return d9d_safetensors_writer_declare(w->tensors, name, x->dtype, 2,
                                          (int64_t[]){x->rows, x->columns});
}

static d9d_status factors_write(adapter_writer *w, const d9di_adapters_factors *f)
{
    for (int64_t e = 0; e < f->experts; e++) {
        D9D_TRY(values_write(w, f->dtype, f->a + e * f->r * f->in, f->r * f->in));
        D9D_TRY(values_write(w, f->dtype, f->b + e * f->out * f->r, f->out * f->r));
    }
    return D9D_OK;
}

static d9d_status tensors_write(adapter_writer *w, const char *dir)
{
    d9d_arena a = {0};
    const char *path = d9d_fs_join(&a, dir, D9DI_ADAPTER_TENSORS);
    d9d_status st = path != NULL ? d9d_safetensors_writer_create(&w->tensors) : no_memory();

    if (st != D9D_OK)
        goto out;
    D9D_TRY_OR(st, d9d_safetensors_writer_metadata(w->tensors, "format", "pt"), out);
    for (size_t i = 0; i < w->ad->list.len; i++)
        D9D_TRY_OR(st, factors_declare(w, &w->ad->list.data[i]), out);
    for (size_t i = 0; i < w->ad->heads.len; i++)
        D9D_TRY_OR(st, head_declare(w, &w->ad->heads.data[i]), out);
    D9D_TRY_OR(st, d9d_safetensors_writer_begin(w->tensors, path), out);
    for (size_t i = 0; i < w->ad->list.len; i++)
        D9D_TRY_OR(st, factors_write(w, &w->ad->list.data[i]), out);
    for (size_t i = 0; i < w->ad->heads.len; i++) {
        const d9di_adapters_head *x = &w->ad->heads.data[i];

        D9D_TRY_OR(st, values_write(w, x->dtype, x->v, x->rows * x->columns), out);
    }
    st = d9d_safetensors_writer_end(w->tensors);
out:
    d9d_safetensors_writer_free(w->tensors);
    d9d_arena_release(&a);
    return st;
}

/* --- adapter_config.json --------------------------------------------------------------------- */

static const char *leaf_name(const char *module)
{
    const char *dot = strrchr(module, '.');

    return dot != NULL ? dot + 1 : module;
}

/* Find the last components of names whose modules all have adapters. */
static d9d_status leaf_add(adapter_writer *w, const d9d_model_matrix *m)
{
    const char *leaf = leaf_name(m->hf);
    void *value = d9di_adapters_find(w->ad, m) != NULL ? NULL : (void *)(uintptr_t)partly_adapted;

    for (size_t i = 0; i < w->leaves.len; i++)
        if (strcmp(w->leaves.entries[i].key, leaf) == 0) {
            if (value != NULL)
                w->leaves.entries[i].value = value;
            return D9D_OK;
        }
    return d9d_map_put(&w->leaves, leaf, strlen(leaf), value);
}

static d9d_status target_add(adapter_writer *w, const char *name)
{
    return json_array_append_new(w->targets, json_string(name)) == 0 ? D9D_OK : no_memory();
}

/* Add a pattern with the whole name of a module whose rank or alpha differs from the first
 * adapter's. */
static d9d_status patterns_add(adapter_writer *w, const d9di_adapters_factors *f,
                               const char *module)
{
    const d9di_adapters_factors *first = &w->ad->list.data[0];
    int rc = 0;

    if (f->r != first->r)
        rc |= json_object_set_new(w->ranks, module, json_integer(f->r));
    if (f->alpha != first->alpha)
        rc |= json_object_set_new(w->alphas, module, json_real(f->alpha));
    return rc == 0 ? D9D_OK : no_memory();
}

static d9d_status target_note(adapter_writer *w, const d9d_model_matrix *m,
                              const d9di_adapters_factors *f)
{
    const char *leaf = leaf_name(m->hf);

    for (int64_t e = 0; e < f->experts; e++) {
        char module[D9DI_HF_MODULE_MAX];

        d9di_hf_module(m, e, module);
        D9D_TRY(patterns_add(w, f, module));
        if (d9d_map_get(&w->leaves, leaf, strlen(leaf)) != NULL)
            D9D_TRY(target_add(w, module));
    }
    return D9D_OK;
}

static d9d_status targets_build(adapter_writer *w)
{
    for (size_t i = 0; i < w->matrices->n; i++)
        D9D_TRY(leaf_add(w, &w->matrices->items[i]));
    for (size_t i = 0; i < w->leaves.len; i++)
        if (w->leaves.entries[i].value == NULL)
            D9D_TRY(target_add(w, w->leaves.entries[i].key));
    for (size_t i = 0; i < w->ad->list.len; i++) {
        const d9di_adapters_factors *f = &w->ad->list.data[i];
        const d9d_model_matrix *m = d9di_adapters_matrix_of(w->matrices, f);

        if (m != NULL)
            D9D_TRY(target_note(w, m, f));
    }
    return D9D_OK;
}

/* List the heads, which peft trains and saves in full. */
static d9d_status heads_note(adapter_writer *w)
{
    if (w->ad->heads.len == 0)
        return D9D_OK;
    w->heads = json_array();
    if (json_object_set_new(w->doc, "modules_to_save", w->heads) != 0 ||
        json_object_set_new(w->doc, "task_type", json_string("SEQ_CLS")) != 0)
        return no_memory();
    for (size_t i = 0; i < w->ad->heads.len; i++) {
        const d9d_model_matrix *m =
            d9di_adapters_find_matrix(w->matrices, w->ad->heads.data[i].name);

        if (m != NULL && json_array_append_new(w->heads, json_string(leaf_name(m->hf))) != 0)
            return no_memory();
    }
    return D9D_OK;
}

/* An integer if the value is one, as peft writes it. */
static json_t *json_number_of(double v)
{
    return v == floor(v) && fabs(v) < 1e9 ? json_integer((json_int_t)v) : json_real(v);
}

static d9d_status config_build(adapter_writer *w, const char *base)
{
    const d9di_adapters_factors *first = &w->ad->list.data[0];

    w->doc = json_pack("{s:s, s:s, s:o, s:I, s:o, s:f, s:s, s:b, s:b, s:b, s:b, s:b, s:n, s:[], "
                       "s:{}, s:{}}",
                       "peft_type", "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path",
                       d9d_json_str(base), "r", (json_int_t)first->r, "lora_alpha",
                       json_number_of(first->alpha), "lora_dropout", first->dropout, "bias", "none",
                       "fan_in_fan_out", 0, "inference_mode", 1, "init_lora_weights", 1, "use_dora",
                       0, "use_rslora", 0, "modules_to_save", "target_modules", "rank_pattern",
                       "alpha_pattern");
    w->targets = json_object_get(w->doc, "target_modules");
    w->ranks = json_object_get(w->doc, "rank_pattern");
    w->alphas = json_object_get(w->doc, "alpha_pattern");
    if (w->doc == NULL)
        return no_memory();
    D9D_TRY(heads_note(w));
    return targets_build(w);
}

static d9d_status config_write(adapter_writer *w, const char *dir)
{
    d9d_arena a = {0};
    const char *path = d9d_fs_join(&a, dir, D9DI_ADAPTER_CONFIG);
    d9d_buf text = {0};
    d9d_status st = path != NULL ? d9d_json_put(&text, w->doc, 2) : no_memory();

    if (st == D9D_OK)
        st = d9d_buf_append(&text, "\n", 1);
    if (st == D9D_OK)
        st = d9d_fs_write_atomic(path, text.data, text.len);
    d9d_buf_release(&text);
    d9d_arena_release(&a);
    return st;
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

d9d_status d9d_adapters_write(const d9d_adapters *ad, const d9d_model_matrices *of,
                              const char *base, const char *dir, const d9d_log *log)
{
    adapter_writer w = {.ad = ad, .matrices = of};
    d9d_outdir out = {0};
    d9d_status st;

    if (ad->list.len == 0)
        return D9D_FAIL(D9D_EINVAL, "%s: there are no adapters to write", dir);
    D9D_TRY(d9d_outdir_begin(&out, dir, D9D_OUTDIR_REPLACE, &adapter_kind));
    D9D_TRY_OR(st, config_build(&w, base), done);
    D9D_TRY_OR(st, config_write(&w, out.tmp), done);
    D9D_TRY_OR(st, tensors_write(&w, out.tmp), done);
    st = d9d_outdir_commit(&out);
    if (st == D9D_OK)
        d9d_log_info(log, "%s: %zu adapters", dir, ad->list.len);
done:
    json_decref(w.doc);
    d9d_map_release(&w.leaves);
    d9d_outdir_release(&out);
    return st;
}
