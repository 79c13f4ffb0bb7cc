/* test_bpe.c - BPE: greedy encoding equals merging, for vocabularies of random merges; the
 * pre-token cache; tries. */
#include "support/unit.h"

#include <stdio.h>
#include <string.h>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/bytelevel.h"
#include "data/tokenizer/utf8.h"

static uint32_t below(uint64_t *x, uint32_t n)
{
    *x = *x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*x >> 33) % n;
}

enum { MERGES = 60, LONGEST = 40 };

/* Tokens 0 to 255 are bytes; from 256 on, merges of a few letters, each of two older tokens. At
 * `swap` a merge is exchanged with the previous one. */
static json_t *random_model(uint64_t *x, uint32_t letters, int swap, bool ignore_merges)
{
    static char texts[MERGES + 26][LONGEST + 1];
    json_t *vocab = json_object(), *merges = json_array();
    uint32_t n = letters;
    char c[5] = "";

    for (int i = 0; i < 256; i++) {
        c[d9di_utf8_encode(d9di_bytelevel_char((unsigned char)i), c)] = '\0';
        assert_int_equal(json_object_set_new(vocab, c, json_integer(i)), 0);
        c[1] = '\0';
    }
    for (uint32_t i = 0; i < letters; i++)
        snprintf(texts[i], sizeof(texts[i]), "%c", (char)('a' + i));
    for (int i = 0; i < MERGES; i++) {
        const char *left = texts[below(x, n)], *right = texts[below(x, n)];
        char joined[2 * LONGEST + 1];

        snprintf(joined, sizeof(joined), "%s%s", left, right);
        if (strlen(joined) > LONGEST)
            continue;
        assert_int_equal(json_array_append_new(merges, json_pack("[s, s]", left, right)), 0);
        if (!json_object_get(vocab, joined)) { /* otherwise a second way to the same token */
            assert_int_equal(json_object_set_new(vocab, joined,
                                                 json_integer((json_int_t)json_object_size(vocab))),
                             0);
            memcpy(texts[n++], joined, strlen(joined) + 1);
        }
    }
    if (swap > 0 && (size_t)swap < json_array_size(merges)) {
        json_t *m = json_incref(json_array_get(merges, (size_t)swap));

        assert_int_equal(json_array_remove(merges, (size_t)swap), 0);
        assert_int_equal(json_array_insert_new(merges, 0, m), 0);
    }
    return json_pack("{s:s, s:o, s:o, s:b}", "type", "BPE", "vocab", vocab, "merges", merges,
                     "ignore_merges", ignore_merges);
}

static void encode(const d9di_bpe *b, const char *text, size_t n, d9d_token_ids *out)
{
    const d9di_pretoken pretoken = {text, n};
    d9di_bpe_scratch s;
    size_t once;

    out->len = 0;
    assert_ok(d9di_bpe_scratch_init(&s, 0, 0)); /* the cache forgets soon */
    assert_ok(d9di_bpe_encode(b, &s, &pretoken, 1, text + n, out));
    once = out->len;
    assert_ok(d9di_bpe_encode(b, &s, &pretoken, 1, text + n, out)); /* what was kept */
    assert_int_equal(out->len, 2 * once);
    if (once > 0)
        assert_memory_equal(out->data, out->data + once, once * sizeof(*out->data));
    out->len = once;
    d9di_bpe_scratch_release(&s);
}

/* Number of texts that took the greedy path. */
static int compare(d9di_bpe *b, uint64_t *x, uint32_t letters)
{
    d9d_token_ids walked = {0}, merged = {0};
    const bool walks = b->is_greedy;

    for (int turn = 0; turn < 100; turn++) {
        const size_t n = 1 + below(x, turn < 80 ? 30 : 1000), period = 1 + below(x, 12);
        char text[1000];

        for (size_t i = 0; i < n; i++) /* long ones repeat themselves, and are split */
            text[i] = turn < 80 || i < period || below(x, 300) == 0
                          ? (char)('a' + below(x, letters + (turn % 10 == 0)))
                          : text[i - period];
        encode(b, text, n, &walked);
        b->is_greedy = false;
        encode(b, text, n, &merged);
        b->is_greedy = walks;
        if (walked.len != merged.len ||
            memcmp(walked.data, merged.data, walked.len * sizeof(*walked.data)) != 0)
            fail_msg("%.*s: a walk gives other tokens than merging", (int)n, text);
    }
    D9D_VEC_RELEASE(&walked);
    D9D_VEC_RELEASE(&merged);
    return walks ? 100 : 0;
}

