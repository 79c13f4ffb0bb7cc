/* test_small_config.c - small configurations of families: made from tables, and of large ones. */
#include "certify/small_config.h"

#include <stdio.h>

#include "d9d/models/models.h"
#include "support/family.h"
#include "support/unit.h"

static const d9d_model_provider *provider_of(const char *model_type)
{
    const d9d_model_provider *p = d9d_model_find(d9d_model_choices, model_type);

    assert_non_null(p);
    return p;
}

static int64_t number(const json_t *doc, const char *key)
{
    if (!json_is_integer(json_object_get(doc, key)))
        fail_msg("no number %s", key);
    return json_integer_value(json_object_get(doc, key));
}

static json_t *shrunk(const char *text, d9d_arena *a)
{
    json_t *doc = json_loads(text, 0, NULL), *small;
    d9d_family_config c;

    assert_non_null(doc);
    assert_ok(d9di_small_config_shrink(
        provider_of(json_string_value(json_object_get(doc, "model_type"))), doc, a, &small));
    json_decref(doc);
    if (family_parse(small, "small", false, a, &c) != D9D_OK)
        fail_msg("%s", d9d_err_message());
    return small;
}

static void every_family_has_a_small_model(void **state)
{
    (void)state;
    for (const d9d_table *const *c = d9d_model_choices; *c != NULL; c++) {
        const d9d_model_provider *p = (*c)->row;
        const bool encoder = p != NULL && p->family != NULL && p->family->encoder;
        const d9d_head_kind head = encoder ? D9D_HEAD_MASKED_LM : D9D_HEAD_CAUSAL_LM;
        d9d_family_config config;
        d9d_arena a = {0};
        json_t *doc;

        if (*c == &d9d_model_auto_section)
            continue;
        assert_ok(d9di_small_config_make(p, head, &a, &doc));
        if (family_parse(doc, (*c)->name, false, &a, &config) != D9D_OK)
            fail_msg("%s: %s", (*c)->name, d9d_err_message());
        assert_int_equal(family_dims(&config)->hidden_size, 32);
        assert_int_equal(family_dims(&config)->num_hidden_layers, 4);
        assert_int_equal(family_dims(&config)->num_attention_heads, 4);
        assert_true(family_dims(&config)->vocab_size == 64);
        assert_ok(d9d_family_trainable(&config));
        assert_int_equal(config.head, head);
        json_decref(doc);
        d9d_arena_release(&a);
    }
}

static void what_is_small_or_a_flag_stays(void **state)
{
    d9d_arena a = {0};
    json_t *doc = shrunk("{\"model_type\": \"llama\", \"hidden_size\": 4096, "
                         "\"intermediate_size\": 7, \"num_hidden_layers\": 80, "
                         "\"num_attention_heads\": 64, \"num_key_value_heads\": 8, "
                         "\"vocab_size\": 128256, \"tie_word_embeddings\": true, "
                         "\"attention_bias\": true, \"attention_dropout\": 0.1, "
                         "\"rope_theta\": 500000.0, \"quantization_config\": {\"x\": 1}}",
                         &a);

    (void)state;
    assert_int_equal(number(doc, "hidden_size"), 32);
    assert_int_equal(number(doc, "intermediate_size"), 7);
    assert_int_equal(number(doc, "num_hidden_layers"), 4);
    assert_int_equal(number(doc, "num_attention_heads"), 4);
    assert_int_equal(number(doc, "num_key_value_heads"), 2);
    assert_true(json_is_true(json_object_get(doc, "tie_word_embeddings")));
    assert_true(json_is_true(json_object_get(doc, "attention_bias")));
    assert_true(json_real_value(json_object_get(doc, "attention_dropout")) == 0);
    assert_true(json_real_value(json_object_get(doc, "rope_theta")) == 500000);
    assert_null(json_object_get(doc, "quantization_config"));
    json_decref(doc);
    d9d_arena_release(&a);
}

static void groups_of_heads_stay_what_they_are(void **state)
{
    static const struct {
        int large, small;
    } cases[] = {{64, 4}, {8, 2}, {1, 1}};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        d9d_arena a = {0};
        char text[512];
        json_t *doc;

        (void)snprintf(text, sizeof(text),
                       "{\"model_type\": \"llama\", \"hidden_size\": 4096, "
                       "\"intermediate_size\": 64, \"num_hidden_layers\": 2, "
                       "\"num_attention_heads\": 64, \"num_key_value_heads\": %d, "
                       "\"vocab_size\": 64}",
                       cases[i].large);
        doc = shrunk(text, &a);
        assert_int_equal(number(doc, "num_key_value_heads"), cases[i].small);
        assert_int_equal(number(doc, "num_hidden_layers"), 2);
        json_decref(doc);
        d9d_arena_release(&a);
    }
}

