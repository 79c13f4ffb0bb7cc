/* test_parallel_plan.c - which models can be sharded over which meshes; tests/multirank/ checks the
 * results. */
#include "support/unit.h"

#include <stdio.h>

#include "d9d/parallel/parallel_plan.h"
#include "support/family.h"

/* A model of two layers with these heads and, unless 0, experts, over a mesh. */
static d9d_status check_model(int64_t heads, int64_t kv_heads, int64_t experts,
                              const d9d_parallel_degrees *d)
{
    const d9d_model_opts options = {.dtype = D9D_F32};
    d9d_arena a = {0};
    d9d_family_config c;
    d9d_model *m;
    d9d_status st;
    char more[160] = "\"model_type\": \"qwen3\"";

    if (experts > 0)
        (void)snprintf(more, sizeof(more),
                       "\"model_type\": \"qwen3_moe\", \"num_experts\": %lld, "
                       "\"num_experts_per_tok\": 1, \"moe_intermediate_size\": 5",
                       (long long)experts);
    assert_ok(family_make(&a, &c,
                          "{%s, \"hidden_size\": 6, \"num_hidden_layers\": 2, "
                          "\"num_attention_heads\": %lld, \"num_key_value_heads\": %lld, "
                          "\"head_dim\": 2, \"vocab_size\": 7, \"intermediate_size\": 5}",
                          more, (long long)heads, (long long)kv_heads));
    assert_ok(d9d_family_create(&c, D9D_WHOLE_MODEL, &options, &m));
    st = d9d_parallel_plan_check_blocks(m, d);
    d9d_model_free(m);
    d9d_arena_release(&a);
    return st;
}

static d9d_status check(int64_t heads, int64_t kv_heads, int64_t tp)
{
    return check_model(heads, kv_heads, 0, &(d9d_parallel_degrees){1, 1, 1, 1, 1, tp, 1});
}

static void heads_are_dealt_over_ranks(void **state)
{
    (void)state;
    assert_ok(check(12, 4, 1));
    assert_ok(check(12, 4, 2));
    assert_ok(check(12, 4, 4));
    assert_ok(check(12, 4, 12)); /* three ranks have one key-value head */
    assert_ok(check(12, 1, 6));
    assert_fails(check(12, 4, 5), D9D_ECONFIG,
                 "mesh.tensor_parallel 5 does not divide num_attention_heads 12");
    assert_fails(check(12, 4, 24), D9D_ECONFIG,
                 "mesh.tensor_parallel 24 does not divide num_attention_heads 12");
    assert_fails(
        check(12, 4, 6), D9D_ECONFIG,
        "mesh.tensor_parallel 6 neither divides num_key_value_heads 4 nor is a multiple of "
        "it");
}

static d9d_status check_experts(int64_t experts, int64_t ep)
{
    return check_model(4, 2, experts, &(d9d_parallel_degrees){1, 1, ep, 1, 1, 1, ep});
}

static void experts_are_dealt_over_ranks(void **state)
{
    (void)state;
    assert_ok(check_experts(0, 1));
    assert_ok(check_experts(6, 1));
    assert_ok(check_experts(6, 3));
    assert_ok(check_experts(6, 6));
    assert_fails(check_experts(6, 4), D9D_ECONFIG,
                 "mesh.expert_parallel 4 does not divide num_experts 6");
    assert_fails(check_experts(6, 12), D9D_ECONFIG,
                 "mesh.expert_parallel 12 does not divide num_experts 6");
    assert_fails(check_experts(0, 2), D9D_ECONFIG,
                 "mesh.expert_parallel is 2, but the model has no experts");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_are_dealt_over_ranks),
        cmocka_unit_test(experts_are_dealt_over_ranks),
    };

    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
