/* test_op_rms_norm_parallel.c - RMSNorm of rows in parts, here of one rank; tests/multirank has
 * several. */
#include "support/fd.h"
#include "support/op_fixture.h"

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;

    (void)n_in, (void)n_out;
    return d9d_op_rms_norm_parallel(t, in[0], e->param[0], e->of->arg, out);
}

static void keeps_its_promises(void **state)
{
    static const d9d_op_rms_norm_parallel_opts whole = {.eps = 1e-6f, .total = 5, .label = "x"},
                                               slice = {.eps = 1e-2f,
                                                        .zero_centred = true,
                                                        .first = 2,
                                                        .total = 6,
                                                        .label = "x"};
    static const fd_case cases[] = {
        {.name = "whole rows",
         .run = run,
         .in = {FD(3, 5)},
         .param = {FD(5)},
         .saved = {15, 3},
         .arg = &whole},
        {.name = "a slice of the weight",
         .run = run,
         .in = {FD(2, 2, 6)},
         .param = {FD(9)},
         .saved = {24, 4},
         .arg = &slice},
        {.name = "no rows",
         .run = run,
         .in = {FD(0, 5)},
         .param = {FD(5)},
         .saved = {-1, -1},
         .arg = &whole},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *y;
    d9d_param *w = op_param(f, "q_norm.weight", D9D_F32, D9D_SHAPE(4));

    assert_refused(
        f,
        d9d_op_rms_norm_parallel(f->tape, x, w,
                                 &(d9d_op_rms_norm_parallel_opts){.first = 2, .total = 4}, &y),
        "rms_norm_parallel: x [2, 3] does not fit q_norm.weight [4]: x is [..., N], a weight has N "
        "elements from where it is read");
    assert_refused(
        f,
        d9d_op_rms_norm_parallel(f->tape, x, w, &(d9d_op_rms_norm_parallel_opts){.total = 2}, &y),
        "rms_norm_parallel: 0 elements of 3 are not counted, of rows of 2");
    assert_refused(
        f,
        d9d_op_rms_norm_parallel(f->tape, x, w,
                                 &(d9d_op_rms_norm_parallel_opts){.total = 9, .uncounted = 4}, &y),
        "rms_norm_parallel: 4 elements of 3 are not counted, of rows of 9");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_rms_norm_parallel", tests, NULL, NULL);
}
