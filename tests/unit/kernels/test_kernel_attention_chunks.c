/* Attention of chunks of rows, as context parallelism and prompts beside a KV cache have them. */
#include "d9d/data/loader/cp_slice.h"
#include "support/attention_call.h"
#include "support/host_kernels.h"

#include <stdlib.h>
#include <string.h>

/* What each of n ranks has of two rows, their documents between `bounds`, or whole; under a prefix
 * mask if there are labels. */
static void check_ranks(int n, int64_t length, const int32_t *bounds, const int32_t *labels,
                        const d9d_attention_dims *as)
{
    int32_t *zeros = calloc((size_t)(2 * length), sizeof(*zeros));
    const d9d_batch batch = {.seqs = 2,
                             .length = length,
                             .ids = zeros,
                             .labels = labels != NULL ? labels : zeros,
                             .positions = zeros,
                             .cu_seqlens = bounds};
    d9d_cp_slice_buffer buffer = {0};

    for (int rank = 0; rank < n; rank++) {
        d9d_attention_dims x = *as;
        d9d_cp_slice part;

        assert_int_equal(d9d_cp_slice_make(&batch, rank, n, &buffer, &part), D9D_OK);
        if (labels != NULL)
            assert_int_equal(d9d_cp_slice_add_prefixes(&batch, rank, n, &buffer, &part), D9D_OK);
        x.prefix = part.prefix;
        x.b = part.seqs;
        x.s = part.length;
        x.z = length;
        x.segments = part.segments;
        x.segment = part.segment;
        x.chunks = 2;
        x.chunk_end[0] = (rank + 1) * part.length / 2;
        x.chunk_end[1] = (2 * n - rank) * part.length / 2;
        attention_check(&x);
    }
    d9d_cp_slice_buffer_release(&buffer);
    free(zeros);
}

/* Documents that begin and end where chunks do, lie in many chunks, or are empty. */
static const int32_t documents_600[] = {0,   150, 150, 151, 320,  600,  600,
                                        601, 899, 900, 901, 1050, 1200, 1200};
static const int32_t documents_304[] = {0, 1, 39, 114, 300, 304, 310, 456, 608};
static const int32_t documents_180[] = {0, 10, 30, 61, 145, 150, 180, 181, 300, 360};

static const d9d_attention_dims as_64 = {
    .t = D9D_BF16, .a = 2, .kv = 1, .d = 64, .causal = true, .scale = 0.125f};
static const d9d_attention_dims as_128 = {
    .t = D9D_BF16, .a = 2, .kv = 2, .d = 128, .causal = true, .scale = 0.1f};
static const d9d_attention_dims as_groups = {
    .t = D9D_BF16, .a = 4, .kv = 1, .d = 128, .causal = true, .scale = 0.1f};
static const d9d_attention_dims as_window = {
    .t = D9D_BF16, .a = 4, .kv = 2, .d = 128, .causal = true, .scale = 0.1f, .window = 70};
/* Between tiles. */
static const d9d_attention_dims as_80 = {
    .t = D9D_BF16, .a = 2, .kv = 1, .d = 80, .causal = true, .scale = 0.1f};
static const d9d_attention_dims as_96 = {
    .t = D9D_BF16, .a = 4, .kv = 2, .d = 96, .causal = true, .scale = 0.1f};
/* Of which a tile has fewer queries and keys. */
static const d9d_attention_dims as_160 = {
    .t = D9D_BF16, .a = 2, .kv = 1, .d = 160, .causal = true, .scale = 0.08f, .window = 70};
static const d9d_attention_dims as_256 = {
    .t = D9D_BF16, .a = 4, .kv = 1, .d = 256, .causal = true, .scale = 0.06f};
static const d9d_attention_dims as_float = {
    .t = D9D_F32, .a = 2, .kv = 1, .d = 12, .causal = true, .scale = 0.3f};

static const struct {
    int n;
    int64_t length;
    const int32_t *bounds;
    const d9d_attention_dims *as;
} rank_cases[] = {
    {2, 600, documents_600, &as_64},
    {4, 304, NULL, &as_64},
    {3, 180, documents_180, &as_64},
    {2, 304, documents_304, &as_128},
    {2, 180, NULL, &as_128},
    {3, 180, documents_180, &as_128},
    {2, 260, NULL, &as_groups},
    {4, 304, documents_304, &as_groups},
    {4, 8, NULL, &as_groups},
    {2, 512, NULL, &as_groups},
    {3, 1200, NULL, &as_64},
    {2, 400, NULL, &as_window},
    {2, 640, NULL, &as_window},
    {2, 180, documents_180, &as_80},
    {4, 80, NULL, &as_80},
    {2, 304, documents_304, &as_96},
    {2, 512, NULL, &as_96},
    {2, 180, documents_180, &as_160},
    {2, 304, documents_304, &as_256},
    {2, 304, NULL, &as_256},
    {3, 180, documents_180, &as_float},
    {2, 180, documents_180, &as_float},
    {4, 304, NULL, &as_float},
};

