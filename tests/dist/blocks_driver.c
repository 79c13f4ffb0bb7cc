/* blocks_driver.c - what tests/dist/blocks.bats launches: golden stacks of blocks over tp ranks. */
#include "support/ranks.h"
#include "support/stack.h"
#include "support/unit.h"
#include "support/unit_device.h"

#include <stdio.h>

static void stacks_in_parts_equal_transformers(void **state)
{
    const ranks *w = *state;

    for (int i = 0; i < n_stacks; i++) {
        stack s;

        stack_open(&stacks[i], w->dev, w->mesh, &s);
        stack_learn(&s, i % 2 == 0);
        stack_check(&s, unit_device_tolerance(1e-5, 1e-4));
        stack_close(&s);
    }
}

int main(void)
{
    d9d_degrees d = {1, 1, 1, 1, 1, 1, 1};
    d9d_boot *boot;
    ranks w;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(stacks_in_parts_equal_transformers, &w),
    };
    int failed;

    assert_ok(d9d_boot_open(&boot));
    d.tensor_parallel = d9d_boot_size(boot);
    assert_ok(ranks_open(boot, &d, D9D_AXIS(TP), &w));
    failed = cmocka_run_group_tests_name("blocks", tests, NULL, NULL);
    printf("rank %d of %d: %d failed\n", w.rank, w.size, failed);
    if (failed > 0) /* the others may wait for this one */
        d9d_boot_abort(w.boot, 1, "a test failed");
    ranks_close(&w);
    return failed > 0;
}
