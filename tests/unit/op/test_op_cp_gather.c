/* test_op_cp_gather.c - context-parallel all-gather of keys and values, in a group of one;
 * tests/multirank/context.bats has more.
 */
#include "support/op_fixture.h"

static void one_rank_has_all_chunks(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3, 4)), *y = NULL;
    const size_t mark = d9d_tape_mark(f->tape);

    assert_ok(d9d_op_cp_gather(f->tape, x, NULL, "x", &y));
    assert_ptr_equal(y, x);
    assert_int_equal(d9d_tape_mark(f->tape), mark);
}

int main(void)
{
    const struct CMUnitTest tests[] = {op_test(one_rank_has_all_chunks)};

    return cmocka_run_group_tests_name("op_cp_gather", tests, NULL, NULL);
}
