/* test_families.c - what holds for every family of models: which fields of config.json it reads,
 * documents that are made from it, and the mapping of its weights. */
#include <stdio.h>
#include <string.h>

#include "d9d/base/hash.h"
#include "d9d/base/rng.h"
#include "d9d/model/hf/hf_config.h"
#include "d9d/model/weights/random_weights.h"
#include "d9d/models/models.h"
#include "model/family/family_parts.h"
#include "support/family.h"
#include "support/json_memory.h"
#include "support/unit.h"
#include "support/vectors.h"

/* --- a small model of each family ---------------------------------------------------------- */

/* tests/golden/small/FAMILY.json. */
typedef struct sample {
    const char *family; /* name of its section */
    json_t *file;
    const json_t *config, *others; /* other values of fields; NULL: none of its own */
    /* Tensors in HuggingFace's layout: of layer 0; of all, but for three: embedding, final norm,
     * head. */
    size_t of_first, of_layers;
} sample;

static size_t count_of(const sample *s, const char *which)
{
    const json_int_t n =
        json_integer_value(json_object_get(json_object_get(s->file, "layer_tensors"), which));

    if (n <= 0)
        fail_msg("small/%s.json: layer_tensors: %s is not a number of tensors", s->family, which);
    return (size_t)n;
}

/* The test fails where a family has none.  Release with sample_close(). */
static sample sample_open(const char *family)
{
    sample s = {.family = family};
    char name[64];
    json_error_t e;

    (void)snprintf(name, sizeof(name), "%s.json", family);
    s.file = json_load_file(vectors_path("small", name), 0, &e);
    if (s.file == NULL)
        fail_msg("%s has no small model in tests/golden/small: %s", family, e.text);
    s.config = json_object_get(s.file, "config");
    s.others = json_object_get(s.file, "other_values");
    s.of_first = count_of(&s, "first");
    s.of_layers = count_of(&s, "all");
    return s;
}

static void sample_close(sample *s)
{
    json_decref(s->file);
}

/* Call a test of one family for each that is built in. */
static void each_family(void (*fn)(const d9d_family *f, const sample *s))
{
    for (const d9d_table *const *c = d9d_model_choices; *c != NULL; c++) {
        const d9d_family *f = ((const d9d_model_provider *)(*c)->row)->family;
        sample s;

        if (f == NULL) /* "auto" */
            continue;
        s = sample_open((*c)->name);
        fn(f, &s);
        sample_close(&s);
    }
}

static const d9d_family *family_of(const sample *s)
{
    for (const d9d_table *const *c = d9d_model_choices; *c != NULL; c++)
        if (strcmp((*c)->name, s->family) == 0)
            return ((const d9d_model_provider *)(*c)->row)->family;
    fail_msg("%s is no family", s->family);
    return NULL;
}

static json_t *parsed(const char *text)
{
    json_t *v = json_loads(text, JSON_DECODE_ANY, NULL);

    if (v == NULL)
        fail_msg("not JSON: %s", text);
    return v;
}

/* The small model's document, with more fields; NULL: none. */
static json_t *document_with(const sample *s, json_t *more)
{
    json_t *doc = json_deep_copy(s->config);

    if (more != NULL)
        assert_int_equal(json_object_update(doc, more), 0);
    return doc;
}

static json_t *document(const sample *s, const char *more)
{
    json_t *also = more != NULL ? parsed(more) : NULL, *doc = document_with(s, also);

    json_decref(also);
    return doc;
}

static d9d_family_config config_of(const sample *s, const char *more, d9d_arena *a)
{
    json_t *doc = document(s, more);
    d9d_family_config c;

    assert_ok(family_parse(doc, "c", true, a, &c));
    json_decref(doc);
    return c;
}

enum { HEADS = 96 };

/* Where its file says so. */
static void check_default_heads(const d9d_family *f, const sample *s)
{
    const json_t *want = json_object_get(s->file, "key_value_heads");
    json_t *doc = document(s, "{\"hidden_size\": 768}");
    d9d_arena a = {0};
    d9d_family_config c;

    (void)f;
    if (want != NULL) {
        assert_int_equal(json_object_set_new(doc, "num_attention_heads", json_integer(HEADS)), 0);
        (void)json_object_del(doc, "num_key_value_heads");
        assert_ok(family_parse(doc, "c", true, &a, &c));
        if (((const d9d_family_dims *)c.dims)->num_key_value_heads != json_integer_value(want))
            fail_msg("%s has %lld, must have %lld", s->family,
                     (long long)((const d9d_family_dims *)c.dims)->num_key_value_heads,
                     (long long)json_integer_value(want));
        d9d_arena_release(&a);
    }
    json_decref(doc);
}

/* Without num_key_value_heads, of 96 heads: the number of transformers' configuration class. */
static void key_value_heads_that_are_absent_are_those_of_transformers(void **state)
{
    (void)state;
    each_family(check_default_heads);
}

/* The id whose row a model's embedding does not train; -1: it trains all. */
static int64_t padding_of(const sample *s, const char *more)
{
    const d9d_model_opts options = {.dtype = D9D_F32};
    d9d_arena a = {0};
    const d9d_family_config c = config_of(s, more, &a);
    d9d_model *m;
    int64_t id;

    assert_ok(d9d_family_create(&c, D9D_WHOLE_MODEL, &options, &m));
    id = m->embedding->has_padding ? m->embedding->padding : -1;
    d9d_model_free(m);
    d9d_arena_release(&a);
    return id;
}

/* "pad_token_id" of a family's file: the default of transformers; false: its embedding has none. */
static void check_padding(const d9d_family *f, const sample *s)
{
    const json_t *file = json_object_get(s->file, "pad_token_id");
    const bool has = !json_is_false(file);

    (void)f;
    assert_int_equal(padding_of(s, "{\"pad_token_id\": 2, \"vocab_size\": 13}"), has ? 2 : -1);
    assert_int_equal(padding_of(s, "{\"pad_token_id\": -1, \"vocab_size\": 13}"), has ? 12 : -1);
    assert_int_equal(padding_of(s, "{\"pad_token_id\": 13, \"vocab_size\": 13}"), -1);
    assert_int_equal(padding_of(s, "{\"pad_token_id\": null, \"vocab_size\": 13}"), -1);
    assert_int_equal(padding_of(s, "{\"vocab_size\": 200000}"),
                     json_is_integer(file) ? json_integer_value(file) : -1);
}

