/* test_op_dropout.c - dropout of activations. */
#include "d9d/base/rng.h"
#include "support/fd.h"
#include "support/op_fixture.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdlib.h>

enum { SEED = 11 };
static const d9d_param site = {.name = "layers.3.o_proj.weight", .id = 0x1234567890abcdefu};

/* A part of the tokens or of the columns, where a rank has one. */
typedef struct dropout_arg {
    float p;
    int64_t first_token, first, width;
} dropout_arg;

static d9d_op_dropout_opts opts_of(const dropout_arg *a)
{
    return (d9d_op_dropout_opts){.p = a->p, .site = &site, .first = a->first, .width = a->width};
}

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;
    const dropout_arg *a = e->of->arg;
    const d9d_op_dropout_opts opts = opts_of(a);
    const d9d_dropout_rng rng = {.seed = SEED,
                                 .token = e->constant[0],
                                 .first = a->first_token,
                                 .part = d9d_tensor_numel(&e->constant[0]) - a->first_token,
                                 .max_positions = 50};

    (void)n_in, (void)n_out;
    d9d_tape_set_dropout_rng(t, &rng);
    return d9d_op_dropout(t, in[0], &opts, out);
}

static const int64_t tokens[] = {0, 1, 2, 100, 101, 102};

static void keeps_its_promises(void **state)
{
    static const dropout_arg all = {.p = 0.4f}, columns = {0.6f, 0, 5, 12}, rows = {0.5f, 3, 0, 0};
    static const fd_case cases[] = {
        {.name = "dropout",
         .run = run,
         .in = {FD(2, 3, 7)},
         .constant = {{D9D_I64, D9D_SHAPE(6), tokens}},
         .arg = &all},
        {.name = "some columns",
         .run = run,
         .in = {FD(6, 4)},
         .constant = {{D9D_I64, D9D_SHAPE(6), tokens}},
         .arg = &columns},
        {.name = "some tokens",
         .run = run,
         .in = {FD(3, 9)},
         .constant = {{D9D_I64, D9D_SHAPE(6), tokens}},
         .arg = &rows},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void set_rng(op_fixture *f, int64_t n, int64_t first)
{
    int64_t *number = malloc((size_t)n * sizeof(*number));
    d9d_tensor token;

    for (int64_t i = 0; i < n; i++)
        number[i] = 1000 * i + 3;
    assert_ok(d9d_tensor_from_host(f->dev, D9D_I64, D9D_SHAPE(n), number, &token));
    d9d_tape_set_dropout_rng(
        f->tape,
        &(d9d_dropout_rng){.seed = SEED, .token = token, .first = first, .part = n - first});
    d9d_tensor_release(&token);
    free(number);
}

/* y of ones, in [rows, n]. */
static float *dropped_ones(op_fixture *f, const dropout_arg *a, int64_t rows, int64_t n)
{
    const d9d_op_dropout_opts opts = opts_of(a);
    float *one = malloc((size_t)(rows * n) * sizeof(*one));
    d9d_tensor t;
    d9d_var *x, *y;

    for (int64_t i = 0; i < rows * n; i++)
        one[i] = 1;
    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, D9D_SHAPE(rows, n), one, &t));
    assert_ok(d9d_tape_leaf(f->tape, &t, false, &x));
    assert_ok(d9d_op_dropout(f->tape, x, &opts, &y));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(y), one));
    d9d_tensor_release(&t);
    return one;
}

/* The random number of an element is that of its token and column among all. */
static void elements_have_numbers(void **state)
{
    enum { TOKENS = 6, WIDTH = 40 };
    static const dropout_arg parts[] = {{0.3f, 0, 0, 0}, {0.3f, 2, 0, 0}, {0.3f, 0, 16, WIDTH}};
    const d9d_rng rng = {SEED, d9d_hash_u64(&site.id, sizeof(site.id))};
    op_fixture *f = *state;

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        const dropout_arg *a = &parts[i];
        const int64_t rows = TOKENS - a->first_token, n = a->width > 0 ? 8 : WIDTH;
        float *y;

        set_rng(f, TOKENS, a->first_token);
        y = dropped_ones(f, a, rows, n);
        for (int64_t k = 0; k < rows * n; k++) {
            const uint64_t token = 1000 * (uint64_t)(a->first_token + k / n) + 3;
            const uint64_t number = token * WIDTH + (uint64_t)(a->first + k % n);
            const bool kept = d9d_rng_uniform(rng, number) >= a->p;

            assert_float_equal(y[k], kept ? 1.0 / (1.0 - 0.3) : 0.0, 1e-6);
        }
        free(y);
    }
}

