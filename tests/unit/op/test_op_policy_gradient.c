/* test_op_policy_gradient.c - losses of sampled tokens.  test_golden_grpo.c has TRL's numbers. */
#include <math.h>

#include "support/fd.h"
#include "support/op_fixture.h"

#include "d9d/op/loss.h"

enum { OLD, REF, ADVANTAGE, WEIGHT, SHARE };

/* in[0] is what is added to the old log-probabilities. */
static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    const fd_env *e = self;
    const d9d_op_policy_opts *o = e->of->arg;
    d9d_op_policy_in p = {.own = NULL};
    d9d_op_policy_out done;
    d9d_var **const to[] = {[OLD] = &p.old,
                            [REF] = &p.ref,
                            [ADVANTAGE] = &p.advantage,
                            [WEIGHT] = &p.weight,
                            [SHARE] = &p.share};

    (void)n_in, (void)n_out;
    for (int i = OLD; i <= SHARE; i++)
        D9D_TRY(d9d_tape_leaf(t, &e->constant[i], false, to[i]));
    D9D_TRY(d9d_op_cast(t, in[0], D9D_F32, &p.own));
    D9D_TRY(d9d_op_add(t, p.own, p.old, &p.own));
    if (o->beta == 0)
        p.ref = NULL;
    D9D_TRY(d9d_op_policy_gradient(t, o, &p, &done));
    *out = done.loss;
    return D9D_OK;
}

/* Ratios stay away from the corners of the clipping, where there is no derivative. */
static void keeps_its_promises(void **state)
{
    static const float step[6] = {0.05f, -0.5f, 0.6f, -0.04f, 0.5f, -0.7f};
    static const float old[6] = {-1, -0.5f, -2, -0.1f, -3, -1.5f};
    static const float ref[6] = {-1.2f, -0.4f, -1.5f, -0.3f, -2.5f, -1.4f};
    static const float advantage[6] = {1, 1, 1, -2, -2, -2}, weight[6] = {0.5f, 1, 2, 1, 1, 0};
    static const float share[6] = {1 / 3.0f, 1 / 3.0f, 1 / 3.0f, 0.5f, 0.5f, 0};
    static const d9d_op_policy_opts
        clip = {.epsilon_low = 0.2f, .epsilon_high = 0.28f},
        bounded = {.epsilon_low = 0.2f, .epsilon_high = 0.2f, .delta = 1.5f},
        diverging = {.beta = 0.5f, .epsilon_low = 0.2f, .epsilon_high = 0.2f},
        sequence = {.sequence = true, .beta = 0.1f, .epsilon_low = 0.5f, .epsilon_high = 0.5f};
    const struct {
        const char *name;
        const d9d_op_policy_opts *opts;
    } cases[] = {{"clipped", &clip},
                 {"two-sided", &bounded},
                 {"beside a reference", &diverging},
                 {"of sequences", &sequence}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const d9d_shape shape = D9D_SHAPE(2, 3, 1);
        const fd_case c = {.name = cases[i].name,
                           .run = run,
                           .arg = cases[i].opts,
                           .in = {{.shape = shape, .host = step}},
                           .constant = {[OLD] = {D9D_F32, shape, old},
                                        [REF] = {D9D_F32, shape, ref},
                                        [ADVANTAGE] = {D9D_F32, shape, advantage},
                                        [WEIGHT] = {D9D_F32, shape, weight},
                                        [SHARE] = {D9D_F32, shape, share}}};

        if (!(fd_gradient_error(&c) <= 1))
            fail_msg("%s: a gradient is not the difference of losses", cases[i].name);
    }
}

static d9d_var *leaf(op_fixture *f, d9d_shape shape, const float *host, bool learns)
{
    d9d_tensor x;
    d9d_var *v;

    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, shape, host, &x));
    assert_ok(d9d_tape_leaf(f->tape, &x, learns, &v));
    d9d_tensor_release(&x);
    return v;
}

/* The first step of a round: ratios of exactly 1, and the gradient of A log p. */
static void the_first_step_has_ratios_of_one(void **state)
{
    static const float own[3] = {-1.3f, -0.7f, -20}, advantage[3] = {0.3f, -1.7f, 2},
                       weight[3] = {1, 0.5f, 1};
    const d9d_op_policy_opts o = {.epsilon_low = 0, .epsilon_high = 0};
    const d9d_shape shape = D9D_SHAPE(1, 3, 1);
    op_fixture *f = *state;
    d9d_op_policy_in in = {.own = leaf(f, shape, own, true),
                           .advantage = leaf(f, shape, advantage, false),
                           .weight = leaf(f, shape, weight, false)};
    d9d_op_policy_out out;
    float loss[3], low[3], high[3], grad[3];
    d9d_tensor g;
    d9d_var *root;

    assert_ok(d9d_op_policy_gradient(f->tape, &o, &in, &out));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(out.loss), loss));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(out.low), low));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(out.high), high));
    assert_ok(d9d_op_loss_root(f->tape, out.loss, &root));
    assert_ok(d9d_tape_backward(f->tape, NULL, NULL, 0, D9D_BACKWARD_FULL));
    d9d_var_grad(in.own, &g);
    assert_ok(d9d_tensor_to_f32(&g, grad));
    d9d_tensor_release(&g);
    for (int i = 0; i < 3; i++) {
        assert_true(loss[i] == -advantage[i] * weight[i]);
        assert_true(grad[i] == -advantage[i] * weight[i]);
        assert_true(low[i] == 0 && high[i] == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(keeps_its_promises),
                                       op_test(the_first_step_has_ratios_of_one)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
