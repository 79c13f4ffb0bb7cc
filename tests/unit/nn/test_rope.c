/* test_rope.c - rotary frequencies, bit for bit those of transformers 5.17, and definitions.
 */
#include "support/unit.h"

#include <math.h>

#include "d9d/nn/rope.h"

enum { FEATURES = 16, PAIRS = FEATURES / 2 };

typedef struct row {
    d9d_rope_scaling scaling;
    double base;
    float mscale;
    float f[PAIRS];
} row;

static void frequencies_are_those_of_transformers(void **state)
{
    static const row rows[] = {
        {{.kind = D9D_ROPE_PLAIN},
         5e5,
         1,
         {1.0f, 0.193922758f, 0.0376060307f, 0.00729266508f, 0.00141421345f, 0.000274248188f,
          5.31829573e-05f, 1.03133852e-05f}},
        {{.kind = D9D_ROPE_LINEAR, .factor = 3},
         1e4,
         1,
         {0.333333343f, 0.105409257f, 0.0333333351f, 0.0105409259f, 0.00333333318f, 0.00105409266f,
          0.000333333359f, 0.000105409265f}},
        {{.kind = D9D_ROPE_YARN, .factor = 32, .original = 4096, .fast = 32, .slow = 1},
         1.5e5,
         1.3465735902799727f,
         {1.0f, 0.225418001f, 0.0508132726f, 0.00679495931f, 0.000456483918f, 1.8188337e-05f,
          4.09997847e-06f, 9.24208962e-07f}},
        {{.kind = D9D_ROPE_LINEAR, .factor = 4},
         1e6,
         1,
         {0.25f, 0.0444569848f, 0.00790569466f, 0.00140585331f, 0.000250000012f, 4.44569851e-05f,
          7.90569356e-06f, 1.40585337e-06f}},
        {{.kind = D9D_ROPE_YARN,
          .factor = 4,
          .original = 32768,
          .fast = 32,
          .slow = 1,
          .whole = true},
         1e6,
         1.138629436111989f,
         {1.0f, 0.177827939f, 0.0316227786f, 0.00421755994f, 0.000500000024f, 4.44569851e-05f,
          7.90569356e-06f, 1.40585337e-06f}},
        {{.kind = D9D_ROPE_YARN,
          .factor = 4,
          .original = 32768,
          .fast = 32,
          .slow = 1,
          .mscale = 1.25},
         1e6,
         1.25f,
         {1.0f, 0.177827939f, 0.0316227786f, 0.00551727042f, 0.000607408001f, 4.44569851e-05f,
          7.90569356e-06f, 1.40585337e-06f}},
        {{.kind = D9D_ROPE_YARN,
          .factor = 4,
          .original = 32768,
          .fast = 20,
          .slow = 2,
          .whole = true},
         1e6,
         1.138629436111989f,
         {1.0f, 0.177827939f, 0.0316227786f, 0.00562341325f, 0.000625000044f, 4.44569851e-05f,
          7.90569356e-06f, 1.40585337e-06f}},
        {{.kind = D9D_ROPE_YARN,
          .factor = 4,
          .original = 32768,
          .fast = 1,
          .slow = 1,
          .whole = true},
         1e6,
         1.138629436111989f,
         {1.0f, 0.177827939f, 0.0316227786f, 0.00562341325f, 0.00100000005f, 4.44569851e-05f,
          7.90569356e-06f, 1.40585337e-06f}},
        {{.kind = D9D_ROPE_LLAMA3, .factor = 8, .original = 8192, .fast = 4, .slow = 1},
         5e5,
         1,
         {1.0f, 0.193922758f, 0.0376060307f, 0.00729266508f, 0.000524846022f, 3.42810235e-05f,
          6.64786967e-06f, 1.28917316e-06f}},
        {{.kind = D9D_ROPE_LONGROPE,
          .factor = 32,
          .original = 4096,
          .pairs = PAIRS,
          .short_factor = {1, 1.05f, 1.1f, 1.2f, 1.3f, 1.5f, 1.7f, 2},
          .long_factor = {1.1f, 1.5f, 2, 4, 8, 16, 24.5f, 32}},
         1e4,
         1.1902380714238083f,
         {1.0f, 0.301169306f, 0.0909090936f, 0.0263523124f, 0.0076923077f, 0.00210818532f,
          0.000588235271f, 0.000158113893f}},
        {{.kind = D9D_ROPE_LONGROPE,
          .factor = 32,
          .original = 4096,
          .is_long = true,
          .pairs = PAIRS,
          .short_factor = {1, 1.05f, 1.1f, 1.2f, 1.3f, 1.5f, 1.7f, 2},
          .long_factor = {1.1f, 1.5f, 2, 4, 8, 16, 24.5f, 32}},
         1e4,
         1.1902380714238083f,
         {0.909090877f, 0.210818499f, 0.0500000007f, 0.00790569466f, 0.00124999997f,
          0.000197642366f, 4.08163251e-05f, 9.88211832e-06f}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        float f[PAIRS];

        assert_ok(d9d_rope_check("c", "r", &rows[i].scaling));
        d9d_rope_frequencies(&rows[i].scaling, rows[i].base, FEATURES, f);
        for (int k = 0; k < PAIRS; k++)
            if (f[k] != rows[i].f[k])
                fail_msg("row %zu, pair %d: %.9g, must be %.9g", i, k, (double)f[k],
                         (double)rows[i].f[k]);
        assert_true(fabsf(d9d_rope_mscale(&rows[i].scaling) - rows[i].mscale) < 1e-6f);
    }
}

static void plain_is_the_definition(void **state)
{
    const d9d_rope_scaling plain = {0}, ntk = {.kind = D9D_ROPE_NTK, .factor = 3};
    float f[PAIRS];

    (void)state;
    d9d_rope_frequencies(&plain, 1e4, FEATURES, f);
    for (int k = 0; k < PAIRS; k++)
        assert_true(fabs(f[k] / pow(1e4, -2.0 * k / FEATURES) - 1) < 3e-7);
    assert_true(d9d_rope_mscale(&plain) == 1);
    assert_true(d9d_rope_base(&plain, 1e4, 2) == 1e4);
    assert_false(isfinite(d9d_rope_base(&ntk, 1e4, 2))); /* one pair is both */
    d9d_rope_frequencies(&ntk, 1e4, FEATURES, f);
    for (int k = 0; k < PAIRS;
         k++) /* the slowest turns by the factor slower, the fastest as before */
        assert_true(fabs(f[k] / pow(1e4, -2.0 * k / FEATURES) * pow(3, k / (PAIRS - 1.0)) - 1) <
                    1e-6);
}

static void numbers_are_checked(void **state)
{
    static const struct {
        d9d_rope_scaling scaling;
        const char *says;
    } bad[] = {
        {{.kind = D9D_ROPE_LINEAR, .factor = 0.5}, "c: r.factor (linear): 0.5 is not at least 1"},
        {{.kind = D9D_ROPE_NTK, .factor = NAN}, "c: r.factor (ntk): nan is not at least 1"},
        {{.kind = D9D_ROPE_YARN, .factor = 2, .fast = 32, .slow = 1},
         "c: r.original_max_position_embeddings (yarn): 0 is not above 0"},
        {{.kind = D9D_ROPE_YARN, .factor = 2, .original = 9, .fast = 1, .slow = 2},
         "c: r.beta_fast (yarn): 1 is not at least beta_slow"},
        {{.kind = D9D_ROPE_LLAMA3, .factor = 2, .original = 9, .fast = 1},
         "c: r.low_freq_factor (llama3): 0 is not above 0"},
        {{.kind = D9D_ROPE_PLAIN, .mscale = -1},
         "c: r.attention_factor (plain): -1 is not at least 0"},
        {{.kind = D9D_ROPE_LONGROPE,
          .factor = 2,
          .original = 9,
          .pairs = 2,
          .short_factor = {1, 1},
          .long_factor = {1, 0}},
         "c: r: short_factor[1] is 1 and long_factor[1] 0, and both must be above 0 and "
         "finite in float32"},
        {{.kind = D9D_ROPE_LONGROPE,
          .factor = 2,
          .original = 9,
          .pairs = 2,
          .short_factor = {HUGE_VALF, 1},
          .long_factor = {1, 1}},
         "c: r: short_factor[0] is inf and long_factor[0] 1, and both must be above 0 and "
         "finite in float32"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_fails(d9d_rope_check("c", "r", &bad[i].scaling), D9D_ECONFIG, bad[i].says);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_are_those_of_transformers),
        cmocka_unit_test(plain_is_the_definition),
        cmocka_unit_test(numbers_are_checked),
    };

    return cmocka_run_group_tests_name("rope", tests, NULL, NULL);
}
