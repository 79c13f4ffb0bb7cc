/* Which method of context parallelism a plan chooses: by length, heads, links and memory. */
#include "d9d/plan/plan.h"
#include "support/unit.h"

#include <stdio.h>
#include <string.h>

#define MIB(n) ((uint64_t)(n) << 20)

/* A few layers of attention of so many heads of 128 features. */
typedef struct shape {
    const char *chip;
    int64_t length, shard, replicate, heads, kv;
    uint64_t memory;
} shape;

static const char model[] =
    "{\"data\": {\"dataset\": \"nowhere\"}, \"optimizer\": {\"name\": \"adamw\", \"lr\": 1e-3},"
    " \"trainer\": {\"run\": {\"steps\": 4}, \"batching\": {\"global_batch_size\": 1}},"
    " \"mesh\": {\"context_parallel_shard\": %lld, \"context_parallel_replicate\": %lld,"
    "  \"context_parallel_method\": \"auto\"},"
    " \"model_provider\": {\"name\": \"qwen3_dense\", \"dtype\": \"bfloat16\","
    "  \"checkpointing\": true, \"model\": {\"num_hidden_layers\": 2, \"rope_base\": 10000,"
    "  \"max_position_ids\": 1048576, \"layer\": {\"hidden_size\": %lld,"
    "   \"intermediate_size\": 10240, \"rms_norm_eps\": 1e-6, \"num_attention_heads\": %lld,"
    "   \"num_key_value_heads\": %lld, \"head_dim\": 128},"
    "  \"split_vocab_size\": {\"regular\": 32000}, \"split_vocab_order\": [\"regular\"]}}}";

/* Plans into an arena. */
static d9d_status plan_of(const shape *x, d9d_arena *a, d9d_plan *out)
{
    const d9d_plan_opts opts = {.chip = x->chip, .length = x->length, .memory = x->memory};
    d9d_train_config config;
    json_t *doc, *full;
    char text[sizeof(model) + 128];
    d9d_status st;
    const int n = snprintf(text, sizeof(text), model, (long long)x->shard, (long long)x->replicate,
                           (long long)(x->heads * 128), (long long)x->heads, (long long)x->kv);

    assert_ok(d9d_json_parse("model", text, (size_t)n, &doc));
    assert_ok(d9d_config_resolve(&d9d_train_config_table, doc, "model", NULL, &full));
    assert_ok(d9d_config_bind(&d9d_train_config_table, full, "model", NULL, a, &config));
    assert_int_equal(config.mesh.context_parallel_method, D9D_CP_AUTO);
    st = d9d_plan_estimate(&config, &opts, a, out);
    json_decref(doc);
    json_decref(full);
    return st;
}

