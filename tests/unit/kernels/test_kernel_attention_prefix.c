/* Attention under prefix masks: a prompt sees itself both ways. */
#include "support/attention_call.h"
#include "support/host_kernels.h"

#include <math.h>
#include <stdlib.h>

/* A number below n. */
static int64_t draw(uint64_t *seed, int64_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((*seed >> 33) % (uint64_t)n);
}

/* Packed documents of `rows` rows of `length` tokens, with prefixes of 0, 1, some or all tokens. */
static int64_t draw_documents(uint64_t *seed, int64_t rows, int64_t length, d9d_segment *list,
                              int32_t *prefix)
{
    int64_t count = 0;

    for (int64_t begin = 0; begin < rows * length;) {
        const int64_t left = length - begin % length, half = (left + 1) / 2;
        const int32_t size = (int32_t)(draw(seed, 3) == 0 ? left : 1 + draw(seed, half));
        const int32_t choices[] = {0, 1, size, (int32_t)draw(seed, size + 1)};

        list[count] = (d9d_segment){(int32_t)begin, size, (int32_t)begin, size};
        prefix[count++] = choices[draw(seed, 4)];
        begin += size;
    }
    return count;
}

/* Prefix masks of documents at random, with groups of heads, softcaps, windows and sinks. */
static void test_prefix(void **state)
{
    enum { CASES = 24, MOST = 3 * 300 };
    static const int64_t sizes[] = {12, 64, 80, 128, 200, 5};
    d9d_segment *list = calloc(MOST, sizeof(*list));
    int32_t *prefix = calloc(MOST, sizeof(*prefix));
    uint64_t seed = 7;

    (void)state;
    for (int i = 0; i < CASES; i++) {
        const int64_t rows = 1 + draw(&seed, 3), length = 1 + draw(&seed, i % 2 == 0 ? 90 : 300);
        const int64_t kv = 1 + draw(&seed, 2), d = sizes[draw(&seed, 6)];

        attention_check(
            &(d9d_attention_dims){.t = array_types[i / 2 % 2],
                                  .b = rows,
                                  .s = length,
                                  .z = length,
                                  .a = kv * (1 + draw(&seed, 2)),
                                  .kv = kv,
                                  .d = d,
                                  .causal = true,
                                  .scale = 1.0f / sqrtf((float)d),
                                  .softcap = i % 5 == 0 ? 1.5f : 0.0f,
                                  .segments = draw_documents(&seed, rows, length, list, prefix),
                                  .segment = list,
                                  .prefix = prefix});
    }
    free(list);
    free(prefix);
}

/* Prefixes that end before, in and behind the keys of a segment with more keys than queries; the
 * last keys are in no segment. */
static void test_prefix_of_more_keys(void **state)
{
    static const d9d_segment list[] = {{0, 70, 0, 70}, {70, 63, 0, 200}, {133, 30, 260, 90}};
    static const int32_t prefixes[][3] = {{40, 40, 0}, {150, 150, 90}, {230, 230, 75}, {0, 0, 120}};

    (void)state;
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++)
        for (int flags = 0; flags < 4; flags++)
            attention_check(&(d9d_attention_dims){.t = array_types[flags & 1],
                                                  .b = 1,
                                                  .s = 163,
                                                  .z = 390,
                                                  .a = 4,
                                                  .kv = 2,
                                                  .d = flags & 2 ? 64 : 12,
                                                  .causal = true,
                                                  .scale = 0.2f,
                                                  .segments = 3,
                                                  .segment = list,
                                                  .prefix = prefixes[i]});
}

/* A prefix of no or of one key is a causal mask, to the bit. */
static void test_prefix_of_one(void **state)
{
    enum { S = 150, D = 64, N = 2 };
    static const d9d_segment list[N] = {{0, 100, 0, 100}, {100, 50, 100, 50}};
    static const int32_t prefix[] = {1, 0};
    float *q = array_random(D9D_F32, S * D, 1, 1.0), *k = array_random(D9D_F32, S * D, 2, 1.0);
    float *v = array_random(D9D_F32, S * D, 3, 1.0), o[N][S * D], lse[N][S];

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            host_kernels()->attention->fwd(NULL,
                                           &(d9d_attention_dims){.t = D9D_F32,
                                                                 .b = 1,
                                                                 .s = S,
                                                                 .z = S,
                                                                 .a = 1,
                                                                 .kv = 1,
                                                                 .d = D,
                                                                 .causal = true,
                                                                 .scale = 1.0f,
                                                                 .segments = N,
                                                                 .segment = list,
                                                                 .prefix = i == 0 ? prefix : NULL},
                                           o[i], lse[i], q, k, v),
            D9D_OK);
    assert_memory_equal(o[0], o[1], sizeof(o[0]));
    assert_memory_equal(lse[0], lse[1], sizeof(lse[0]));
    free(q);
    free(k);
    free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_prefix_of_more_keys),
        cmocka_unit_test(test_prefix_of_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
