/* test_op_info_nce.c - the InfoNCE contrastive loss over pairs. */
#include <math.h>

#include "support/fd.h"
#include "support/op_fixture.h"

static const int32_t targets[] = {0, 1, -100, 3};

static d9d_status contrast(d9d_tape *t, d9d_var *x, d9d_var **loss)
{
    const int64_t pairs = d9d_var_tensor(x)->shape.dim[0] / 2;
    d9d_tensor labels = {0};
    d9d_status st =
        d9d_tensor_from_host(d9d_tape_device(t), D9D_I32, D9D_SHAPE(pairs), targets, &labels);

    if (st == D9D_OK)
        st = d9d_op_info_nce(t, x, 0.5f, &labels, -100, loss);
    d9d_tensor_release(&labels);
    return st;
}

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    (void)self, (void)n_in, (void)n_out;
    return contrast(t, in[0], out);
}

/* x, 1 / |x|, the norm's weight, e, lse, targets, unit. */
static void keeps_its_promises(void **state)
{
    static const fd_case cases[] = {
        {.name = "one pair of two",
         .run = run,
         .in = {FD(4, 8)},
         .saved = {32, 4, 8, 32, 2, 2, 16},
         .tolerance_bf16 = 0.05f},
        {.name = "a row alone, a pair that does not count",
         .run = run,
         .in = {FD(9, 24)},
         .saved = {216, 9, 24, 216, 4, 4, 96},
         .tolerance_bf16 = 0.05f},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void is_the_formula(void **state)
{
    enum { P = 4, H = 8 };
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2 * P, H)), *loss;
    float in[2 * P * H], got[P];

    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(x), in));
    assert_ok(contrast(f->tape, x, &loss));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(loss), got));
    for (int i = 0; i < P; i++) {
        double s[P], sum = 0;

        for (int j = 0; j < P; j++) {
            double dot = 0, a = 0, b = 0;

            for (int h = 0; h < H; h++) {
                dot += (double)in[i * H + h] * (double)in[(P + j) * H + h];
                a += (double)in[i * H + h] * (double)in[i * H + h];
                b += (double)in[(P + j) * H + h] * (double)in[(P + j) * H + h];
            }
            s[j] = dot / sqrt(a * b) / 0.5;
            sum += exp(s[j]);
        }
        assert_float_equal(got[i], targets[i] < 0 ? 0 : log(sum) - s[i], 1e-5);
    }
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(4, 6)), *loss;

    assert_refused(f, contrast(f->tape, x, &loss),
                   "info_nce: targets [2] does not fit x [4, 6]: x is [N, H] with H a multiple of "
                   "8, targets are [N / 2]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(is_the_formula),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_contrast", tests, NULL, NULL);
}