static void padding_is_a_row_of_the_vocabulary(void **state)
{
    (void)state;
    each_family(check_padding);
}

/* --- what a model is ------------------------------------------------------------------------- */

enum { TOKENS = 16 };

static void print_param(const d9d_param *p, d9d_buf *out)
{
    assert_ok(
        d9d_buf_printf(out, "%s %d %a", p->name, (int)p->spec.init, (double)p->spec.init_scale));
    for (int d = 0; d < p->spec.shape.ndim; d++)
        assert_ok(d9d_buf_printf(out, " %lld", (long long)p->spec.shape.dim[d]));
    assert_ok(d9d_buf_printf(out, "\n"));
}

static void print_numbers(const d9d_var *v, d9d_buf *out)
{
    const size_t n = (size_t)d9d_tensor_numel(d9d_var_tensor(v));
    float *host = calloc(n, sizeof(*host));

    assert_non_null(host);
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(v), host));
    for (size_t i = 0; i < n; i++)
        assert_ok(d9d_buf_printf(out, "%a\n", (double)host[i]));
    free(host);
}

/* Random numbers of a training step, for models with dropout. */
static void set_dropout(d9d_tape *t, d9d_device *dev)
{
    int64_t number[TOKENS];
    d9d_tensor token;

    for (int i = 0; i < TOKENS; i++)
        number[i] = 100 + i;
    assert_ok(d9d_tensor_from_host(dev, D9D_I64, D9D_SHAPE(TOKENS), number, &token));
    d9d_tape_set_dropout_rng(t,
                             &(d9d_dropout_rng){.seed = 9, .token = token, .max_positions = 100});
    d9d_tensor_release(&token);
}

/* Losses of some tokens in training with the weights of one seed, or what comes out of a model
 * without head. */
static void print_values(d9d_model *m, d9d_device *dev, d9d_buf *out)
{
    int32_t ids[TOKENS], positions[TOKENS];
    d9d_tensor x[2];
    d9d_model_out y;
    d9d_tape *t;

    for (int i = 0; i < TOKENS; i++) {
        ids[i] = (i * i + 3) % 11;
        positions[i] = i;
    }
    assert_ok(d9d_tensor_from_host(dev, D9D_I32, D9D_SHAPE(1, TOKENS), ids, &x[0]));
    assert_ok(d9d_tensor_from_host(dev, D9D_I32, D9D_SHAPE(1, TOKENS), positions, &x[1]));
    assert_ok(d9d_tape_create(dev, &t));
    set_dropout(t, dev);
    assert_ok(m->ops->forward(
        m, t, &(d9d_model_in){.ids = &x[0], .positions = &x[1], .labels = &x[0]}, &y));
    print_numbers(y.loss != NULL ? y.loss : y.hidden, out);
    d9d_tape_free(t);
    d9d_tensor_release(&x[0]);
    d9d_tensor_release(&x[1]);
}

/* Everything that a field can change, as text: the head, parameters, and what is computed. */
static d9d_status print_model(const d9d_family_config *c, d9d_buf *out)
{
    const d9d_model_opts options = {.dtype = D9D_F32};
    d9d_arena a = {0};
    d9d_params params;
    d9d_device *dev;
    d9d_model *m;

    D9D_TRY(d9d_family_create(c, D9D_WHOLE_MODEL, &options, &m));
    assert_ok(d9d_buf_printf(out,
                             "head %d labels %lld features %lld trainable %d positions %lld "
                             "padding %lld\n",
                             (int)c->head, (long long)c->labels, (long long)c->embedding_dim,
                             d9d_family_trainable(c) == D9D_OK, (long long)m->max_positions,
                             m->embedding->has_padding ? (long long)m->embedding->padding : -1));
    assert_ok(d9d_module_bind(m->module));
    assert_ok(d9d_module_params(m->module, &a, &params));
    for (size_t i = 0; i < params.n; i++)
        print_param(params.p[i], out);
    assert_ok(d9d_device_open("cpu", &dev));
    assert_ok(d9d_module_materialise(m->module, dev, false));
    assert_ok(d9d_module_reset(m->module, 5));
    print_values(m, dev, out);
    d9d_model_free(m);
    d9d_device_close(dev);
    d9d_arena_release(&a);
    return D9D_OK;
}

/* The same of a document, of a job's "model" or of a file; a failure's sentence if it is none. */
static void print_document_of(const json_t *doc, bool inlined, d9d_buf *out)
{
    d9d_arena a = {0};
    d9d_family_config c;

    if (family_parse(doc, "c", inlined, &a, &c) != D9D_OK || print_model(&c, out) != D9D_OK)
        assert_ok(d9d_buf_printf(out, "%s", d9d_err_message()));
    d9d_arena_release(&a);
}

static void print_document(const json_t *doc, d9d_buf *out)
{
    print_document_of(doc, true, out);
}

/* --- fields --------------------------------------------------------------------------------- */

static const char yarn[] = "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}}";

/* Another value of a field, and other fields with which it must be another model, where a family's
 * file has none: of a mixture all layers have the window, or none. */
