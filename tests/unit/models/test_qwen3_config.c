/* test_qwen3_config.c - config.json of Qwen3 and Qwen3-MoE: defaults, windows and mixtures by
 * layer, and the sections of the reference framework.  test_families.c has what every family does.
 */
#include <stdio.h>
#include <string.h>

#include "d9d/model/hf/hf_config.h"
#include "d9d/model/weights/random_weights.h"
#include "d9d/models/models.h"
#include "support/family.h"
#include "support/unit.h"

/* A file's text. */
static d9d_status parse(const char *text, d9d_arena *a, d9d_family_config *c)
{
    json_t *doc;
    d9d_status st;

    assert_ok(d9d_json_parse("c", text, strlen(text), &doc));
    st = family_parse(doc, "c", false, a, c);
    json_decref(doc);
    return st;
}

#define BASE                                                                                       \
    "\"num_key_value_heads\": 3, \"hidden_size\": 24, \"num_hidden_layers\": 5, "                  \
    "\"num_attention_heads\": 3, "                                                                 \
    "\"vocab_size\": 11, \"intermediate_size\": 10"
#define MOE                                                                                        \
    "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 6, \"model_type\": \"qwen3_moe\""

/* --- layers of the model -------------------------------------------------------------------- */

static d9d_model *model_of(const d9d_family_config *c)
{
    const d9d_model_opts options = {.dtype = D9D_F32};
    d9d_model *m;

    assert_ok(d9d_family_create(c, D9D_WHOLE_MODEL, &options, &m));
    assert_ok(d9d_module_bind(m->module));
    return m;
}

/* A module by its name. */
typedef struct wanted {
    char name[64];
    d9d_module *found;
} wanted;

static d9d_status module_match(void *arg, const char *name, d9d_module *m)
{
    wanted *w = arg;

    if (strcmp(name, w->name) == 0)
        w->found = m;
    return D9D_OK;
}

static int64_t window_of(d9d_model *m, int layer)
{
    wanted w = {.found = NULL};

    (void)snprintf(w.name, sizeof(w.name), "model.layers.%d.self_attn", layer);
    assert_ok(d9d_module_walk(m->module, module_match, &w));
    assert_non_null(w.found);
    return ((const d9d_block_attention *)(const void *)w.found)->shape.window;
}

static const d9d_block_moe *mixture_of(const d9d_model *m)
{
    assert_true(m->n_mixtures > 0);
    return m->mixtures[0];
}

/* --- what a file says ----------------------------------------------------------------------- */

static void absent_fields_have_the_defaults_of_transformers(void **state)
{
    const d9d_family_dims *dims;
    d9d_arena a = {0};
    d9d_family_config c;
    d9d_model *m;

    (void)state;
    assert_ok(parse("{\"model_type\": \"qwen3\", " BASE "}", &a, &c));
    dims = c.dims;
    assert_int_equal(dims->head_dim, 128);
    assert_int_equal(dims->num_key_value_heads, 3);
    assert_true(dims->rope_theta == 10000.0 && dims->norm_eps == 1e-6 &&
                dims->initializer_range == 0.02);
    assert_false(dims->tie_word_embeddings);
    assert_int_equal(dims->max_position_embeddings, 32768);
    assert_string_equal(c.splits[0].name, "regular");
    m = model_of(&c);
    assert_int_equal(m->n_mixtures, 0);
    d9d_model_free(m);
    assert_ok(parse("{\"model_type\": \"qwen3\", \"head_dim\": null, " BASE "}", &a, &c));
    assert_int_equal(family_dims(&c)->head_dim, 8);
    assert_ok(parse("{" MOE ", \"num_experts\": 4, " BASE "}", &a, &c));
    assert_int_equal(family_dims(&c)->head_dim, 8);
    m = model_of(&c);
    assert_false(mixture_of(m)->shape.renormalise);
    d9d_model_free(m);
    d9d_arena_release(&a);
}

/* Experts and base of the rotary embedding. */
static void check_experts(const char *text, int64_t experts, double base)
{
    d9d_arena a = {0};
    d9d_family_config c;
    d9d_model *m;

    assert_ok(parse(text, &a, &c));
    m = model_of(&c);
    assert_int_equal(mixture_of(m)->shape.experts, experts);
    assert_true(family_dims(&c)->rope_theta == base);
    d9d_model_free(m);
    d9d_arena_release(&a);
}