/* A library that takes documents takes chunks of them. */
static void test_ranks(void **state)
{
    const int refused = host_kernels_said("go to slower kernels");

    (void)state;
    for (size_t i = 0; i < sizeof(rank_cases) / sizeof(*rank_cases); i++)
        check_ranks(rank_cases[i].n, rank_cases[i].length, rank_cases[i].bounds, NULL,
                    rank_cases[i].as);
    if (refused == 0)
        assert_int_equal(host_kernels_said("go to slower kernels"), 0);
}

/* Prompts over many chunks: a chunk inside a prompt sees keys of later ones. */
static void test_prefix_ranks(void **state)
{
    static const size_t cases[] = {0, 1, 11, 16, 17, 18};
    const d9d_rng rng = {.seed = 3};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const int64_t length = rank_cases[cases[i]].length;
        int32_t *labels = calloc((size_t)(2 * length), sizeof(*labels));

        for (int64_t at = 0; at < 2 * length; at++)
            labels[at] = d9d_rng_below(rng, (uint64_t)at, (uint64_t)length) < 6 ? 1 : -100;
        check_ranks(rank_cases[cases[i]].n, length, rank_cases[cases[i]].bounds, labels,
                    rank_cases[cases[i]].as);
        free(labels);
    }
}

/* A prompt beside others in a cache, of its first tokens and of more behind those. */
static void test_prompts(void **state)
{
    static const d9d_segment prompts[] = {
        {0, 150, 0, 150}, {0, 150, 250, 150}, {0, 200, 20, 350}, {0, 129, 200, 200}};
    const int refused = host_kernels_said("go to slower kernels");

    (void)state;
    for (size_t i = 0; i < sizeof(prompts) / sizeof(*prompts); i++) {
        d9d_attention_dims x = i % 2 == 0 ? as_64 : as_groups;

        x.b = 1;
        x.s = prompts[i].nq;
        x.z = 400;
        x.segments = 1;
        x.segment = &prompts[i];
        x.chunks = 1;
        attention_check(&x);
    }
    if (refused == 0)
        assert_int_equal(host_kernels_said("go to slower kernels"), 0);
}

/* Each token of rows in order says where it is, and so must it in the chunks of the ranks. */
static void check_zigzag(d9d_dtype t, int64_t n, int64_t b, int64_t p, int64_t w)
{
    const int64_t size = 2 * n * b * p * w;
    void *rows = array_random(t, size, 5, 1.0), *dealt = array_poison(t, size);
    void *back = array_poison(t, size);
    const size_t token = (size_t)w * d9d_dtype_size(t);

    assert_int_equal(host_kernels()->attention->cp_zigzag(NULL, t, dealt, rows, n, b, p, w, false),
                     D9D_OK);
    for (int64_t i = 0; i < 2 * n * b * p; i++) {
        const int64_t rank = i / (2 * b * p), row = i / (2 * p) % b, half = i / p % 2;
        const int64_t chunk = half == 0 ? rank : 2 * n - 1 - rank;

        assert_memory_equal((char *)dealt + (size_t)i * token,
                            (char *)rows + (size_t)((row * 2 * n + chunk) * p + i % p) * token,
                            token);
    }
    assert_int_equal(host_kernels()->attention->cp_zigzag(NULL, t, back, dealt, n, b, p, w, true),
                     D9D_OK);
    assert_memory_equal(back, rows, (size_t)size * d9d_dtype_size(t));
    free(rows);
    free(dealt);
    free(back);
}

static void test_cp_zigzag(void **state)
{
    static const int64_t sizes[][4] = {{1, 1, 1, 1},  {1, 3, 2, 5},  {2, 2, 3, 8}, {3, 1, 5, 12},
                                       {4, 3, 1, 16}, {8, 2, 7, 33}, {2, 0, 3, 4}, {2, 3, 0, 4}};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (int t = 0; t < 2; t++)
            check_zigzag(array_types[t], sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_prefix_ranks),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_cp_zigzag),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
