/* test_op_position_scale.c - the attention temperature of a position. */
#include <math.h>

#include "support/fd.h"
#include "support/op_fixture.h"

typedef struct scale_arg {
    float beta;
    int64_t period;
} scale_arg;

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;
    const scale_arg *a = e->of->arg;

    (void)n_in, (void)n_out;
    return d9d_op_position_scale(t, in[0], &e->constant[0], a->beta, a->period, out);
}

static const int32_t positions[] = {0, 3, 4, 7, 40000, 8};

#define AT                                                                                         \
    {                                                                                              \
        D9D_I32, D9D_SHAPE(2, 3), positions                                                        \
    }

static void keeps_its_promises(void **state)
{
    static const scale_arg some = {0.1f, 4}, none = {0, 1};
    static const fd_case cases[] = {
        {.name = "heads", .run = run, .in = {FD(2, 3, 3, 8)}, .constant = {AT}, .arg = &some},
        {.name = "odd", .run = run, .in = {FD(2, 3, 1, 5)}, .constant = {AT}, .arg = &some},
        {.name = "no factor", .run = run, .in = {FD(2, 3, 2, 2)}, .constant = {AT}, .arg = &none},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void scales_by_whole_periods(void **state)
{
    op_fixture *f = *state;
    d9d_tensor *at = op_tensor(f, D9D_I32, D9D_SHAPE(2, 3));
    d9d_var *v = op_var(f, D9D_F32, D9D_SHAPE(2, 3, 1, 1)), *y;
    float x[6], got[6];

    for (int i = 0; i < 6; i++)
        x[i] = (float)(i + 1);
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(at), positions, sizeof(positions)));
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(d9d_var_tensor(v)), x, sizeof(x)));
    assert_ok(d9d_op_position_scale(f->tape, v, at, 0.5f, 4, &y));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(y), got));
    for (int i = 0; i < 6; i++)
        assert_float_equal(got[i], x[i] * (1 + 0.5 * log(1 + floor(positions[i] / 4.0))), 1e-5);
    assert_float_equal(got[1], 2, 0);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3, 4, 8)), *y;
    d9d_tensor *p = op_tensor(f, D9D_I32, D9D_SHAPE(2, 3)),
               *few = op_tensor(f, D9D_I32, D9D_SHAPE(3));

    assert_refused(f, d9d_op_position_scale(f->tape, x, few, 1, 1, &y),
                   "position_scale: positions [3] does not fit x [2, 3, 4, 8]: x is [B, S, heads, "
                   "D], positions are [B, S]");
    assert_refused(f, d9d_op_position_scale(f->tape, x, p, 1, 0, &y),
                   "position_scale: a period of 0 positions");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(scales_by_whole_periods),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_position_scale", tests, NULL, NULL);
}
