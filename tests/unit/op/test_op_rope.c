/* test_op_rope.c - rotary position embedding. */
#include <math.h>

#include "support/fd.h"
#include "support/op_fixture.h"

typedef struct rope_arg {
    d9d_op_rope_style style;
    float mscale;
} rope_arg;

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;
    const rope_arg *a = e->of->arg;

    (void)n_in, (void)n_out;
    return d9d_op_rope(t, in[0], &e->constant[0], &e->constant[1], a->style, a->mscale, out);
}

static const int32_t positions[] = {0, 1, 2, 7, 40000, 3};
static const float inv_freq[] = {1, 0.3f, 0.01f, 0.0001f};

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
    static const rope_arg half = {D9D_ROPE_HALF, 1}, pairs = {D9D_ROPE_INTERLEAVED, 1},
                          scaled = {D9D_ROPE_HALF, 1.3f};
    static const fd_case cases[] = {
        {.name = "half",
         .run = run,
         .in = {FD(2, 3, 3, 8)},
         .constant = {AT, FREQUENCIES(4)},
         .arg = &half},
        {.name = "pairs",
         .run = run,
         .in = {FD(2, 3, 1, 8)},
         .constant = {AT, FREQUENCIES(4)},
         .arg = &pairs},
        {.name = "scaled",
         .run = run,
         .in = {FD(2, 3, 2, 8)},
         .constant = {AT, FREQUENCIES(4)},
         .arg = &scaled},
        {.name = "partial",
         .run = run,
         .in = {FD(2, 3, 2, 7)},
         .constant = {AT, FREQUENCIES(2)},
         .arg = &half},
        {.name = "partial pairs",
         .run = run,
         .in = {FD(2, 3, 2, 7)},
         .constant = {AT, FREQUENCIES(2)},
         .arg = &pairs},
        {.name = "nothing turns",
         .run = run,
         .in = {FD(2, 3, 2, 5)},
         .constant = {AT, FREQUENCIES(0)},
         .arg = &half},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

/* Against the formula, at a large position. */
static void turns_by_position_times_frequency(void **state)
{
    op_fixture *f = *state;
    const float x[] = {1, 2, 3, 4, 5}, freq[] = {1, 0.5f};
    const int32_t at[] = {9};
    static const int pair[2][2][2] = {{{0, 2}, {1, 3}}, {{0, 1}, {2, 3}}};
    d9d_tensor *position = op_tensor(f, D9D_I32, D9D_SHAPE(1, 1));
    d9d_tensor *inv = op_tensor(f, D9D_F32, D9D_SHAPE(2));
    d9d_var *v = op_var(f, D9D_F32, D9D_SHAPE(1, 1, 1, 5)), *y;
    float got[5];

    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(position), at, sizeof(at)));
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(inv), freq, sizeof(freq)));
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(d9d_var_tensor(v)), x, sizeof(x)));
    for (int style = 0; style < 2; style++) {
        assert_ok(d9d_op_rope(f->tape, v, position, inv, (d9d_op_rope_style)style, 2, &y));
        assert_ok(d9d_tensor_to_f32(d9d_var_tensor(y), got));
        for (int i = 0; i < 2; i++) {
            const int *p = pair[style][i];
            const double a = at[0] * (double)freq[i], c = 2 * cos(a), s = 2 * sin(a);

            assert_float_equal(got[p[0]], x[p[0]] * c - x[p[1]] * s, 1e-5);
            assert_float_equal(got[p[1]], x[p[1]] * c + x[p[0]] * s, 1e-5);
        }
        assert_float_equal(got[4], 5, 0);
    }
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3, 4, 8)), *y;
    d9d_tensor *p = op_tensor(f, D9D_I32, D9D_SHAPE(2, 3)),
               *few = op_tensor(f, D9D_I32, D9D_SHAPE(3));
    d9d_tensor *q = op_tensor(f, D9D_F32, D9D_SHAPE(4)),
               *many = op_tensor(f, D9D_F32, D9D_SHAPE(5));

    assert_refused(f, d9d_op_rope(f->tape, x, few, q, D9D_ROPE_HALF, 1, &y),
                   "rope: positions [3] does not fit x [2, 3, 4, 8]: x is [B, S, heads, D], "
                   "positions are [B, S]");
    assert_refused(f, d9d_op_rope(f->tape, x, p, many, D9D_ROPE_HALF, 1, &y),
                   "rope: inv_freq [5] does not fit x [2, 3, 4, 8]: x is [B, S, heads, D], "
                   "frequencies are [R/2] with R at most D");
    assert_refused(f, d9d_op_rope(f->tape, x, q, q, D9D_ROPE_HALF, 1, &y),
                   "rope: positions is float32, expected int32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(turns_by_position_times_frequency),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_rope", tests, NULL, NULL);
}
