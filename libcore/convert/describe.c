/* describe.c - see d9d/convert/describe.h. */
#include "d9d/convert/describe.h"

#include <string.h>

#include "convert/describe_parts.h"
#include "d9d/base/num_format.h"
#include "d9d/base/plugin_call.h"
#include "d9d/convert/convert.h"
#include "d9d/model/family/family.h"
#include "d9d/model/hf/hf_config.h"
#include "d9d/models/models.h"

enum { ADAMW_BYTES = 16 }; /* of a float32 parameter: itself, its gradient and two moments */

typedef struct description {
    d9d_arena arena;
    const d9d_table *const *choices;
    const char *file, *dir; /* config.json and what lies beside it; dir NULL: nothing does */
    json_t *config;         /* the file */
    const d9d_model_provider *provider; /* NULL: none reads it */
    d9d_model_spec spec;
    bool readable;    /* spec is set */
    json_t *accepted; /* config.json without the fields that are refused */
    json_t *fields, *refused, *out;
} description;

static d9d_status no_memory(void)
{
    return D9D_FAIL(D9D_ENOMEM, "description: out of memory");
}

/* Add a reason, unless it is there. */
static void refuse(description *d, const char *sentence)
{
    const json_t *v;
    size_t i;

    json_array_foreach(d->refused, i, v)
    {
        if (strcmp(json_string_value(v), sentence) == 0)
            return;
    }
    d9d_json_add(&d->refused, d9d_json_str(sentence));
}

static void refuse_failure(description *d, d9d_status st)
{
    if (st != D9D_OK)
        refuse(d, d9d_err_message());
}

/* --- config.json ------------------------------------------------------------------------------ */

static const char *rule_name(const d9d_hf_field *rule, d9d_status st)
{
    static const char *const names[] = {
        [D9D_HF_RULE_READ] = "read",       [D9D_HF_RULE_ONLY] = "one value",
        [D9D_HF_RULE_IGNORED] = "ignored", [D9D_HF_RULE_ALIAS] = "read",
        [D9D_HF_RULE_OWN] = "read",        [D9D_HF_RULE_ROUTER_LOSS] = "ignored"};

    return st != D9D_OK ? "refused" : rule != NULL ? names[rule->rule] : "ignored";
}

static void field_add(void *arg, const char *name, const d9d_hf_field *rule, d9d_status st)
{
    description *d = arg;

    d9d_json_add(&d->fields,
                 json_pack("{s:o, s:s}", "name", d9d_json_str(name), "rule", rule_name(rule, st)));
    if (st == D9D_OK)
        return;
    refuse_failure(d, st);
    (void)json_object_del(d->accepted, name);
}

/* Read what is left without the fields that are refused. */
static void accepted_read(description *d)
{
    d9d_family_config *c = d9d_arena_alloc(&d->arena, sizeof(*c));
    d9d_status st;

    if (c == NULL || d->provider->family == NULL)
        return;
    st = d9d_family_read(d->provider->family, d->accepted, d->file, false, &d->arena, c);
    refuse_failure(d, st);
    d->readable = st == D9D_OK;
    d->spec = (d9d_model_spec){.provider = d->provider, .config = c, .hf_config = d->file};
}

static void config_read(description *d)
{
    const char *type = json_string_value(json_object_get(d->config, "model_type"));
    d9d_hf_family family;
    d9d_status st;

    d->provider = type != NULL ? d9d_model_find(d->choices, type) : NULL;
    st = d9d_model_spec_of(d->choices, d->config, d->file, &d->arena, &d->spec);
    d->readable = st == D9D_OK;
    if (d->provider == NULL) {
        refuse_failure(d, st);
        return;
    }
    refuse_failure(d, st);
    family = d9d_model_hf_family(d->provider);
    d9d_hf_family_each_field(&family, d->config, d->file, field_add, d);
    if (!d->readable)
        accepted_read(d);
}

/* --- parameters ------------------------------------------------------------------------------- */

static int64_t numel_inactive(const d9d_model_tensor *t, const d9d_block_moe_shape *moe)
{
    return strstr(t->name, ".grouped_experts.") != NULL && t->shape.ndim > 0 &&
                   t->shape.dim[0] == moe->experts
               ? d9d_shape_numel(&t->shape) / moe->experts * (moe->experts - moe->top_k)
               : 0;
}