static void a_method_is_chosen(void **state)
{
    static const struct {
        const char *why;
        shape of;
        d9d_cp_method method;
        int candidates;
    } cases[] = {
        {"four query heads a key head, one node",
         {"h100", 131072, 8, 1, 32, 8, 0},
         D9D_CP_ALL_TO_ALL,
         3},
        {"two ranks: each method sends little",
         {"h100", 65536, 2, 1, 32, 8, 0},
         D9D_CP_ALL_GATHER,
         3},
        {"heads that 8 ranks do not divide, one node",
         {"h100", 131072, 8, 1, 30, 2, 0},
         D9D_CP_ALL_GATHER,
         3},
        {"the same over nodes, as many key heads",
         {"h100", 131072, 16, 1, 30, 30, 0},
         D9D_CP_RING,
         3},
        {"shorter, where messages are not hidden",
         {"h100", 32768, 16, 1, 30, 30, 0},
         D9D_CP_ALL_GATHER,
         3},
        {"a million positions over nodes", {"h100", 1048576, 64, 1, 24, 8, 0}, D9D_CP_RING, 3},
        {"slower links", {"a100", 262144, 32, 1, 36, 4, 0}, D9D_CP_RING, 3},
        {"two axes", {"h100", 65536, 4, 4, 32, 8, 0}, D9D_CP_ALL_TO_ALL, 5},
        {"processor cores", {"cpu", 4096, 4, 1, 8, 8, 0}, D9D_CP_ALL_GATHER, 3},
        {"one rank", {"h100", 4096, 1, 1, 8, 8, 0}, D9D_CP_ALL_GATHER, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        d9d_arena a = {0};
        d9d_plan p;

        assert_ok(plan_of(&cases[i].of, &a, &p));
        if (p.mesh.context_parallel_method != (int)cases[i].method)
            fail_msg("%s: %s, must be %s", cases[i].why,
                     d9d_cp_method_name((d9d_cp_method)p.mesh.context_parallel_method),
                     d9d_cp_method_name(cases[i].method));
        assert_int_equal(p.cp_choice.n, cases[i].candidates);
        assert_int_equal(p.cp_choice.method, cases[i].candidates > 0 ? cases[i].method : 0);
        d9d_arena_release(&a);
    }
}

static const d9d_plan_cp_candidate *find(const d9d_plan *p, d9d_cp_method m)
{
    for (int i = 0; i < p->cp_choice.n; i++)
        if (p->cp_choice.item[i].method == m)
            return &p->cp_choice.item[i];
    fail_msg("%s was not planned", d9d_cp_method_name(m));
    return NULL;
}

/* As little memory as the ring needs, and less. */
static void memory_decides(void **state)
{
    shape x = {"h100", 32768, 16, 1, 30, 30, 0};
    d9d_arena a = {0};
    d9d_plan p;
    uint64_t ring;

    (void)state;
    assert_ok(plan_of(&x, &a, &p));
    assert_int_equal(p.mesh.context_parallel_method, D9D_CP_ALL_GATHER);
    ring = find(&p, D9D_CP_RING)->bytes;
    assert_true(ring < find(&p, D9D_CP_ALL_GATHER)->bytes);
    x.memory = ring;
    assert_ok(plan_of(&x, &a, &p));
    assert_int_equal(p.mesh.context_parallel_method, D9D_CP_RING);
    assert_true(find(&p, D9D_CP_RING)->fits && !find(&p, D9D_CP_ALL_GATHER)->fits);
    x.memory = MIB(16); /* of all too little: the least */
    assert_ok(plan_of(&x, &a, &p));
    assert_int_equal(p.mesh.context_parallel_method, D9D_CP_RING);
    assert_false(d9d_plan_fits(&p));
    d9d_arena_release(&a);
}

/* What is refused says why; what is chosen has the plan of its name. */
static void candidates_have_their_plans(void **state)
{
    const shape x = {"h100", 131072, 16, 1, 30, 30, 0};
    d9d_arena a = {0};
    d9d_buf text = {0};
    d9d_plan p;

    (void)state;
    assert_ok(plan_of(&x, &a, &p));
    assert_non_null(strstr(find(&p, D9D_CP_ALL_TO_ALL)->refused, "num_attention_heads 30"));
    assert_true(find(&p, D9D_CP_RING)->step_s == p.step_s);
    assert_int_equal(find(&p, D9D_CP_RING)->bytes, d9d_plan_rank_bytes(d9d_plan_largest_rank(&p)));
    assert_ok(d9d_plan_print_cp_choice(&p.cp_choice, &text));
    assert_non_null(strstr(text.data, "ring; all_gather: a step of "));
    assert_non_null(strstr(text.data, "; all_to_all is refused: "));
    d9d_buf_release(&text);
    d9d_arena_release(&a);
}

/* A configuration that no method can have fails as it would with a name. */
static void what_no_method_has_is_refused(void **state)
{
    const shape x = {"h100", 4096, 2, 1, 30, 7, 0};
    d9d_arena a = {0};
    d9d_plan p;

    (void)state;
    assert_int_equal(plan_of(&x, &a, &p), D9D_ECONFIG);
    assert_non_null(strstr(d9d_err_message(), "7"));
    d9d_arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_method_is_chosen),
        cmocka_unit_test(memory_decides),
        cmocka_unit_test(candidates_have_their_plans),
        cmocka_unit_test(what_no_method_has_is_refused),
    };

    return cmocka_run_group_tests_name("plan_cp_method", tests, NULL, NULL);
}
