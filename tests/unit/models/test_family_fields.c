/* test_family_fields.c - fields of config.json that a few families have: RoPE by kinds of layers,
 * rotated features, what a family cannot compute; dtypes, and losses of routers. */
#include <stdio.h>
#include <string.h>

#include "d9d/model/hf/hf_config.h"
#include "support/family.h"
#include "support/unit.h"

#define BASE                                                                                       \
    "\"num_key_value_heads\": 3, \"hidden_size\": 24, \"num_hidden_layers\": 4, "                  \
    "\"num_attention_heads\": 3, "                                                                 \
    "\"head_dim\": 8, \"vocab_size\": 11, \"intermediate_size\": 10"
#define OLMO3 "{\"model_type\": \"olmo3\", \"sliding_window\": 3, " BASE
#define MINIMAX                                                                                    \
    "{\"model_type\": \"minimax_m2\", \"num_local_experts\": 4, \"num_experts_per_tok\": 2, " BASE

enum { TOKENS = 12 };

static json_t *parsed(const char *text)
{
    json_t *doc = json_loads(text, 0, NULL);

    if (doc == NULL)
        fail_msg("not JSON: %s", text);
    return doc;
}

/* Losses of some tokens with the weights of one seed. */
static void losses_of(const json_t *doc, float *losses)
{
    const d9d_model_opts opts = {.dtype = D9D_F32};
    int32_t ids[TOKENS], positions[TOKENS];
    d9d_family_config c;
    d9d_arena a = {0};
    d9d_model_out out;
    d9d_device *dev;
    d9d_tensor x[2];
    d9d_model *m;
    d9d_tape *t;

    for (int i = 0; i < TOKENS; i++) {
        ids[i] = (i * i + 3) % 11;
        positions[i] = i;
    }
    assert_ok(family_parse(doc, "c", false, &a, &c));
    assert_ok(d9d_family_create(&c, D9D_WHOLE_MODEL, &opts, &m));
    assert_ok(d9d_module_bind(m->module));
    assert_ok(d9d_device_open("cpu", &dev));
    assert_ok(d9d_module_materialise(m->module, dev, false));
    assert_ok(d9d_module_reset(m->module, 5));
    assert_ok(d9d_tensor_from_host(dev, D9D_I32, D9D_SHAPE(1, TOKENS), ids, &x[0]));
    assert_ok(d9d_tensor_from_host(dev, D9D_I32, D9D_SHAPE(1, TOKENS), positions, &x[1]));
    assert_ok(d9d_tape_create(dev, &t));
    assert_ok(m->ops->forward(
        m, t, &(d9d_model_in){.ids = &x[0], .positions = &x[1], .labels = &x[0]}, &out));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(out.loss), losses));
    d9d_tape_free(t);
    d9d_tensor_release(&x[0]);
    d9d_tensor_release(&x[1]);
    d9d_model_free(m);
    d9d_device_close(dev);
    d9d_arena_release(&a);
}

static bool models_equal(const char *one, const char *other)
{
    json_t *docs[] = {parsed(one), parsed(other)};
    float losses[2][TOKENS];
    bool equal = true;

    for (int i = 0; i < 2; i++) {
        losses_of(docs[i], losses[i]);
        json_decref(docs[i]);
    }
    for (int i = 0; i < TOKENS; i++)
        equal &= losses[0][i] == losses[1][i];
    return equal;
}

#define LLAMA "{\"model_type\": \"llama\", " BASE
#define NEOX                                                                                       \
    "{\"model_type\": \"gpt_neox\", \"hidden_size\": 24, \"num_attention_heads\": 3, "             \
    "\"num_hidden_layers\": 4, \"vocab_size\": 11, \"intermediate_size\": 10"
#define YARN(members)    ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2" members "}"
#define FULL(members)    "\"full_attention\": {" members "}"
#define WINDOWS(members) "\"sliding_attention\": {" members "}"
#define ROPES(members)   OLMO3 ", \"rope_parameters\": {" members "}}"

