/* test_op_linear_transposed.c - sums of rows of a weight. */
#include "support/fd.h"
#include "support/op_fixture.h"

#include "d9d/op/math.h"

/* Of a constant, or of none: ones. */
static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;
    d9d_var *x = NULL;

    (void)in, (void)n_in, (void)n_out;
    if (e->constant[0].storage != NULL) {
        D9D_TRY(d9d_tape_leaf(t, &e->constant[0], false, &x));
        D9D_TRY(d9d_op_cast(t, x, e->param[0]->local.data.dtype, &x));
    }
    return d9d_op_linear_transposed(t, x, e->param[0], out);
}

static const float rows[] = {0.5f, -1, 0, 2, 0.25f, 1, 3, -0.5f, 0, 1, 0.75f, -2, 1, 0};

static void keeps_its_promises(void **state)
{
    static const fd_case cases[] = {
        {.name = "rows",
         .run = run,
         .param = {FD(7, 5)},
         .constant = {{D9D_F32, D9D_SHAPE(2, 7), rows}}},
        {.name = "one",
         .run = run,
         .param = {FD(1, 1)},
         .constant = {{D9D_F32, D9D_SHAPE(3, 1), rows}}},
        {.name = "ones", .run = run, .param = {FD(7, 5)}, .saved = {7}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void sums_rows(void **state)
{
    op_fixture *f = *state;
    d9d_param *w = op_param(f, "w", D9D_F32, D9D_SHAPE(3, 2));
    d9d_tensor *x = op_tensor(f, D9D_F32, D9D_SHAPE(1, 3));
    const float weight[] = {1, 2, 3, 4, 5, 6}, share[] = {2, 0, -1}, want[] = {-3, -2, 9, 12};
    float got[4];
    d9d_var *leaf, *y;

    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(&w->local.data), weight, sizeof(weight)));
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(x), share, sizeof(share)));
    assert_ok(d9d_tape_leaf(f->tape, x, false, &leaf));
    assert_ok(d9d_op_linear_transposed(f->tape, leaf, w, &y));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(y), got));
    assert_ok(d9d_op_linear_transposed(f->tape, NULL, w, &y));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(y), got + 2));
    assert_memory_equal(got, want, sizeof(want));
}

static void refuses_what_does_not_fit(void **state)
{
    op_fixture *f = *state;
    d9d_param *w = op_param(f, "w", D9D_F32, D9D_SHAPE(3, 2));
    d9d_var *leaf, *y;

    assert_ok(d9d_tape_leaf(f->tape, op_tensor(f, D9D_F32, D9D_SHAPE(1, 2)), false, &leaf));
    assert_fails(d9d_op_linear_transposed(f->tape, leaf, w, &y), D9D_EINVAL,
                 "linear_transposed: x [1, 2] does not fit w [3, 2]: x is [M, V], a weight [V, H]");
    assert_ok(d9d_tape_leaf(f->tape, op_tensor(f, D9D_F32, D9D_SHAPE(1, 3)), true, &leaf));
    assert_fails(d9d_op_linear_transposed(f->tape, leaf, w, &y), D9D_EINVAL,
                 "linear_transposed: x of w has a gradient, and is a constant");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(sums_rows),
        op_test(refuses_what_does_not_fit),
    };

    return cmocka_run_group_tests_name("op_linear_transposed", tests, NULL, NULL);
}
