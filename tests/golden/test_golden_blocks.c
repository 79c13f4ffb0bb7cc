/* test_golden_blocks.c - stacks of blocks that no whole model is made of yet, against transformers:
 * gated attention, partial turning, zero-centred norms and a gated shared expert as in Qwen3-Next;
 * windows and sinks as in gpt-oss. */
#include "support/stack.h"
#include "support/unit.h"
#include "support/unit_device.h"

static void check(bool recomputed)
{
    for (int i = 0; i < n_stacks; i++) {
        d9d_device *dev;
        stack s;

        assert_ok(d9d_device_open(unit_device_name(), &dev));
        stack_open(&stacks[i], dev, NULL, &s);
        stack_learn(&s, recomputed);
        stack_check(&s, unit_device_tolerance(1e-5, 1e-4));
        stack_close(&s);
        assert_int_equal(d9d_device_memory(dev).in_use, 0);
        d9d_device_close(dev);
    }
}

static void values_equal_transformers(void **state)
{
    (void)state;
    check(false);
}

static void recomputed_they_do_too(void **state)
{
    (void)state;
    check(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_equal_transformers),
        cmocka_unit_test(recomputed_they_do_too),
    };

    return cmocka_run_group_tests_name("golden_blocks", tests, NULL, NULL);
}
