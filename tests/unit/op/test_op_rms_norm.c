/* test_op_rms_norm.c - root-mean-square norm. */
#include "support/fd.h"
#include "support/op_fixture.h"

typedef struct norm_arg {
    float eps;
    bool zero_centred;
} norm_arg;

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;
    const norm_arg *a = e->of->arg;

    (void)n_in, (void)n_out;
    return d9d_op_rms_norm(t, in[0], e->param[0], a->eps, a->zero_centred, out);
}

static void keeps_its_promises(void **state)
{
    static const norm_arg plain = {1e-6f, false}, centred = {1e-5f, true}, large = {0.5f, false};
    static const fd_case cases[] = {
        {.name = "plain",
         .run = run,
         .in = {FD(3, 5)},
         .param = {FD(5)},
         .saved = {15, 3},
         .arg = &plain},
        {.name = "centred",
         .run = run,
         .in = {FD(4, 33)},
         .param = {FD(33)},
         .saved = {132, 4},
         .arg = &centred},
        {.name = "large eps",
         .run = run,
         .in = {FD(2, 7)},
         .param = {FD(7)},
         .saved = {14, 2},
         .arg = &large},
        {.name = "heads",
         .run = run,
         .in = {FD(2, 3, 4, 6)},
         .param = {FD(6)},
         .saved = {144, 24},
         .arg = &plain},
        {.name = "vector",
         .run = run,
         .in = {FD(11)},
         .param = {FD(11)},
         .saved = {11, 1},
         .arg = &plain},
        {.name = "no rows",
         .run = run,
         .in = {FD(0, 5)},
         .param = {FD(5)},
         .saved = {-1, -1},
         .arg = &plain},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *y;
    d9d_param *w = op_param(f, "norm.weight", D9D_F32, D9D_SHAPE(4));
    d9d_param *half = op_param(f, "norm.weight", D9D_BF16, D9D_SHAPE(3));

    assert_refused(f, d9d_op_rms_norm(f->tape, x, w, 1e-6f, false, &y),
                   "rms_norm: x [2, 3] does not fit norm.weight [4]: x is [..., N], a weight [N]");
    assert_refused(f, d9d_op_rms_norm(f->tape, x, half, 1e-6f, false, &y),
                   "rms_norm: norm.weight is bfloat16, expected float32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_rms_norm", tests, NULL, NULL);
}
