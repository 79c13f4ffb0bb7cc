/* test_op_reduce.c - sum, mean, maximum and logsumexp along a dimension and over segments; softmax.
 */
#include "support/fd.h"
#include "support/op_fixture.h"

#include "d9d/op/math.h"

typedef struct reduction {
    d9d_reduce_kind kind;
    int dim;
} reduction;

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    const reduction *r = ((const fd_env *)self)->of->arg;

    (void)n_in, (void)n_out;
    return d9d_op_reduce(t, r->kind, in[0], r->dim, out);
}

static d9d_status run_segments(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                               d9d_var **out, size_t n_out)
{
    const fd_env *e = self;

    (void)n_in, (void)n_out;
    return d9d_op_segment_reduce(t, ((const reduction *)e->of->arg)->kind, in[0], &e->constant[0],
                                 out);
}

static d9d_status run_softmax(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                              d9d_var **out, size_t n_out)
{
    const fd_env *e = self;

    (void)n_in, (void)n_out;
    return e->of->arg != NULL ? d9d_op_log_softmax(t, in[0], out) : d9d_op_softmax(t, in[0], out);
}

/* Maxima of each row and each column are more than two steps of the differences from the rest. */
static const float apart[15] = {-2.5f, 1.5f,  -0.5f, 0.5f,  2.0f, 2.5f, -0.25f, 3.0f,
                                1.25f, 0.75f, -3.0f, -1.0f, 0.0f, 3.5f, 0.375f};
static const int32_t offset[5] = {1, 3, 3, 4, 7}; /* row 0 and those from 7 on are in none */

#define R(NAME, d)                                                                                 \
    .name = #NAME, .run = run, .arg = &(const reduction)                                           \
    {                                                                                              \
        D9D_REDUCE_##NAME, d                                                                       \
    }
#define SEGMENTS(NAME)                                                                             \
    .name = #NAME " of segments", .run = run_segments,                                             \
    .arg = &(const reduction){D9D_REDUCE_##NAME, 0}, .constant = {{D9D_I32, D9D_SHAPE(5), offset}}

static void keeps_its_promises(void **state)
{
    const fd_case cases[] = {
        {R(SUM, -1), .in = {FD(3, 5)}},
        {R(SUM, 0), .in = {FD(3, 5)}},
        {R(SUM, 1), .in = {FD(2, 3, 5)}},
        {R(MEAN, D9D_DIM_ALL), .in = {FD(2, 3, 5)}},
        {R(MEAN, -1), .in = {FD(3, 1037)}},
        {R(MEAN, 0), .in = {FD(2100, 3)}},
        {R(MAX, -1), .in = {{.shape = D9D_SHAPE(3, 5), .host = apart}}, .saved = {15, 3}},
        {R(MAX, 0), .in = {{.shape = D9D_SHAPE(3, 5), .host = apart}}, .saved = {15, 5}},
        {R(LOGSUMEXP, -1), .in = {FD(3, 5)}, .saved = {15, 3}},
        {R(LOGSUMEXP, 1), .in = {FD(2, 7, 3)}, .saved = {42, 6}},
        {R(LOGSUMEXP, D9D_DIM_ALL), .in = {{.shape = D9D_SHAPE(7, 9), .scale = 4}},
         .saved = {63, 1}},
        {SEGMENTS(SUM), .in = {FD(9, 4)}},
        {SEGMENTS(MEAN), .in = {FD(9, 2, 2)}},
        {SEGMENTS(SUM), .in = {FD(9)}},
        {.name = "softmax", .run = run_softmax, .in = {FD(3, 5)}, .saved = {15, 3}},
        {.name = "log softmax",
         .run = run_softmax,
         .arg = apart,
         .in = {FD(3, 5)},
         .saved = {15, 3}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *y;
    const d9d_tensor *square = op_tensor(f, D9D_I32, D9D_SHAPE(2, 2));

    assert_refused(f, d9d_op_sum(f->tape, x, 2, &y), "sum: dimension 2 of 2");
    assert_refused(f, d9d_op_mean(f->tape, x, -3, &y), "mean: dimension -3 of 2");
    assert_refused(f, d9d_op_segment_reduce(f->tape, D9D_REDUCE_MAX, x, square, &y),
                   "max: offset [2, 2] does not fit x [2, 3]: x is [T, ...], offsets of N segments "
                   "are [N + 1]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_reduce", tests, NULL, NULL);
}