static void test_walk(void **state)
{
    uint64_t x = 7;
    int walked = 0;

    (void)state;
    for (int turn = 0; turn < 600; turn++) {
        const uint32_t letters = 1 + below(&x, 4);
        const int swap = turn % 4 == 3 ? (int)below(&x, MERGES) : 0;
        json_t *model = random_model(&x, letters, swap, turn % 5 == 0);
        d9di_bpe b;

        assert_ok(d9di_bpe_init(model, "m", false, &b));
        walked += compare(&b, &x, letters);
        d9di_bpe_release(&b);
        json_decref(model);
    }
    assert_true(walked >= 15000); /* if no pair is repeated further down the list */
}

/* Runs of one letter whose last tokens are longer than those before: a run must not continue where
 * the following text differs. */
static void test_runs(void **state)
{
    static const char *const merges[][2] = {{"a", "a"},           {"aa", "aa"},
                                            {"aaaa", "aaaa"},     {"aaaaaaaa", "aa"},
                                            {"aaaaaaaa", "aaaa"}, {"aaaaaaaa", "b"}};
    uint64_t x = 1;
    json_t *model = random_model(&x, 1, 0, false), *list = json_object_get(model, "merges");
    d9d_token_ids walked = {0}, merged = {0};
    d9di_bpe b;

    (void)state;
    json_array_clear(list);
    for (size_t i = 0; i < sizeof(merges) / sizeof(merges[0]); i++) {
        char joined[32];

        snprintf(joined, sizeof(joined), "%s%s", merges[i][0], merges[i][1]);
        assert_int_equal(json_object_set_new(json_object_get(model, "vocab"), joined,
                                             json_integer(1000 + (json_int_t)i)),
                         0);
        assert_int_equal(
            json_array_append_new(list, json_pack("[s, s]", merges[i][0], merges[i][1])), 0);
    }
    assert_ok(d9di_bpe_init(model, "m", false, &b));
    for (size_t n = 1; n < 400; n++) {
        char text[800];

        memset(text, 'a', sizeof(text));
        text[n] = n % 3 == 0 ? 'b' : n % 3 == 1 ? 'c' : 'a';
        for (size_t behind = 0; behind <= n; behind += 13) {
            assert_true(b.is_greedy);
            encode(&b, text, n + behind, &walked);
            b.is_greedy = false;
            encode(&b, text, n + behind, &merged);
            b.is_greedy = true;
            assert_int_equal(walked.len, merged.len);
            assert_memory_equal(walked.data, merged.data, walked.len * sizeof(*walked.data));
        }
    }
    D9D_VEC_RELEASE(&walked);
    D9D_VEC_RELEASE(&merged);
    d9di_bpe_release(&b);
    json_decref(model);
}

/* A merge of a part that is made later, so that ranks are not in order of time, or a missing
 * byte. */
static void test_not_walked(void **state)
{
    static const char *const models[] = {
        "{\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a b\"]}",
    };
    uint64_t x = 1;
    json_t *model = random_model(&x, 3, 0, false), *merges = json_object_get(model, "merges");
    d9di_bpe b;

    (void)state;
    json_array_clear(merges);
    assert_int_equal(json_array_append_new(merges, json_string("ab c")), 0);
    assert_int_equal(json_array_append_new(merges, json_string("a b")), 0);
    assert_int_equal(json_object_set_new(json_object_get(model, "vocab"), "ab", json_integer(1000)),
                     0);
    assert_int_equal(
        json_object_set_new(json_object_get(model, "vocab"), "abc", json_integer(1001)), 0);
    assert_ok(d9di_bpe_init(model, "m", false, &b));
    assert_false(b.is_greedy);
    d9di_bpe_release(&b);
    json_decref(model);
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        model = json_loads(models[i], 0, NULL);
        assert_ok(d9di_bpe_init(model, "m", false, &b));
        assert_false(b.is_greedy);
        d9di_bpe_release(&b);
        json_decref(model);
    }
}

