/* test_op_loss_root.c - the root of several losses: it sums them, and backward needs no seed. */
#include "support/op_fixture.h"

static void is_trained_on(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(5)), *y, *z;
    float grads[5] = {0};
    d9d_tensor dx;

    assert_ok(d9d_op_add(f->tape, x, x, &y)); /* y = 2x, so dx = 2 */
    assert_ok(d9d_op_loss_root(f->tape, y, &z));
    assert_true(d9d_var_is_root(z));
    assert_ok(d9d_op_loss_root(f->tape, z, &y));
    assert_ptr_equal(y, z);
    assert_ok(d9d_tape_backward(f->tape, NULL, NULL, 0, D9D_BACKWARD_FULL));
    d9d_var_grad(x, &dx);
    assert_ok(d9d_tensor_to_f32(&dx, grads));
    d9d_tensor_release(&dx);
    for (int i = 0; i < 5; i++)
        assert_true(grads[i] == 2.0F);
}

static void takes_no_seed(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(5)), *y;

    assert_ok(d9d_op_loss_root(f->tape, x, &y));
    assert_refused(f, d9d_tape_backward(f->tape, &y, d9d_var_tensor(x), 1, D9D_BACKWARD_FULL),
                   "backward: loss_root starts its own gradient and accepts none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        op_test(is_trained_on),
        op_test(takes_no_seed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
