/* fd.c - see fd.h. */
#include "fd.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/rng.h"
#include "device/pool.h"
#include "fd_run.h"
#include "unit.h"

enum { OUTPUT = 99 }; /* in place of the number of an array */

/* --- comparing --------------------------------------------------------------------------- */

static double norm(const float *x, int64_t n)
{
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        s += (double)x[i] * x[i];
    return sqrt(s);
}

static double relative_error(const float *x, const float *want, int64_t n)
{
    const double size = norm(want, n);
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        s += ((double)x[i] - want[i]) * ((double)x[i] - want[i]);
    return size > 0 ? sqrt(s) / size : sqrt(s);
}

static void same_bits(const fd_case *c, const char *what, size_t array, const float *x,
                      const float *want, int64_t n)
{
    if ((x == NULL) != (want == NULL))
        fail_msg("%s, %s: gradient %zu is %s", c->name, what, array,
                 x == NULL ? "absent" : "there but should not be");
    for (int64_t i = 0; x != NULL && i < n; i++)
        if (memcmp(&x[i], &want[i], sizeof(*x)) != 0)
            fail_msg("%s, %s: element %lld of gradient %zu is %.9g, expected %.9g", c->name, what,
                     (long long)i, array, (double)x[i], (double)want[i]);
}

static void same_numbers(const fd_case *c, const char *what, const fd_numbers *x,
                         const fd_numbers *want, int but)
{
    same_bits(c, what, OUTPUT, x->out, want->out, want->out_len);
    for (size_t i = 0; i < want->n; i++)
        same_bits(c, what, i, x->x[i], (int)i + 1 == but ? NULL : want->x[i], want->len[i]);
}

static void near_numbers(const fd_case *c, const char *what, const fd_numbers *x,
                         const fd_numbers *want, double tolerance)
{
    for (size_t i = 0; i < want->n; i++) {
        const double error = relative_error(x->x[i], want->x[i], want->len[i]);

        if (!(error <= tolerance))
            fail_msg("%s, %s: gradient %zu is off by %g of its norm, tolerated %g", c->name, what,
                     i, error, tolerance);
    }
}

/* --- gradients against differences of the forward ------------------------------------------ */

/* The scalar whose gradient backward computes: the output dotted with its gradient, in float64. */
static double scalar_at(fd_env *e, const fd_numbers *x)
{
    fd_numbers y;
    double f = 0;

    fd_forward(e, x, &(fd_opts){0}, &y);
    for (int64_t i = 0; i < y.out_len; i++)
        f += (double)y.out[i] * x->out[i];
    fd_numbers_free(&y);
    return f;
}

/* f at x + step u along array a; u is +1 or -1 in each element. */
static double scalar_beside(fd_env *e, const fd_numbers *x, size_t a, const float *u, double step)
{
    float *was = x->x[a];
    fd_numbers moved = *x;
    double f;

    moved.x[a] = malloc(sizeof(float) * (size_t)(x->len[a] + 1));
    assert_non_null(moved.x[a]);
    for (int64_t i = 0; i < x->len[a]; i++)
        moved.x[a][i] = (float)(was[i] + step * u[i]);
    f = scalar_at(e, &moved);
    free(moved.x[a]);
    return f;
}

/* Central differences at h and 2h, extrapolated: the error is of order h^4, and a smooth op at
 * unit scale with h = 2^-6 is right to about 1e-7.  The forward is float32, so f has an error of
 * some FLT_EPSILON times the length of its terms, which the division by h enlarges. */
static double direction_error(fd_env *e, const fd_numbers *x, const fd_numbers *g,
                              double output_size, size_t a, int direction)
{
    const d9d_rng r = {(uint64_t)direction + 1, a};
    const double h = 0x1p-6;
    float *u = malloc(sizeof(*u) * (size_t)(x->len[a] + 1));
    double d1, d2, expected = 0, tolerance;

    assert_non_null(u);
    for (int64_t i = 0; i < x->len[a]; i++) {
        u[i] = d9d_rng_u32(r, (uint64_t)i) & 1 ? 1.0f : -1.0f;
        expected += (double)g->x[a][i] * u[i];
    }
    d1 = (scalar_beside(e, x, a, u, h) - scalar_beside(e, x, a, u, -h)) / (2 * h);
    d2 = (scalar_beside(e, x, a, u, 2 * h) - scalar_beside(e, x, a, u, -2 * h)) / (4 * h);
    tolerance = 1e-4 * norm(g->x[a], x->len[a]) + 4 * FLT_EPSILON * output_size / h;
    free(u);
    return fabs((4 * d1 - d2) / 3 - expected) / (tolerance > 0 ? tolerance : DBL_MIN);
}