static void both_generations_say_the_same(void **state)
{
    d9d_arena a = {0};
    d9d_family_config c;

    (void)state;
    check_experts("{" MOE ", \"num_experts\": 4, \"rope_theta\": 5, " BASE "}", 4, 5);
    check_experts("{" MOE ", \"num_local_experts\": 4, \"rope_parameters\": {\"rope_theta\": 5, "
                  "\"rope_type\": \"default\"}, " BASE "}",
                  4, 5);
    check_experts("{" MOE ", \"num_local_experts\": 4, \"num_experts\": 4, " BASE "}", 4, 1e4);
    assert_fails(parse("{" MOE ", \"num_local_experts\": 4, \"num_experts\": 5, " BASE "}", &a, &c),
                 D9D_ECONFIG, "c: num_experts is 5 and num_local_experts is 4");
    assert_fails(parse("{" MOE ", \"num_experts\": 4, \"rope_theta\": 1, \"rope_parameters\": "
                       "{\"rope_theta\": 2}, " BASE "}",
                       &a, &c),
                 D9D_ECONFIG, "c: rope_theta is 1 and rope_parameters.rope_theta is 2");
    assert_fails(parse("{" MOE ", " BASE "}", &a, &c), D9D_ECONFIG,
                 "c: num_experts: required key is missing (experts of a layer)");
    assert_fails(parse("{\"model_type\": \"qwen3\", \"num_local_experts\": 4, " BASE "}", &a, &c),
                 D9D_ENOTSUP,
                 "c: num_local_experts: 4: qwen3 does not know this field, which may change what "
                 "the model computes");
    d9d_arena_release(&a);
}

static void mixtures_are_chosen_by_layer(void **state)
{
    d9d_arena a = {0};
    d9d_family_config c;
    d9d_model *m;

    (void)state;
    assert_ok(parse("{" MOE ", \"num_experts\": 4, \"decoder_sparse_step\": 2, "
                    "\"mlp_only_layers\": [1], " BASE "}",
                    &a, &c));
    m = model_of(&c);
    for (int l = 0; l < 5; l++) {
        char name[64];

        (void)snprintf(name, sizeof(name), "model.layers.%d.mlp.router.gate.weight", l);
        assert_int_equal(d9d_module_find(m->module, name) != NULL, l == 3);
        (void)snprintf(name, sizeof(name), "model.layers.%d.mlp.gate_proj.weight", l);
        assert_int_equal(d9d_module_find(m->module, name) != NULL, l != 3);
    }
    d9d_model_free(m);
    assert_fails(parse("{" MOE ", \"num_experts\": 4, \"mlp_only_layers\": [5], " BASE "}", &a, &c),
                 D9D_ECONFIG, "c: mlp_only_layers[0] is 5, not a layer of 0..4");
    d9d_arena_release(&a);
}

/* Windows of layers 0 to 4, as transformers reads them. */
static const struct {
    const char *says;
    int64_t window[5];
} windows[] = {
    {"\"model_type\": \"qwen3\", \"sliding_window\": 9", {0}},
    {"\"model_type\": \"qwen3\", \"use_sliding_window\": true", {0}}, /* behind layer 28 */
    {"\"model_type\": \"qwen3\", \"use_sliding_window\": true, \"sliding_window\": null", {0}},
    {"\"model_type\": \"qwen3\", \"use_sliding_window\": true, \"max_window_layers\": null", {0}},
    {"\"model_type\": \"qwen3\", \"use_sliding_window\": null, \"max_window_layers\": 0", {0}},
    {"\"model_type\": \"qwen3\", \"use_sliding_window\": true, \"max_window_layers\": 3",
     {0, 0, 0, 4096, 4096}},
    {"\"model_type\": \"qwen3\", \"use_sliding_window\": true, \"sliding_window\": 9, "
     "\"max_window_layers\": 0, \"layer_types\": [\"full_attention\", \"sliding_attention\", "
     "\"full_attention\", \"full_attention\", \"sliding_attention\"]",
     {0, 9, 0, 0, 9}},
    {MOE ", \"num_experts\": 4, \"use_sliding_window\": true, \"sliding_window\": 9, "
         "\"max_window_layers\": 3",
     {9, 9, 9, 9, 9}},
};

