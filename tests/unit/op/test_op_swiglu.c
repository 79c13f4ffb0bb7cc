/* test_op_swiglu.c - y = silu(gate) * up. */
#include "support/fd.h"
#include "support/op_fixture.h"

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    (void)self, (void)n_in, (void)n_out;
    return d9d_op_swiglu(t, in[0], in[1], out);
}

static d9d_status run_same(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                           size_t n_out)
{
    (void)self, (void)n_in, (void)n_out;
    return d9d_op_swiglu(t, in[0], in[0], out);
}

static void keeps_its_promises(void **state)
{
    static const fd_case cases[] = {
        {.name = "two", .run = run, .in = {FD(3, 5), FD(3, 5)}, .saved = {15, 15}},
        {.name = "long", .run = run, .in = {FD(1031), FD(1031)}, .saved = {1031, 1031}},
        {.name = "steep",
         .run = run,
         .in = {{.shape = D9D_SHAPE(7, 9), .scale = 4}, FD(7, 9)},
         .saved = {63, 63}},
        {.name = "same", .run = run_same, .in = {FD(2, 7)}, .saved = {14}},
        {.name = "empty", .run = run, .in = {FD(0, 3), FD(0, 3)}, .saved = {-1, -1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *a = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *b = op_var(f, D9D_F32, D9D_SHAPE(6)), *y;

    assert_refused(f, d9d_op_swiglu(f->tape, a, b, &y),
                   "swiglu: up [6] does not fit gate [2, 3]: shapes must be equal");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_swiglu", tests, NULL, NULL);
}
