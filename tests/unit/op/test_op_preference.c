/* test_op_preference.c - losses of answers, and their log-probabilities. */
#include <math.h>

#include "support/fd.h"
#include "support/op_fixture.h"

#include "d9d/op/loss.h"

static d9d_status run_dpo(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                          size_t n_out)
{
    const fd_env *e = self;

    (void)n_in, (void)n_out;
    return d9d_op_dpo(t, in[0], 0.5f, *(const float *)e->of->arg, out);
}

#define RUN(name, ...)                                                                             \
    static d9d_status run_##name(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,         \
                                 d9d_var **out, size_t n_out)                                      \
    {                                                                                              \
        (void)self, (void)n_in, (void)n_out;                                                       \
        return __VA_ARGS__;                                                                        \
    }
RUN(ipo, d9d_op_ipo(t, in[0], 0.25f, out))
RUN(simpo, d9d_op_simpo(t, in[0], 2.0f, 0.5f, 0.125f, out))
RUN(bradley_terry, d9d_op_bradley_terry(t, in[0], in[1], out))

/* Log-probabilities are negative: -1 - x^2. */
static d9d_status run_orpo(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                           size_t n_out)
{
    d9d_var *log_p[2];

    (void)self, (void)n_in, (void)n_out;
    for (int i = 0; i < 2; i++) {
        D9D_TRY(d9d_op_square(t, in[i], &log_p[i]));
        D9D_TRY(d9d_op_affine(t, log_p[i], -1.0f, -1.0f, &log_p[i]));
    }
    return d9d_op_orpo(t, log_p[0], log_p[1], 0.5f, out);
}

/* The sign, and an estimate without gradient, of a constant. */
static d9d_status run_kto(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                          size_t n_out)
{
    const fd_env *e = self;
    d9d_var *sign, *kl;

    (void)n_in, (void)n_out;
    D9D_TRY(d9d_tape_leaf(t, &e->constant[0], false, &sign));
    D9D_TRY(d9d_tape_leaf(t, &e->constant[1], false, &kl));
    return d9d_op_kto(t, in[0], kl, sign, 0.5f, out);
}

static d9d_status run_sums(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                           size_t n_out)
{
    const fd_env *e = self;
    const d9d_op_document_index documents = {.offset = e->constant[0]};
    d9d_var *loss;

    (void)n_in, (void)n_out;
    D9D_TRY(d9d_op_cast(t, in[0], D9D_F32, &loss));
    return d9d_op_sequence_log_probs(t, loss, &documents, NULL, out);
}

static d9d_status run_jsd(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                          size_t n_out)
{
    const fd_env *e = self;
    const float *options = e->of->arg;

    (void)n_in, (void)n_out;
    return d9d_op_generalized_jsd(t, in[0], in[1], options[0], options[1], NULL, out);
}

static void keeps_its_promises(void **state)
{
    static const float none = 0, some = 0.125f, signs[3] = {1, -1, 1}, kl[1] = {0.25f};
    static const float forward[2] = {0, 1}, reverse[2] = {1, 2}, mixed[2] = {0.3f, 1.5f};
    static const int32_t offset[4] = {0, 3, 3, 8};
    static const fd_case cases[] = {
        {.name = "dpo", .run = run_dpo, .arg = &none, .in = {FD(3, 1)}, .saved = {3}},
        {.name = "smoothed dpo", .run = run_dpo, .arg = &some, .in = {FD(3, 1)}, .saved = {3, 3}},
        {.name = "ipo", .run = run_ipo, .in = {FD(3, 1)}, .saved = {3}},
        {.name = "simpo", .run = run_simpo, .in = {FD(3, 1)}, .saved = {3, 3}},
        {.name = "bradley_terry",
         .run = run_bradley_terry,
         .in = {FD(3, 1), FD(3, 1)},
         .saved = {3}},
        {.name = "orpo",
         .run = run_orpo,
         .in = {FD(3, 1), FD(3, 1)},
         .saved = {3, 3, 3, 3, 3, 3, 3}},
        {.name = "kto",
         .run = run_kto,
         .in = {FD(3, 1)},
         .constant = {{D9D_F32, D9D_SHAPE(3, 1), signs}, {D9D_F32, D9D_SHAPE(1), kl}},
         .saved = {3}},
        {.name = "sequence_log_probs",
         .run = run_sums,
         .in = {FD(2, 4)},
         .constant = {{D9D_I32, D9D_SHAPE(4), offset}}},
        {.name = "forward kl",
         .run = run_jsd,
         .arg = forward,
         .in = {FD(3, 5), FD(3, 5)},
         .saved = {7 * 64}},
        {.name = "reverse kl",
         .run = run_jsd,
         .arg = reverse,
         .in = {FD(3, 5), FD(3, 5)},
         .saved = {7 * 64}},
        {.name = "jsd",
         .run = run_jsd,
         .arg = mixed,
         .in = {FD(3, 5), FD(3, 5)},
         .saved = {11 * 64}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(keeps_its_promises)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