static void windows_are_those_of_their_layers(void **state)
{
    static const char *const bad[][2] = {
        {"\"layer_types\": [\"full_attention\"]",
         "c: layer_types has 1 layer, num_hidden_layers is 5"},
        {"\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\", "
         "\"full_attention\", \"sliding_attention\"]",
         "c: layer_types has sliding_attention, and no sliding_window is in use"},
        {"\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\", "
         "\"full_attention\", \"linear_attention\"]",
         "c: layer_types: \"linear_attention\" is not supported"},
        {"\"use_sliding_window\": true, \"sliding_window\": 0",
         "c: sliding_window: 0 is not supported"},
        {"\"use_sliding_window\": true, \"sliding_window\": 4294967296",
         "c: sliding_window: 4294967296 is above the maximum of 2147483647"},
    };
    d9d_arena a = {0};
    d9d_family_config c;
    d9d_model *m;
    char text[1024];

    (void)state;
    for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
        (void)snprintf(text, sizeof(text), "{%s, %s}", windows[i].says, BASE);
        assert_ok(parse(text, &a, &c));
        m = model_of(&c);
        assert_int_equal(m->layers, 5);
        for (int l = 0; l < 5; l++)
            assert_int_equal(window_of(m, l), windows[i].window[l]);
        d9d_model_free(m);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        (void)snprintf(text, sizeof(text),
                       "{\"model_type\": \"qwen3\", \"max_window_layers\": 0, %s, %s}", bad[i][0],
                       BASE);
        assert_int_not_equal(parse(text, &a, &c), D9D_OK);
        assert_string_equal(d9d_err_message(), bad[i][1]);
    }
    d9d_arena_release(&a);
}

/* Numbers that no layer can have. */
static void what_no_model_can_be_is_refused(void **state)
{
    static const char *const rows[][2] = {
        {"{\"num_hidden_layers\": 70000}",
         "c: num_hidden_layers: 70000 is above the maximum of 65536"},
        {"{\"num_key_value_heads\": 2}",
         "c: num_attention_heads 3 is not a multiple of num_key_value_heads 2"},
        {"{\"head_dim\": null, \"num_attention_heads\": 5, \"num_key_value_heads\": 5}",
         "c: num_attention_heads 5 does not divide hidden_size 24, and head_dim is not given"},
        {"{\"rms_norm_eps\": -1}", "c: rms_norm_eps: -1 is not above 0"},
        {"{\"rope_theta\": 0}", "c: rope_theta: 0 is not above 0"},
        {"{\"attention_dropout\": 1}", "c: attention_dropout: 1 is not below 1"},
    };
    d9d_arena a = {0};
    d9d_family_config c;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *doc = json_loads("{\"model_type\": \"qwen3\", " BASE "}", 0, NULL);
        json_t *more = json_loads(rows[i][0], 0, NULL);

        assert_non_null(more);
        assert_int_equal(json_object_update(doc, more), 0);
        assert_fails(family_parse(doc, "c", false, &a, &c), D9D_ECONFIG, rows[i][1]);
        json_decref(more);
        json_decref(doc);
    }
    d9d_arena_release(&a);
}

/* --- the sections of the reference framework ------------------------------------------------ */

/* A section with this rope_scaling and these members; "layer" in the order of its keys. */
static const char section_text[] =
    "{\"model\": {\"num_hidden_layers\": 2, \"layer\": {\"hidden_size\": 24, "
    "\"intermediate_size\": 10, \"num_attention_heads\": 3, \"num_key_value_heads\": 1, "
    "\"head_dim\": 8%s}, \"rope_base\": 10000, \"rope_scaling\": %s, \"max_position_ids\": 64, "
    "\"split_vocab_size\": {\"regular\": 11}, \"split_vocab_order\": [\"regular\"], "
    "\"initializer_range\": %s}}";

static const d9d_family_config *section_read(const d9d_model_provider *p, const char *layer,
                                             const char *rope, const char *std, d9d_arena *a,
                                             json_t **doc)
{
    char text[1024];
    const void *config;
    void *section = d9d_arena_alloc(a, p->table->size);
    const int n = snprintf(text, sizeof(text), section_text, layer, rope, std);

    assert_non_null(section);
    assert_true(n > 0 && n < (int)sizeof(text));
    assert_ok(d9d_json_parse("s", text, (size_t)n, doc));
    assert_ok(d9d_config_bind(p->table, *doc, "s", NULL, a, section));
    assert_ok(p->read(section, a, &config));
    return config;
}

