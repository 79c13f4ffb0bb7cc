/* test_qwen3_map.c - names, shapes and configurations of Qwen3. */
#include <stdio.h>
#include <string.h>

#include "d9d/base/hash.h"
#include "d9d/base/rng.h"
#include "d9d/model/hf/hf_config.h"
#include "d9d/models/qwen3/qwen3.h"
#include "d9d/models/qwen3/qwen3_config.h"
#include "d9d/models/qwen3/qwen3_map.h"
#include "support/json_memory.h"
#include "support/unit.h"

static d9d_status parse(const char *text, d9d_arena *a, d9d_qwen3_config *c)
{
    json_t *doc;
    d9d_status st;

    assert_ok(d9d_json_parse("c", text, strlen(text), &doc));
    st = d9d_qwen3_config_parse(doc, "c", a, c);
    json_decref(doc);
    return st;
}

#define BASE                                                                                       \
    "\"hidden_size\": 24, \"num_hidden_layers\": 5, \"num_attention_heads\": 3, "                  \
    "\"vocab_size\": 11, \"intermediate_size\": 10"
#define MOE                                                                                        \
    "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 6, \"model_type\": \"qwen3_moe\""

static void absent_fields_have_the_defaults_of_transformers(void **state)
{
    d9d_arena a = {0};
    d9d_qwen3_config c;

    (void)state;
    assert_ok(parse("{\"model_type\": \"qwen3\", " BASE "}", &a, &c));
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.kv_heads, 3);
    assert_true(c.rope_base == 10000.0 && c.norm_eps == 1e-6f && c.init_std == 0.02);
    assert_false(c.tied);
    assert_int_equal(c.max_positions, 32768);
    assert_int_equal(c.experts, 0);
    assert_string_equal(c.splits[0].name, "regular");
    assert_ok(parse("{\"model_type\": \"qwen3\", \"head_dim\": null, " BASE "}", &a, &c));
    assert_int_equal(c.head_dim, 8);
    assert_ok(parse("{" MOE ", \"num_experts\": 4, " BASE "}", &a, &c));
    assert_int_equal(c.head_dim, 8);
    assert_false(c.renormalise);
    d9d_arena_release(&a);
}

static void both_generations_say_the_same(void **state)
{
    d9d_arena a = {0};
    d9d_qwen3_config c;

    (void)state;
    assert_ok(parse("{" MOE ", \"num_experts\": 4, \"rope_theta\": 5, " BASE "}", &a, &c));
    assert_true(c.experts == 4 && c.rope_base == 5);
    assert_ok(parse("{" MOE ", \"num_local_experts\": 4, \"rope_parameters\": {\"rope_theta\": 5, "
                    "\"rope_type\": \"default\"}, " BASE "}",
                    &a, &c));
    assert_true(c.experts == 4 && c.rope_base == 5);
    assert_ok(parse("{" MOE ", \"num_local_experts\": 4, \"num_experts\": 4, " BASE "}", &a, &c));
    assert_fails(parse("{" MOE ", \"num_local_experts\": 4, \"num_experts\": 5, " BASE "}", &a, &c),
                 D9D_ECONFIG, "c: num_experts is 5 and num_local_experts is 4");
    assert_fails(parse("{" MOE ", \"num_experts\": 4, \"rope_theta\": 1, \"rope_parameters\": "
                       "{\"rope_theta\": 2}, " BASE "}",
                       &a, &c),
                 D9D_ECONFIG, "c: rope_theta is 1 and rope_parameters.rope_theta is 2");
    assert_fails(parse("{" MOE ", " BASE "}", &a, &c), D9D_ECONFIG, "c: num_experts is missing");
    d9d_arena_release(&a);
}

/* Scaled rotary embedding with and without a base, and where its names stand. */
static void a_change_of_generation_keeps_the_rope(void **state)
{
    static const char *const says[] = {
        "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}",
        "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rope_theta\": null",
        "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}, \"rope_theta\": 5",
        "\"rope_theta\": 5, \"rope_scaling\": null",
        "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2}",
        "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2}, \"rope_scaling\": null",
        "\"rope_scaling\": null, \"rope_parameters\": null, \"rope_theta\": null",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(says) / sizeof(says[0]); i++) {
        d9d_arena a = {0};
        d9d_qwen3_config c, now;
        char text[512];
        json_t *doc;

        (void)snprintf(text, sizeof(text), "{" MOE ", \"num_experts\": 4, %s, " BASE "}", says[i]);
        assert_ok(d9d_json_parse("c", text, strlen(text), &doc));
        assert_ok(d9d_qwen3_config_parse(doc, "c", &a, &c));
        for (int change = 0; change < 4; change++) {
            assert_ok(d9d_hf_config_set_generation(doc, 5 - change % 2));
            assert_ok(d9d_qwen3_config_parse(doc, "c", &a, &now));
            assert_true(c.rope_base == now.rope_base);
            assert_memory_equal(&c.rope_scaling, &now.rope_scaling, sizeof(c.rope_scaling));
        }
        assert_false(json_is_object(json_object_get(doc, "rope_parameters")));
        json_decref(doc);
        d9d_arena_release(&a);
    }
}

