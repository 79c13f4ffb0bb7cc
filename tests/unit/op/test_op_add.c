/* test_op_add.c - y = a + b. */
#include "support/fd.h"
#include "support/op_fixture.h"

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    (void)self, (void)n_in, (void)n_out;
    return d9d_op_add(t, in[0], in[1], out);
}

/* One var in both places: two gifts of one array. */
static d9d_status run_twice(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                            size_t n_out)
{
    (void)self, (void)n_in, (void)n_out;
    return d9d_op_add(t, in[0], in[0], out);
}

static void keeps_its_promises(void **state)
{
    static const fd_case cases[] = {
        {.name = "two", .run = run, .in = {FD(3, 5), FD(3, 5)}},
        {.name = "same", .run = run_twice, .in = {FD(2, 3, 7)}},
        {.name = "long", .run = run, .in = {FD(1037), FD(1037)}},
        {.name = "empty", .run = run, .in = {FD(0, 5), FD(0, 5)}},
        {.name = "row", .run = run, .in = {FD(3, 5), FD(5)}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *a = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *b = op_var(f, D9D_F32, D9D_SHAPE(3, 2));
    d9d_var *whole = op_var(f, D9D_I64, D9D_SHAPE(2, 3)), *y;

    assert_refused(f, d9d_op_add(f->tape, a, b, &y),
                   "add: b [3, 2] does not fit a [2, 3]: dimensions, aligned at the last, must be "
                   "equal or 1");
    assert_refused(f, d9d_op_add(f->tape, a, whole, &y),
                   "add: b is int64, expected float32 or bfloat16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_add", tests, NULL, NULL);
}
