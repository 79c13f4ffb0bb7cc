/* blocks_driver.c - launched by tests/multirank/blocks.bats: golden stacks of blocks over
 * tensor-parallel ranks. */
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
    ranks w;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(stacks_in_parts_equal_transformers, &w),
    };

    ranks_open_tensor(&w);
    return ranks_run(&w, "blocks", tests, sizeof(tests) / sizeof(*tests));
}
