/* test_plan.c - which models may be cut over which meshes; tests/dist/ has what comes of it. */
#include "support/unit.h"

#include "d9d/parallel/plan.h"

static d9d_status check(int64_t heads, int64_t kv_heads, int64_t tp)
{
    const d9d_qwen3_config c = {.heads = heads, .kv_heads = kv_heads};
    const d9d_degrees d = {1, 1, 1, 1, 1, tp, 1};

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(heads_are_dealt_over_ranks)};

    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