static void mixtures_are_chosen_by_layer(void **state)
{
    d9d_arena a = {0};
    d9d_qwen3_config c;

    (void)state;
    assert_ok(parse("{" MOE ", \"num_experts\": 4, \"decoder_sparse_step\": 2, "
                    "\"mlp_only_layers\": [1], " BASE "}",
                    &a, &c));
    for (int64_t l = 0; l < 5; l++)
        assert_int_equal(d9d_qwen3_is_moe(&c, l), l == 3);
    assert_fails(parse("{" MOE ", \"num_experts\": 4, \"mlp_only_layers\": [5], " BASE "}", &a, &c),
                 D9D_ECONFIG, "c: mlp_only_layers[0] is not a layer of 0..4");
    d9d_arena_release(&a);
}

/* --- what a file may say ------------------------------------------------------------------- */

static bool layers_equal(const bool *a, const bool *b, int64_t n)
{
    return a == NULL || b == NULL ? a == b : memcmp(a, b, (size_t)n) == 0;
}

static bool configs_equal(d9d_qwen3_config a, d9d_qwen3_config b)
{
    const bool same = a.layers == b.layers && a.splits[0].size == b.splits[0].size &&
                      layers_equal(a.moe_layer, b.moe_layer, a.layers) &&
                      layers_equal(a.windowed, b.windowed, a.layers);

    a.moe_layer = b.moe_layer = a.windowed = b.windowed = NULL;
    a.splits = b.splits = NULL;
    return same && memcmp(&a, &b, sizeof(a)) == 0;
}

/* Is another value of this field another model, or an error? */
static bool is_heard(const char *base, const char *field, const char *value)
{
    d9d_arena a = {0};
    d9d_qwen3_config before, after;
    json_t *doc, *v = json_loads(value, JSON_DECODE_ANY, NULL);
    bool heard;

    assert_non_null(v);
    assert_ok(parse(base, &a, &before));
    assert_ok(d9d_json_parse("c", base, strlen(base), &doc));
    assert_int_equal(json_object_set_new(doc, field, v), 0);
    heard = d9d_qwen3_config_parse(doc, "c", &a, &after) != D9D_OK || !configs_equal(before, after);
    json_decref(doc);
    d9d_arena_release(&a);
    return heard;
}

static void a_field_that_is_declared_to_be_read_is_read(void **state)
{
    static const char dense[] =
        "{\"model_type\": \"qwen3\", \"use_sliding_window\": true, \"sliding_window\": 9, "
        "\"max_window_layers\": 3, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": "
        "2}, " BASE "}";
    static const char mixture[] = "{\"num_experts\": 4, " MOE ", " BASE "}";
    static const struct {
        const char *field, *base, *value;
    } rows[] = {
        {"architectures", dense, "[\"Qwen3ForSequenceClassification\"]"},
        {"d9d", dense, "{\"head\": \"embedding\"}"},
        {"hidden_size", dense, "48"},
        {"num_hidden_layers", dense, "6"},
        {"num_attention_heads", dense, "6"},
        {"num_key_value_heads", dense, "1"},
        {"head_dim", dense, "8"},
        {"intermediate_size", dense, "12"},
        {"max_position_embeddings", dense, "64"},
        {"vocab_size", dense, "12"},
        {"rms_norm_eps", dense, "1e-5"},
        {"initializer_range", dense, "0.5"},
        {"attention_dropout", dense, "0.5"},
        {"tie_word_embeddings", dense, "true"},
        {"rope_theta", dense, "5"},
        {"rope_scaling", dense, "null"},
        {"original_max_position_embeddings", dense, "16"},
        {"use_sliding_window", dense, "false"},
        {"sliding_window", dense, "10"},
        {"max_window_layers", dense, "2"},
        {"layer_types", dense,
         "[\"sliding_attention\", \"full_attention\", \"full_attention\", \"full_attention\", "
         "\"full_attention\"]"},
        {"num_experts", mixture, "5"},
        {"num_local_experts", mixture, "5"},
        {"num_experts_per_tok", mixture, "1"},
        {"moe_intermediate_size", mixture, "8"},
        {"norm_topk_prob", mixture, "true"},
        {"decoder_sparse_step", mixture, "2"},
        {"mlp_only_layers", mixture, "[1]"},
        {"num_labels", dense, "3"},
        {"id2label", dense, "{\"0\": \"a\"}"},
    };
    const size_t n = sizeof(rows) / sizeof(rows[0]);

    (void)state;
    for (const d9d_hf_field *f = d9d_qwen3_fields; f->name != NULL; f++) {
        size_t i = 0;

        if (f->rule != D9D_HF_RULE_READ)
            continue;
        while (i < n && strcmp(rows[i].field, f->name) != 0)
            i++;
        if (i == n || !is_heard(rows[i].base, f->name, rows[i].value))
            fail_msg("%s is declared to be read, and %s", f->name,
                     i == n ? "no row here says so" : "another value changes nothing");
    }
    assert_false(is_heard(dense, "use_cache", "false"));
    assert_true(is_heard(dense, "logits_scaling", "8"));
}