/* Stored entries are found unchanged, at every length and whatever follows in memory. */
static void test_words(void **state)
{
    static const unsigned sizes[] = {D9DI_BPE_CACHE_SHORT, D9DI_BPE_CACHE_LONG};
    static const char text[] = "the quick brown fox jumps over the lazy dog, and \0\0\0\0 then";

    (void)state;
    for (size_t k = 0; k < 2; k++) {
        const unsigned words = sizes[k];
        d9di_bpe_cache w;

        assert_ok(d9di_bpe_cache_init(&w, words, 6, 6));
        for (size_t n = 1; n < 8 * words; n++) {
            const uint32_t count = 1 + (uint32_t)n % (2 * words);
            uint32_t ids[2 * D9DI_BPE_CACHE_LONG], got[2 * D9DI_BPE_CACHE_LONG];
            uint64_t key[D9DI_BPE_CACHE_LONG], tight[D9DI_BPE_CACHE_LONG], *bucket;

            for (uint32_t i = 0; i < count; i++)
                ids[i] = 0xfffff0 + i + (uint32_t)n % 4;
            d9di_bpe_cache_key(key, words, text, n, text + sizeof(text));
            d9di_bpe_cache_key(tight, words, text, n, text + n);
            assert_memory_equal(key, tight, 8 * words);
            bucket = d9di_bpe_cache_bucket(&w, key, words);
            assert_int_equal(d9di_bpe_cache_get(bucket, key, words, got), 0);
            assert_true(d9di_bpe_cache_put(&w, bucket, key, words, ids, count));
            assert_int_equal(d9di_bpe_cache_get(bucket, key, words, got), count);
            assert_memory_equal(got, ids, count * sizeof(*ids));
            assert_false(d9di_bpe_cache_put(&w, bucket, key, words, ids, 2 * words + 1));
        }
        d9di_bpe_cache_release(&w);
    }
}

/* The text of number i, and its length. */
static size_t numbered(char text[16], size_t i)
{
    return (size_t)snprintf(text, 16, "w%zu", i);
}

/* A table that drops pre-tokens grows to its limit, and its entries stay what they were. */
static void test_growth(void **state)
{
    enum { TEXTS = 400 };
    const unsigned words = D9DI_BPE_CACHE_SHORT;
    uint64_t key[D9DI_BPE_CACHE_SHORT];
    uint32_t got[2 * D9DI_BPE_CACHE_SHORT];
    d9di_bpe_cache w;
    size_t found = 0;

    (void)state;
    assert_ok(d9di_bpe_cache_init(&w, words, 2, 10));
    for (int pass = 0; pass < 8; pass++)
        for (uint32_t i = 0; i < TEXTS; i++) {
            char text[16];
            const size_t n = numbered(text, i);

            d9di_bpe_cache_fit(&w, words);
            d9di_bpe_cache_key(key, words, text, n, text + sizeof(text));
            if (d9di_bpe_cache_get(d9di_bpe_cache_bucket(&w, key, words), key, words, got) == 0) {
                const uint32_t ids[2] = {i, i + 1};

                assert_true(d9di_bpe_cache_put(&w, d9di_bpe_cache_bucket(&w, key, words), key,
                                               words, ids, 2));
            } else {
                assert_int_equal(got[0], i);
                assert_int_equal(got[1], i + 1);
                found += pass == 7;
            }
        }
    assert_int_equal(w.mask, 511); /* 2^10 slots, two a bucket */
    assert_true(found > TEXTS / 2);
    d9di_bpe_cache_release(&w);
}

