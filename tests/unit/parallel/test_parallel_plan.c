/* test_parallel_plan.c - which models can be sharded over which meshes; tests/multirank/ checks the
 * results. */
#include "support/unit.h"

#include "d9d/models/qwen3/qwen3.h"
#include "d9d/parallel/parallel_plan.h"

static d9d_status check(int64_t heads, int64_t kv_heads, int64_t tp)
{
    const d9d_qwen3_config c = {.heads = heads, .kv_heads = kv_heads};
    const d9d_parallel_degrees d = {1, 1, 1, 1, 1, tp, 1};

    return d9d_qwen3_plan_check(&c, &d);
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
    const d9d_qwen3_config c = {.heads = 4, .kv_heads = 2, .experts = experts};
    const d9d_parallel_degrees d = {1, 1, ep, 1, 1, 1, ep};

    return d9d_qwen3_plan_check(&c, &d);
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