static const struct {
    const char *field, *value, *more;
} values[] = {
    {"norm_bias", "true", NULL},
    {"norm_eps", "1e-2", NULL},
    {"hidden_activation", "\"silu\"", NULL},
    {"local_attention", "4", NULL},
    {"global_attn_every_n_layers", "2", NULL},
    {"query_pre_attn_scalar", "8", NULL},
    {"attn_logit_softcapping", "0.01", NULL},
    {"final_logit_softcapping", "0.01", NULL},
    {"sliding_window_pattern", "3", NULL},
    {"num_local_experts", "5", NULL},
    {"partial_rotary_factor", "0.75", NULL},
    {"rotary_dim", "4", NULL},
    {"attn_type_list", "[1, 1, 1, 0, 1]", NULL},
    {"rope_local_base_freq", "5", NULL},
    {"embedding_multiplier", "2", NULL},
    {"attention_multiplier", "0.5", NULL},
    {"residual_multiplier", "0.5", NULL},
    {"logits_scaling", "2", NULL},
    {"mlp_bias", "true", NULL},
    {"qkv_bias", "false", NULL},
    {"attention_bias", "true", NULL},
    {"hidden_act", "\"gelu\"", NULL},
    {"swiglu_limit", "0.001", NULL},
    {"use_qk_norm", "true", NULL},
    {"n_routed_experts", "8", NULL},
    {"n_shared_experts", "3", NULL},
    {"n_group", "1", NULL},
    {"topk_group", "2", NULL},
    {"llama_4_scaling_beta", "0.5",
     "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2, "
     "\"original_max_position_embeddings\": 4}}"},
    {"topk_method", "\"greedy\"", NULL},
    {"first_k_dense_replace", "2", NULL},
    {"mlp_layer_types", "[\"sparse\", \"dense\", \"sparse\", \"sparse\", \"sparse\"]", NULL},
    {"shared_intermediate_size", "14", NULL},
    {"position_embedding_type", "\"nope\"", NULL},
    {"routed_scaling_factor", "2", NULL},
    {"q_lora_rank", "null", NULL},
    {"kv_lora_rank", "4", NULL},
    {"qk_nope_head_dim", "6", NULL},
    {"qk_rope_head_dim", "6", NULL},
    {"v_head_dim", "3", NULL},
    {"rope_interleave", "false", NULL},
    {"linear_num_key_heads", "2", NULL},
    {"linear_num_value_heads", "3", NULL},
    {"linear_key_head_dim", "3", NULL},
    {"linear_value_head_dim", "3", NULL},
    {"linear_conv_kernel_dim", "2", NULL},
    {"full_attention_interval", "2", NULL},
    {"hidden_size", "48", NULL},
    {"num_hidden_layers", "6", NULL},
    {"num_attention_heads", "6", NULL},
    {"num_key_value_heads", "1", NULL},
    {"head_dim", "16", NULL},
    {"intermediate_size", "12", NULL},
    {"max_position_embeddings", "64", NULL},
    {"vocab_size", "12", NULL},
    {"rms_norm_eps", "1e-2", NULL},
    {"layer_norm_eps", "1e-2", NULL},
    {"layer_norm_epsilon", "1e-2", NULL},
    {"n_embd", "48", NULL},
    {"n_layer", "6", NULL},
    {"n_head", "6", NULL},
    {"n_inner", "12", NULL},
    {"n_positions", "64", NULL},
    {"attn_pdrop", "0.5", NULL},
    {"resid_pdrop", "0.5", NULL},
    {"embd_pdrop", "0.5", NULL},
    {"activation_function", "\"gelu\"", NULL},
    {"scale_attn_weights", "false", NULL},
    {"scale_attn_by_inverse_layer_idx", "true", NULL},
    {"use_parallel_residual", "false", NULL},
    {"hidden_dropout", "0.5", NULL},
    {"embedding_dropout", "0.5", NULL},
    {"mlp_dropout", "0.5", NULL},
    {"initializer_range", "0.5", NULL},
    {"attention_dropout", "0.5", NULL},
    {"tie_word_embeddings", "true", NULL},
    {"pad_token_id", "2", NULL},
    {"rope_theta", "5", NULL},
    {"rope_scaling", "null", NULL},
    {"original_max_position_embeddings", "16", NULL},
    {"sliding_window", "10", NULL},
    {"max_window_layers", "2", NULL},
    {"layer_types",
     "[\"sliding_attention\", \"full_attention\", \"full_attention\", \"full_attention\", "
     "\"full_attention\"]",
     NULL},
    {"clip_qkv", "0.001", NULL},
    {"num_experts", "5", NULL},
    {"num_experts_per_tok", "1", NULL},
    {"moe_intermediate_size", "8", NULL},
    {"norm_topk_prob", "true", NULL},
    {"decoder_sparse_step", "2", NULL},
    {"mlp_only_layers", "[1]", NULL},
    {"shared_expert_intermediate_size", "3", NULL},
    {"shared_expert_gate", "true", "{\"shared_expert_intermediate_size\": 3}"},
    {"architectures", "[\"MineForSequenceClassification\"]", NULL},
    {"d9d", "{\"head\": \"embedding\"}", NULL},
    {"num_labels", "3", NULL},
    {"id2label", "{\"0\": \"a\"}", NULL},
};
enum { N_VALUES = sizeof(values) / sizeof(values[0]) };

typedef struct other {
    json_t *value, *with; /* with: NULL is none */
} other;

/* Release with other_release(). */
static other other_of(const sample *s, const char *field)
{
    const json_t *own = json_object_get(s->others, field);
    other o = {NULL, NULL};

    if (own != NULL) {
        o.value = json_incref(json_object_get(own, "value"));
        o.with = json_incref(json_object_get(own, "with"));
        return o;
    }
    for (size_t i = 0; i < N_VALUES; i++)
        if (strcmp(values[i].field, field) == 0) {
            o.value = parsed(values[i].value);
            o.with = values[i].more != NULL ? parsed(values[i].more) : NULL;
            return o;
        }
    fail_msg("%s of %s is declared to be read, and neither small/%s.json nor a row here says so",
             field, s->family, s->family);
    return o;
}

static void other_release(other *o)
{
    json_decref(o->value);
    json_decref(o->with);
}

static bool has_key(const d9d_family *f, const char *name)
{
    const d9d_key *k = f->config->keys;

    while (k->name != NULL && strcmp(k->name, name) != 0)
        k++;
    return k->name != NULL;
}

static bool has_rope(const d9d_family *f)
{
    return has_key(f, "rope_scaling");
}

/* May a file have this RoPE?  A rope_theta by itself not where the family has another name for it,
 * or RoPE parameters of its own with a base; older names not where layers have ropes of two kinds.
 */
