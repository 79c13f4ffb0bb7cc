/* No part of the Hopper attention backward has more dS blocks than its scratch was made for, of any
 * well-formed list of segments. The blocks are counted here as the kernel streams them. */
#include "common/kernel_common.h"
#include "support/unit.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SEGMENTS = 4096, TILE = D9DI_DS_BLOCK_QUERIES, ROWS = D9DI_DS_BLOCK_QUERY_ROWS };

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Tokens [from, end). */
typedef struct chunk {
    int64_t from, end;
} chunk;

static chunk chunk_at(int64_t i, int64_t size, int64_t all)
{
    return (chunk){i * size, d9di_i64_min(all, (i + 1) * size)};
}

/* Tiles of the queries of `x` in a chunk that see the keys [key, key + rows). */
static int64_t tiles_of(const d9d_attention_dims *n, const d9d_segment *x, int64_t key,
                        int64_t rows, const chunk *queries)
{
    const int64_t beyond = x->nk - x->nq, window = n->window > 0 ? n->window : INT32_MAX;
    int64_t lo = d9di_i64_max(0, key - beyond) / TILE * TILE;
    int64_t hi = d9di_i64_min(x->nq, key - beyond + window + rows - 1);

    lo = d9di_i64_max(lo, round_up(d9di_i64_max(0, queries->from - x->q), ROWS));
    hi = d9di_i64_min(hi, round_up(d9di_i64_max(0, queries->end - x->q), ROWS));
    return hi > lo ? d9di_i64_ceil_div(hi - lo, TILE) : 0;
}

static int64_t blocks_of_pair(const d9d_attention_dims *n, const d9d_segment *list, int64_t count,
                              int64_t key_rows, const chunk *queries, const chunk *keys)
{
    int64_t sum = 0;

    for (int64_t i = 0; i < count; i++) {
        const int64_t from = round_up(d9di_i64_max(0, keys->from - list[i].k), key_rows);
        const int64_t end = round_up(d9di_i64_max(0, keys->end - list[i].k), key_rows);

        /* Of a part of the keys nk may exceed those of the row. */
        for (int64_t key = from; key < d9di_i64_min(d9di_i64_min(list[i].nk, n->z), end);
             key += key_rows)
            sum += tiles_of(n, &list[i], key, key_rows, queries);
    }
    return sum;
}

static int64_t draw(int64_t n)
{
    return rand() % n;
}

/* Documents packed in rows, some of one token or none. */
static int64_t pack_rows(const d9d_attention_dims *n, d9d_segment *list)
{
    const int64_t most = 1 + draw(n->s);
    int64_t count = 0;

    for (int64_t row = 0; row < n->b; row++)
        for (int64_t at = 0, size; at < n->s; at += size) {
            size = count > MAX_SEGMENTS / 2 ? n->s - at : d9di_i64_min(n->s - at, draw(most + 1));
            list[count++] = (d9d_segment){(int32_t)(row * n->s + at), (int32_t)size,
                                          (int32_t)(row * n->s + at), (int32_t)size};
        }
    return count;
}

/* The same in two zigzag chunks: what of a document is in a chunk, with its keys up to there. */
static int64_t pack_chunks(const d9d_attention_dims *n, d9d_segment *list)
{
    const int64_t size = n->s / 2, document = 1 + draw(n->z);
    int64_t count = 0;

    for (int64_t p = 0; p < 2; p++)
        for (int64_t key = n->chunk_end[p] - size, end; key < n->chunk_end[p]; key = end) {
            const int64_t begin = key / document * document;
            const int64_t query = p * size + key - (n->chunk_end[p] - size);

            end = d9di_i64_min(n->chunk_end[p], begin + document);
            list[count++] = (d9d_segment){(int32_t)query, (int32_t)(end - key), (int32_t)begin,
                                          (int32_t)(end - begin)};
        }
    return count;
}

/* Rows, or chunks of rows, as the segments that the kernel makes of them. */
static int64_t whole(const d9d_attention_dims *n, d9d_segment *list)
{
    const int64_t chunks = d9di_i64_max(1, n->chunks), size = n->s / chunks;
    int64_t count = 0;

    for (int64_t row = 0; row < n->b; row++)
        for (int64_t p = 0; p < chunks; p++)
            list[count++] = (d9d_segment){(int32_t)(row * n->s + p * size), (int32_t)size,
                                          (int32_t)(row * n->z),
                                          (int32_t)(n->chunks > 0 ? n->chunk_end[p] : n->z)};
    return count;
}

static void check_pair(const d9d_attention_dims *n, const d9d_segment *list, int64_t count,
                       const d9di_attention_bwd_parts *x, int64_t i)
{
    const chunk queries = chunk_at(i / x->key_chunks, x->chunk_queries, n->b * n->s),
                keys = chunk_at(i % x->key_chunks, x->chunk_keys, n->b * n->z);
    const int64_t heads = n->a / n->kv * x->heads;
    const int64_t blocks = blocks_of_pair(n, list, count, x->key_rows, &queries, &keys);

    if (blocks * heads > x->ds_blocks)
        fail_msg("%lld blocks of %lld heads, scratch for %lld: b %lld s %lld z %lld, window %lld, "
                 "%lld segments, pair %lld of %lld by %lld chunks",
                 (long long)blocks, (long long)heads, (long long)x->ds_blocks, (long long)n->b,
                 (long long)n->s, (long long)n->z, (long long)n->window, (long long)count,
                 (long long)i, (long long)x->query_chunks, (long long)x->key_chunks);
}