static void memory_put(description *d, int64_t n)
{
    d9d_json_set(&d->out, "memory",
                 json_pack("{s:I, s:I, s:I}", "bfloat16", (json_int_t)(n * 2), "float32",
                           (json_int_t)(n * 4), "adamw_float32", (json_int_t)(n * ADAMW_BYTES)));
}

/* Bytes of the matrices of layers, or of the tables of a head, as bfloat16 less those in format f;
 * null: there are none, or some that cannot be quantised. */
static json_t *saved_bytes(const d9d_params *all, bool head, d9d_quant_format f)
{
    int64_t sum = 0;

    for (size_t i = 0; i < all->n; i++) {
        const d9d_param *p = all->p[i];
        const d9d_shape *s = &p->spec.shape;

        if (head ? !p->spec.is_head : !d9d_param_is_layer_matrix(p))
            continue;
        if (s->ndim != 2 || s->dim[1] % d9d_quant_align(f) != 0)
            return json_null();
        sum += d9d_shape_numel(s) * 2 - s->dim[0] * d9d_quant_row_bytes(f, s->dim[1]);
    }
    return sum > 0 ? json_integer(sum) : json_null();
}

static d9d_status quantised_put(description *d, d9d_model *m)
{
    d9d_params all;

    D9D_TRY(d9d_module_bind(m->module));
    D9D_TRY(d9d_module_params(m->module, &d->arena, &all));
    d9d_json_set(&d->out, "quantised",
                 json_pack("{s:o, s:o, s:o, s:o}", "fp8", saved_bytes(&all, false, D9D_QUANT_FP8),
                           "nf4", saved_bytes(&all, false, D9D_QUANT_NF4), "head_fp8",
                           saved_bytes(&all, true, D9D_QUANT_FP8), "head_nf4",
                           saved_bytes(&all, true, D9D_QUANT_NF4)));
    return D9D_OK;
}

/* Parameters of the whole, and those that a token meets. */
static d9d_status params_put(description *d, const d9d_model *m)
{
    const d9d_model_provider *p = d->spec.provider;
    const d9d_block_moe_shape *moe = m->n_mixtures > 0 ? &m->mixtures[0]->shape : NULL;
    d9d_model_tensors of = {0};
    int64_t n = 0, inactive = 0;

    if (p->tensors == NULL)
        return D9D_OK;
    D9D_TRY(D9D_PLUGIN_CALL(p->table->name, p, tensors, d->spec.config, &d->arena, &of));
    for (size_t i = 0; i < of.n; i++) {
        n += d9d_shape_numel(&of.items[i].shape);
        inactive += moe != NULL ? numel_inactive(&of.items[i], moe) : 0;
    }
    d9d_json_set(&d->out, "parameters", json_integer(n));
    d9d_json_set(&d->out, "active_parameters", json_integer(n - inactive));
    memory_put(d, n);
    return D9D_OK;
}

static d9d_status model_put(description *d)
{
    const d9d_model_provider *p = d->spec.provider;
    const d9d_model_opts opts = {.dtype = D9D_F32};
    d9d_model *m = NULL;
    d9d_status st;

    D9D_TRY(D9D_PLUGIN_CALL(p->table->name, p, create, d->spec.config, D9D_WHOLE_MODEL, &opts, &m));
    d9d_json_set(&d->out, "layers", json_integer(m->layers));
    d9d_json_set(&d->out, "hidden_size", json_integer(m->hidden));
    d9d_json_set(&d->out, "vocab_size", json_integer(m->vocab));
    d9d_json_set(&d->out, "max_positions", json_integer(m->max_positions));
    if (m->n_mixtures > 0) {
        d9d_json_set(&d->out, "experts", json_integer(m->mixtures[0]->shape.experts));
        d9d_json_set(&d->out, "experts_per_token", json_integer(m->mixtures[0]->shape.top_k));
    }
    st = params_put(d, m);
    if (st == D9D_OK)
        st = quantised_put(d, m);
    d9d_model_free(m);
    return st;
}

static bool has_key(const d9d_table *t, const char *name)
{
    for (const d9d_key *k = t->keys; k->name != NULL; k++)
        if (strcmp(k->name, name) == 0)
            return true;
    return false;
}

