/* test_op_gather.c - elements of rows by index. */
#include "support/fd.h"
#include "support/op_fixture.h"

#include "d9d/op/math.h"

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    (void)n_in, (void)n_out;
    return d9d_op_gather(t, in[0], &((const fd_env *)self)->constant[0], out);
}

static void keeps_its_promises(void **state)
{
    static const int32_t index[12] = {2, 0, 2, 2, -1, 4, 1, -100, 3, 3, 3, 3};
    static const fd_case cases[] = {
        {.name = "one of a row",
         .run = run,
         .in = {FD(3, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(3, 1), index}}},
        {.name = "several, some equal, some none",
         .run = run,
         .in = {FD(1, 3, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(1, 3, 4), index}}},
        {.name = "of no rows",
         .run = run,
         .in = {FD(0, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(0, 2), index}}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *y;
    const d9d_tensor *flat = op_tensor(f, D9D_I32, D9D_SHAPE(2)),
                     *real = op_tensor(f, D9D_F32, D9D_SHAPE(2, 1));

    assert_refused(f, d9d_op_gather(f->tape, x, flat, &y),
                   "gather: index [2] does not fit x [2, 3]: x is [..., N], the index [..., K]");
    assert_refused(f, d9d_op_gather(f->tape, x, real, &y),
                   "gather: index is float32, expected int32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_gather", tests, NULL, NULL);
}