/* The largest over arrays and random directions. */
static double gradient_error(fd_env *e, const fd_numbers *x, const fd_numbers *g)
{
    enum { DIRECTIONS = 4 };
    double output_size = 0, worst = 0;

    for (int64_t i = 0; i < g->out_len; i++)
        output_size += pow((double)g->out[i] * x->out[i], 2);
    output_size = sqrt(output_size);
    for (size_t a = 0; a < x->n; a++) {
        for (int d = 0; d < DIRECTIONS && x->len[a] > 0; d++) {
            const double error = direction_error(e, x, g, output_size, a, d);

            worst = error > worst || isnan(error) ? error : worst;
        }
    }
    return worst;
}

double fd_gradient_error(const fd_case *c)
{
    fd_numbers x, g;
    fd_env e;
    double error;

    fd_env_open(&e, c);
    fd_numbers_draw(&e, &x);
    assert_ok(fd_backward(&e, &x, &(fd_opts){0}, &g));
    error = gradient_error(&e, &x, &g);
    fd_numbers_free(&x);
    fd_numbers_free(&g);
    fd_env_close(&e);
    return error;
}

static void check_gradients(fd_env *e, const fd_numbers *x, const fd_numbers *g)
{
    const double error = gradient_error(e, x, g);

    if (getenv("FD_VERBOSE") != NULL)
        print_message("%s: %.3f of the tolerated error\n", e->of->name, error);
    if (!(error <= 1))
        fail_msg("%s: a gradient differs from finite differences by %g of what is tolerated",
                 e->of->name, error);
    /* A gradient of zeros would agree with a forward that ignores the array. */
    for (size_t a = 0; a < x->n; a++)
        if (x->len[a] > 0 && x->out_len > 0 && norm(g->x[a], x->len[a]) == 0)
            fail_msg("%s: gradient %zu is all zeros", e->of->name, a);
}

/* --- the other promises -------------------------------------------------------------------- */

static void check_modes(fd_env *e, const fd_numbers *x, const fd_numbers *g)
{
    static const char *const names[FD_WRAPS] = {"plain", "checkpoint", "nested checkpoint"};

    for (int wrap = 0; wrap < FD_WRAPS; wrap++) {
        for (int halves = 0; halves < 2; halves++) {
            const fd_opts opts = {.wrap = (fd_wrap)wrap, .halves = halves};
            fd_numbers y;
            char what[64];

            (void)snprintf(what, sizeof(what), "%s, %s", names[wrap],
                           halves ? "input then weight" : "full");
            assert_ok(fd_backward(e, x, &opts, &y));
            same_numbers(e->of, what, &y, g, 0);
            fd_numbers_free(&y);
        }
    }
}

static void check_no_recording(fd_env *e, const fd_numbers *x, const fd_numbers *g)
{
    for (int wrap = 0; wrap < FD_WRAPS; wrap++) {
        fd_numbers y;

        fd_forward(e, x, &(fd_opts){.wrap = (fd_wrap)wrap}, &y);
        same_bits(e->of, "recording off", OUTPUT, y.out, g->out, g->out_len);
        fd_numbers_free(&y);
    }
}

static void check_frozen(fd_env *e, const fd_numbers *x, const fd_numbers *g)
{
    for (size_t i = 0; i < x->n; i++) {
        for (int kind = 0; kind < 4; kind++) {
            const fd_opts opts = {.frozen = (int)i + 1,
                                  .wrap = kind & 1 ? FD_CHECKPOINT : FD_PLAIN,
                                  .halves = kind & 2};
            fd_numbers y;

            assert_ok(fd_backward(e, x, &opts, &y));
            same_numbers(e->of, "frozen", &y, g, opts.frozen);
            fd_numbers_free(&y);
        }
    }
}

