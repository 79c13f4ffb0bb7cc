/* Attention of packed documents and other segments (varlen), and lists that it refuses. */
#include "support/attention_call.h"
#include "support/host_kernels.h"
#include "support/unit.h"

#include <stdio.h>

/* Both types, with a mask and without, heads that libraries know and others. */
static void check_list(int64_t b, int64_t s, int64_t z, const d9d_segment *list, int64_t segments)
{
    for (int flags = 0; flags < 8; flags += unit_step(3))
        attention_check(&(d9d_attention_dims){.t = array_types[flags & 1],
                                              .b = b,
                                              .s = s,
                                              .z = z,
                                              .a = 2,
                                              .kv = flags & 4 ? 2 : 1,
                                              .d = flags & 4 ? 64 : 12,
                                              .causal = (flags & 2) != 0,
                                              .scale = flags & 4 ? 0.125f : 0.3f,
                                              .segments = segments,
                                              .segment = list});
}

/* Packed documents: of one token, over block edges, empty ones, a row that is one. */
static void test_documents(void **state)
{
    enum { B = 3, S = 311, N = 11 };
    static const int32_t bounds[N + 1] = {0, 0, 1,     150,        151,   281,
                                          S, S, 2 * S, 2 * S + 64, 3 * S, 3 * S};
    d9d_segment list[N];

    (void)state;
    attention_segments(bounds, N, list);
    check_list(B, S, S, list, N);
}

/* More keys than queries: all of a row's, some of them, twice the same ones, none at the end. */
static void test_segments(void **state)
{
    static const d9d_segment tiny[] = {{0, 1, 0, 1}, {1, 2, 1, 2}, {3, 1, 8, 6}},
                             twice[] = {{0, 70, 0, 70}, {70, 63, 0, 400}},
                             odd[] = {{0, 1, 3, 200},    {1, 0, 3, 201},      {1, 65, 3, 265},
                                      {66, 64, 270, 64}, {130, 3, 340, 61},   {133, 10, 401, 200},
                                      {143, 0, 601, 9},  {143, 123, 651, 150}};

    (void)state;
    check_list(2, 2, 7, (d9d_segment[]){{0, 2, 0, 5}, {2, 2, 7, 7}}, 2);
    check_list(1, 4, 14, tiny, 3);
    check_list(1, 133, 400, twice, 2);
    check_list(2, 133, 401, odd, 8);
    check_list(2, 3, 150, NULL, 0);
    check_list(2, 0, 5, NULL, 0);
}

/* What no list may be, of two rows. */
static const struct {
    int64_t z;
    bool open;
    d9d_segment list[3];
    const char *says;
} bad[] = {
    {3,
     false,
     {{0, 3, 0, 3}, {3, -1, 3, -1}, {2, 4, 2, 4}},
     "segment 1 has queries [3, 2), must begin at 3 and end within its row of 3"},
    {3,
     false,
     {{0, 4, 0, 4}, {4, 1, 4, 1}, {5, 1, 5, 1}},
     "segment 0 has queries [0, 4), must begin at 0 and end within its row of 3"},
    {3,
     false,
     {{1, 2, 1, 2}, {3, 2, 3, 2}, {5, 1, 5, 1}},
     "segment 0 has queries [1, 3), must begin at 0 and end within its row of 3"},
    {3, false, {{0, 3, 0, 3}, {3, 1, 3, 1}, {4, 1, 4, 1}}, "segments end at query 5 of 6"},
    {3,
     false,
     {{0, 3, 0, 3}, {3, 1, 3, 1}, {4, 2, 3, 3}},
     "segment 2 has 2 queries from 4 on and 3 keys from 3 on, in rows of 3 and 3"},
    {5,
     false,
     {{0, 3, 1, 5}, {3, 3, 5, 5}, {6, 0, 0, 0}},
     "segment 0 has keys [1, 6), in a row of [0, 5)"},
    {5,
     false,
     {{0, 3, 0, 5}, {3, 3, 4, 5}, {6, 0, 0, 0}},
     "segment 1 has keys [4, 9), in a row of [5, 10)"},
    {5,
     false,
     {{0, 3, 0, 2}, {3, 3, 5, 5}, {6, 0, 0, 0}},
     "segment 0 has 3 queries from 0 on and 2 keys from 0 on, in rows of 3 and 5"},
    {5,
     true,
     {{0, 3, 0, 0}, {3, 3, 5, 5}, {6, 0, 0, 0}},
     "segment 0 has 3 queries from 0 on and 0 keys from 0 on, in rows of 3 and 5"},
    {5,
     false,
     {{0, 1, 0, 3}, {1, 2, 0, 2}, {3, 3, 5, 5}},
     "segment 1 has keys [0, 2), must come after [0, 3) of the segment before"},
    {5,
     false,
     {{0, 1, 0, 3}, {1, 2, 1, 4}, {3, 3, 5, 5}},
     "segment 1 has keys [1, 5), must come after [0, 3) of the segment before"},
};