static void a_field_that_is_not_declared_is_refused(void **state)
{
    static const char *const rows[][2] = {
        {"\"logits_scaling\": 8",
         "c: logits_scaling: 8: qwen3 does not know this field, which may change what the model "
         "computes"},
        {"\"quantization_config\": {}", "c: quantization_config: {} is not supported"},
        {"\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2, \"beta_fast\": 3}",
         "c: rope_scaling.beta_fast: 3: qwen3 does not know this field, which may change what the "
         "model computes"},
        {"\"rope_parameters\": {\"partial_rotary_factor\": 0.5}",
         "c: rope_parameters.partial_rotary_factor: 0.5 is not supported"},
    };
    d9d_arena a = {0};
    d9d_qwen3_config c;
    char text[512];

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        (void)snprintf(text, sizeof(text), "{\"model_type\": \"qwen3\", %s, %s}", rows[i][0], BASE);
        assert_fails(parse(text, &a, &c), D9D_ENOTSUP, rows[i][1]);
    }
    assert_ok(
        parse("{\"model_type\": \"qwen3\", \"_name_or_path\": \"x\", \"logits_scaling\": null, "
              "\"quantization_config\": null, " BASE "}",
              &a, &c));
    d9d_arena_release(&a);
}

/* Windows of layers 0 to 4, as transformers reads them. */
static void windows_are_those_of_their_layers(void **state)
{
    static const struct {
        const char *says;
        int64_t window[5];
    } rows[] = {
        {"\"model_type\": \"qwen3\", \"sliding_window\": 9", {0}},
        {"\"model_type\": \"qwen3\", \"use_sliding_window\": true", {0}}, /* behind layer 28 */
        {"\"model_type\": \"qwen3\", \"use_sliding_window\": true, \"sliding_window\": null", {0}},
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
    static const char *const bad[][2] = {
        {"\"layer_types\": [\"full_attention\"]",
         "c: layer_types has 1 layers, num_hidden_layers is 5"},
        {"\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\", "
         "\"full_attention\", \"sliding_attention\"]",
         "c: layer_types has sliding_attention, and no sliding_window is in use"},
        {"\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\", "
         "\"full_attention\", \"linear_attention\"]",
         "c: layer_types: \"linear_attention\" is not supported"},
        {"\"use_sliding_window\": true, \"sliding_window\": 0",
         "c: sliding_window: 0 is not supported"},
        {"\"use_sliding_window\": true, \"sliding_window\": 4294967296",
         "qwen3: sliding_window is 4294967296, outside 0..2147483647"},
    };
    d9d_arena a = {0};
    d9d_qwen3_config c;
    char text[1024];

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        (void)snprintf(text, sizeof(text), "{%s, %s}", rows[i].says, BASE);
        assert_ok(parse(text, &a, &c));
        assert_int_equal(c.layers, 5);
        for (int64_t l = 0; l < c.layers; l++)
            assert_int_equal(d9d_qwen3_window(&c, l), rows[i].window[l]);
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

static void made_configurations_are_read_back(void **state)
{
    static const char *const models[] = {
        "{\"model_type\": \"qwen3\", \"tie_word_embeddings\": true, \"rms_norm_eps\": 1e-5, " BASE
        "}",
        "{" MOE ", \"num_experts\": 4, \"decoder_sparse_step\": 2, \"norm_topk_prob\": true, "
        "\"rope_theta\": 12345.5, " BASE "}",
        "{\"model_type\": \"qwen3\", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, "
        "\"original_max_position_embeddings\": 64, \"attention_factor\": 1.5, \"truncate\": "
        "false}, " BASE "}",
        "{\"model_type\": \"qwen3\", \"rope_parameters\": {\"rope_type\": \"llama3\", "
        "\"rope_theta\": "
        "1e5, \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4, "
        "\"original_max_position_embeddings\": 64}, " BASE "}",
        "{\"model_type\": \"qwen3\", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}, "
        "\"original_max_position_embeddings\": 1, " BASE "}",
        "{\"model_type\": \"qwen3\", \"use_sliding_window\": true, \"max_window_layers\": 2, " BASE
        "}",
        "{" MOE ", \"num_experts\": 4, \"use_sliding_window\": true, \"sliding_window\": 7, " BASE
        "}"};

    (void)state;
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        d9d_arena a = {0};
        d9d_qwen3_config c, back;
        d9d_dtype t;
        json_t *doc;
        int left = 0;

        assert_ok(parse(models[i], &a, &c));
        for (;; left++) {
            d9d_status st;

            json_memory_begin(left);
            st = d9d_qwen3_config_make(&c, D9D_BF16, &doc);
            if (!json_memory_end())
                break;
            assert_int_equal(st, D9D_ENOMEM);
        }
        assert_true(left > 50);
        json_decref(doc);
        assert_ok(d9d_qwen3_config_make(&c, D9D_BF16, &doc));
        assert_ok(d9d_qwen3_config_parse(doc, "made", &a, &back));
        assert_ok(d9d_hf_config_dtype(doc, "made", D9D_F32, &t));
        assert_int_equal(t, D9D_BF16);
        assert_ok(d9d_hf_config_set_dtype(doc, D9D_F32));
        assert_ok(d9d_hf_config_dtype(doc, "made", D9D_BF16, &t));
        assert_int_equal(t, D9D_F32);
        for (int64_t l = 0; l < c.layers; l++)
            assert_int_equal(d9d_qwen3_is_moe(&c, l), d9d_qwen3_is_moe(&back, l));
        for (int64_t l = 0; l < c.layers; l++)
            assert_int_equal(d9d_qwen3_window(&c, l), d9d_qwen3_window(&back, l));
        back.windowed = c.windowed;
        back.moe_layer = c.moe_layer;
        back.splits = c.splits;
        assert_true(c.head_unknown && !back.head_unknown && back.head == c.head);
        back.head_unknown = true;
        assert_memory_equal(&c, &back, sizeof(c));
        json_decref(doc);
        d9d_arena_release(&a);
    }
}

/* --- mappings --------------------------------------------------------------------------- */

static d9d_qwen3_config small(d9d_arena *a, bool tied)
{
    d9d_qwen3_config c;

    assert_ok(parse("{" MOE ", \"num_experts\": 4, \"mlp_only_layers\": [0], " BASE "}", a, &c));
    c.tied = tied;
    return c;
}

static size_t has(const d9d_mapper *m, const char *part)
{
    size_t n = 0;

    for (size_t i = 0; i < d9d_mapper_output_count(m); i++)
        n += strstr(d9d_mapper_output(m, i), part) != NULL;
    return n;
}

static void stages_map_their_own_tensors(void **state)
{
    d9d_arena a = {0};
    d9d_qwen3_config c = small(&a, false);
    d9d_qwen3_init *r;
    d9d_tensor_source src;
    size_t total = 0;

    (void)state;
    assert_ok(d9d_qwen3_init_open(&c, D9D_F32, 1, &r));
    src = d9d_qwen3_init_source(r);
    for (int s = 0; s < 3; s++) {
        d9d_map_plan_opts opt = {.allow_unused = true};
        d9d_map_plan *p;
        d9d_mapper *m;

        assert_ok(d9d_qwen3_mapper(&c, (d9d_stage){s, 3}, &src, D9D_LAYOUT_HF, &m));
        assert_ok(d9d_map_plan_create(m, &src, &opt, &p));
        assert_int_equal(has(m, "embed_tokens"), s == 0);
        assert_int_equal(has(m, "lm_head"), s == 2);
        assert_int_equal(has(m, "layers.0."), s == 0 ? 11 : 0);
        total += d9d_map_plan_output_count(p);
        d9d_map_plan_free(p);
        d9d_mapper_free(m);
    }
    /* Embedding, norm, head; 8 of attention a layer; 3 of a dense FFN, 1 + 3 E of a mixture. */
    assert_int_equal(total, 3 + 5 * 8 + 3 + 4 * (1 + 3 * 4));
    d9d_qwen3_init_close(r);
    d9d_arena_release(&a);
}

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
    d9d_qwen3_config c;
    d9d_qwen3_init *r;
    d9d_tensor_source src[N + 1];
    d9d_mapper *m[N];
    d9d_map_plan *p[N];
    struct shapes shapes[N];

    (void)state;
    assert_ok(parse(config, &a, &c));
    assert_ok(d9d_qwen3_init_open(&c, D9D_BF16, 0, &r));
    src[0] = d9d_qwen3_init_source(r);
    for (size_t i = 0; i < N; i++) {
        assert_ok(d9d_qwen3_mapper(&c, D9D_WHOLE_MODEL, &src[i], steps[i].to, &m[i]));
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
    d9d_qwen3_init_close(r);
    d9d_arena_release(&a);
}

static void what_huggingface_cannot_say_is_not_mapped(void **state)
{
    d9d_arena a = {0};
    d9d_qwen3_config c = small(&a, false);
    const d9d_block_vocab_split splits[] = {{"a", 5}, {"b", 6}};
    d9d_qwen3_init *r;
    d9d_tensor_source src;
    d9d_mapper *m;

    (void)state;
    c.splits = splits;
    c.n_splits = 2;
    assert_ok(d9d_qwen3_init_open(&c, D9D_F32, 1, &r));
    src = d9d_qwen3_init_source(r);
    assert_fails(d9d_qwen3_mapper(&c, D9D_WHOLE_MODEL, &src, D9D_LAYOUT_HF, &m), D9D_ENOTSUP,
                 "qwen3: a HuggingFace checkpoint has one vocabulary, this model 2 splits");
    assert_ok(d9d_qwen3_mapper(&c, D9D_WHOLE_MODEL, &src, D9D_LAYOUT_D9D, &m));
    assert_int_equal(has(m, "token_embedding"), 2);
    assert_int_equal(has(m, "lm_head.lm_head"), 2);
    d9d_mapper_free(m);
    d9d_qwen3_init_close(r);
    d9d_arena_release(&a);
}

static void random_weights_are_a_function_of_name_and_element(void **state)
{
    d9d_arena a = {0};
    d9d_qwen3_config c = small(&a, true);
    d9d_qwen3_init *r;
    d9d_tensor_source src;

    (void)state;
    assert_ok(d9d_qwen3_init_open(&c, D9D_F32, 9, &r));
    src = d9d_qwen3_init_source(r);
    for (size_t i = 0; i < src.n; i++) {
        const d9d_safetensors_tensor *t = src.at(src.self, i);
        d9d_rng rng = {9, d9d_hash_u64(t->name, strlen(t->name))};
        bool norm = strstr(t->name, "norm.weight") != NULL;
        float v[3];

        assert_ok(src.read(src.self, i, 8, v, sizeof(v)));
        for (uint64_t k = 0; k < 3; k++)
            assert_true(v[k] == (norm ? 1.0f : 0.02f * d9d_rng_normal(rng, 2 + k)));
        assert_null(strstr(t->name, "lm_head"));
    }
    d9d_qwen3_init_close(r);
    assert_fails_like(d9d_qwen3_init_open(&c, D9D_F16, 9, &r), D9D_ENOTSUP, "float16");
    d9d_arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_fields_have_the_defaults_of_transformers),
        cmocka_unit_test(both_generations_say_the_same),
        cmocka_unit_test(a_change_of_generation_keeps_the_rope),
        cmocka_unit_test(mixtures_are_chosen_by_layer),
        cmocka_unit_test(a_field_that_is_declared_to_be_read_is_read),
        cmocka_unit_test(a_field_that_is_not_declared_is_refused),
        cmocka_unit_test(windows_are_those_of_their_layers),
        cmocka_unit_test(made_configurations_are_read_back),
        cmocka_unit_test(stages_map_their_own_tensors),
        cmocka_unit_test(a_large_model_is_planned_without_its_bytes),
        cmocka_unit_test(what_huggingface_cannot_say_is_not_mapped),
        cmocka_unit_test(random_weights_are_a_function_of_name_and_element),
    };

    return cmocka_run_group_tests_name("qwen3_map", tests, NULL, NULL);
}