/* Inputs start anew with each pass; parameters add up. */
static void check_accumulation(fd_env *e, const fd_numbers *x, const fd_numbers *g)
{
    fd_numbers twice, thrice, half;

    assert_ok(fd_backward(e, x, &(fd_opts){.times = 2}, &twice));
    assert_ok(fd_backward(e, x, &(fd_opts){.times = 3, .wrap = FD_CHECKPOINT}, &thrice));
    assert_ok(fd_backward(e, x, &(fd_opts){.grad_dtype = D9D_BF16}, &half));
    near_numbers(e->of, "gradients in bfloat16", &half, g, 0.005);
    for (size_t i = 0; i < e->n_in; i++) {
        same_bits(e->of, "second pass", i, twice.x[i], g->x[i], g->len[i]);
        same_bits(e->of, "third pass", i, thrice.x[i], g->x[i], g->len[i]);
    }
    for (size_t i = e->n_in; i < g->n; i++) {
        for (int64_t k = 0; k < g->len[i]; k++) {
            twice.x[i][k] /= 2;
            thrice.x[i][k] /= 3;
        }
    }
    near_numbers(e->of, "second pass", &twice, g, 1e-6);
    near_numbers(e->of, "third pass", &thrice, g, 1e-6);
    fd_numbers_free(&twice);
    fd_numbers_free(&thrice);
    fd_numbers_free(&half);
}

static void check_bf16(fd_env *e, const fd_numbers *x, const fd_numbers *g)
{
    const double tolerance = e->of->tolerance_bf16 > 0 ? e->of->tolerance_bf16 : 0.01;
    fd_numbers y;
    double error;

    assert_ok(fd_backward(e, x, &(fd_opts){.dtype = D9D_BF16}, &y));
    error = relative_error(y.out, g->out, g->out_len);
    if (!(error <= tolerance))
        fail_msg("%s in bfloat16: the output is off by %g of its norm", e->of->name, error);
    near_numbers(e->of, "bfloat16", &y, g, tolerance);
    fd_numbers_free(&y);
}

/* What a recorded node keeps when every var has been released. */
static void check_kept(fd_env *e, const fd_numbers *x)
{
    uint64_t want = 0, block;

    for (int i = 0; i < FD_MAX && e->of->saved[i] != 0; i++) {
        const int64_t n = e->of->saved[i] > 0 ? e->of->saved[i] : 0;

        (void)d9di_pool_class((uint64_t)n * sizeof(float), &block);
        want += block;
    }
    assert_int_equal(fd_kept(e, x), want);
}

/* Memory that ends after k steps, for every k until it is enough. */
static void check_limits(fd_env *e, const fd_numbers *x, const fd_numbers *g)
{
    uint64_t step, used;
    int failed = 0;
    fd_numbers y;

    d9d_device_reset_peak(e->dev);
    assert_ok(fd_backward(e, x, &(fd_opts){.wrap = FD_NESTED, .halves = true}, &y));
    fd_numbers_free(&y);
    used = d9d_device_memory(e->dev).peak;
    step = used / 64 > 256 ? used / 64 : 256;
    for (uint64_t limit = 1;; limit += step) {
        const fd_opts opts = {.limit = limit, .wrap = FD_NESTED, .halves = true};
        const d9d_status st = fd_backward(e, x, &opts, &y);

        assert_true(limit < 2 * used + 2 * step);
        if (st == D9D_OK)
            break;
        assert_string_equal(d9d_status_name(st), "D9D_EOOM");
        failed++;
    }
    same_numbers(e->of, "after running out of memory", &y, g, 0);
    fd_numbers_free(&y);
    assert_true(failed > 0);
}

void fd_check(const fd_case *c)
{
    fd_numbers x, g;
    fd_env e;

    fd_env_open(&e, c);
    fd_numbers_draw(&e, &x);
    assert_ok(fd_backward(&e, &x, &(fd_opts){0}, &g));
    check_accumulation(&e, &x, &g);
    check_bf16(&e, &x, &g);
    if (getenv("D9D_TEST_ONCE") == NULL) {
        check_gradients(&e, &x, &g);
        check_modes(&e, &x, &g);
        check_no_recording(&e, &x, &g);
        check_frozen(&e, &x, &g);
        check_kept(&e, &x);
        check_limits(&e, &x, &g);
    }
    fd_numbers_free(&x);
    fd_numbers_free(&g);
    fd_env_close(&e);
}
