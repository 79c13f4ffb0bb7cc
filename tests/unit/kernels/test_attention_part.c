/* How zigzag chunks of queries see a part of the keys, and which parts tensor cores compute. */
#include "common/kernel_common.h"
#include "support/unit.h"

#include <string.h>

enum { P = 128, RANKS = 3 };

#define HIDDEN  D9DI_CHUNK_HIDDEN
#define FULL    D9DI_CHUNK_FULL
#define CAUSAL  D9DI_CHUNK_CAUSAL
#define PARTIAL D9DI_CHUNK_PARTIAL

/* Chunk `key` of rank `rank`'s row. */
static d9d_attention_dims dims_of(int64_t rank, int64_t key, int64_t window)
{
    return (d9d_attention_dims){.t = D9D_BF16,
                                .b = 1,
                                .s = 2 * P,
                                .z = 2 * RANKS * P,
                                .a = 1,
                                .kv = 1,
                                .d = 64,
                                .causal = true,
                                .window = window,
                                .chunks = 2,
                                .chunk_end = {(rank + 1) * P, (2 * RANKS - rank) * P},
                                .part = {key * P, P}};
}

/* Chunks 1 and 4 of 6. */
static void masks_of_a_rank(void **state)
{
    static const struct {
        int64_t key, window;
        d9di_attention_chunk_mask mask[2];
        bool blocks;
    } cases[] = {
        {0, 0, {FULL, FULL}, true},
        {1, 0, {CAUSAL, FULL}, true},
        {2, 0, {HIDDEN, FULL}, true},
        {4, 0, {HIDDEN, CAUSAL}, true},
        {5, 0, {HIDDEN, HIDDEN}, true},
        {0, 1, {HIDDEN, HIDDEN}, true},
        {0, 2, {PARTIAL, HIDDEN}, false},
        {0, 2 * P - 1, {PARTIAL, HIDDEN}, false},
        {0, 2 * P, {FULL, HIDDEN}, true},
        {1, 1, {CAUSAL, HIDDEN}, true},
        {1, 2 * P + 2, {CAUSAL, PARTIAL}, false},
        {3, P, {HIDDEN, PARTIAL}, false},
        {0, 5 * P - 1, {FULL, PARTIAL}, false},
        {0, 5 * P, {FULL, FULL}, true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const d9d_attention_dims n = dims_of(1, cases[i].key, cases[i].window);
        d9d_attention_dims rows;

        assert_true(d9di_attention_part_as_rows(&n, &rows));
        for (int c = 0; c < 2; c++)
            if (d9di_attention_chunk_mask_of(&rows, c) != cases[i].mask[c])
                fail_msg("chunk %d with keys %lld, window %lld: mask %d, must be %d", c,
                         (long long)cases[i].key, (long long)cases[i].window,
                         (int)d9di_attention_chunk_mask_of(&rows, c), (int)cases[i].mask[c]);
        assert_int_equal(d9di_attention_part_is_blocks(&rows), cases[i].blocks);
    }
}

/* A whole row is one chunk. */
static void whole_rows(void **state)
{
    d9d_attention_dims n = dims_of(0, 0, 0), rows;

    (void)state;
    n.chunks = 0;
    n.s = n.z;
    assert_true(d9di_attention_part_as_rows(&n, &rows));
    assert_int_equal(rows.chunks, 1);
    assert_int_equal(rows.z, P);
    assert_int_equal(rows.chunk_end[0], n.z);
    assert_int_equal(d9di_attention_chunk_mask_of(&rows, 0), PARTIAL);
}

/* What only a list or a prefix describes is no row. */
static void other_masks(void **state)
{
    const d9d_segment list = {0, 1, 0, 1};
    const int32_t prefix = 1;
    d9d_attention_dims n, rows;

    (void)state;
    n = dims_of(0, 0, 0);
    n.part.n = 0;
    assert_false(d9di_attention_part_as_rows(&n, &rows));
    n = dims_of(0, 0, 0);
    n.segment = &list;
    assert_false(d9di_attention_part_as_rows(&n, &rows));
    n = dims_of(0, 0, 0);
    n.prefix = &prefix;
    assert_false(d9di_attention_part_as_rows(&n, &rows));
    n = dims_of(0, 0, 0);
    n.causal = false;
    assert_false(d9di_attention_part_as_rows(&n, &rows));
}

/* A tile of keys before a diagonal must not end behind the part. */
static void tiles_of_a_part(void **state)
{
    d9d_attention_dims n = dims_of(0, 0, 0), rows;

    (void)state;
    assert_true(d9di_attention_part_as_rows(&n, &rows));
    assert_true(d9di_attention_part_is_tiles(&rows));
    n.part.n = P - 1;
    assert_true(d9di_attention_part_as_rows(&n, &rows));
    assert_false(d9di_attention_part_is_tiles(&rows));
    n.part.first = 6 * P - n.part.n;
    assert_true(d9di_attention_part_as_rows(&n, &rows));
    assert_true(d9di_attention_part_is_tiles(&rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_of_a_rank),
        cmocka_unit_test(whole_rows),
        cmocka_unit_test(other_masks),
        cmocka_unit_test(tiles_of_a_part),
    };

    return cmocka_run_group_tests_name("attention_part", tests, NULL, NULL);
}