static void check(const d9d_attention_dims *n, const d9d_segment *list, int64_t count,
                  int64_t max_bytes)
{
    const d9di_attention_bwd_parts x = d9di_attention_bwd_parts_of(n, max_bytes, 1 + draw(200));
    const int64_t pairs = x.query_chunks * x.key_chunks;

    assert_true(x.heads >= 1 && x.heads <= n->kv);
    assert_true(x.query_chunks * x.chunk_queries >= n->b * n->s);
    assert_true(x.key_chunks * x.chunk_keys >= n->b * n->z);
    assert_int_equal(x.n_parts, pairs * d9di_i64_ceil_div(n->kv, x.heads));
    assert_true(pairs == 1 || x.heads == 1);
    assert_true(x.query_chunks == 1 || x.chunk_queries % ROWS == 0);
    assert_true(x.key_chunks == 1 || x.chunk_keys % ROWS == 0);
    assert_true(x.ds_blocks * x.ds_block_bytes <= max_bytes || x.ds_blocks == 1 ||
                (x.chunk_queries <= ROWS && x.chunk_keys <= ROWS));
    for (int64_t i = 0; i < pairs; i++)
        check_pair(n, list, count, &x, i);
}

static d9d_attention_dims draw_dims(void)
{
    static const int64_t sizes[] = {64, 128, 192, 256};
    d9d_attention_dims n = {.t = D9D_BF16, .causal = true, .scale = 1};

    n.b = 1 + draw(3);
    n.s = n.z = 1 + draw(1000);
    n.kv = 1 + draw(3);
    n.a = n.kv * (1 + draw(3));
    n.d = sizes[draw(4)];
    n.window = draw(2) ? 1 + draw(n.s) : 0;
    return n;
}

static int64_t draw_bytes(void)
{
    return (int64_t)1 << (12 + draw(20));
}

static void packed_documents(void **state)
{
    static d9d_segment list[MAX_SEGMENTS];

    (void)state;
    for (int i = 0; i < 100; i++) {
        d9d_attention_dims n = draw_dims();

        n.segments = pack_rows(&n, list);
        n.segment = list;
        check(&n, list, n.segments, draw_bytes());
    }
}

static void rows_and_chunks(void **state)
{
    d9d_segment list[16];

    (void)state;
    for (int i = 0; i < 100; i++) {
        d9d_attention_dims n = draw_dims();

        if (draw(2)) {
            const int64_t size = 1 + draw(400), ranks = 1 + draw(4), rank = draw(ranks);

            n.chunks = 2;
            n.s = 2 * size;
            n.z = 2 * ranks * size;
            n.chunk_end[0] = (rank + 1) * size;
            n.chunk_end[1] = (2 * ranks - rank) * size;
        }
        check(&n, list, whole(&n, list), draw_bytes());
    }
}

/* Chunks of queries over some keys of the row, as ring attention has them. */
static void parts_of_chunks(void **state)
{
    d9d_segment list[16];

    (void)state;
    for (int i = 0; i < 300; i++) {
        d9d_attention_dims n = draw_dims(), rows;
        const int64_t size = 64 * (1 + draw(5)), ranks = 2 + draw(3), rank = draw(ranks);

        n.chunks = 2;
        n.s = 2 * size;
        n.z = 2 * ranks * size;
        n.chunk_end[0] = (rank + 1) * size;
        n.chunk_end[1] = (2 * ranks - rank) * size;
        n.part.n = size * (1 + draw(2));
        n.part.first = size * draw(2 * ranks + 1 - n.part.n / size);
        assert_true(d9di_attention_part_as_rows(&n, &rows));
        assert_true(d9di_attention_part_is_tiles(&rows));
        check(&rows, list, whole(&rows, list), draw_bytes());
    }
}

static void packed_chunks(void **state)
{
    static d9d_segment list[MAX_SEGMENTS];

    (void)state;
    for (int i = 0; i < 100; i++) {
        d9d_attention_dims n = draw_dims();
        const int64_t size = 1 + draw(400), ranks = 1 + draw(4), rank = draw(ranks);

        n.b = 1;
        n.chunks = 2;
        n.s = 2 * size;
        n.z = 2 * ranks * size;
        n.chunk_end[0] = (rank + 1) * size;
        n.chunk_end[1] = (2 * ranks - rank) * size;
        n.segments = pack_chunks(&n, list);
        n.segment = list;
        if (n.segments <= MAX_SEGMENTS)
            check(&n, list, n.segments, draw_bytes());
    }
}

/* A row of 262,144 tokens takes no more than it may. */
static void long_rows(void **state)
{
    d9d_attention_dims n = {.t = D9D_BF16, .b = 1, .a = 32, .kv = 4, .d = 128, .causal = true};
    d9d_segment list[1];

    (void)state;
    for (n.s = n.z = 4096; n.s <= 262144; n.s = n.z = 4 * n.s) {
        const d9di_attention_bwd_parts x =
            d9di_attention_bwd_parts_of(&n, D9DI_ATTENTION_MAX_SCORE_BYTES, 132);

        assert_true(x.ds_blocks * x.ds_block_bytes <= D9DI_ATTENTION_MAX_SCORE_BYTES);
        check(&n, list, whole(&n, list), D9DI_ATTENTION_MAX_SCORE_BYTES);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_documents), cmocka_unit_test(rows_and_chunks),
        cmocka_unit_test(parts_of_chunks),  cmocka_unit_test(packed_chunks),
        cmocka_unit_test(long_rows),
    };

    srand(1);
    return cmocka_run_group_tests_name("attention_bwd_parts", tests, NULL, NULL);
}