/* What the family's struct has beside. */
static void dims_put(description *d)
{
    const d9d_family_config *c = d->spec.config;
    const d9d_family_dims *dims = c->dims;

    d9d_json_set(&d->out, "heads", json_integer(dims->num_attention_heads));
    d9d_json_set(&d->out, "kv_heads", json_integer(dims->num_key_value_heads));
    if (has_key(c->family->config, "head_dim"))
        d9d_json_set(&d->out, "head_dim", json_integer(dims->head_dim));
    d9d_json_set(&d->out, "class", d9d_json_str(c->family->class_name));
    d9d_json_set(&d->out, "head", json_string(d9d_head_name(c->head)));
    d9d_json_set(&d->out, "tied", json_boolean(dims->tie_word_embeddings));
}

static void training_put(description *d)
{
    const d9d_status st = d9d_model_spec_trainable(&d->spec);

    d9d_json_set(&d->out, "not_trainable",
                 st == D9D_OK ? json_null() : d9d_json_str(d9d_err_message()));
}

/* --- weights ------------------------------------------------------------------------- */

static json_t *dtypes_to_json(const d9d_checkpoint *c, uint64_t *bytes)
{
    struct {
        uint64_t tensors, bytes;
    } of[D9D_DTYPE_COUNT] = {{0, 0}};
    json_t *list = json_array();

    for (size_t i = 0; i < d9d_checkpoint_count(c); i++) {
        const d9d_safetensors_tensor *t = d9d_checkpoint_at(c, i);

        of[t->dtype].tensors++;
        of[t->dtype].bytes += t->bytes;
        *bytes += t->bytes;
    }
    for (int t = 0; t < D9D_DTYPE_COUNT; t++)
        if (of[t].tensors > 0)
            d9d_json_add(&list,
                         json_pack("{s:s, s:I, s:I}", "dtype", d9d_dtype_safetensors((d9d_dtype)t),
                                   "tensors", (json_int_t)of[t].tensors, "bytes",
                                   (json_int_t)of[t].bytes));
    return list;
}

static json_t *weights_to_json(const d9d_checkpoint *c)
{
    const char *last = "";
    uint64_t bytes = 0;
    int64_t files = 0;
    json_t *dtypes = dtypes_to_json(c, &bytes);

    for (size_t i = 0; i < d9d_checkpoint_count(c); i++)
        if (strcmp(d9d_checkpoint_file_path(c, i), last) != 0) {
            last = d9d_checkpoint_file_path(c, i);
            files++;
        }
    return json_pack("{s:I, s:I, s:I, s:o}", "files", (json_int_t)files, "tensors",
                     (json_int_t)d9d_checkpoint_count(c), "bytes", (json_int_t)bytes, "dtypes",
                     dtypes);
}

/* What does not fit is a reason; any other warning is something to know. */
typedef struct warnings {
    json_t *list;
} warnings;

static void warning_add(void *arg, d9d_log_level level, const char *text)
{
    warnings *w = arg;

    if (level <= D9D_LOG_WARN)
        d9d_json_add(&w->list, d9d_json_str(text));
}

/* Plan the conversion to the other layout: every tensor must be there with its shape. */
static void tensors_check(description *d)
{
    warnings w = {json_array()};
    const d9d_log log = {.line = warning_add, .arg = &w, .level = D9D_LOG_WARN};
    d9d_convert_opts opt = D9D_CONVERT_DEFAULTS;
    d9d_convert *c = NULL;
    json_t *notes = json_array();
    const json_t *v;
    size_t i;
    bool named = false;
    d9d_status st;

    opt.choices = d->choices;
    opt.log = &log;
    st = d9d_convert_open(d->dir, &opt, &c);
    if (st == D9D_OK)
        st = d9d_convert_check_data(c);
    json_array_foreach(w.list, i, v)
    {
        if (st == D9D_EMISMATCH && strncmp(json_string_value(v), "tensor ", 7) == 0) {
            refuse(d, json_string_value(v));
            named = true;
        } else {
            d9d_json_add(&notes, json_incref((json_t *)(uintptr_t)v));
        }
    }
    if (!named)
        refuse_failure(d, st);
    d9d_json_set(&d->out, "notes", notes);
    d9d_convert_close(c);
    json_decref(w.list);
}

