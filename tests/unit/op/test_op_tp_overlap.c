/* test_op_tp_overlap.c - tensor-parallel all-gather and reduce-scatter of rows, in a group of one;
 * tests/multirank/tensor.bats has more. */
#include "support/op_fixture.h"

static void one_rank_has_all_rows(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3, 4)), *y = NULL;
    const size_t mark = d9d_tape_mark(f->tape);

    assert_ok(d9d_op_all_gather_rows(f->tape, x, NULL, "x", &y));
    assert_ptr_equal(y, x);
    y = NULL;
    assert_ok(d9d_op_reduce_scatter_rows(f->tape, x, NULL, "x", &y));
    assert_ptr_equal(y, x);
    assert_int_equal(d9d_tape_mark(f->tape), mark);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *ids = op_var(f, D9D_I32, D9D_SHAPE(2, 3)), *y = NULL;
    d9d_var *scalar = op_var(f, D9D_F32, D9D_SCALAR);

    assert_refused(f, d9d_op_all_gather_rows(f->tape, ids, NULL, "x", &y),
                   "all_gather_rows: x is int32, expected float32 or bfloat16");
    assert_refused(f, d9d_op_reduce_scatter_rows(f->tape, scalar, NULL, "x", &y),
                   "reduce_scatter_rows: x [] has no rows");
    assert_null(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        op_test(one_rank_has_all_rows),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_rows", tests, NULL, NULL);
}