/* The document that is made reads back as the model: its frequencies, losses of routers apart. */
static void check_section(const d9d_model_provider *p, const char *layer, const char *rope)
{
    d9d_arena a = {0};
    json_t *section, *doc;
    const d9d_family_config *c = section_read(p, layer, rope, "0.03", &a, &section);
    const d9d_family_dims *was = c->dims, *is;
    d9d_model_tensors before, after;
    d9d_family_config back;

    assert_ok(d9d_family_hf_config(c, D9D_F32, &doc));
    assert_ok(family_parse(doc, "made", false, &a, &back));
    is = back.dims;
    assert_true(was->rope_theta == is->rope_theta && was->norm_eps == is->norm_eps);
    assert_memory_equal(&was->rope_scaling, &is->rope_scaling, sizeof(is->rope_scaling));
    assert_int_equal(is->max_position_embeddings, 64);
    assert_ok(d9d_family_tensors(c, &a, &before));
    assert_ok(d9d_family_tensors(&back, &a, &after));
    assert_int_equal(before.n, after.n);
    for (size_t i = 0; i < before.n; i++) {
        const d9d_model_tensor *x = &before.items[i], *y = &after.items[i];

        assert_string_equal(x->name, y->name);
        assert_memory_equal(x->shape.dim, y->shape.dim, (size_t)x->shape.ndim * sizeof(int64_t));
        assert_true(x->init == y->init && x->init_scale == y->init_scale);
    }
    json_decref(doc);
    json_decref(section);
    d9d_arena_release(&a);
}

static void documents_of_sections_are_read_back(void **state)
{
    static const char *const scalings[] = {
        "null", "{\"type\": \"linear\", \"factor\": 2}", "{\"type\": \"ntk\", \"factor\": 2}",
        ("{\"type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 32, "
         "\"attention_factor\": 1.5, \"truncate\": false}"),
        "{\"type\": \"llama3\", \"factor\": 8, \"original_max_position_embeddings\": 32}"};

    (void)state;
    for (size_t i = 0; i < sizeof(scalings) / sizeof(scalings[0]); i++) {
        check_section(&d9d_qwen3_dense_provider, "", scalings[i]);
        check_section(&d9d_qwen3_moe_provider, ", \"num_experts\": 4, \"experts_top_k\": 2",
                      scalings[i]);
    }
}

/* Two features have no other base. */
static void a_base_that_is_infinite_is_refused(void **state)
{
    static const char text[] =
        "{\"model\": {\"num_hidden_layers\": 2, \"layer\": {\"hidden_size\": 24, "
        "\"intermediate_size\": 10, \"num_attention_heads\": 3, \"num_key_value_heads\": 1, "
        "\"head_dim\": 2}, \"rope_scaling\": {\"type\": \"ntk\", \"factor\": 3}, "
        "\"max_position_ids\": 64, \"split_vocab_size\": {\"regular\": 11}, "
        "\"split_vocab_order\": [\"regular\"]}}";
    const d9d_model_provider *p = &d9d_qwen3_dense_provider;
    d9d_arena a = {0};
    void *section = d9d_arena_alloc(&a, p->table->size);
    const void *config;
    json_t *doc;

    (void)state;
    assert_non_null(section);
    assert_ok(d9d_json_parse("s", text, sizeof(text) - 1, &doc));
    assert_ok(d9d_config_bind(p->table, doc, "s", NULL, &a, section));
    assert_fails(p->read(section, &a, &config), D9D_ECONFIG,
                 "model_provider.model: scaled rotary embedding (ntk): factor 3 gives no finite "
                 "base of head_dim 2");
    json_decref(doc);
    d9d_arena_release(&a);
}

/* transformers has no initialisation by fan-in: its files say their default. */
static void matrices_by_fan_in_have_a_default_in_files(void **state)
{
    d9d_arena a = {0};
    json_t *section, *doc;
    const d9d_family_config *c =
        section_read(&d9d_qwen3_dense_provider, "", "null", "0", &a, &section);

    (void)state;
    assert_true(family_dims(c)->initializer_range == 0);
    assert_ok(d9d_family_hf_config(c, D9D_F32, &doc));
    assert_true(json_number_value(json_object_get(doc, "initializer_range")) == 0.02);
    json_decref(doc);
    json_decref(section);
    d9d_arena_release(&a);
}

/* --- mappings ------------------------------------------------------------------------------- */