static bool takes_rope(const d9d_family *f, const json_t *doc)
{
    const d9d_hf_field *row = f->fields;
    const d9d_key *k = f->config->keys;

    if (has_key(f, "rope_local_base_freq") &&
        (json_object_get(json_object_get(doc, "rope_scaling"), "type") != NULL ||
         json_object_get(doc, "original_max_position_embeddings") != NULL))
        return false;
    if (!json_is_number(json_object_get(doc, "rope_theta")))
        return true;
    while (row->name != NULL && strcmp(row->name, "rotary_emb_base") != 0)
        row++;
    while (strcmp(k->name, "rope_scaling") != 0)
        k++;
    return row->name == NULL && strstr(k->def, "rope_theta") == NULL;
}

/* A longer one, of a family with a RoPE; more: NULL is no more fields. */
static json_t *scaled_document(const sample *s, json_t *more)
{
    json_t *doc = document(s, has_rope(family_of(s)) ? yarn : NULL);

    if (more != NULL)
        assert_int_equal(json_object_update(doc, more), 0);
    return doc;
}

/* Is the small model another one with this value, or refused? */
static bool is_read(const sample *s, json_t *with, const char *field, json_t *value)
{
    json_t *doc = scaled_document(s, with);
    d9d_buf before = {0}, after = {0};
    bool changed;

    print_document(doc, &before);
    if (strncmp(before.data, "head ", 5) != 0)
        fail_msg("%s: %s", s->family, (char *)before.data);
    assert_int_equal(json_object_set(doc, field, value), 0);
    print_document(doc, &after);
    changed = strcmp(before.data, after.data) != 0;
    d9d_buf_release(&before);
    d9d_buf_release(&after);
    json_decref(doc);
    return changed;
}

/* The same of texts; with: NULL is none. */
static bool is_read_text(const sample *s, const char *with, const char *field, const char *value)
{
    json_t *w = with != NULL ? parsed(with) : NULL, *v = parsed(value);
    const bool read = is_read(s, w, field, v);

    json_decref(w);
    json_decref(v);
    return read;
}

static void check_read(const sample *s, const char *field)
{
    other o = other_of(s, field);

    if (!is_read(s, o.with, field, o.value))
        fail_msg("%s of %s is declared to be read, and another value changes nothing", field,
                 s->family);
    other_release(&o);
}

/* Where a value stands that also has another name: by itself, or if it is RoPE's in the object. */
static json_t *place_of(json_t *doc, const char *field)
{
    const bool rope =
        strcmp(field, "rope_theta") == 0 || strcmp(field, "partial_rotary_factor") == 0;
    json_t *scaling = json_object_get(doc, "rope_scaling");

    if (!rope || scaling != NULL)
        return rope ? scaling : doc;
    assert_int_equal(
        json_object_set_new(doc, "rope_parameters", parsed("{\"full_attention\": {}}")), 0);
    return json_object_get(json_object_get(doc, "rope_parameters"), "full_attention");
}

/* Another name of a key gives the model that the key gives. */
static void check_alias(const sample *s, const d9d_hf_field *f)
{
    other o = other_of(s, f->only);
    json_t *doc = scaled_document(s, o.with), *place = place_of(doc, f->only);
    d9d_buf by_key = {0}, by_alias = {0};

    assert_int_equal(json_object_set(place, f->only, o.value), 0);
    print_document(doc, &by_key);
    assert_int_equal(json_object_del(place, f->only), 0);
    if (place != doc) { /* by itself it is refused */
        assert_int_equal(json_object_set(doc, f->only, o.value), 0);
        print_document(doc, &by_alias);
        assert_non_null(strstr(by_alias.data, f->name));
        assert_true(strncmp(by_alias.data, "c: ", 3) == 0);
        assert_int_equal(json_object_del(doc, f->only), 0);
        by_alias.len = 0;
    }
    assert_int_equal(json_object_set(doc, f->name, o.value), 0);
    print_document(doc, &by_alias);
    assert_string_equal(by_key.data, by_alias.data);
    assert_true(strncmp(by_key.data, "head ", 5) == 0);
    d9d_buf_release(&by_key);
    d9d_buf_release(&by_alias);
    json_decref(doc);
    other_release(&o);
}

/* A value that the row does not list is refused, by the field's name.  Behind a row of a job's own
 * field, that is what files may have. */
static void check_only(const sample *s, const d9d_hf_field *f, bool inlined)
{
    json_t *doc = scaled_document(s, NULL), *list = parsed(f->only), *v;
    d9d_buf text = {0};
    size_t i;

    json_array_foreach(list, i, v)
    {
        text.len = 0;
        assert_int_equal(json_object_set(doc, f->name, v), 0);
        print_document_of(doc, inlined, &text);
        if (strncmp(text.data, "head ", 5) != 0)
            fail_msg("%s: %s", s->family, (char *)text.data);
    }
    text.len = 0;
    assert_int_equal(json_object_set_new(doc, f->name, parsed("\"of no model\"")), 0);
    print_document_of(doc, inlined, &text);
    unit_check_has(text.data, f->name, __FILE__, __LINE__);
    unit_check_has(text.data, "\"of no model\" is not supported", __FILE__, __LINE__);
    d9d_buf_release(&text);
    json_decref(list);
    json_decref(doc);
}

static bool is_own(const d9d_family *f, const char *name)
{
    for (const d9d_hf_field *row = f->fields; row->name != NULL; row++)
        if (row->rule == D9D_HF_RULE_OWN && strcmp(row->name, name) == 0)
            return true;
    return false;
}

static void check_field(const d9d_family *family, const sample *s, const d9d_hf_field *f)
{
    if (f->rule == D9D_HF_RULE_ALIAS)
        check_alias(s, f);
    else if (f->rule == D9D_HF_RULE_ONLY)
        check_only(s, f, !is_own(family, f->name));
    else if (f->rule != D9D_HF_RULE_IGNORED && f->rule != D9D_HF_RULE_ROUTER_LOSS)
        check_read(s, f->name);
    else if (is_read_text(s, NULL, f->name, "1"))
        fail_msg("%s of %s is declared to change nothing", f->name, s->family);
}