static void ropes_of_two_kinds_of_layers(void **state)
{
    static const char yarn[] =
        OLMO3 ", \"rope_theta\": 700, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}}";

    (void)state;
    /* A base by itself is that of layers without a window. */
    assert_true(models_equal(OLMO3 ", \"rope_theta\": 700}", ROPES(FULL("\"rope_theta\": 700"))));
    assert_true(
        models_equal(yarn, ROPES(FULL("\"rope_type\": \"yarn\", \"factor\": 2, \"rope_theta\": "
                                      "700"))));
    assert_false(models_equal(yarn, OLMO3 ", \"rope_theta\": 700}"));
    assert_false(
        models_equal(OLMO3 ", \"rope_theta\": 700}",
                     ROPES(FULL("\"rope_theta\": 700") ", " WINDOWS("\"rope_theta\": 30"))));
    /* What is absent is the family's base. */
    assert_true(models_equal(OLMO3 "}", ROPES(FULL("\"rope_type\": \"default\""))));
    assert_true(models_equal(OLMO3 "}", ROPES(WINDOWS("\"rope_theta\": 500000"))));
}

static void a_change_of_generation_keeps_them(void **state)
{
    json_t *doc = parsed(ROPES(FULL("\"rope_theta\": 700") ", " WINDOWS("\"rope_theta\": 30")));
    float before[TOKENS], after[TOKENS];

    (void)state;
    losses_of(doc, before);
    for (int generation = 4; generation <= 5; generation++) {
        assert_ok(d9d_hf_config_set_generation(doc, generation));
        losses_of(doc, after);
        assert_memory_equal(before, after, sizeof(before));
    }
    json_decref(doc);
}

#define MINISTRAL3 "{\"model_type\": \"ministral3\", " BASE
#define PHI3       "{\"model_type\": \"phi3\", " BASE

/* As transformers reads them: rope_scaling before rope_parameters, and what is absent. */
static void either_object_means_the_same(void **state)
{
    (void)state;
    assert_true(
        models_equal(LLAMA YARN(", \"rope_theta\": 7") "}", LLAMA YARN("") ", \"rope_theta\": 7}"));
    assert_true(models_equal(LLAMA
                             ", \"rope_scaling\": {}, \"rope_parameters\": {\"rope_theta\": 7}}",
                             LLAMA ", \"rope_theta\": 7}"));
    assert_false(models_equal(LLAMA ", \"rope_theta\": 7}", LLAMA "}"));
    /* Ministral 3 and gpt-oss have YaRN without an object, and not with an empty one. */
    assert_true(models_equal(MINISTRAL3 "}", MINISTRAL3
                             ", \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 16, "
                             "\"rope_theta\": 1e6, \"original_max_position_embeddings\": 16384, "
                             "\"attention_factor\": 1, \"llama_4_scaling_beta\": 0.1}}"));
    assert_true(models_equal(MINISTRAL3 ", \"rope_parameters\": {}}",
                             MINISTRAL3 ", \"rope_parameters\": {\"rope_theta\": 10000}}"));
    assert_false(models_equal(MINISTRAL3 ", \"rope_parameters\": {}}", MINISTRAL3 "}"));
    assert_true(models_equal(MINISTRAL3 ", \"rope_scaling\": {}}", MINISTRAL3 "}"));
    /* Phi-3 was trained on 4096 positions, whatever its RoPE says. */
    assert_true(models_equal(PHI3 YARN(", \"original_max_position_embeddings\": 8") "}",
                             PHI3 YARN("") ", \"original_max_position_embeddings\": 4096}"));
}

static void rotated_features_by_either_name(void **state)
{
    (void)state;
    assert_true(models_equal(MINIMAX ", \"rotary_dim\": 4}",
                             MINIMAX ", \"rope_parameters\": {\"partial_rotary_factor\": 0.5}}"));
    assert_true(models_equal(MINIMAX ", \"rotary_dim\": 4}",
                             MINIMAX ", \"rotary_dim\": 4, \"partial_rotary_factor\": 0.5}"));
    assert_true(models_equal(MINIMAX ", \"rotary_dim\": 8}", MINIMAX "}"));
    assert_false(models_equal(MINIMAX ", \"rotary_dim\": 4}", MINIMAX "}"));
}

