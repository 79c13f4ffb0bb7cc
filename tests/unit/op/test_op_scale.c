/* test_op_scale.c - y = s x, and y = a + s b. */
#include "support/fd.h"
#include "support/op_fixture.h"

static const float factor = -0.375f, none = 1.0f;

static d9d_status run_scale(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                            size_t n_out)
{
    const fd_env *e = self;

    (void)n_in, (void)n_out;
    return d9d_op_scale(t, in[0], *(const float *)e->of->arg, out);
}

static d9d_status run_add(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                          size_t n_out)
{
    const fd_env *e = self;

    (void)n_out;
    return d9d_op_add_scaled(t, in[0], *(const float *)e->of->arg, in[n_in - 1], out);
}

static void keeps_its_promises(void **state)
{
    static const fd_case cases[] = {
        {.name = "scale", .run = run_scale, .in = {FD(3, 5)}, .arg = &factor},
        {.name = "scale, long", .run = run_scale, .in = {FD(1037)}, .arg = &factor},
        {.name = "scale, empty", .run = run_scale, .in = {FD(0, 5)}, .arg = &factor},
        {.name = "sum", .run = run_add, .in = {FD(3, 5), FD(3, 5)}, .arg = &factor},
        {.name = "sum, plain", .run = run_add, .in = {FD(2, 3, 7), FD(2, 3, 7)}, .arg = &none},
        {.name = "sum, one var", .run = run_add, .in = {FD(2, 9)}, .arg = &factor},
        {.name = "sum, empty", .run = run_add, .in = {FD(0, 5), FD(0, 5)}, .arg = &factor},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void one_changes_nothing(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *y;

    assert_ok(d9d_op_scale(f->tape, x, 1.0f, &y));
    assert_ptr_equal(x, y);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *a = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *b = op_var(f, D9D_F32, D9D_SHAPE(3, 2));
    d9d_var *half = op_var(f, D9D_BF16, D9D_SHAPE(2, 3)), *y;

    assert_refused(f, d9d_op_add_scaled(f->tape, a, 2.0f, b, &y),
                   "add_scaled: b [3, 2] does not fit a [2, 3]: shapes must be equal");
    assert_refused(f, d9d_op_add_scaled(f->tape, a, 2.0f, half, &y),
                   "add_scaled: b is bfloat16, expected float32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(one_changes_nothing),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_scale", tests, NULL, NULL);
}
