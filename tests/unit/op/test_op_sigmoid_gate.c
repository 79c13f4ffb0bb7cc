/* test_op_sigmoid_gate.c - y = x * sigmoid(gate), one gate a row or an element. */
#include "support/fd.h"
#include "support/op_fixture.h"

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    (void)self, (void)n_in, (void)n_out;
    return d9d_op_sigmoid_gate(t, in[0], in[1], out);
}

static void keeps_its_promises(void **state)
{
    static const fd_case cases[] = {
        {.name = "rows", .run = run, .in = {FD(4, 7), FD(4, 1)}, .saved = {28, 4}},
        {.name = "one column", .run = run, .in = {FD(5, 1), FD(5, 1)}, .saved = {5, 5}},
        {.name = "wide",
         .run = run,
         .in = {FD(3, 257), {.shape = D9D_SHAPE(3, 1), .scale = 3}},
         .saved = {771, 3}},
        {.name = "deep", .run = run, .in = {FD(2, 3, 5), FD(2, 3, 1)}, .saved = {30, 6}},
        {.name = "elements", .run = run, .in = {FD(4, 7), FD(4, 7)}, .saved = {28, 28}},
        {.name = "many elements",
         .run = run,
         .in = {FD(2, 3, 389), {.shape = D9D_SHAPE(2, 3, 389), .scale = 3}},
         .saved = {2334, 2334}},
        {.name = "no elements", .run = run, .in = {FD(0, 7), FD(0, 7)}, .saved = {-1, -1}},
        {.name = "no columns", .run = run, .in = {FD(3, 0), FD(3, 1)}, .saved = {-1, 3}},
        {.name = "no rows", .run = run, .in = {FD(0, 7), FD(0, 1)}, .saved = {-1, -1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *g = op_var(f, D9D_F32, D9D_SHAPE(2, 2));
    d9d_var *scalar = op_var(f, D9D_F32, D9D_SCALAR), *y;

    assert_refused(f, d9d_op_sigmoid_gate(f->tape, x, g, &y),
                   "sigmoid_gate: gate [2, 2] does not fit x [2, 3]: x is [..., H], a gate [..., "
                   "1] or as x");
    assert_refused(
        f, d9d_op_sigmoid_gate(f->tape, scalar, scalar, &y),
        "sigmoid_gate: gate [] does not fit x []: x is [..., H], a gate [..., 1] or as x");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_sigmoid_gate", tests, NULL, NULL);
}