static void what_a_family_cannot_compute_is_refused(void **state)
{
    static const struct {
        const char *text;
        d9d_status st;
        const char *want;
    } rows[] = {
        {ROPES(WINDOWS("\"rope_type\": \"linear\", \"factor\": 2")), D9D_ENOTSUP,
         "c: rope_parameters.sliding_attention: {\"rope_type\": \"linear\", \"factor\": 2"},
        {ROPES(FULL("\"rope_type\": \"yarn\", \"factor\": 2, \"low_freq_factor\": 1")), D9D_ENOTSUP,
         "c: rope_parameters.full_attention.low_freq_factor: 1"},
        {ROPES(FULL("\"rope_type\": \"yarn\", \"factor\": 2, \"truncate\": false")), D9D_ENOTSUP,
         "c: rope_parameters.full_attention.truncate: false"},
        {OLMO3 ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2}}", D9D_ECONFIG,
         "c: rope_scaling.type: in a config.json of olmo3 its name is rope_type"},
        {OLMO3 ", \"original_max_position_embeddings\": 4}", D9D_ENOTSUP,
         "c: original_max_position_embeddings: 4"},
        {NEOX ", \"rope_theta\": 700}", D9D_ECONFIG,
         "c: rope_theta is 700: in a config.json of gpt_neox its name is rotary_emb_base"},
        {LLAMA YARN(", \"attention_factor\": 0") "}", D9D_ECONFIG,
         "c: attention_factor of scaled rotary embedding cannot be 0"},
        {LLAMA YARN(", \"rope_theta\": 7") ", \"rope_theta\": 5}", D9D_ECONFIG,
         "c: rope_theta is 5 and rope_scaling.rope_theta is 7"},
        {LLAMA YARN("") ", \"rope_parameters\": {\"rope_theta\": 5}}", D9D_ECONFIG,
         "c: rope_scaling and rope_parameters are not the same"},
        {LLAMA ", \"rope_scaling\": {\"rope_type\": \"default\"}, \"rope_parameters\": "
               "{\"rope_theta\": 5}}",
         D9D_ECONFIG, "c: the rope_theta of rope_scaling is 10000, that of rope_parameters 5"},
        {"{\"model_type\": \"ministral3\", \"rope_theta\": 700, " BASE "}", D9D_ECONFIG,
         "c: rope_theta is 700, and of ministral3 without rope_parameters it is 1e+06"},
        {"{\"model_type\": \"modernbert\", \"rope_scaling\": {\"rope_theta\": 5}, " BASE "}",
         D9D_ENOTSUP, "c: rope_scaling.rope_theta: 5 is not supported"},
        {ROPES(FULL("\"rope_theta\": 3") ", \"other_attention\": {}"), D9D_ENOTSUP,
         "c: rope_parameters: "},
        {"{\"model_type\": \"llama\", " BASE
         ", \"rope_parameters\": {" FULL("\"rope_theta\": 3") "}}",
         D9D_ENOTSUP, "c: rope_parameters.full_attention: {\"rope_theta\": 3}"},
        {OLMO3 ", \"layer_types\": [\"full_attention\"]}", D9D_ECONFIG,
         "c: layer_types has 1 layer, num_hidden_layers is 4"},
        {MINIMAX ", \"rotary_dim\": 4, \"partial_rotary_factor\": 0.25}", D9D_ECONFIG,
         "c: rotary_dim is 4, and partial_rotary_factor 0.25 of head_dim 8"},
        {MINIMAX ", \"rotary_dim\": 10}", D9D_ECONFIG, "c: rotary_dim is 10, head_dim 8"},
        {MINIMAX ", \"attn_type_list\": [1, 1, 1]}", D9D_ECONFIG,
         "c: attn_type_list has 3 layers, num_hidden_layers is 4"},
        {MINIMAX ", \"scoring_func\": \"softmax\"}", D9D_ENOTSUP, "c: scoring_func: \"softmax\""},
        {MINIMAX ", \"shared_intermediate_size\": 6}", D9D_ENOTSUP,
         "c: shared_intermediate_size: 6"},
        {"{\"model_type\": \"olmo\", \"clip_qkv\": \"8\", " BASE "}", D9D_ECONFIG, "c: clip_qkv: "},
        {"{\"model_type\": \"granite\", \"logits_scaling\": 0, " BASE "}", D9D_ECONFIG,
         "logits_scaling"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *doc = parsed(rows[i].text);
        d9d_family_config c;
        d9d_arena a = {0};

        assert_fails_like(family_parse(doc, "c", false, &a, &c), rows[i].st, rows[i].want);
        d9d_arena_release(&a);
        json_decref(doc);
    }
}