static void check_fields(const d9d_family *f, const sample *s)
{
    static const char *const of_all[] = {"architectures", "d9d"};
    const size_t n_all = sizeof(of_all) / sizeof(of_all[0]);
    static const char classifier[] = "{\"architectures\": [\"MineForSequenceClassification\"]}";

    for (const d9d_key *k = f->config->keys; k->name != NULL; k++)
        check_read(s, k->name);
    for (const d9d_hf_field *row = f->fields; row != NULL && row->name != NULL; row++)
        check_field(f, s, row);
    for (size_t i = 0; i < n_all; i++)
        check_read(s, of_all[i]);
    if (has_key(f, "rope_scaling"))
        check_read(s, "original_max_position_embeddings");
    assert_true(is_read_text(s, classifier, "num_labels", "3"));
    assert_true(is_read_text(s, classifier, "id2label", "{\"0\": \"a\"}"));
    assert_false(is_read_text(s, NULL, "use_cache", "false"));
    assert_true(is_read_text(s, NULL, "logits_scaling", "8"));
}

static void a_field_does_what_it_is_declared_to_do(void **state)
{
    (void)state;
    each_family(check_fields);
}

/* Fields of a job's "model" that no file can have are not known there. */
static void check_own_fields(const d9d_family *f, const sample *s)
{
    for (const d9d_hf_field *row = f->fields; row != NULL && row->name != NULL; row++) {
        json_t *doc = document(s, NULL);
        d9d_arena a = {0};
        d9d_family_config c;

        if (row->rule == D9D_HF_RULE_OWN) {
            other o = other_of(s, row->name);

            assert_int_equal(json_object_set(doc, row->name, o.value), 0);
            assert_fails_like(family_parse(doc, "c", false, &a, &c), D9D_ENOTSUP, row->name);
            assert_ok(family_parse(doc, "c", true, &a, &c));
            other_release(&o);
        }
        json_decref(doc);
        d9d_arena_release(&a);
    }
}

static void a_field_that_files_cannot_have_is_that_of_a_job(void **state)
{
    (void)state;
    each_family(check_own_fields);
}

static void check_undeclared(const d9d_family *f, const sample *s)
{
    static const char *const rows[][2] = {
        {"{\"factor_of_norms\": 8}",
         "c: factor_of_norms: 8: %s does not know this field, which may "
         "change what the model computes"},
        {"{\"quantization_config\": {\"quant_method\": \"hqq\"}}",
         "c: quantization_config.quant_method: \"hqq\" is not supported; \"fp8\", \"mxfp4\", "
         "\"compressed-tensors\", \"bitsandbytes\", \"gptq\", \"awq\", \"fbgemm_fp8\" and "
         "\"modelopt\" are decoded when they are read, of others take the unquantised weights"},
        {"{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2, \"beta_fast\": 3}}",
         "c: rope_scaling.beta_fast: 3: %s does not know this field, which may change what the "
         "model computes"},
        {"{\"rope_parameters\": {\"partial_rotary_factor\": 0.5}}",
         "c: rope_parameters.partial_rotary_factor: 0.5 is not supported"},
    };
    d9d_arena a = {0};
    d9d_family_config c;
    json_t *doc;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *name = strstr(rows[i][1], "%s");
        const int before = name != NULL ? (int)(name - rows[i][1]) : (int)strlen(rows[i][1]);
        char want[320];

        if (strstr(rows[i][1], "partial") != NULL && has_key(f, "partial_rotary_factor"))
            continue;
        (void)snprintf(want, sizeof(want), "%.*s%s%s", before, rows[i][1],
                       name != NULL ? f->name : "", name != NULL ? name + 2 : "");
        doc = document(s, rows[i][0]);
        assert_fails(family_parse(doc, "c", false, &a, &c), D9D_ENOTSUP, want);
        json_decref(doc);
    }
    doc = document(s, "{\"_name_or_path\": \"x\", \"factor_of_norms\": null, "
                      "\"quantization_config\": null}");
    assert_ok(family_parse(doc, "c", false, &a, &c));
    json_decref(doc);
    d9d_arena_release(&a);
}

static void a_field_that_is_not_declared_is_refused(void **state)
{
    (void)state;
    each_family(check_undeclared);
}

/* ModernBERT's two bases by either generation of names; what is absent has its own default. */
static void bases_of_kinds_of_layers_are_read(void **state)
{
    static const char *const same[][2] = {
        {"{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 50}}}",
         "{\"global_rope_theta\": 50}"},
        {"{\"rope_parameters\": {\"sliding_attention\": {\"rope_theta\": 50}}}",
         "{\"local_rope_theta\": 50}"},
        {"{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}}",
         "{\"global_rope_theta\": 160000, \"local_rope_theta\": 10000}"},
        {"{\"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\", "
         "\"sliding_attention\", \"full_attention\"]}",
         "{\"global_attn_every_n_layers\": 2}"},
    };
    sample s = sample_open("modernbert");
    d9d_arena a = {0};
    d9d_family_config c;
    json_t *doc;

    (void)state;
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        d9d_buf text[2] = {{0}};

        for (int k = 0; k < 2; k++) {
            doc = document(&s, same[i][k]);
            print_document(doc, &text[k]);
            json_decref(doc);
        }
        assert_true(strncmp(text[0].data, "head ", 5) == 0);
        assert_string_equal(text[0].data, text[1].data);
        d9d_buf_release(&text[0]);
        d9d_buf_release(&text[1]);
    }
    doc = document(&s, yarn);
    assert_fails_like(family_parse(doc, "c", true, &a, &c), D9D_ENOTSUP, "c: rope_scaling: ");
    json_decref(doc);
    d9d_arena_release(&a);
    sample_close(&s);
}

/* null is the default, unless the table says what it means; where another field needs a value, it
 * is refused by its name. */
