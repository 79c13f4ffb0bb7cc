/* The merge of two parts of the keys, against its formula in double; refused parts. */
#include "support/attention_parts.h"
#include "support/host_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct merge_call {
    d9d_attention_dims n;
    bool first;
    float *acc, *acc_lse, *lse;
    void *o;
} merge_call;

static void merge_run(void *arg)
{
    merge_call *c = arg;
    const int64_t rows = c->n.b * c->n.s * c->n.a;
    float *lse = malloc((size_t)rows * sizeof(*lse) + 1);

    assert_non_null(lse);
    memcpy(lse, c->acc_lse, (size_t)rows * sizeof(*lse));
    assert_int_equal(
        host_kernels()->attention->merge(NULL, &c->n, c->first, c->acc, lse, c->o, c->lse), D9D_OK);
    free(lse);
}

/* Rows of every kind: near each other, far apart, with nothing in one part, in the other, in both.
 */
static void set_row(merge_call *c, int64_t i)
{
    static const float pairs[][2] = {{0.5f, 0.25f},     {-3.0f, 4.0f},          {1e4f, -1e4f},
                                     {-1e4f, 1e4f},     {80.0f, 80.0f},         {-INFINITY, 2.0f},
                                     {2.0f, -INFINITY}, {-INFINITY, -INFINITY}, {-200.0f, -200.5f}};
    const float *pair = pairs[i % 9];

    c->acc_lse[i] = pair[0];
    c->lse[i] = pair[1];
}

static void check_merge(d9d_dtype t, int64_t b, int64_t s, int64_t a, int64_t dv, bool first)
{
    const int64_t rows = b * s * a, size = rows * dv;
    merge_call c = {.n = {.t = t, .b = b, .s = s, .z = s, .a = a, .kv = 1, .d = 3, .dv = dv},
                    .first = first,
                    .acc = array_random(D9D_F32, size, 1, 1.0),
                    .acc_lse = array_poison(D9D_F32, rows),
                    .lse = array_poison(D9D_F32, rows),
                    .o = array_random(t, size, 2, 1.0)};
    double *want = calloc((size_t)size + 1, sizeof(*want));
    double *want_lse = calloc((size_t)rows + 1, sizeof(*want_lse));
    float *before = malloc((size_t)size * sizeof(*before) + 1);

    assert_non_null(before);
    memcpy(before, c.acc, (size_t)size * sizeof(*before));
    for (int64_t i = 0; i < rows; i++)
        set_row(&c, i);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = (r / a / s * a + r % a) * s + r / a % s;
        const double x = first ? -INFINITY : (double)c.acc_lse[at], y = (double)c.lse[at];
        const double top = x > y ? x : y, sum = exp(x - top) + exp(y - top);
        const bool none = y == -INFINITY && !first;

        want_lse[at] = none ? x : first ? y : top + log(sum);
        for (int64_t f = r * dv; f < (r + 1) * dv; f++)
            want[f] =
                first  ? array_get(t, c.o, f)
                : none ? (double)before[f]
                       : (exp(x - top) * (double)before[f] + exp(y - top) * array_get(t, c.o, f)) /
                             sum;
    }
    array_same_for_threads(merge_run, &c, c.acc, (size_t)size * sizeof(*c.acc), before);
    array_close("acc", D9D_F32, c.acc, want, size, 2e-6);
    assert_int_equal(
        host_kernels()->attention->merge(NULL, &c.n, first, before, c.acc_lse, c.o, c.lse), D9D_OK);
    for (int64_t i = 0; i < rows; i++)
        if (!(fabs((double)c.acc_lse[i] - want_lse[i]) <= 1e-6 * (1 + fabs(want_lse[i]))) &&
            (double)c.acc_lse[i] != want_lse[i])
            fail_msg("lse %lld is %g, must be %g", (long long)i, (double)c.acc_lse[i], want_lse[i]);
    free(before);
    free(want);
    free(want_lse);
    free(c.acc);
    free(c.acc_lse);
    free(c.lse);
    free(c.o);
}

static void test_merge(void **state)
{
    static const int64_t sizes[][4] = {{1, 9, 1, 1},  {2, 9, 3, 8},    {1, 18, 2, 5},
                                       {3, 7, 4, 64}, {1, 500, 2, 80}, {2, 0, 3, 4}};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (int t = 0; t < 4; t++)
            check_merge(array_types[t % 2], sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3],
                        t >= 2);
}

/* A NaN of one part is one of both. */
static void test_nan(void **state)
{
    for (int side = 0; side < 2; side++) {
        float acc[2] = {1, 2}, acc_lse[2] = {0, 0}, o[2] = {3, 4}, lse[2] = {0, 0};
        const d9d_attention_dims n = {
            .t = D9D_F32, .b = 1, .s = 2, .z = 2, .a = 1, .kv = 1, .d = 1};

        (side == 0 ? acc_lse : lse)[0] = NAN;
        assert_int_equal(host_kernels()->attention->merge(NULL, &n, false, acc, acc_lse, o, lse),
                         D9D_OK);
        assert_true(isnan(acc[0]) && isnan(acc_lse[0]));
        assert_false(isnan(acc[1]) || isnan(acc_lse[1]));
    }
    (void)state;
}

/* Keys that a row does not have. */
static void test_refused(void **state)
{
    static const d9d_attention_key_part parts[] = {{-1, 2}, {0, 5}, {3, 2}, {0, -1}};
    float x[4] = {0}, o[4], lse[4];

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        const d9d_attention_dims n = {.t = D9D_F32,
                                      .b = 1,
                                      .s = 4,
                                      .z = 4,
                                      .a = 1,
                                      .kv = 1,
                                      .d = 1,
                                      .scale = 1.0f,
                                      .causal = true,
                                      .part = parts[i]};

        assert_int_equal(d9d_kernels_cpu()->attention->fwd(NULL, &n, o, lse, x, x, x), D9D_EINVAL);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
