/* test_op_composition.c - two hundred random graphs of the operations of d9d/op/math.h and loss.h:
 * gradients against finite differences, both halves and recomputation equal to the bit, and the
 * device of the tests against the CPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fd_run.h"
#include "support/unit.h"
#include "support/unit_device.h"

#include "d9d/base/rng.h"
#include "d9d/op/loss.h"

enum { GRAPHS = 200, OPS = 7, VALUES = 5 + OPS, T = 3, D = 4 };
enum { TARGETS, INDEX, MASK, OFFSET }; /* constants */

/* A graph as it grows: values within +-2, all of which broadcast to [T, D]. */
typedef struct graph {
    const fd_env *e;
    d9d_tape *t;
    d9d_rng rng;
    uint64_t drawn;
    d9d_var *value[VALUES];
    int n;
} graph;

static uint32_t draw(graph *g, uint32_t below)
{
    return d9d_rng_u32(g->rng, g->drawn++) % below;
}

static d9d_var *pick(graph *g)
{
    return g->value[draw(g, (uint32_t)g->n)];
}

/* A value repeated to [T, D]. */
static d9d_status pick_matrix(graph *g, d9d_var **y)
{
    d9d_var *x = pick(g), *zero;

    D9D_TRY(d9d_op_affine(g->t, g->value[0], 0.0f, 0.0f, &zero));
    return d9d_op_add(g->t, zero, x, y);
}

/* tanh(x) + shift: far from 0 and from the same with the other shift, so that no step of the
 * differences crosses a kink. */
static d9d_status pick_shifted(graph *g, float shift, d9d_var **y)
{
    D9D_TRY(d9d_op_tanh(g->t, pick(g), y));
    return d9d_op_affine(g->t, *y, 0.5f, shift, y);
}

/* 1 + x^2 */
static d9d_status pick_positive(graph *g, d9d_var **y)
{
    D9D_TRY(d9d_op_square(g->t, pick(g), y));
    return d9d_op_affine(g->t, *y, 1.0f, 1.0f, y);
}

static d9d_status grow_unary(graph *g, d9d_var **y)
{
    static const d9d_pointwise smooth[] = {
        D9D_POINTWISE_AFFINE,      D9D_POINTWISE_SQUARE, D9D_POINTWISE_EXP,
        D9D_POINTWISE_SIGMOID,     D9D_POINTWISE_TANH,   D9D_POINTWISE_SOFTCAP,
        D9D_POINTWISE_LOG_SIGMOID, D9D_POINTWISE_SILU,   D9D_POINTWISE_GELU,
        D9D_POINTWISE_GELU_TANH,
    };
    d9d_var *x = pick(g);

    return d9d_op_pointwise(g->t, smooth[draw(g, sizeof(smooth) / sizeof(smooth[0]))], &x, 1.5f,
                            0.25f, y);
}

static d9d_status grow_binary(graph *g, d9d_var **y)
{
    static const d9d_pointwise smooth[] = {D9D_POINTWISE_ADD,     D9D_POINTWISE_SUB,
                                           D9D_POINTWISE_MUL,     D9D_POINTWISE_MSE,
                                           D9D_POINTWISE_EXP_SUB, D9D_POINTWISE_BCE_WITH_LOGITS};
    d9d_var *in[] = {pick(g), pick(g)};

    return d9d_op_pointwise(g->t, smooth[draw(g, sizeof(smooth) / sizeof(smooth[0]))], in, 0, 0, y);
}

static d9d_status grow_of_positive(graph *g, d9d_var **y)
{
    d9d_var *x;

    D9D_TRY(pick_positive(g, &x));
    switch (draw(g, 4)) {
    case 0: return d9d_op_log(g->t, x, y);
    case 1: return d9d_op_sqrt(g->t, x, y);
    case 2: return d9d_op_kl_div(g->t, pick(g), x, y);
    default: return d9d_op_div(g->t, pick(g), x, y);
    }
}