/* The mean of ones is 1, and their variance p / (1 - p), within five deviations. */
static void the_mean_stays(void **state)
{
    static const float rates[] = {0.1f, 0.5f, 0.9f};
    const int64_t rows = 64, n = 1024;
    op_fixture *f = *state;

    set_rng(f, rows, 0);
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        const dropout_arg a = {.p = rates[i]};
        const double p = (double)a.p, variance = p / (1 - p), all = (double)(rows * n);
        float *y = dropped_ones(f, &a, rows, n);
        double sum = 0, squares = 0;

        for (int64_t k = 0; k < rows * n; k++) {
            sum += (double)y[k];
            squares += (double)y[k] * (double)y[k];
        }
        assert_float_equal(sum / all, 1, 5 * sqrt(variance / all));
        assert_float_equal(squares / all - (sum / all) * (sum / all), variance, 0.05 * variance);
        free(y);
    }
}

/* Outside training, and at a rate of 0. */
static void nothing_is_dropped(void **state)
{
    const d9d_op_dropout_opts some = {.p = 0.5f, .site = &site}, none = {.site = &site};
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *y = NULL;

    assert_false(d9d_op_dropout_is_active(f->tape, 0.5f));
    assert_ok(d9d_op_dropout(f->tape, x, &some, &y));
    assert_ptr_equal(x, y);
    set_rng(f, 2, 0);
    assert_false(d9d_op_dropout_is_active(f->tape, 0));
    assert_ok(d9d_op_dropout(f->tape, x, &none, &y));
    assert_ptr_equal(x, y);
    assert_true(d9d_op_dropout_is_active(f->tape, 0.5f));
    assert_ok(d9d_op_dropout(f->tape, x, &some, &y));
    assert_ptr_not_equal(x, y);
}

static void refuses(void **state)
{
    const d9d_op_dropout_opts half = {.p = 0.5f, .site = &site}, one = {.p = 1, .site = &site};
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(4, 3)), *ids = op_var(f, D9D_I32, D9D_SHAPE(5, 3));
    d9d_var *fits = op_var(f, D9D_F32, D9D_SHAPE(5, 3));
    d9d_var *few = op_var(f, D9D_F32, D9D_SHAPE(3, 3)), *y;

    set_rng(f, 5, 3);
    assert_refused(f, d9d_op_dropout(f->tape, x, &half, &y),
                   "dropout: layers.3.o_proj.weight has 4 rows, which are not the 5 tokens of the "
                   "forward; d9d_tape_begin_rows() tells which tokens or texts they are");
    assert_refused(f, d9d_op_dropout(f->tape, few, &half, &y),
                   "dropout: layers.3.o_proj.weight has 3 rows, which are not the 5 tokens of the "
                   "forward; d9d_tape_begin_rows() tells which tokens or texts they are");
    assert_refused(f, d9d_op_dropout(f->tape, fits, &one, &y),
                   "dropout: layers.3.o_proj.weight has a probability of 1, not in [0, 1)");
    assert_refused(f, d9d_op_dropout(f->tape, ids, &half, &y),
                   "dropout: x is int32, expected float32 or bfloat16");
}

/* Rows of another kind have the numbers that they are begun with, and then again the tokens'. */
static void rows_have_their_own_numbers(void **state)
{
    static const dropout_arg p = {0.5f, 0, 0, 0};
    op_fixture *f = *state;
    int64_t number[] = {3 * 1000 + 3, 1003};
    d9d_tensor rows;
    float *all, *some, *again;

    set_rng(f, 4, 0);
    all = dropped_ones(f, &p, 4, 32);
    assert_ok(d9d_tensor_from_host(f->dev, D9D_I64, D9D_SHAPE(2), number, &rows));
    d9d_tape_begin_rows(f->tape, &rows);
    d9d_tensor_release(&rows);
    some = dropped_ones(f, &p, 2, 32);
    assert_memory_equal(some, all + 3 * 32, 32 * sizeof(*all));
    assert_memory_equal(some + 32, all + 32, 32 * sizeof(*all));
    d9d_tape_begin_reference(f->tape);
    assert_null(d9d_tape_dropout_rng(f->tape));
    d9d_tape_end_reference(f->tape);
    d9d_tape_end_rows(f->tape);
    again = dropped_ones(f, &p, 4, 32);
    assert_memory_equal(again, all, 4 * 32 * sizeof(*all));
    free(all);
    free(some);
    free(again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises), op_test(elements_have_numbers),
        op_test(rows_have_their_own_numbers), op_test(the_mean_stays),
        op_test(nothing_is_dropped),          op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_dropout", tests, NULL, NULL);
}
