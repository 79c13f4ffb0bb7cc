/* test_op_glu.c - y = act(gate) * up, and y = act(x). */
#include "support/fd.h"
#include "support/op_fixture.h"

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    const fd_env *e = self;
    const d9d_glu *f = e->of->arg;

    (void)n_out;
    return d9d_op_glu(t, f, in[0], n_in > 1 ? in[1] : NULL, out);
}

static d9d_status run_same(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                           size_t n_out)
{
    const fd_env *e = self;

    (void)n_in, (void)n_out;
    return d9d_op_glu(t, e->of->arg, in[0], in[0], out);
}

static void keeps_its_promises(void **state)
{
    static const d9d_glu silu, gelu = {.act = D9D_ACT_GELU}, tanh = {.act = D9D_ACT_GELU_TANH},
                               clamped = {D9D_ACT_SWIGLU_OAI, 1.702f, 100.0f},
                               clamp = {D9D_ACT_HARDTANH, 0, 100.0f};
    static const fd_case cases[] = {
        {.name = "two", .run = run, .in = {FD(3, 5), FD(3, 5)}, .saved = {15, 15}, .arg = &silu},
        {.name = "long",
         .run = run,
         .in = {FD(1031), FD(1031)},
         .saved = {1031, 1031},
         .arg = &silu},
        {.name = "steep",
         .run = run,
         .in = {{.shape = D9D_SHAPE(7, 9), .scale = 4}, FD(7, 9)},
         .saved = {63, 63},
         .arg = &silu},
        {.name = "same", .run = run_same, .in = {FD(2, 7)}, .saved = {14}, .arg = &silu},
        {.name = "empty", .run = run, .in = {FD(0, 3), FD(0, 3)}, .saved = {-1, -1}, .arg = &silu},
        {.name = "silu", .run = run, .in = {FD(3, 5)}, .saved = {15}, .arg = &silu},
        {.name = "gelu", .run = run, .in = {FD(3, 5)}, .saved = {15}, .arg = &gelu},
        {.name = "clamp", .run = run, .in = {FD(3, 5)}, .saved = {15}, .arg = &clamp},
        {.name = "gelu tanh", .run = run, .in = {FD(3, 5)}, .saved = {15}, .arg = &tanh},
        {.name = "gated gelu",
         .run = run,
         .in = {FD(3, 5), FD(3, 5)},
         .saved = {15, 15},
         .arg = &gelu},
        {.name = "gated gelu tanh",
         .run = run,
         .in = {{.shape = D9D_SHAPE(7, 9), .scale = 4}, FD(7, 9)},
         .saved = {63, 63},
         .arg = &tanh},
        {.name = "clamped SwiGLU",
         .run = run,
         .in = {FD(3, 5), FD(3, 5)},
         .saved = {15, 15},
         .arg = &clamped},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *a = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *b = op_var(f, D9D_F32, D9D_SHAPE(6)), *y;

    assert_refused(f, d9d_op_glu(f->tape, &(d9d_glu){0}, a, b, &y),
                   "glu: up [6] does not fit gate [2, 3]: shapes must be equal");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_glu", tests, NULL, NULL);
}
