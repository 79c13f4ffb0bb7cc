/* test_op_concat.c - columns of some arrays side by side. */
#include "support/fd.h"
#include "support/op_fixture.h"

/* Columns of the inputs in turn, into a shape. */
typedef struct join_arg {
    int64_t first[3], n[3];
    d9d_shape shape;
} join_arg;

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;
    const join_arg *a = e->of->arg;
    d9d_op_concat_input inputs[3];

    (void)n_out;
    for (size_t i = 0; i < n_in; i++)
        inputs[i] = (d9d_op_concat_input){in[i], a->first[i], a->n[i]};
    return d9d_op_concat(t, inputs, n_in, a->shape, out);
}

static void keeps_its_promises(void **state)
{
    static const join_arg all = {{0, 0}, {3, 5}, D9D_SHAPE(4, 8)};
    static const join_arg some = {{1, 2}, {2, 1}, D9D_SHAPE(4, 3)};
    static const join_arg zeros = {{2}, {9}, D9D_SHAPE(2, 3, 14)};
    static const join_arg heads = {{0, 4, 1}, {6, 3, 1}, D9D_SHAPE(2, 3, 4, 11)};
    static const fd_case cases[] = {
        {.name = "all", .run = run, .in = {FD(4, 3), FD(4, 5)}, .arg = &all},
        {.name = "some", .run = run, .in = {FD(4, 4), FD(4, 3)}, .arg = &some},
        {.name = "zeros", .run = run, .in = {FD(2, 3, 11)}, .arg = &zeros},
        {.name = "heads",
         .run = run,
         .in = {FD(2, 3, 1, 6), FD(2, 3, 4, 7), FD(6, 2)},
         .arg = &heads},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *half = op_var(f, D9D_BF16, D9D_SHAPE(2, 3));
    d9d_var *y;

    assert_refused(f,
                   d9d_op_concat(f->tape, &(d9d_op_concat_input){x, 1, 3}, 1, D9D_SHAPE(2, 4), &y),
                   "concat: x [2, 3] does not fit y [2, 4]: inputs are columns of x, and together "
                   "have at most the columns of y");
    assert_refused(f,
                   d9d_op_concat(f->tape, &(d9d_op_concat_input){x, 0, 3}, 1, D9D_SHAPE(5, 4), &y),
                   "concat: x [2, 3] does not fit y [5, 4]: inputs are columns of x, and together "
                   "have at most the columns of y");
    assert_refused(f,
                   d9d_op_concat(f->tape, (d9d_op_concat_input[]){{x, 0, 3}, {x, 0, 2}}, 2,
                                 D9D_SHAPE(2, 4), &y),
                   "concat: x [2, 3] does not fit y [2, 4]: inputs are columns of x, and together "
                   "have at most the columns of y");
    assert_refused(f,
                   d9d_op_concat(f->tape, (d9d_op_concat_input[]){{x, 0, 3}, {half, 0, 1}}, 2,
                                 D9D_SHAPE(2, 4), &y),
                   "concat: x is bfloat16, expected float32");
    assert_refused(f, d9d_op_concat(f->tape, NULL, 0, D9D_SHAPE(2, 4), &y),
                   "concat: 0 inputs, from 1 to 8 are supported");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_join", tests, NULL, NULL);
}
