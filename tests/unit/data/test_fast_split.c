/* test_fast_split.c - hand-written split patterns equal PCRE2: every character in some contexts,
 * and random text. */
#include "support/unit.h"

#include <string.h>

#include "data/tokenizer/fast_split.h"
#include "data/tokenizer/split_pattern.h"
#include "data/tokenizer/utf8.h"

enum { MAX_ENDS = 4096 };

typedef struct both {
    d9di_fast_split *scanner;
    d9di_split_pattern *pattern;
    d9di_split_pattern_matcher *matcher;
    d9d_buf shadow;
} both;

static void check(both *b, const char *text, size_t n)
{
    size_t ends[MAX_ENDS], count = 0, start, end, at = 0;
    const char *shadow;
    d9di_split_pattern_iter search;
    bool found;

    assert_ok(d9di_split_pattern_shadow(text, n, &b->shadow, &shadow));
    d9di_split_pattern_iter_init(&search, b->pattern, b->matcher, shadow, n);
    count = d9di_fast_split_find(b->scanner, text, n, 0, ends, MAX_ENDS);
    for (size_t i = 0; i < count; i++) {
        assert_ok(d9di_split_pattern_iter_next(&search, &start, &end, &found));
        if (!found || start != at || end != ends[i])
            fail_msg("\"%.*s\": pretoken %zu is [%zu, %zu), PCRE2 has [%zu, %zu)", (int)n, text, i,
                     at, ends[i], start, end);
        at = end;
    }
    assert_int_equal(at, n);
}

/* All characters, alone and between others. */
static void check_characters(both *b)
{
    static const char *const contexts[][2] = {{"", ""},     {"a", "b"},  {" ", "a"},   {"1", "2"},
                                              {"'", "s"},   {"  ", ""},  {"\n", "\n"}, {".", "."},
                                              {" '", "ll"}, {"\t", " x"}};

    for (uint32_t c = 1; c < 0x110000; c++) {
        char text[64];
        size_t n = 0;

        if (c >= 0xd800 && c < 0xe000)
            continue;
        /* Beyond the assigned planes, a sample. */
        if (c > 0x32000 && c % 257 != 0 && (c < 0xe0000 || c >= 0xe0200))
            continue;
        for (size_t i = 0; i < sizeof(contexts) / sizeof(contexts[0]); i++) {
            const size_t before = strlen(contexts[i][0]), after = strlen(contexts[i][1]);

            memcpy(text, contexts[i][0], before);
            n = before + d9di_utf8_encode(c, text + before);
            memcpy(text + n, contexts[i][1], after);
            check(b, text, n + after);
        }
    }
}

static uint32_t below(uint64_t *x, uint32_t n)
{
    *x = *x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*x >> 33) % n;
}

static uint32_t draw(uint64_t *x)
{
    static const char some[] = "aeSsTtRrEeVvMmLlDd''''   \t\n\r\n019.,-_";
    static const uint32_t others[] = {0x17f, 0xa0,   0x3000, 0x85,   0x2028,  0xe9,
                                      0x301, 0x4e00, 0x660,  0x2160, 0x1f600, 0x200d,
                                      0x93f, 0x180e, 0xb2,   0x10400};

    if (below(x, 3) > 0)
        return (unsigned char)some[below(x, sizeof(some) - 1)];
    return others[below(x, sizeof(others) / sizeof(others[0]))];
}

static void check_random(both *b, uint64_t seed)
{
    uint64_t x = seed;

    for (int turn = 0; turn < 50000; turn++) {
        const uint32_t len = 1 + below(&x, 24);
        char text[128];
        size_t n = 0;

        for (uint32_t i = 0; i < len; i++)
            n += d9di_utf8_encode(draw(&x), text + n);
        check(b, text, n);
    }
}

static void test_like_pcre(void **state)
{
    const char *pattern;

    (void)state;
    for (size_t i = 0; (pattern = d9di_fast_split_pattern(i)) != NULL; i++) {
        both b = {.scanner = NULL};

        assert_ok(d9di_fast_split_create(pattern, strlen(pattern), &b.scanner));
        assert_non_null(b.scanner);
        assert_ok(d9di_split_pattern_create("p", pattern, strlen(pattern), false, &b.pattern));
        assert_ok(d9di_split_pattern_matcher_create(&b.matcher));
        check_characters(&b);
        check_random(&b, i);
        d9di_fast_split_free(b.scanner);
        d9di_split_pattern_free(b.pattern);
        d9di_split_pattern_matcher_free(b.matcher);
        d9d_buf_release(&b.shadow);
    }
}

/* Runs end at the given limit, and continue from there. */
static void test_in_parts(void **state)
{
    static const char text[] = "one two three";
    const char *pattern = d9di_fast_split_pattern(0);
    d9di_fast_split *s;
    size_t ends[2];

    (void)state;
    assert_ok(d9di_fast_split_create("\\w+", 3, &s));
    assert_null(s);
    assert_ok(d9di_fast_split_create(pattern, strlen(pattern), &s));
    assert_int_equal(d9di_fast_split_find(s, text, sizeof(text) - 1, 0, ends, 2), 2);
    assert_int_equal(ends[1], 7);
    assert_int_equal(d9di_fast_split_find(s, text, sizeof(text) - 1, ends[1], ends, 2), 1);
    assert_int_equal(ends[0], 13);
    assert_int_equal(d9di_fast_split_find(s, text, sizeof(text) - 1, ends[0], ends, 2), 0);
    d9di_fast_split_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_like_pcre),
        cmocka_unit_test(test_in_parts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