static d9d_status grow_kinked(graph *g, d9d_var **y)
{
    d9d_var *high, *low, *mask;

    D9D_TRY(pick_shifted(g, 1.0f, &high));
    D9D_TRY(pick_shifted(g, -1.0f, &low));
    switch (draw(g, 7)) {
    case 0: return d9d_op_abs(g->t, low, y);
    case 1: return d9d_op_relu(g->t, high, y);
    case 2: return d9d_op_clamp(g->t, high, 0.0f, 4.0f, y);
    case 3: return d9d_op_maximum(g->t, low, high, y);
    case 4: return d9d_op_minimum(g->t, high, low, y);
    case 5:
        D9D_TRY(d9d_op_l1(g->t, low, high, y));
        return d9d_op_huber(g->t, *y, low, draw(g, 2) ? 8.0f : 0.125f, y);
    default:
        D9D_TRY(d9d_tape_leaf(g->t, &g->e->constant[MASK], false, &mask));
        return d9d_op_where(g->t, mask, low, high, y);
    }
}

static d9d_status grow_reduction(graph *g, d9d_var **y)
{
    static const d9d_reduce_kind smooth[] = {D9D_REDUCE_SUM, D9D_REDUCE_MEAN, D9D_REDUCE_LOGSUMEXP};
    static const int dims[] = {0, -1, D9D_DIM_ALL};
    d9d_var *x;

    D9D_TRY(pick_matrix(g, &x));
    if (draw(g, 4) == 0) {
        D9D_TRY(d9d_op_segment_reduce(g->t, smooth[draw(g, 3)], x, &g->e->constant[OFFSET], &x));
        return d9d_op_mean(g->t, x, 0, y);
    }
    return d9d_op_reduce(g->t, smooth[draw(g, 3)], x, dims[draw(g, 3)], y);
}

static d9d_status grow_of_rows(graph *g, d9d_var **y)
{
    d9d_var *x, *z;

    D9D_TRY(pick_matrix(g, &x));
    D9D_TRY(pick_matrix(g, &z));
    switch (draw(g, 7)) {
    case 0: return d9d_op_softmax(g->t, x, y);
    case 1: return d9d_op_log_softmax(g->t, x, y);
    case 2: return d9d_op_gather(g->t, x, &g->e->constant[INDEX], y);
    case 3: return d9d_op_cross_entropy(g->t, x, &g->e->constant[TARGETS], 0.125f, y);
    case 4: return d9d_op_target_log_probs(g->t, x, &g->e->constant[TARGETS], y);
    case 5: return d9d_op_soft_cross_entropy(g->t, x, z, y);
    default:
        D9D_TRY(d9d_op_cast(g->t, x, D9D_F32, &x));
        D9D_TRY(d9d_op_cast(g->t, z, D9D_F32, &z));
        D9D_TRY(d9d_op_matmul(g->t, x, z, &(d9d_op_matmul_opts){.trans_b = true}, y));
        return d9d_op_matmul(g->t, *y, z, &(d9d_op_matmul_opts){.trans_a = draw(g, 2) != 0}, y);
    }
}

typedef d9d_status (*grow_fn)(graph *g, d9d_var **y);
static const grow_fn growths[] = {grow_unary,  grow_binary,    grow_binary, grow_of_positive,
                                  grow_kinked, grow_reduction, grow_of_rows};

/* The graph of a seed; its output is the sum of all values. */
static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    const fd_env *e = self;
    graph g = {.e = e, .t = t, .rng = {*(const uint64_t *)e->of->arg, 0}, .n = (int)n_in};

    (void)n_out;
    memcpy(g.value, in, n_in * sizeof(*in));
    for (int i = 0; i < OPS; i++) {
        d9d_var *y;

        D9D_TRY(growths[draw(&g, sizeof(growths) / sizeof(growths[0]))](&g, &y));
        D9D_TRY(d9d_op_affine(t, y, 0.5f, 0.0f, &y)); /* flat enough for differences */
        D9D_TRY(d9d_op_softcap(t, y, 2.0f, &g.value[g.n]));
        g.n++;
    }
    *out = g.value[0];
    for (int i = 1; i < g.n; i++)
        D9D_TRY(d9d_op_add(t, *out, g.value[i], out));
    return D9D_OK;
}

/* --- comparing ------------------------------------------------------------------------------- */

static void same_bits(const fd_case *c, const char *what, const fd_numbers *x,
                      const fd_numbers *want)
{
    bool same = memcmp(x->out, want->out, sizeof(float) * (size_t)want->out_len) == 0;

    for (size_t i = 0; i < want->n && same; i++)
        same = memcmp(x->x[i], want->x[i], sizeof(float) * (size_t)want->len[i]) == 0;
    if (!same)
        fail_msg("%s, %s: other bits", c->name, what);
}

