/* test_op_norm_rope.c - a norm of each head, then the turn. */
#include "support/fd.h"
#include "support/op_fixture.h"

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;
    d9d_op_norm_rope_opts opts = *(const d9d_op_norm_rope_opts *)e->of->arg;

    (void)n_in, (void)n_out;
    opts.positions = &e->constant[0];
    opts.inv_freq = &e->constant[1];
    return d9d_op_norm_rope(t, in[0], e->param[0], &opts, out);
}

static const int32_t positions[] = {0, 1, 2, 7, 40000, 3};
static const float inv_freq[] = {1, 0.3f, 0.01f, 0.0001f, 0.7f, 0.5f, 0.2f, 0.1f};

#define AT                                                                                         \
    {                                                                                              \
        D9D_I32, D9D_SHAPE(2, 3), positions                                                        \
    }
#define FREQUENCIES(n)                                                                             \
    {                                                                                              \
        D9D_F32, D9D_SHAPE(n), inv_freq                                                            \
    }

static void keeps_its_promises(void **state)
{
    static const d9d_op_norm_rope_opts half = {.eps = 1e-5f,
                                               .style = D9D_ROPE_HALF,
                                               .mscale = 1.0f},
                                       pairs = {.eps = 0.5f,
                                                .style = D9D_ROPE_INTERLEAVED,
                                                .mscale = 1.3f,
                                                .zero_centred = true};
    static const fd_case cases[] = {
        {.name = "half",
         .run = run,
         .in = {FD(2, 3, 3, 16)},
         .param = {FD(16)},
         .constant = {AT, FREQUENCIES(8)},
         .saved = {288, 18},
         .arg = &half},
        {.name = "pairs",
         .run = run,
         .in = {FD(2, 3, 1, 8)},
         .param = {FD(8)},
         .constant = {AT, FREQUENCIES(4)},
         .saved = {48, 6},
         .arg = &pairs},
        {.name = "partial",
         .run = run,
         .in = {FD(2, 3, 2, 7)},
         .param = {FD(7)},
         .constant = {AT, FREQUENCIES(2)},
         .saved = {84, 12},
         .arg = &half},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3, 1, 8)), *y;
    d9d_param *w = op_param(f, "norm.weight", D9D_F32, D9D_SHAPE(8)),
              *other = op_param(f, "norm.weight", D9D_F32, D9D_SHAPE(4));
    d9d_op_norm_rope_opts opts = {.positions = op_tensor(f, D9D_I32, D9D_SHAPE(2, 3)),
                                  .inv_freq = op_tensor(f, D9D_F32, D9D_SHAPE(4)),
                                  .mscale = 1};

    assert_refused(f, d9d_op_norm_rope(f->tape, x, other, &opts, &y),
                   "norm_rope: x [2, 3, 1, 8] does not fit norm.weight [4]: x is [B, S, heads, D], "
                   "a weight [D]");
    opts.inv_freq = op_tensor(f, D9D_F32, D9D_SHAPE(5));
    assert_refused(f, d9d_op_norm_rope(f->tape, x, w, &opts, &y),
                   "norm_rope: inv_freq [5] does not fit x [2, 3, 1, 8]: x is [B, S, heads, D], "
                   "frequencies are [R/2] with R at most D");
    opts.inv_freq = op_tensor(f, D9D_F32, D9D_SHAPE(4));
    opts.positions = op_tensor(f, D9D_I32, D9D_SHAPE(3, 2));
    assert_refused(
        f, d9d_op_norm_rope(f->tape, x, w, &opts, &y),
        "norm_rope: positions [3, 2] does not fit x [2, 3, 1, 8]: x is [B, S, heads, D], "
        "positions are [B, S]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_norm_rope", tests, NULL, NULL);
}