/* What is kept is found, at every length; a full store forgets and goes on. */
static void test_store(void **state)
{
    static char text[D9DI_BPE_STORE_MAX_BYTES + 1];
    static const size_t limits[] = {1 << 20, 600};
    uint32_t ids[D9DI_BPE_STORE_MAX_BYTES + 1], got[D9DI_BPE_STORE_MAX_BYTES + 1];

    (void)state;
    for (size_t k = 0; k < 2; k++) {
        d9di_bpe_store s;
        size_t found = 0;

        assert_ok(d9di_bpe_store_init(&s, limits[k]));
        for (size_t i = 0; i < 5000; i++) {
            const size_t n = 1 + i % sizeof(text), count = 1 + i * 7 % n;
            uint64_t hash;

            for (size_t j = 0; j < n; j++)
                text[j] = (char)(i >> j % 4 * 8);
            for (uint32_t j = 0; j < count; j++)
                ids[j] = (uint32_t)i + j;
            hash = d9di_bpe_store_hash(text, n);
            if (d9di_bpe_store_get(&s, hash, text, n, got) > 0)
                continue; /* a short text of another number */
            assert_ok(d9di_bpe_store_put(&s, hash, text, n, ids, count));
            assert_int_equal(d9di_bpe_store_get(&s, hash, text, n, got),
                             n <= D9DI_BPE_STORE_MAX_BYTES ? count : 0);
            if (n <= D9DI_BPE_STORE_MAX_BYTES)
                assert_memory_equal(got, ids, count * sizeof(*ids));
            assert_int_equal(d9di_bpe_store_get(&s, hash ^ 1, text, n - 1, got), 0);
            found++;
        }
        assert_true(found > 4000);
        assert_true(s.words.len <= limits[k]);
        assert_true(k == 1 ? s.n < 20 : s.n > 4000);
        d9di_bpe_store_release(&s);
    }
}

static void test_trie(void **state)
{
    struct d9di_trie_key keys[] = {{"b", 1, 1, false},
                                   {"abc", 3, 2, true},
                                   {"a", 1, 3, false},
                                   {"ab\0", 3, 4, false},
                                   {"\xff", 1, 5, false}};
    d9di_trie trie = {.root = 0};
    uint64_t entry;

    (void)state;
    assert_ok(d9di_trie_build(&trie, keys, 5));
    entry = d9di_trie_entry(&trie, trie.root, 'a');
    assert_true(d9di_trie_has_label(entry, 'a'));
    assert_int_equal(d9di_trie_value(entry), 3);
    entry = d9di_trie_entry(&trie, d9di_trie_base(entry), 'b');
    assert_true(d9di_trie_has_label(entry, 'b'));
    assert_int_equal(d9di_trie_value(entry), D9DI_TRIE_NONE);
    assert_int_equal(d9di_trie_value(d9di_trie_entry(&trie, d9di_trie_base(entry), '\0')), 4);
    entry = d9di_trie_entry(&trie, d9di_trie_base(entry), 'c');
    assert_int_equal(d9di_trie_value(entry), 2);
    assert_true(entry & D9DI_TRIE_FLAG);
    for (int c = 0; c < 256; c++)
        assert_false(d9di_trie_has_label(
            d9di_trie_entry(&trie, d9di_trie_base(entry), (unsigned char)c), (unsigned char)c));
    entry = d9di_trie_entry(&trie, trie.root, 0xff);
    assert_int_equal(d9di_trie_value(entry), 5);
    assert_false(d9di_trie_has_label(d9di_trie_entry(&trie, trie.root, 'c'), 'c'));
    d9di_trie_release(&trie);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_walk),       cmocka_unit_test(test_runs),
        cmocka_unit_test(test_not_walked), cmocka_unit_test(test_words),
        cmocka_unit_test(test_growth),     cmocka_unit_test(test_store),
        cmocka_unit_test(test_trie),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
