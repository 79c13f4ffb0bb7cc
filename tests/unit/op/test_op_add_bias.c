/* test_op_add_bias.c - y = x + b, to each row. */
#include "support/fd.h"
#include "support/op_fixture.h"

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;
    const int64_t *first = e->of->arg;

    (void)n_in, (void)n_out;
    return d9d_op_add_bias(t, in[0], e->param[0], first != NULL ? *first : 0, out);
}

static void keeps_its_promises(void **state)
{
    static const int64_t third = 3;
    static const fd_case cases[] = {
        {.name = "rows", .run = run, .in = {FD(5, 7)}, .param = {FD(7)}},
        {.name = "deep", .run = run, .in = {FD(2, 3, 130)}, .param = {FD(130)}},
        {.name = "one row", .run = run, .in = {FD(1, 64)}, .param = {FD(64)}},
        {.name = "many rows", .run = run, .in = {FD(700, 16)}, .param = {FD(16)}},
        {.name = "a part", .run = run, .in = {FD(4, 5)}, .param = {FD(11)}, .arg = &third},
        {.name = "no rows", .run = run, .in = {FD(0, 7)}, .param = {FD(7)}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *y;
    d9d_param *b = op_param(f, "q_proj.bias", D9D_F32, D9D_SHAPE(4)),
              *square = op_param(f, "weight", D9D_F32, D9D_SHAPE(3, 3));

    assert_refused(f, d9d_op_add_bias(f->tape, x, b, 2, &y),
                   "add_bias: x [2, 3] does not fit q_proj.bias [4]: x is [..., N], a bias has N "
                   "elements from where it is read");
    assert_refused(f, d9d_op_add_bias(f->tape, x, b, -1, &y),
                   "add_bias: x [2, 3] does not fit q_proj.bias [4]: x is [..., N], a bias has N "
                   "elements from where it is read");
    assert_refused(f, d9d_op_add_bias(f->tape, x, square, 0, &y),
                   "add_bias: x [2, 3] does not fit weight [3, 3]: x is [..., N], a bias has N "
                   "elements from where it is read");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_add_bias", tests, NULL, NULL);
}
