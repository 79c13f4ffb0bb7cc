/* Attention for each size of heads that has a kernel, with values of other sizes than keys. */
#include "support/attention_call.h"
#include "support/unit.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How rows lie: packed documents between bounds, or whole. */
static const struct {
    const char *name;
    int64_t b, s, z, window;
    int segments;
    d9d_segment segment[3];
} lies[] = {
    {"whole rows of a planned length", 2, 144, 144, 0, 0, {{0}}},
    {"whole rows of another", 2, 131, 131, 0, 0, {{0}}},
    {"a long row", 1, 389, 389, 0, 0, {{0}}},
    {"under a window", 1, 200, 200, 70, 0, {{0}}},
    {"documents", 1, 200, 200, 0, 3, {{0, 66, 0, 66}, {66, 129, 66, 129}, {195, 5, 195, 5}}},
    {"documents under a window", 1, 200, 200, 33, 2, {{0, 70, 0, 70}, {70, 130, 70, 130}}},
    {"more keys than queries", 1, 133, 400, 0, 2, {{0, 70, 0, 270}, {70, 63, 270, 130}}},
};

/* The largest error of what came out, in units of what is allowed. */
static double worst_of(d9d_dtype t, const void *got, const double *want, int64_t n,
                       double tolerance)
{
    double worst = 0.0;

    for (int64_t i = 0; i < n; i++) {
        const double w = want[i], error = fabs(array_get(t, got, i) - w);
        const double units = error / (tolerance * (1.0 + fabs(w)) + fabs(w) / 256.0);

        worst = units > worst || isnan(units) ? units : worst;
        if (isnan(worst))
            return worst;
    }
    return worst;
}

/* Two runs of it, which must give the same bits; returns whether they did. */
static bool runs_alike(array_run run, attention_call *p, void *out, size_t bytes)
{
    void *first = malloc(bytes + 1);
    bool alike;

    run(p);
    memcpy(first, out, bytes);
    memset(out, 0xff, bytes);
    run(p);
    alike = memcmp(first, out, bytes) == 0;
    free(first);
    return alike;
}

/* Whether heads of so many features, and values of dv, are right, rows lying so; says what is not.
 */
static bool head_is_right(int64_t d, int64_t dv, int lie)
{
    const d9d_attention_dims n = {.t = D9D_BF16,
                                  .b = lies[lie].b,
                                  .s = lies[lie].s,
                                  .z = lies[lie].z,
                                  .a = 4,
                                  .kv = 2,
                                  .d = d,
                                  .dv = dv,
                                  .causal = true,
                                  .window = lies[lie].window,
                                  .scale = 1.0f / sqrtf((float)d),
                                  .segments = lies[lie].segments,
                                  .segment = lies[lie].segments > 0 ? lies[lie].segment : NULL};
    const int64_t no = attention_o_size(&n), ng = attention_grads_size(&n), rows = n.b * n.a * n.s;
    double *o = calloc((size_t)no, sizeof(*o)), *lse = calloc((size_t)rows, sizeof(*lse));
    double *g = calloc((size_t)(ng + n.a), sizeof(*g)), out, back;
    attention_call p = attention_call_create(&n);
    bool alike, right;

    attention_naive(&p, o, lse, g);
    alike = runs_alike(attention_call_fwd, &p, p.o, (size_t)no * 2);
    alike = runs_alike(attention_call_bwd, &p, p.grads, (size_t)ng * 2) && alike;
    out = worst_of(n.t, p.o, o, no, 1e-2);
    /* o is rounded to bfloat16 before rows of dO O, whose error grows with the features. */
    back = worst_of(n.t, p.grads, g, ng, d > 128 || dv > 128 ? 3e-2 : 2e-2);
    right = alike && out <= 1.0 && back <= 1.0;
    if (!right)
        print_error("heads of %lld, values of %lld, %s: o %.2f, gradients %.2f times what is "
                    "allowed%s\n",
                    (long long)d, (long long)dv, lies[lie].name, out, back,
                    alike ? "" : "; two runs differ");
    attention_call_release(&p);
    free(o);
    free(lse);
    free(g);
    return right;
}

/* All that kernels for some sizes take; where one kernel takes all, a few. */
static void test_heads(void **state)
{
    const int64_t step = unit_is_wrapped() ? 128 : unit_device_is_cpu() ? 56 : 8;
    int wrong = 0;

    (void)state;
    for (int64_t d = 8; d <= 264; d += step)
        for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++)
            wrong += !head_is_right(d, d, (int)i);
    assert_int_equal(wrong, 0);
}

/* Values narrower and wider than keys, for each kernel that has sizes of its own. */
static void test_values(void **state)
{
    static const int64_t sizes[][2] = {{192, 128}, {64, 128},  {128, 64}, {96, 8},
                                       {176, 120}, {136, 192}, {72, 200}, {136, 224},
                                       {256, 128}, {64, 20},   {264, 40}};
    int wrong = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i += (size_t)unit_step(4))
        for (size_t j = 0; j < sizeof(lies) / sizeof(*lies); j++)
            wrong += !head_is_right(sizes[i][0], sizes[i][1], (int)j);
    assert_int_equal(wrong, 0);
    for (int flags = 0; flags < 8; flags++)
        attention_check(&(d9d_attention_dims){.t = array_types[flags & 1],
                                              .b = 2,
                                              .s = 70,
                                              .z = 70,
                                              .a = 4,
                                              .kv = 2,
                                              .d = flags & 2 ? 24 : 7,
                                              .dv = flags & 2 ? 9 : 40,
                                              .causal = (flags & 4) != 0,
                                              .scale = 0.3f,
                                              .softcap = flags & 4 ? 0.0f : 1.5f});
}

/* Latent rows of MLA in generation, as keys and, wholly or their first features, as values. */
static void test_latents(void **state)
{
    static const d9d_segment one_each[] = {{0, 1, 0, 30}, {1, 1, 60, 57}, {2, 1, 120, 3}};

    (void)state;
    for (int flags = 0; flags < 4; flags++)
        attention_check_with(&(d9d_attention_dims){.t = array_types[flags & 1],
                                                   .b = 3,
                                                   .s = 1,
                                                   .z = 60,
                                                   .a = 6,
                                                   .kv = 1,
                                                   .d = 576,
                                                   .dv = flags & 2 ? 512 : 576,
                                                   .causal = true,
                                                   .scale = 0.07f,
                                                   .softcap = 30.0f,
                                                   .segments = 3,
                                                   .segment = one_each},
                             false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_latents),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