/* The distance of two arrays by the length of the second, plus 1. */
static double distance(const float *x, const float *want, int64_t n)
{
    double off = 0, size = 0;

    for (int64_t i = 0; i < n; i++) {
        off += pow((double)x[i] - (double)want[i], 2);
        size += pow((double)want[i], 2);
    }
    return sqrt(off) / (1 + sqrt(size));
}

static void same_as_cpu(const fd_case *c, const fd_numbers *drawn, const fd_opts *opts,
                        const fd_numbers *g)
{
    const double tolerance = opts->dtype == D9D_BF16 ? 0.03 : 2e-5;
    char device[32];
    fd_numbers want;
    double worst;
    fd_env e;

    if (unit_device_is_cpu())
        return;
    (void)snprintf(device, sizeof(device), "%s", unit_device_name());
    assert_int_equal(setenv("D9D_TEST_DEVICE", "cpu", 1), 0);
    fd_env_open(&e, c);
    assert_ok(fd_backward(&e, drawn, opts, &want));
    worst = distance(g->out, want.out, want.out_len);
    for (size_t i = 0; i < want.n; i++)
        worst = fmax(worst, distance(g->x[i], want.x[i], want.len[i]));
    fd_numbers_free(&want);
    fd_env_close(&e);
    assert_int_equal(setenv("D9D_TEST_DEVICE", device, 1), 0);
    if (!(worst <= tolerance))
        fail_msg("%s: the device is %g off the CPU, tolerated %g", c->name, worst, tolerance);
}

/* Halves and recomputation have the bits of the full backward. */
static void check_modes(fd_env *e, const fd_numbers *drawn, d9d_dtype dtype)
{
    static const char *const names[FD_WRAPS] = {"plain", "recomputed", "recomputed twice"};
    fd_numbers g, y;

    assert_ok(fd_backward(e, drawn, &(fd_opts){.dtype = dtype}, &g));
    for (int wrap = 0; wrap < FD_WRAPS; wrap++)
        for (int halves = 0; halves < 2; halves++) {
            assert_ok(fd_backward(
                e, drawn, &(fd_opts){.dtype = dtype, .wrap = (fd_wrap)wrap, .halves = halves}, &y));
            same_bits(e->of, names[wrap], &y, &g);
            fd_numbers_free(&y);
        }
    same_as_cpu(e->of, drawn, &(fd_opts){.dtype = dtype}, &g);
    fd_numbers_free(&g);
}

static void graphs_keep_their_promises(void **state)
{
    static const int32_t targets[T] = {2, -100, 0}, index[T] = {3, 1, -1}, mask[T] = {1, 0, 1},
                         offset[3] = {0, 2, 3};
    double worst = 0;

    (void)state;
    for (uint64_t seed = 0; seed < GRAPHS; seed++) {
        char name[32];
        const fd_case c = {.name = name,
                           .run = run,
                           .arg = &seed,
                           .in = {FD(T, D), FD(T, D), FD(T, 1), FD(D), FD(1)},
                           .constant = {[TARGETS] = {D9D_I32, D9D_SHAPE(T), targets},
                                        [INDEX] = {D9D_I32, D9D_SHAPE(T, 1), index},
                                        [MASK] = {D9D_I32, D9D_SHAPE(T, 1), mask},
                                        [OFFSET] = {D9D_I32, D9D_SHAPE(3), offset}}};
        fd_numbers drawn;
        double error;
        fd_env e;

        (void)snprintf(name, sizeof(name), "graph %llu", (unsigned long long)seed);
        error = fd_gradient_error(&c);
        if (getenv("FD_VERBOSE") != NULL)
            print_message("%s: %.3f\n", name, error);
        if (!(error <= 1))
            fail_msg("%s: a gradient differs from differences by %g of what is tolerated", name,
                     error);
        worst = fmax(worst, error);
        fd_env_open(&e, &c);
        fd_numbers_draw(&e, &drawn);
        check_modes(&e, &drawn, D9D_F32);
        check_modes(&e, &drawn, D9D_BF16);
        fd_numbers_free(&drawn);
        fd_env_close(&e);
    }
    assert_true(worst > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(graphs_keep_their_promises)};

    return cmocka_run_group_tests_name("op_composition", tests, NULL, NULL);
}
