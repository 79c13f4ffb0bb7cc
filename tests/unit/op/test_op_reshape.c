/* test_op_reshape.c - the same elements in another shape. */
#include "support/fd.h"
#include "support/op_fixture.h"

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    const fd_env *e = self;

    (void)n_in, (void)n_out;
    return d9d_op_reshape(t, in[0], *(const d9d_shape *)e->of->arg, out);
}

static void keeps_its_promises(void **state)
{
    static const d9d_shape flat = {1, {30}}, deep = {4, {5, 1, 2, 3}}, scalar = {0, {0}},
                           empty = {2, {7, 0}};
    static const fd_case cases[] = {
        {.name = "flat", .run = run, .in = {FD(5, 6)}, .arg = &flat},
        {.name = "deep", .run = run, .in = {FD(30)}, .arg = &deep},
        {.name = "scalar", .run = run, .in = {FD(1, 1)}, .arg = &scalar},
        {.name = "empty", .run = run, .in = {FD(0, 5)}, .arg = &empty},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void shares_storage(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *y;

    assert_ok(d9d_op_reshape(f->tape, x, D9D_SHAPE(6), &y));
    assert_ptr_equal(d9d_tensor_data(d9d_var_tensor(x)), d9d_tensor_data(d9d_var_tensor(y)));
    d9d_tape_release_since(f->tape, 0, &y, 1);
    assert_true(d9d_tensor_is_unique(d9d_var_tensor(y)));
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *y;

    assert_refused(f, d9d_op_reshape(f->tape, x, D9D_SHAPE(7), &y),
                   "reshape: x [2, 3] does not fit the new shape [7]: the number of elements must "
                   "be the same");
    assert_refused(f, d9d_op_reshape(f->tape, x, D9D_SHAPE(-2, -3), &y),
                   "reshape: x [2, 3] does not fit the new shape [-2, -3]: the number of elements "
                   "must be the same");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(shares_storage),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_reshape", tests, NULL, NULL);
}