/* Fields of mixtures that no layer could be made of, in a file none of whose layers is one. */
static void what_is_said_of_experts_matters_where_there_are_some(void **state)
{
#define NONE "\"num_experts_per_tok\": 0, \"moe_intermediate_size\": 0, "
#define GROUPS                                                                                     \
    "\"n_group\": 8, \"topk_group\": 9, \"n_routed_experts\": 3, \"num_experts_per_tok\": 5, "
    static const struct {
        const char *text, *dense, *some, *want; /* fields: no layer, or some layers, with experts */
    } rows[] = {
        {"{\"model_type\": \"qwen2_moe\", \"num_experts\": 4, " NONE BASE,
         "\"mlp_only_layers\": [0, 1, 2, 3]", "\"mlp_only_layers\": [0, 1, 3]",
         "c: moe_intermediate_size is 0, of layers with experts"},
        {"{\"model_type\": \"qwen3_moe\", \"num_experts_per_tok\": 5, "
         "\"moe_intermediate_size\": 4, " BASE,
         "\"num_experts\": 0", "\"num_experts\": 4",
         "c: num_experts_per_tok is 5, of num_experts 4"},
        {"{\"model_type\": \"qwen3_next\", \"num_experts\": 4, " NONE BASE,
         "\"decoder_sparse_step\": 5", "\"decoder_sparse_step\": 4",
         "c: num_experts_per_tok is 0, of num_experts 4"},
        {"{\"model_type\": \"glm4_moe\", " GROUPS BASE, "\"first_k_dense_replace\": 4",
         "\"first_k_dense_replace\": 3", "c: num_experts_per_tok is 5, of n_routed_experts 3"},
        {"{\"model_type\": \"deepseek_v3\", " GROUPS BASE, "\"first_k_dense_replace\": 9",
         "\"first_k_dense_replace\": 3", "c: num_experts_per_tok is 5, of n_routed_experts 3"},
        {"{\"model_type\": \"deepseek_v2\", \"topk_method\": \"group_limited_greedy\", "
         "\"num_experts_per_tok\": 0, " BASE,
         "\"first_k_dense_replace\": 4", "\"first_k_dense_replace\": 0",
         "c: topk_method \"group_limited_greedy\" needs n_group and topk_group, and "
         "they are 0 and 0"},
        {"{\"model_type\": \"glm4_moe_lite\", " GROUPS BASE,
         "\"mlp_layer_types\": [\"dense\", \"dense\", \"dense\", \"dense\"]",
         "\"mlp_layer_types\": [\"dense\", \"dense\", \"dense\", \"sparse\"]",
         "c: num_experts_per_tok is 5, of n_routed_experts 3"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (int some = 0; some < 2; some++) {
            const d9d_model_opts opts = {.dtype = D9D_F32};
            char text[1024];
            d9d_family_config c;
            d9d_arena a = {0};
            d9d_model *m;
            json_t *doc;

            (void)snprintf(text, sizeof(text), "%s, %s}", rows[i].text,
                           some ? rows[i].some : rows[i].dense);
            doc = parsed(text);
            if (some) {
                assert_fails_like(family_parse(doc, "c", false, &a, &c), D9D_ECONFIG, rows[i].want);
            } else {
                assert_ok(family_parse(doc, "c", false, &a, &c));
                assert_ok(d9d_family_create(&c, D9D_WHOLE_MODEL, &opts, &m));
                assert_false(m->has_experts);
                d9d_model_free(m);
            }
            d9d_arena_release(&a);
            json_decref(doc);
        }
#undef NONE
#undef GROUPS
}

/* --- dtypes ---------------------------------------------------------------------------------- */

static void a_dtype_has_one_value(void **state)
{
    static const struct {
        const char *text, *sentence; /* NULL: float32 */
    } rows[] = {
        {"{\"dtype\": \"float32\"}", NULL},
        {"{\"torch_dtype\": \"float32\", \"dtype\": null}", NULL},
        {"{\"torch_dtype\": \"float32\", \"dtype\": \"float32\"}", NULL},
        {"{\"torch_dtype\": \"float32\", \"dtype\": \"float16\"}",
         "c: dtype is \"float16\" and torch_dtype is \"float32\""},
        {"{\"dtype\": \"int8\"}", "c: dtype: \"int8\" is no floating-point type of weights"},
        {"{\"torch_dtype\": \"bool\"}",
         "c: torch_dtype: \"bool\" is no floating-point type of weights"},
        {"{\"torch_dtype\": [1]}", "c: torch_dtype: [1] is no floating-point type of weights"}};
    d9d_dtype t;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *doc = parsed(rows[i].text);

        t = D9D_BF16;
        if (rows[i].sentence != NULL)
            assert_fails(d9d_hf_config_dtype(doc, "c", D9D_BF16, &t), D9D_ECONFIG,
                         rows[i].sentence);
        else
            assert_ok(d9d_hf_config_dtype(doc, "c", D9D_BF16, &t));
        assert_int_equal(t, rows[i].sentence != NULL ? D9D_BF16 : D9D_F32);
        json_decref(doc);
    }
}

static void a_dtype_is_set_in_both_fields(void **state)
{
    static const char *const rows[][2] = {
        {"{}", "{\"torch_dtype\": \"float16\"}"},
        {"{\"dtype\": \"float32\"}", "{\"dtype\": \"float16\"}"},
        {"{\"dtype\": \"float32\", \"torch_dtype\": \"float32\"}",
         "{\"dtype\": \"float16\", \"torch_dtype\": \"float16\"}"}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *doc = parsed(rows[i][0]), *want = parsed(rows[i][1]);

        assert_ok(d9d_hf_config_set_dtype(doc, D9D_F16));
        assert_true(json_equal(doc, want));
        json_decref(want);
        json_decref(doc);
    }
}

/* --- the balancing loss of transformers ------------------------------------------------------- */

#define MIXTRAL                                                                                    \
    "{\"model_type\": \"mixtral\", \"num_local_experts\": 4, \"num_experts_per_tok\": 2, " BASE

static bool lacks_loss(const char *text, double ours)
{
    json_t *doc = parsed(text);
    d9d_family_config c;
    d9d_arena a = {0};
    bool lacks;

    assert_ok(family_parse(doc, "c", false, &a, &c));
    family_dims(&c)->router.aux_loss = ours;
    assert_ok(d9d_family_lacks_router_loss(&c, &lacks));
    json_decref(doc);
    d9d_arena_release(&a);
    return lacks;
}

static void a_missing_router_loss_is_found(void **state)
{
    (void)state;
    assert_true(lacks_loss(MIXTRAL ", \"output_router_logits\": true}", 0));
    assert_true(
        lacks_loss(MIXTRAL ", \"output_router_logits\": true, \"router_aux_loss_coef\": 0.02}", 0));
    assert_true(lacks_loss(MINIMAX ", \"output_router_logits\": true}", 0));
    assert_false(lacks_loss(MIXTRAL ", \"output_router_logits\": true}", 0.01));
    assert_false(
        lacks_loss(MIXTRAL ", \"output_router_logits\": true, \"router_aux_loss_coef\": 0}", 0));
    assert_false(lacks_loss(MIXTRAL ", \"output_router_logits\": false}", 0));
    assert_false(lacks_loss(MIXTRAL ", \"router_aux_loss_coef\": 0.02}", 0));
    assert_false(lacks_loss(MIXTRAL ", \"output_router_logits\": true, \"architectures\": "
                                    "[\"MixtralForSequenceClassification\"]}",
                            0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ropes_of_two_kinds_of_layers),
        cmocka_unit_test(a_change_of_generation_keeps_them),
        cmocka_unit_test(either_object_means_the_same),
        cmocka_unit_test(rotated_features_by_either_name),
        cmocka_unit_test(what_a_family_cannot_compute_is_refused),
        cmocka_unit_test(what_is_said_of_experts_matters_where_there_are_some),
        cmocka_unit_test(a_dtype_has_one_value),
        cmocka_unit_test(a_dtype_is_set_in_both_fields),
        cmocka_unit_test(a_missing_router_loss_is_found),
    };

    return cmocka_run_group_tests_name("family fields", tests, NULL, NULL);
}
