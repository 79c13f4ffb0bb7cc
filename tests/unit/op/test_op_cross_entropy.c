/* test_op_cross_entropy.c - cross entropy with hard, smoothed and soft labels, and
 * log-probabilities of targets. */
#include "support/fd.h"
#include "support/op_fixture.h"

#include "d9d/op/loss.h"

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    const fd_env *e = self;

    (void)n_in, (void)n_out;
    return d9d_op_cross_entropy(t, in[0], &e->constant[0], *(const float *)e->of->arg, out);
}

static d9d_status run_log_probs(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                                d9d_var **out, size_t n_out)
{
    const fd_env *e = self;

    (void)n_in, (void)n_out;
    return d9d_op_target_log_probs(t, in[0], &e->constant[0], out);
}

static d9d_status run_soft(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                           size_t n_out)
{
    (void)self, (void)n_in, (void)n_out;
    return d9d_op_soft_cross_entropy(t, in[0], in[1], out);
}

static void keeps_its_promises(void **state)
{
    static const int32_t targets[4] = {2, 0, -100, 4};
    static const float none = 0, some = 0.125f;
    static const fd_case cases[] = {
        {.name = "hard labels",
         .run = run,
         .arg = &none,
         .in = {FD(4, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(4), targets}},
         .saved = {20, 4, 4}},
        {.name = "smoothed labels",
         .run = run,
         .arg = &some,
         .in = {FD(2, 2, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(2, 2), targets}},
         .saved = {20, 4, 4}},
        {.name = "log-probabilities",
         .run = run_log_probs,
         .in = {FD(4, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(4), targets}},
         .saved = {20, 4, 4}},
        {.name = "soft labels",
         .run = run_soft,
         .in = {FD(4, 5), FD(4, 5)},
         .saved = {20, 4, 20, 20}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *z = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *y;
    const d9d_tensor *two = op_tensor(f, D9D_I32, D9D_SHAPE(2)),
                     *three = op_tensor(f, D9D_I32, D9D_SHAPE(3));

    assert_refused(f, d9d_op_cross_entropy(f->tape, z, three, 0, &y),
                   "cross_entropy: targets [3] does not fit logits [2, 3]: logits are [..., V], "
                   "targets [...]");
    assert_refused(f, d9d_op_cross_entropy(f->tape, z, two, 2, &y),
                   "cross_entropy: a label smoothing of 2, not in [0, 1]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_cross_entropy", tests, NULL, NULL);
}