static bool has_weights(description *d)
{
    static const char *const names[] = {D9D_CHECKPOINT_INDEX_NAME, "model.safetensors",
                                        D9D_MANIFEST_NAME};

    for (size_t i = 0; d->dir != NULL && i < sizeof(names) / sizeof(names[0]); i++) {
        const char *path = d9d_fs_join(&d->arena, d->dir, names[i]);

        if (path != NULL && d9d_fs_exists(path))
            return true;
    }
    return false;
}

static void weights_put(description *d)
{
    d9d_checkpoint *c = NULL;
    d9d_quantization q = {.method = D9D_QUANTIZATION_NONE};
    d9d_status st = d9d_quantization_read(d->config, d->file, &q);

    d9d_json_set(&d->out, "decoded",
                 st == D9D_OK && q.method != D9D_QUANTIZATION_NONE
                     ? json_string(d9d_quantization_name(q.method))
                     : json_null());
    d9d_json_set(&d->out, "weights", json_null());
    d9d_json_set(&d->out, "notes", json_array());
    if (!has_weights(d))
        return;
    st = d9d_checkpoint_open(d->dir, &c);
    refuse_failure(d, st);
    if (st == D9D_OK)
        d9d_json_set(&d->out, "weights", weights_to_json(c));
    d9d_checkpoint_close(c);
    if (st == D9D_OK && d->readable && json_array_size(d->refused) == 0)
        tensors_check(d);
}

/* --- the whole ----------------------------------------------------------------------- */

static d9d_status description_open(description *d, const char *path)
{
    json_t *type;

    D9D_TRY(d9d_hf_config_locate(path, &d->arena, &d->file, &d->dir));
    D9D_TRY(d9d_hf_config_load(d->file, &d->config));
    d->accepted = json_copy(d->config);
    d->fields = json_array();
    d->refused = json_array();
    type = json_object_get(d->config, "model_type");
    d->out = json_pack("{s:s, s:o, s:o}", "schema", "d9d.model.v1", "path", d9d_json_str(path),
                       "model_type", json_is_string(type) ? json_incref(type) : json_null());
    return d->accepted != NULL && d->out != NULL ? D9D_OK : no_memory();
}

static d9d_status description_make(description *d)
{
    config_read(d);
    d9d_json_set(&d->out, "family",
                 d->provider != NULL ? d9d_json_str(d->provider->table->name) : json_null());
    if (d->readable) {
        refuse_failure(d, model_put(d));
        if (d->provider->family != NULL)
            dims_put(d);
        training_put(d);
    }
    weights_put(d);
    if (d->out != NULL)
        D9D_TRY(d9di_describe_text_files(d->dir, d->out));
    d9d_json_set(&d->out, "fields", json_incref(d->fields));
    d9d_json_set(&d->out, "refused", json_incref(d->refused));
    return d->out != NULL ? D9D_OK : no_memory();
}

d9d_status d9d_describe_model(const char *path, const d9d_table *const *choices, json_t **out)
{
    description d = {.choices = choices != NULL ? choices : d9d_model_choices};
    d9d_status st = description_open(&d, path);

    if (st == D9D_OK)
        st = description_make(&d);
    if (st == D9D_OK)
        *out = json_incref(d.out);
    json_decref(d.config);
    json_decref(d.accepted);
    json_decref(d.fields);
    json_decref(d.refused);
    json_decref(d.out);
    d9d_arena_release(&d.arena);
    return st;
}

d9d_status d9d_describe_print(const char *path, const d9d_table *const *choices, bool json,
                              d9d_buf *out)
{
    json_t *doc;
    size_t n;
    d9d_status st;

    D9D_TRY(d9d_describe_model(path, choices, &doc));
    n = json_array_size(json_object_get(doc, "refused"));
    st = json ? d9d_json_put(out, doc, 2) : d9di_describe_text(doc, out);
    if (st == D9D_OK && json)
        st = d9d_buf_append(out, "\n", 1);
    if (st == D9D_OK && n > 0)
        st = D9D_FAIL(D9D_EVERIFY, "%s: %zu reason%s to refuse it", path, n, D9D_PLURAL(n));
    json_decref(doc);
    return st;
}
