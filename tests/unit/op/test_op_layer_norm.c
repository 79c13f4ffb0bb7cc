/* test_op_layer_norm.c - LayerNorm, with and without its parameters. */
#include "support/fd.h"
#include "support/op_fixture.h"

typedef struct norm_arg {
    float eps;
    bool w, b;
} norm_arg;

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;
    const norm_arg *a = e->of->arg;

    (void)n_in, (void)n_out;
    return d9d_op_layer_norm(t, in[0], a->w ? e->param[0] : NULL,
                             a->b ? e->param[a->w ? 1 : 0] : NULL, a->eps, out);
}

static void keeps_its_promises(void **state)
{
    static const norm_arg both = {1e-5f, true, true}, weight = {1e-5f, true, false},
                          bias = {1e-2f, false, true}, plain = {1e-5f, false, false},
                          large = {0.5f, true, true};
    static const fd_case cases[] = {
        {.name = "both",
         .run = run,
         .in = {FD(3, 5)},
         .param = {FD(5), FD(5)},
         .saved = {15, 3, 3},
         .arg = &both},
        {.name = "weight",
         .run = run,
         .in = {FD(2, 2, 33)},
         .param = {FD(33)},
         .saved = {132, 4, 4},
         .arg = &weight},
        {.name = "bias",
         .run = run,
         .in = {FD(4, 9)},
         .param = {FD(9)},
         .saved = {36, 4, 4},
         .arg = &bias},
        {.name = "plain", .run = run, .in = {FD(4, 7)}, .saved = {28, 4, 4}, .arg = &plain},
        {.name = "large eps",
         .run = run,
         .in = {FD(2, 7)},
         .param = {FD(7), FD(7)},
         .saved = {14, 2, 2},
         .arg = &large},
        {.name = "no rows",
         .run = run,
         .in = {FD(0, 5)},
         .param = {FD(5), FD(5)},
         .saved = {-1, -1, -1},
         .arg = &both},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *y;
    d9d_param *w = op_param(f, "norm.weight", D9D_F32, D9D_SHAPE(3));
    d9d_param *b = op_param(f, "norm.bias", D9D_F32, D9D_SHAPE(4));
    d9d_param *half = op_param(f, "norm.weight", D9D_BF16, D9D_SHAPE(3));

    assert_refused(
        f, d9d_op_layer_norm(f->tape, x, w, b, 1e-6f, &y),
        "layer_norm: x [2, 3] does not fit norm.bias [4]: x is [..., N], a weight or bias [N]");
    assert_refused(f, d9d_op_layer_norm(f->tape, x, half, NULL, 1e-6f, &y),
                   "layer_norm: norm.weight is bfloat16, expected float32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_layer_norm", tests, NULL, NULL);
}
