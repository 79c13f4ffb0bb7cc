/* Attention against the definition in double: shapes, softcaps, dropout, extremes. */
#include "support/attention_call.h"
#include "support/host_kernels.h"

#include <math.h>
#include <stdlib.h>

static const struct shape {
    int64_t b, s, a, kv, d;
} shapes[] = {
    {0, 4, 2, 1, 8},
    {1, 1, 1, 1, 1},
    {2, 3, 2, 2, 5},
    {1, 17, 4, 2, 16},
    {1, 64, 3, 1, 8},
    {2, 65, 2, 1, 33},
    {1, 200, 6, 2, 24},
    {1, 300, 1, 1, 7},
    /* heads that libraries know */
    {1, 1, 2, 1, 64},
    {2, 260, 4, 2, 64},
    {1, 129, 2, 2, 64},
    {1, 193, 2, 1, 128},
    /* and between their tiles */
    {2, 130, 4, 2, 72},
    {1, 140, 2, 2, 96},
    /* and lengths that they are planned for */
    {2, 256, 4, 2, 64},
    {1, 176, 2, 1, 128},
};

static void test_shapes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 4; flags++) {
            const struct shape *x = &shapes[i];
            d9d_attention_dims n = {.t = array_types[flags & 1],
                                    .b = x->b,
                                    .s = x->s,
                                    .z = x->s,
                                    .a = x->a,
                                    .kv = x->kv,
                                    .d = x->d,
                                    .causal = (flags & 2) != 0,
                                    .scale = 1.0f / sqrtf((float)x->d)};

            attention_check(&n);
        }
}

/* Rows whose scores are capped, as heads of every size that a kernel of its own takes. */
static const struct {
    int64_t b, s, z, window, chunks;
    int segments;
    d9d_segment segment[3];
} capped_rows[] = {
    {2, 37, 37, 0, 0, 0, {{0}}},
    {1, 70, 70, 33, 0, 0, {{0}}},
    {1, 75, 75, 9, 0, 3, {{0, 33, 0, 33}, {33, 39, 33, 39}, {72, 3, 72, 3}}},
    {1, 41, 110, 0, 0, 2, {{0, 10, 0, 60}, {10, 31, 60, 50}}},
    {1, 41, 110, 20, 0, 2, {{0, 10, 0, 60}, {10, 31, 60, 50}}},
    {1, 36, 72, 0, 2, 0, {{0}}},
    {1, 36, 72, 20, 2, 0, {{0}}},
};
static const int64_t capped_sizes[] = {64, 80, 128, 256};

static void test_softcap(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(capped_rows) / sizeof(*capped_rows); i++)
        for (int flags = 0; flags < 8; flags++) {
            const int64_t d = capped_sizes[flags / 2];

            attention_check_with(
                &(d9d_attention_dims){
                    .t = array_types[(i + (size_t)flags / 2) % 2],
                    .b = capped_rows[i].b,
                    .s = capped_rows[i].s,
                    .z = capped_rows[i].z,
                    .a = 2,
                    .kv = flags & 2 ? 2 : 1,
                    .d = d,
                    .causal = flags % 2 == 0,
                    .scale = 2.0f / sqrtf((float)d),
                    .softcap = 1.5f,
                    .window = capped_rows[i].window,
                    .segments = capped_rows[i].segments,
                    .segment = capped_rows[i].segments > 0 ? capped_rows[i].segment : NULL,
                    .chunks = capped_rows[i].chunks,
                    .chunk_end = {18, 72}},
                i % 3 == 1);
        }
}

/* Dropout of rows, chunks and lists, of heads of every size that a kernel of its own takes. */
static const struct {
    int64_t b, s, z, d, window, chunks;
    float p, softcap;
    bool open, sinks;
    int segments;
    d9d_segment segment[3];
} dropped_rows[] = {
    {2, 70, 70, 64, 0, 0, 0.3f, 0, false, false, 0, {{0}}},
    {1, 200, 200, 12, 33, 0, 0.5f, 0, false, true, 0, {{0}}},
    {1,
     75,
     75,
     80,
     0,
     0,
     0.1f,
     0,
     true,
     false,
     3,
     {{0, 33, 0, 33}, {33, 39, 33, 39}, {72, 3, 72, 3}}},
    {1, 41, 110, 128, 0, 0, 0.3f, 2, false, true, 2, {{0, 10, 0, 60}, {10, 31, 60, 50}}},
    {2, 36, 72, 64, 0, 2, 0.6f, 0, false, false, 0, {{0}}},
    {1, 36, 72, 160, 20, 2, 0.3f, 0, false, false, 0, {{0}}},
    {1, 40, 40, 300, 0, 0, 0.3f, 1.5f, false, false, 0, {{0}}},
    {1, 1, 1, 8, 0, 0, 0.5f, 0, false, false, 0, {{0}}},
};