/* Of each kind of layer there still is one; numbers of layers that are gone are gone. */
static void lists_of_layers_are_cut(void **state)
{
    d9d_arena a = {0};
    json_t *doc = shrunk("{\"model_type\": \"qwen3_next\", \"hidden_size\": 2048, "
                         "\"intermediate_size\": 64, \"num_hidden_layers\": 6, "
                         "\"num_attention_heads\": 16, \"num_key_value_heads\": 2, "
                         "\"vocab_size\": 64, \"mlp_only_layers\": [1, 3, 4, 5], "
                         "\"layer_types\": [\"linear_attention\", \"linear_attention\", "
                         "\"linear_attention\", \"linear_attention\", \"linear_attention\", "
                         "\"full_attention\"]}",
                         &a);
    const json_t *types = json_object_get(doc, "layer_types");

    (void)state;
    assert_int_equal(json_array_size(types), 4);
    assert_string_equal(json_string_value(json_array_get(types, 2)), "linear_attention");
    assert_string_equal(json_string_value(json_array_get(types, 3)), "full_attention");
    assert_int_equal(json_array_size(json_object_get(doc, "mlp_only_layers")), 2);
    json_decref(doc);
    d9d_arena_release(&a);
}

/* Eight features of a head, half of them rotated, in two pairs. */
static void factors_of_rotated_features_are_cut(void **state)
{
    d9d_arena a = {0};
    json_t *doc = shrunk("{\"model_type\": \"phi3\", \"hidden_size\": 256, "
                         "\"intermediate_size\": 64, \"num_hidden_layers\": 2, "
                         "\"num_attention_heads\": 16, \"vocab_size\": 64, "
                         "\"partial_rotary_factor\": 0.5, "
                         "\"original_max_position_embeddings\": 4, \"rope_scaling\": {\"type\": "
                         "\"longrope\", \"short_factor\": [1, 2, 3, 4], "
                         "\"long_factor\": [2, 3, 4, 5]}}",
                         &a);
    const json_t *rope = json_object_get(doc, "rope_scaling");

    (void)state;
    assert_int_equal(json_array_size(json_object_get(rope, "short_factor")), 2);
    assert_int_equal(json_array_size(json_object_get(rope, "long_factor")), 2);
    json_decref(doc);
    d9d_arena_release(&a);
}

/* A family with a required field that no table knows, and a provider without tables. */
static void what_cannot_be_made_is_refused(void **state)
{
    typedef struct dims {
        int64_t hidden_size, spirals;
    } dims;
    static const d9d_key keys[] = {
        D9D_KEY_INT(dims, hidden_size, D9D_REQUIRED, 1, 1 << 20, "width"),
        D9D_KEY_INT(dims, spirals, D9D_REQUIRED, 1, 9, "how many"),
        D9D_KEY_END,
    };
    static const d9d_table table = D9D_TABLE(dims, "spiral_config", keys, "spirals");
    static const char *const types[] = {"spiral", NULL};
    static const d9d_table section = {.name = "spiral"};
    const d9d_model_provider spiral = {.table = &section, .dims = &table, .model_types = types};
    const d9d_model_provider bare = {.table = &section};
    d9d_arena a = {0};
    json_t *doc;

    (void)state;
    assert_fails(d9di_small_config_make(&spiral, D9D_HEAD_CAUSAL_LM, &a, &doc), D9D_ECONFIG,
                 "spiral: no small value of its required field spirals is known; name a folder "
                 "with a small config.json");
    assert_fails(d9di_small_config_make(&bare, D9D_HEAD_CAUSAL_LM, &a, &doc), D9D_ENOTSUP,
                 "spiral: reads no config.json by a table of dimensions");
    d9d_arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_has_a_small_model),
        cmocka_unit_test(what_is_small_or_a_flag_stays),
        cmocka_unit_test(groups_of_heads_stay_what_they_are),
        cmocka_unit_test(lists_of_layers_are_cut),
        cmocka_unit_test(factors_of_rotated_features_are_cut),
        cmocka_unit_test(what_cannot_be_made_is_refused),
    };

    return cmocka_run_group_tests_name("small config", tests, NULL, NULL);
}