/* A source of names and shapes; there are no bytes. */
struct shapes {
    const d9d_map_plan *plan;
};

static const d9d_safetensors_tensor *shape_at(void *self, size_t i)
{
    return d9d_map_plan_output(((const struct shapes *)self)->plan, i);
}

static const char *shape_place(void *self, size_t i)
{
    (void)self, (void)i;
    return "nowhere";
}

static uint64_t bytes_from(const d9d_tensor_source *src)
{
    uint64_t n = 0;

    for (size_t i = 0; i < src->n; i++)
        n += src->at(src->self, i)->bytes;
    return n;
}

/* Qwen3-30B-A3B: through every layout and back, by shapes alone. */
static void a_large_model_is_planned_without_its_bytes(void **state)
{
    static const char config[] =
        "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 2048, \"num_hidden_layers\": 48, "
        "\"num_attention_heads\": 32, \"num_key_value_heads\": 4, \"head_dim\": 128, "
        "\"vocab_size\": 151936, \"num_experts\": 128, \"num_experts_per_tok\": 8, "
        "\"moe_intermediate_size\": 768, \"intermediate_size\": 6144, "
        "\"architectures\": [\"Qwen3MoeForCausalLM\"]}";
    const struct {
        d9d_weights_layout to;
        size_t n; /* of tensors: outside layers, and in each of 48 */
    } steps[] = {{D9D_LAYOUT_HF, 3 + 48 * (9 + 3 * 128)},
                 {D9D_LAYOUT_HF_FUSED, 3 + 48 * (9 + 2)},
                 {D9D_LAYOUT_D9D, 3 + 48 * (9 + 3)},
                 {D9D_LAYOUT_HF, 3 + 48 * (9 + 3 * 128)},
                 {D9D_LAYOUT_D9D, 3 + 48 * (9 + 3)}};
    enum { N = sizeof(steps) / sizeof(steps[0]) };
    d9d_arena a = {0};
    d9d_family_config c;
    d9d_random_weights *r;
    d9d_tensor_source src[N + 1];
    d9d_mapper *m[N];
    d9d_map_plan *p[N];
    struct shapes shapes[N];

    (void)state;
    assert_ok(parse(config, &a, &c));
    assert_ok(family_weights(&c, D9D_BF16, 0, &a, &r));
    src[0] = d9d_random_weights_source(r);
    for (size_t i = 0; i < N; i++) {
        assert_ok(d9d_family_mapper(&c, D9D_WHOLE_MODEL, &src[i], steps[i].to, &m[i]));
        assert_ok(d9d_map_plan_create(m[i], &src[i], NULL, &p[i]));
        assert_int_equal(d9d_map_plan_output_count(p[i]), steps[i].n);
        assert_int_equal(d9d_map_plan_bytes(p[i]), 61064245248);
        assert_int_equal(bytes_from(&src[i]), 61064245248);
        shapes[i].plan = p[i];
        src[i + 1] = (d9d_tensor_source){
            .self = &shapes[i], .n = steps[i].n, .at = shape_at, .path = shape_place};
    }
    /* What began in the suite's layout is itself again. */
    for (size_t i = 0; i < src[0].n; i++) {
        const d9d_safetensors_tensor *t = src[0].at(src[0].self, i),
                                     *u = shape_at(&shapes[N - 1], i);

        assert_string_equal(t->name, u->name);
        assert_memory_equal(t->shape, u->shape, sizeof(t->shape));
    }
    for (size_t i = 0; i < N; i++) {
        d9d_map_plan_free(p[i]);
        d9d_mapper_free(m[i]);
    }
    d9d_random_weights_close(r);
    d9d_arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_fields_have_the_defaults_of_transformers),
        cmocka_unit_test(both_generations_say_the_same),
        cmocka_unit_test(mixtures_are_chosen_by_layer),
        cmocka_unit_test(windows_are_those_of_their_layers),
        cmocka_unit_test(what_no_model_can_be_is_refused),
        cmocka_unit_test(documents_of_sections_are_read_back),
        cmocka_unit_test(a_base_that_is_infinite_is_refused),
        cmocka_unit_test(matrices_by_fan_in_have_a_default_in_files),
        cmocka_unit_test(a_large_model_is_planned_without_its_bytes),
    };

    return cmocka_run_group_tests_name("qwen3 config", tests, NULL, NULL);
}