/* Nor, of two rows of 5 keys, where their 3 queries are so many chunks. */
static const struct {
    int64_t chunks;
    d9d_segment list[3];
    const char *says;
} bad_chunks[] = {
    {1,
     {{0, 2, 0, 2}, {2, 1, 2, 2}, {3, 3, 5, 5}},
     "segment 1 has 1 queries from 2 on and 2 keys, which do not fit a chunk of 3"},
    {1,
     {{0, 1, 0, 2}, {1, 2, 0, 2}, {3, 3, 5, 5}},
     "segment 1 has 2 queries from 1 on and 2 keys, which do not fit a chunk of 3"},
    {3,
     {{0, 2, 0, 2}, {2, 1, 2, 1}, {3, 3, 5, 5}},
     "segment 0 has 2 queries from 0 on and 2 keys, which do not fit a chunk of 1"},
};

/* Nor with these prefixes, of two rows of 5 keys. */
static const struct {
    bool open;
    int32_t prefix[3];
    d9d_segment list[3];
    const char *says;
} bad_prefixes[] = {
    {false,
     {0, 6, 0},
     {{0, 3, 0, 3}, {3, 3, 5, 3}, {6, 0, 0, 0}},
     "segment 1 has keys [5, 11), in a row of [5, 10)"},
    {false,
     {4, 0, 0},
     {{0, 2, 0, 2}, {2, 1, 3, 2}, {3, 3, 5, 5}},
     "segment 1 has keys [3, 5), must come after [0, 4) of the segment before"},
    {false,
     {2, 3, 0},
     {{0, 2, 0, 2}, {2, 1, 0, 4}, {3, 3, 5, 5}},
     "segments 0 and 1 begin with key 0 and have prefixes of 2 and 3 keys"},
    {false,
     {-1, 0, 0},
     {{0, 3, 0, 3}, {3, 3, 5, 3}, {6, 0, 0, 0}},
     "segment 0 has a prefix of -1 keys, at least 0 are allowed"},
    {true,
     {2, 0, 0},
     {{0, 3, 0, 3}, {3, 3, 5, 3}, {6, 0, 0, 0}},
     "segment 0 has a prefix of 2 keys, which needs a causal mask"},
};

static void check_bad(int64_t z, bool open, int64_t chunks, const d9d_segment *list,
                      const int32_t *prefix, const char *what)
{
    const d9d_attention_dims n = {.t = D9D_F32,
                                  .b = 2,
                                  .s = 3,
                                  .z = z,
                                  .a = 1,
                                  .kv = 1,
                                  .d = 1,
                                  .causal = !open,
                                  .segments = 3,
                                  .segment = list,
                                  .prefix = prefix,
                                  .chunks = chunks};
    float x[10] = {0}, lse[6];
    char says[128];

    (void)snprintf(says, sizeof(says), "attention: %s", what);
    assert_int_equal(host_kernels()->attention->fwd(NULL, &n, x, lse, x, x, x), D9D_EINVAL);
    assert_string_equal(d9d_err_message(), says);
}

static void test_bad_segments(void **state)
{
    (void)state;
    if (host_kernels() != d9d_kernels_cpu())
        return; /* a GPU would have to wait */
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        check_bad(bad[i].z, bad[i].open, 0, bad[i].list, NULL, bad[i].says);
    for (size_t i = 0; i < sizeof(bad_chunks) / sizeof(*bad_chunks); i++)
        check_bad(5, false, bad_chunks[i].chunks, bad_chunks[i].list, NULL, bad_chunks[i].says);
    for (size_t i = 0; i < sizeof(bad_prefixes) / sizeof(*bad_prefixes); i++)
        check_bad(5, bad_prefixes[i].open, 0, bad_prefixes[i].list, bad_prefixes[i].prefix,
                  bad_prefixes[i].says);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_bad_segments),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
