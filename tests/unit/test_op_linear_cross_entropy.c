/* test_op_linear_cross_entropy.c - head and loss in one. */
#include <math.h>

#include "support/fd.h"
#include "support/op_fixture.h"
#include "support/unit_device.h"

enum { IGNORE = -100 };

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;

    (void)n_in, (void)n_out;
    return d9d_op_linear_cross_entropy(t, in[0], e->param, e->n_param, &e->constant[0], IGNORE,
                                       out);
}

static const int32_t targets[] = {0, 8, IGNORE, 4, 5, 5, 7, IGNORE, 1};

static void keeps_its_promises(void **state)
{
    static const fd_case cases[] = {
        {.name = "one",
         .run = run,
         .in = {FD(9, 5)},
         .param = {FD(9, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(9), targets}},
         .kept = {45, 45, 9}},
        {.name = "split",
         .run = run,
         .in = {FD(9, 7)},
         .param = {FD(5, 7), FD(3, 7), FD(1, 7)},
         .constant = {{D9D_I32, D9D_SHAPE(9), targets}},
         .kept = {63, 63, 9}},
        {.name = "longer than a block",
         .run = run,
         .in = {{.shape = D9D_SHAPE(9, 17), .scale = 0.3f}},
         .param = {FD(6, 17), FD(1201, 17)},
         .constant = {{D9D_I32, D9D_SHAPE(9), targets}},
         .kept = {153, 153, 9}},
        {.name = "no tokens",
         .run = run,
         .in = {FD(0, 5)},
         .param = {FD(3, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(0), targets}},
         .kept = {-1, -1, -1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

/* h is zero: every logit is 0, every loss log V; ignored ones are 0 and have no gradient. */
static void ignored_targets_do_not_count(void **state)
{
    op_fixture *f = *state;
    d9d_var *h = op_var(f, D9D_F32, D9D_SHAPE(3, 2)), *loss;
    d9d_param *w = op_param(f, "head", D9D_F32, D9D_SHAPE(7, 2));
    d9d_tensor *target = op_tensor(f, D9D_I32, D9D_SHAPE(3));
    const int32_t some[] = {6, IGNORE, 0};
    float got[3];

    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(target), some, sizeof(some)));
    assert_ok(d9d_op_linear_cross_entropy(f->tape, h, &w, 1, target, IGNORE, &loss));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(loss), got));
    assert_float_equal(got[0], log(7), 1e-6);
    assert_float_equal(got[1], 0, 0);
    assert_float_equal(got[2], log(7), 1e-6);
}

static void targets_outside_the_vocabulary_are_refused(void **state)
{
    static const int32_t bad[] = {7, -1, INT32_MIN, INT32_MAX, -99};
    op_fixture *f = *state;
    d9d_var *h = op_var(f, D9D_F32, D9D_SHAPE(1, 2)), *loss = NULL;
    d9d_param *w = op_param(f, "head", D9D_F32, D9D_SHAPE(7, 2));
    d9d_tensor *target = op_tensor(f, D9D_I32, D9D_SHAPE(1));

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(target), &bad[i], sizeof(bad[i])));
        if (!unit_device_is_cpu()) { /* which is known too late to refuse */
            float got;

            assert_ok(d9d_op_linear_cross_entropy(f->tape, h, &w, 1, target, IGNORE, &loss));
            assert_ok(d9d_tensor_to_f32(d9d_var_tensor(loss), &got));
            assert_true(isnan(got));
            loss = NULL;
            continue;
        }
        assert_int_equal(d9d_op_linear_cross_entropy(f->tape, h, &w, 1, target, IGNORE, &loss),
                         D9D_EINVAL);
        assert_null(loss);
    }
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *h = op_var(f, D9D_F32, D9D_SHAPE(3, 2)), *y;
    d9d_param *w = op_param(f, "head", D9D_F32, D9D_SHAPE(7, 3));
    d9d_param *a = op_param(f, "a", D9D_F32, D9D_SHAPE(7, 2)),
              *b = op_param(f, "b", D9D_F32, D9D_SHAPE(7, 2));
    d9d_param *both[] = {a, b};
    d9d_tensor *three = op_tensor(f, D9D_I32, D9D_SHAPE(3)),
               *two = op_tensor(f, D9D_I32, D9D_SHAPE(2));

    assert_refused(f, d9d_op_linear_cross_entropy(f->tape, h, &w, 1, three, IGNORE, &y),
                   "linear_cross_entropy: head [7, 3] does not fit rows [2]: a split is [V, H]");
    assert_refused(f, d9d_op_linear_cross_entropy(f->tape, h, &a, 1, two, IGNORE, &y),
                   "linear_cross_entropy: targets [2] does not fit h [3, 2]: h is [T, H], targets "
                   "are [T]");
    assert_refused(f, d9d_op_linear_cross_entropy(f->tape, h, &a, 0, three, IGNORE, &y),
                   "linear_cross_entropy: a vocabulary of 0 splits, from 1 to 8 are possible");
    d9d_tensor_release(&b->grad);
    assert_ok(d9d_tensor_alloc(f->dev, D9D_BF16, D9D_SHAPE(7, 2), &b->grad));
    assert_refused(f, d9d_op_linear_cross_entropy(f->tape, h, both, 2, three, IGNORE, &y),
                   "linear_cross_entropy: the gradient of a is float32, of b bfloat16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(ignored_targets_do_not_count),
        op_test(targets_outside_the_vocabulary_are_refused),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_linear_cross_entropy", tests, NULL, NULL);
}