static void check_nulls(const d9d_family *f, const sample *s)
{
    for (const d9d_key *k = f->config->keys; k->name != NULL; k++) {
        json_t *doc = document(s, NULL);
        d9d_buf absent = {0}, null = {0};

        (void)json_object_del(doc, k->name);
        print_document(doc, &absent);
        assert_int_equal(json_object_set_new(doc, k->name, json_null()), 0);
        print_document(doc, &null);
        if ((k->flags & D9D_NULLABLE) == 0)
            assert_string_equal(absent.data, null.data);
        else if (strncmp(null.data, "head ", 5) != 0 && strstr(null.data, k->name) == NULL)
            fail_msg("%s: null: %s", k->name, (char *)null.data);
        d9d_buf_release(&absent);
        d9d_buf_release(&null);
        json_decref(doc);
    }
}

static void a_field_that_is_null_is_absent_or_has_a_meaning(void **state)
{
    (void)state;
    each_family(check_nulls);
}

/* Heads and projections of sizes that no model can have. */
static void check_heads(const d9d_family *f, const sample *s)
{
    static const char *const rows[][2] = {
        {"{\"d9d\": {\"head\": \"classification\"}, \"num_labels\": 0}",
         "c: num_labels is 0, outside 1..65536"},
        {"{\"architectures\": [\"MineModel\"], \"num_labels\": 4611686018427387904}",
         "c: num_labels is 4611686018427387904, outside 0..65536"},
        {"{\"d9d\": {\"head\": \"embedding\", \"embedding_dim\": 4611686018427387904}}",
         "c: embedding_dim is 4611686018427387904, outside 0..1048576"},
    };
    d9d_arena a = {0};
    d9d_family_config c;

    (void)f;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *doc = document(s, rows[i][0]);

        assert_fails(family_parse(doc, "c", false, &a, &c), D9D_ECONFIG, rows[i][1]);
        json_decref(doc);
    }
    d9d_arena_release(&a);
}

static void heads_have_a_size(void **state)
{
    (void)state;
    each_family(check_heads);
}

/* --- documents ------------------------------------------------------------------------------ */

/* Scaled rotary embedding with and without a base, and where its names stand. */
static const char *const ropes[] = {
    "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}}",
    "{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}, \"rope_theta\": null}",
    "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}, \"rope_theta\": 5}",
    "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2, \"rope_theta\": 5}}",
    "{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}, "
    "\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2}, \"rope_theta\": 5}",
    "{\"rope_scaling\": {}, \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2}}",
    "{\"rope_theta\": 5, \"rope_scaling\": null}",
    "{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2}}",
    "{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2}, \"rope_scaling\": null}",
    "{\"rope_scaling\": null, \"rope_parameters\": null, \"rope_theta\": null}",
    "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2, "
    "\"original_max_position_embeddings\": 40.5}}",
    "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2, "
    "\"original_max_position_embeddings\": 1e30}}",
    "{\"rope_scaling\": {\"type\": \"su\", \"short_factor\": [1.5], \"long_factor\": [3]}, "
    "\"original_max_position_embeddings\": 4}",
    "{\"rope_parameters\": {\"rope_type\": \"longrope\", \"short_factor\": [1.5], "
    "\"long_factor\": [3], \"attention_factor\": 1.5, "
    "\"original_max_position_embeddings\": 4, \"rope_theta\": 5}}",
    "{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}, \"rope_theta\": 5}",
};

/* Give longrope as many factors as the family's heads have rotated pairs. */
static void set_factors(const sample *s, json_t *doc)
{
    static const char *const lists[] = {"short_factor", "long_factor"};
    static const char *const objects[] = {"rope_scaling", "rope_parameters"};
    d9d_arena a = {0};
    const d9d_family_config c = config_of(s, NULL, &a);
    const int64_t pairs = d9di_family_shape(&c).rope.features / 2;

    for (int i = 0; i < 4; i++) {
        json_t *list = json_object_get(json_object_get(doc, objects[i / 2]), lists[i % 2]);

        while (list != NULL && (int64_t)json_array_size(list) < pairs)
            assert_int_equal(json_array_append_new(list, json_real(1.25)), 0);
    }
    d9d_arena_release(&a);
}

static void check_generations(const d9d_family *f, const sample *s)
{
    if (has_key(f, "num_local_experts") || !has_rope(f) || strcmp(s->family, "gpt_neox") == 0)
        return; /* the same names in either generation, or others in the older one */
    for (size_t i = 0; i < sizeof(ropes) / sizeof(ropes[0]); i++) {
        json_t *doc = document(s, ropes[i]);
        const int changes = takes_rope(f, doc) ? 4 : 0;
        d9d_arena a = {0};
        d9d_family_config c, now;

        set_factors(s, doc);
        if (changes > 0)
            assert_ok(family_parse(doc, "c", false, &a, &c));
        for (int change = 0; change < changes; change++) {
            const d9d_family_dims *was = c.dims, *is;

            assert_ok(d9d_hf_config_set_generation(doc, 5 - change % 2));
            assert_ok(family_parse(doc, "c", false, &a, &now));
            is = now.dims;
            assert_true(was->rope_theta == is->rope_theta);
            assert_memory_equal(&was->rope_scaling, &is->rope_scaling, sizeof(was->rope_scaling));
        }
        assert_false(changes > 0 && json_is_object(json_object_get(doc, "rope_parameters")));
        json_decref(doc);
        d9d_arena_release(&a);
    }
}

static void a_change_of_generation_keeps_the_rope(void **state)
{
    (void)state;
    each_family(check_generations);
}

/* A document in memory that ends early is no document. */
static json_t *made(const d9d_family_config *c)
{
    json_t *doc;
    int left = 0;

    for (;; left++) {
        d9d_status st;

        json_memory_begin(left);
        st = d9d_family_hf_config(c, D9D_BF16, &doc);
        if (!json_memory_end())
            break;
        assert_int_equal(st, D9D_ENOMEM);
    }
    assert_true(left > 20);
    return doc;
}