static void test_dropout(void **state)
{
    enum { TOKENS = 200, WIDTH = 4001 };
    int64_t token[TOKENS];

    (void)state;
    for (int64_t i = 0; i < TOKENS; i++)
        token[i] = (i % 7 << 33) + 11 * i;
    for (size_t i = 0; i < sizeof(dropped_rows) / sizeof(*dropped_rows); i++)
        for (int t = 0; t < 2; t++)
            attention_check_with(
                &(d9d_attention_dims){
                    .t = array_types[t],
                    .b = dropped_rows[i].b,
                    .s = dropped_rows[i].s,
                    .z = dropped_rows[i].z,
                    .a = 4,
                    .kv = i % 2 == 0 ? 2 : 1,
                    .d = dropped_rows[i].d,
                    .causal = !dropped_rows[i].open,
                    .scale = 1.0f / sqrtf((float)dropped_rows[i].d),
                    .softcap = dropped_rows[i].softcap,
                    .window = dropped_rows[i].window,
                    .segments = dropped_rows[i].segments,
                    .segment = dropped_rows[i].segments > 0 ? dropped_rows[i].segment : NULL,
                    .chunks = dropped_rows[i].chunks,
                    .chunk_end = {18, 72},
                    .dropout = {dropped_rows[i].p, {5, 77}, token, WIDTH}},
                dropped_rows[i].sinks);
}

/* A key that is dropped gives nothing, whatever it is; its score is part of the softmax. */
static void test_dropped_keys(void **state)
{
    enum { S = 64 };
    const d9d_rng rng = {5, 77};
    const int64_t token[S] = {0};
    const d9d_attention_dims n = {.t = D9D_F32,
                                  .b = 1,
                                  .s = S,
                                  .z = S,
                                  .a = 1,
                                  .kv = 1,
                                  .d = 1,
                                  .dropout = {0.25f, rng, token, S}};
    float zero[S] = {0}, one[S], o[S], lse[S];
    int dropped = 0;

    (void)state;
    for (int i = 0; i < S; i++) {
        one[i] = 1;
        dropped += d9d_rng_uniform(rng, (uint64_t)i) < 0.25f;
    }
    assert_in_range(dropped, 6, 26); /* 16, and 3.5 is one deviation */
    assert_int_equal(host_kernels()->attention->fwd(NULL, &n, o, lse, zero, zero, one), D9D_OK);
    for (int i = 0; i < S; i++) {
        assert_float_equal(o[i], (float)(S - dropped) / S / 0.75f, 1e-6);
        assert_float_equal(lse[i], logf(S), 1e-5);
    }
}

/* Large scores overflow no exponential; a NaN reaches its own rows and no others. */
static void test_extremes(void **state)
{
    enum { S = 150, D = 8 };
    d9d_attention_dims n = {.t = D9D_F32,
                            .b = 1,
                            .s = S,
                            .z = S,
                            .a = 1,
                            .kv = 1,
                            .d = D,
                            .causal = true,
                            .scale = 1.0f};
    float *q = array_random(D9D_F32, S * D, 1, 100.0), *k = array_random(D9D_F32, S * D, 2, 100.0);
    float *v = array_random(D9D_F32, S * D, 3, 1.0), o[S * D], lse[S];

    (void)state;
    assert_int_equal(host_kernels()->attention->fwd(NULL, &n, o, lse, q, k, v), D9D_OK);
    for (int i = 0; i < S * D; i++)
        assert_true(isfinite(o[i]));
    k[100 * D] = NAN;
    assert_int_equal(host_kernels()->attention->fwd(NULL, &n, o, lse, q, k, v), D9D_OK);
    for (int i = 0; i < S; i++)
        assert_int_equal(isnan(o[i * D]) && isnan(lse[i]), i >= 100);
    free(q);
    free(k);
    free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),   cmocka_unit_test(test_softcap),
        cmocka_unit_test(test_dropout),  cmocka_unit_test(test_dropped_keys),
        cmocka_unit_test(test_extremes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
