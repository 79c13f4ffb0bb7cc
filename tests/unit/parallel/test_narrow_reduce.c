/* test_narrow_reduce.c - sums of float32 gradients that travelled as bfloat16: their order, and the
 * bound of their error.
 */
#include <math.h>
#include <stdlib.h>

#include "parallel/narrow_reduce.h"
#include "support/unit.h"

enum { N = 4096, EACH = N + 7, RANKS = 64 };

/* Gradients of ranks, as they are and as they travel. */
typedef struct gradients {
    float *g; /* [RANKS][N] */
    d9d_tensor sent;
    uint16_t *x; /* of `sent`, EACH elements of a rank */
} gradients;

static float draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return ((float)(*state >> 40) / (1 << 24) - 0.5f) * ldexpf(1, (int)(*state >> 32) % 12);
}

static void gradients_make(gradients *g, d9d_device *dev)
{
    uint64_t state = 1;

    g->g = calloc((size_t)RANKS * N, sizeof(float));
    assert_ok(d9d_tensor_alloc(dev, D9D_BF16, D9D_SHAPE(RANKS * EACH), &g->sent));
    g->x = d9d_tensor_data(&g->sent);
    for (int64_t i = 0; i < (int64_t)RANKS * EACH; i++)
        g->x[i] = 0x7fc0; /* NaN between the arrays */
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < N; i++) {
            g->g[r * N + i] = draw(&state);
            g->x[r * EACH + i] = d9d_bf16_from_f32(g->g[r * N + i]);
        }
}

/* The sum of element i over n ranks in float64, and that of magnitudes. */
static double exact(const gradients *g, int i, int n, double *magnitude)
{
    double sum = 0;

    *magnitude = 0;
    for (int r = 0; r < n; r++) {
        sum += (double)g->g[r * N + i];
        *magnitude += fabs((double)g->g[r * N + i]);
    }
    return sum;
}

/* As a collective that adds in bfloat16 does. */
static float rounded_each_time(const gradients *g, int i, int n)
{
    float sum = d9d_bf16_to_f32(g->x[i]);

    for (int r = 1; r < n; r++)
        sum = d9d_bf16_to_f32(d9d_bf16_from_f32(sum + d9d_bf16_to_f32(g->x[r * EACH + i])));
    return sum;
}

/* Errors stay below the bound of narrow_reduce.h.  Sums in bfloat16 would not. */
static void the_error_is_bounded(void **state)
{
    static const int sizes[] = {1, 2, 3, 8, RANKS};
    static float sum[N];
    d9d_device *dev;
    gradients g;

    (void)state;
    assert_ok(d9d_device_open("cpu", &dev));
    gradients_make(&g, dev);
    for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
        const int n = sizes[k];
        const double u = ldexp(1, -8), v = ldexp(1, -24), rate = u + (n - 1) * v * (1 + u);
        int beyond = 0;

        assert_ok(d9di_narrow_reduce_add(dev, NULL, sum, false, &g.sent, n, EACH, N));
        for (int i = 0; i < N; i++) {
            double magnitude;
            const double want = exact(&g, i, n, &magnitude);

            assert_true(fabs((double)sum[i] - want) <= rate * magnitude);
            beyond += fabs((double)rounded_each_time(&g, i, n) - want) > rate * magnitude;
        }
        assert_true(n < RANKS || beyond > 0);
    }
    free(g.g);
    d9d_tensor_release(&g.sent);
    d9d_device_close(dev);
}

/* In the order of ranks, after what is there; nothing is read of no elements. */
static void the_order_is_that_of_ranks(void **state)
{
    static float sum[N];
    d9d_device *dev;
    gradients g;

    (void)state;
    assert_ok(d9d_device_open("cpu", &dev));
    gradients_make(&g, dev);
    for (int add = 0; add < 2; add++) {
        for (int i = 0; i < N; i++)
            sum[i] = add ? 0.25f * (float)i : NAN;
        assert_ok(d9di_narrow_reduce_add(dev, NULL, sum, add, &g.sent, 5, EACH, N));
        for (int i = 0; i < N; i++) {
            float want = add ? 0.25f * (float)i : 0;

            for (int r = 0; r < 5; r++)
                want += d9d_bf16_to_f32(g.x[r * EACH + i]);
            assert_true(sum[i] == want);
        }
    }
    assert_ok(d9di_narrow_reduce_add(dev, NULL, NULL, false, &g.sent, 5, EACH, 0));
    free(g.g);
    d9d_tensor_release(&g.sent);
    d9d_device_close(dev);
}

static void what_travels_narrow(void **state)
{
    (void)state;
    assert_true(d9di_narrow_reduce_is_used(D9D_BF16, D9D_F32));
    assert_false(d9di_narrow_reduce_is_used(D9D_F32, D9D_F32));
    assert_false(d9di_narrow_reduce_is_used(D9D_BF16, D9D_BF16));
    assert_false(d9di_narrow_reduce_is_used(D9D_F32, D9D_BF16));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_error_is_bounded),
        cmocka_unit_test(the_order_is_that_of_ranks),
        cmocka_unit_test(what_travels_narrow),
    };

    return cmocka_run_group_tests_name("narrow_reduce", tests, NULL, NULL);
}