static void check_made(const sample *s, const char *more)
{
    d9d_buf before = {0}, after = {0};
    d9d_arena a = {0};
    const d9d_family_config c = config_of(s, more, &a);
    json_t *doc = made(&c);
    d9d_family_config back;
    d9d_dtype t;

    assert_ok(family_parse(doc, "made", false, &a, &back));
    assert_ok(d9d_hf_config_dtype(doc, "made", D9D_F32, &t));
    assert_int_equal(t, D9D_BF16);
    assert_ok(d9d_hf_config_set_dtype(doc, D9D_F32));
    assert_ok(d9d_hf_config_dtype(doc, "made", D9D_BF16, &t));
    assert_int_equal(t, D9D_F32);
    assert_true(c.head_unknown == !c.family->encoder && !back.head_unknown);
    assert_ok(print_model(&c, &before));
    assert_ok(print_model(&back, &after));
    assert_string_equal(before.data, after.data);
    d9d_buf_release(&before);
    d9d_buf_release(&after);
    json_decref(doc);
    d9d_arena_release(&a);
}

/* Documents of jobs, for files; those of routers, windows and layers are Qwen3's. */
static const struct {
    const char *family, *more;
} jobs[] = {
    {NULL, "{\"tie_word_embeddings\": true}"},
    {"llama", "{\"rms_norm_eps\": 1e-5}"},
    {NULL, "{\"rope_theta\": 12345.5}"},
    {NULL, "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, "
           "\"original_max_position_embeddings\": 64, \"attention_factor\": 1.5, \"truncate\": "
           "false}}"},
    {NULL, "{\"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 1e5, \"factor\": 8, "
           "\"low_freq_factor\": 1, \"high_freq_factor\": 4, "
           "\"original_max_position_embeddings\": 64}}"},
    {NULL, "{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}, "
           "\"original_max_position_embeddings\": 1}"},
    {"qwen3_dense", "{\"use_sliding_window\": true, \"max_window_layers\": 2}"},
    {"qwen3_moe", "{\"use_sliding_window\": true, \"sliding_window\": 7}"},
    {"qwen3_moe", "{\"decoder_sparse_step\": 2, \"norm_topk_prob\": true, \"rope_theta\": "
                  "12345.5}"},
    {"qwen3_moe", "{\"shared_expert_intermediate_size\": 0, \"shared_expert_gate\": false}"},
};

static void check_made_of(const d9d_family *f, const sample *s)
{
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        json_t *more = parsed(jobs[i].more);

        if ((jobs[i].family == NULL || strcmp(jobs[i].family, s->family) == 0) &&
            (strstr(jobs[i].more, "rope") == NULL || (has_rope(f) && takes_rope(f, more))))
            check_made(s, jobs[i].more);
        json_decref(more);
    }
}

static void made_configurations_are_read_back(void **state)
{
    (void)state;
    each_family(check_made_of);
}

/* --- mappings -------------------------------------------------------------------------------- */

static size_t has(const d9d_mapper *m, const char *part)
{
    size_t n = 0;

    for (size_t i = 0; i < d9d_mapper_output_count(m); i++)
        n += strstr(d9d_mapper_output(m, i), part) != NULL;
    return n;
}

/* A part's name in the files, without the prefix that a base model has not. */
static const char *bare_name(const d9d_hf_parts *parts, const char *name)
{
    const size_t n = strlen(parts->prefix);

    return strncmp(name, parts->prefix, n) == 0 ? name + n : name;
}

static void check_stages(const d9d_family *f, const sample *s)
{
    d9d_arena a = {0};
    const d9d_family_config c = config_of(s, "{\"tie_word_embeddings\": false}", &a);
    const d9d_hf_parts *parts = f->parts != NULL ? f->parts : &d9d_hf_parts_default;
    const char *first_layer = d9d_arena_printf(&a, "%s.0.", bare_name(parts, parts->hf.layers));
    d9d_random_weights *r;
    d9d_tensor_source src;
    size_t total = 0;

    assert_non_null(first_layer);
    assert_ok(family_weights(&c, D9D_F32, 1, &a, &r));
    src = d9d_random_weights_source(r);
    for (int i = 0; i < 3; i++) {
        d9d_map_plan_opts opt = {.allow_unused = true};
        d9d_map_plan *p;
        d9d_mapper *m;

        assert_ok(d9d_family_mapper(&c, (d9d_stage){i, 3}, &src, D9D_LAYOUT_HF, &m));
        assert_ok(d9d_map_plan_create(m, &src, &opt, &p));
        assert_int_equal(has(m, bare_name(parts, parts->hf.embed)), i == 0);
        assert_int_equal(has(m, "embeddings.norm"), f->encoder && i == 0);
        assert_int_equal(has(m, parts->hf.head), !f->encoder && i == 2);
        assert_int_equal(has(m, first_layer), i == 0 ? s->of_first : 0);
        total += d9d_map_plan_output_count(p);
        d9d_map_plan_free(p);
        d9d_mapper_free(m);
    }
    /* Embedding, norm, head. */
    assert_int_equal(total, 3 + s->of_layers);
    d9d_random_weights_close(r);
    d9d_arena_release(&a);
}

static void stages_map_their_own_tensors(void **state)
{
    (void)state;
    each_family(check_stages);
}

static void check_splits(const d9d_family *f, const sample *s)
{
    static const d9d_block_vocab_split splits[] = {{"a", 5}, {"b", 6}};
    d9d_arena a = {0};
    d9d_family_config c = config_of(s, "{\"tie_word_embeddings\": false}", &a);
    d9d_random_weights *r;
    d9d_tensor_source src;
    d9d_mapper *m;
    json_t *doc;
    char want[160];

    c.splits = splits;
    c.n_splits = 2;
    (void)snprintf(want, sizeof(want),
                   "%s: a HuggingFace checkpoint cannot have a vocabulary of several splits",
                   f->name);
    assert_ok(family_weights(&c, D9D_F32, 1, &a, &r));
    src = d9d_random_weights_source(r);
    assert_fails(d9d_family_mapper(&c, D9D_WHOLE_MODEL, &src, D9D_LAYOUT_HF, &m), D9D_ENOTSUP,
                 want);
    assert_fails(d9d_family_hf_config(&c, D9D_F32, &doc), D9D_ENOTSUP, want);
    assert_ok(d9d_family_mapper(&c, D9D_WHOLE_MODEL, &src, D9D_LAYOUT_D9D, &m));
    assert_int_equal(has(m, "token_embedding"), 2);
    assert_int_equal(has(m, "lm_head.lm_head"), f->encoder ? 0 : 2);
    d9d_mapper_free(m);
    d9d_random_weights_close(r);
    d9d_arena_release(&a);
}

/* A job's model with a field that files cannot have. */
static void check_own_mapped(const d9d_family *f, const sample *s)
{
    for (const d9d_hf_field *row = f->fields; row != NULL && row->name != NULL; row++) {
        d9d_arena a = {0};
        d9d_random_weights *r;
        d9d_tensor_source src;
        d9d_family_config c;
        d9d_mapper *m;
        json_t *doc;
        other o;

        if (row->rule != D9D_HF_RULE_OWN)
            continue;
        o = other_of(s, row->name);
        doc = document_with(s, o.with);
        assert_int_equal(json_object_set(doc, row->name, o.value), 0);
        other_release(&o);
        assert_ok(family_parse(doc, "c", true, &a, &c));
        json_decref(doc);
        assert_ok(family_weights(&c, D9D_F32, 1, &a, &r));
        src = d9d_random_weights_source(r);
        assert_fails_like(d9d_family_mapper(&c, D9D_WHOLE_MODEL, &src, D9D_LAYOUT_HF, &m),
                          D9D_ENOTSUP, "a HuggingFace checkpoint cannot have ");
        assert_fails_like(d9d_family_hf_config(&c, D9D_F32, &doc), D9D_ENOTSUP,
                          "a HuggingFace checkpoint cannot have ");
        assert_ok(d9d_family_mapper(&c, D9D_WHOLE_MODEL, &src, D9D_LAYOUT_D9D, &m));
        d9d_mapper_free(m);
        d9d_random_weights_close(r);
        d9d_arena_release(&a);
    }
}

static void what_huggingface_cannot_say_is_not_mapped(void **state)
{
    (void)state;
    each_family(check_splits);
    each_family(check_own_mapped);
}

static void check_random(const d9d_family *f, const sample *s)
{
    d9d_arena a = {0};
    const d9d_family_config c = config_of(s, "{\"tie_word_embeddings\": true}", &a);
    d9d_random_weights *r;
    d9d_tensor_source src;
    d9d_model_tensors list;

    (void)f;
    assert_ok(d9d_family_tensors(&c, &a, &list));
    assert_ok(family_weights(&c, D9D_F32, 9, &a, &r));
    src = d9d_random_weights_source(r);
    assert_true(src.n > 0);
    for (size_t i = 0; i < src.n; i++) {
        const d9d_safetensors_tensor *t = src.at(src.self, i);
        d9d_rng rng = {9, d9d_hash_u64(t->name, strlen(t->name))};
        const d9d_init_kind init = list.items[i].init;
        float v[3];

        assert_string_equal(t->name, list.items[i].name);
        assert_null(strstr(t->name, "lm_head"));
        if (t->bytes < 20 || init == D9D_INIT_UNIFORM)
            continue;
        assert_ok(src.read(src.self, i, 8, v, sizeof(v)));
        for (uint64_t k = 0; k < 3; k++)
            assert_true(v[k] == (init == D9D_INIT_ONES    ? 1.0f
                                 : init == D9D_INIT_ZEROS ? 0.0f
                                                          : 0.02f * d9d_rng_normal(rng, 2 + k)));
    }
    d9d_random_weights_close(r);
    assert_fails_like(family_weights(&c, D9D_F16, 9, &a, &r), D9D_ENOTSUP, "float16");
    d9d_arena_release(&a);
}

static void random_weights_are_a_function_of_name_and_element(void **state)
{
    (void)state;
    each_family(check_random);
}

/* A family that says nothing of its dropout has none: training refuses each rate by its field. */
static void dropout_that_is_not_applied_is_refused(void **state)
{
    static const char *const rates[][2] = {{"gpt2", "attn_pdrop"},
                                           {"gpt2", "resid_pdrop"},
                                           {"gpt2", "embd_pdrop"},
                                           {"gpt_neox", "hidden_dropout"},
                                           {"modernbert", "embedding_dropout"},
                                           {"modernbert", "mlp_dropout"},
                                           {"llama", "attention_dropout"}};

    (void)state;
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        d9d_arena a = {0};
        d9d_family silent;
        d9d_family_config c;
        char more[64], sentence[128];
        sample s;

        (void)snprintf(more, sizeof(more), "{\"%s\": 0.25}", rates[i][1]);
        (void)snprintf(sentence, sizeof(sentence),
                       "%s: %s is 0.25, and the family is trained with 0", rates[i][0],
                       rates[i][1]);
        s = sample_open(rates[i][0]);
        c = config_of(&s, more, &a);
        assert_ok(d9d_family_trainable(&c));
        silent = *c.family;
        silent.dropout = false;
        c.family = &silent;
        assert_fails(d9d_family_trainable(&c), D9D_ENOTSUP, sentence);
        d9d_arena_release(&a);
        sample_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_field_does_what_it_is_declared_to_do),
        cmocka_unit_test(a_field_that_files_cannot_have_is_that_of_a_job),
        cmocka_unit_test(a_field_that_is_not_declared_is_refused),
        cmocka_unit_test(bases_of_kinds_of_layers_are_read),
        cmocka_unit_test(a_field_that_is_null_is_absent_or_has_a_meaning),
        cmocka_unit_test(heads_have_a_size),
        cmocka_unit_test(key_value_heads_that_are_absent_are_those_of_transformers),
        cmocka_unit_test(padding_is_a_row_of_the_vocabulary),
        cmocka_unit_test(a_change_of_generation_keeps_the_rope),
        cmocka_unit_test(made_configurations_are_read_back),
        cmocka_unit_test(stages_map_their_own_tensors),
        cmocka_unit_test(what_huggingface_cannot_say_is_not_mapped),
        cmocka_unit_test(dropout_that_is_not_applied_is_refused),
        cmocka_unit_test(random_weights_are_a_function_of_name_and_element),
    };

    return cmocka_run_group_tests_name("families", tests, NULL, NULL);
}
