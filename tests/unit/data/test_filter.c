/* test_filter.c - words, the signatures' recall against its formula, groups of duplicates, and
 * runs: the same bytes on any number of threads.  Rules of texts are in
 * tests/golden/test_golden_filter.c. */
#include "support/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/data/filter/filter.h"
#include "data/filter/contamination.h"
#include "data/filter/duplicates.h"
#include "data/filter/minhash.h"
#include "data/filter/text_rules.h"

static void test_words(void **state)
{
    static const char text[] = "\xc3\x89t\xc3\xa9, it's\xc2\xa0"
                               "3.5\x1cX_y ";
    d9di_text_words w = {.n = 0};

    (void)state;
    assert_ok(d9di_text_words_split(&w, text, strlen(text)));
    assert_int_equal(w.n, 4);
    assert_memory_equal(w.spaced.data, "\xc3\x89t\xc3\xa9, it's 3.5 X_y ", w.spaced.len);
    assert_memory_equal(w.tight.data, "\xc3\x89t\xc3\xa9,it's3.5X_y", w.tight.len);
    assert_int_equal(w.at.data[1].chars, 4);
    assert_ok(d9di_text_words_fold(&w, text, strlen(text)));
    assert_int_equal(w.n, 6);
    assert_memory_equal(w.spaced.data, "\xc3\xa9t\xc3\xa9 it s 3 5 x_y ", w.spaced.len);
    assert_ok(d9di_text_words_fold(&w, "", 0));
    assert_int_equal(w.n, 0);
    d9di_text_words_release(&w);
}

/* Words "N N+1 ..." of [from, upto), which as shingles of one word are the numbers themselves. */
static void sign_numbers(const d9di_minhash *m, unsigned from, unsigned upto, unsigned salt,
                         uint64_t *keys)
{
    d9di_text_words w = {.n = 0};
    uint32_t *signature = malloc(m->n * sizeof(*signature));
    d9d_buf text = {0};

    for (unsigned i = from; i < upto; i++)
        assert_ok(d9d_buf_printf(&text, "%u_%u ", salt, i));
    assert_ok(d9di_text_words_fold(&w, text.data, text.len));
    d9di_minhash_sign(m, &w, signature);
    d9di_minhash_keys(m, signature, keys);
    d9d_buf_release(&text);
    d9di_text_words_release(&w);
    free(signature);
}

/* Pairs of known similarity share a band as often as 1 - (1 - s^rows)^bands says. */
static void test_recall(void **state)
{
    enum { PAIRS = 400, WORDS = 60 };
    static const unsigned shared[] = {20, 36, 42, 48, 54};
    d9di_minhash m;
    uint64_t keys[2][32];

    (void)state;
    assert_ok(d9di_minhash_init(&m, 14, 8, 1, 7));
    for (size_t i = 0; i < sizeof(shared) / sizeof(shared[0]); i++) {
        const double s = shared[i] / (2.0 * WORDS - shared[i]);
        const double p = 1 - pow(1 - pow(s, 8), 14);
        int found = 0;

        for (unsigned pair = 0; pair < PAIRS; pair++) {
            bool any = false;

            sign_numbers(&m, 0, WORDS, pair, keys[0]);
            sign_numbers(&m, WORDS - shared[i], 2 * WORDS - shared[i], pair, keys[1]);
            for (int b = 0; b < 14; b++)
                any = any || keys[0][b] == keys[1][b];
            found += any;
        }
        if (fabs(found - PAIRS * p) > 4 * sqrt(PAIRS * p * (1 - p)) + 2)
            fail_msg("similarity %.3f: %d of %d pairs, must be %.1f", s, found, PAIRS, PAIRS * p);
    }
    d9di_minhash_release(&m);
}

/* Groups by text and by bands, over others; the first of each stays. */
static void test_groups(void **state)
{
    static const struct {
        uint64_t text, keys[2];
        uint32_t first;
        bool exact;
    } docs[] = {
        {1, {10, 20}, 0, false}, {2, {11, 21}, 1, false}, {1, {10, 20}, 0, true},
        {3, {12, 21}, 1, false}, {4, {12, 22}, 1, false}, {5, {0, 0}, 5, false},
        {6, {0, 0}, 6, false},   {7, {13, 20}, 0, false}, {2, {11, 21}, 1, true},
    };
    d9di_duplicates d;

    (void)state;
    assert_ok(d9di_duplicates_open(&d, ".", true, 2));
    for (size_t i = 0; i < 9; i++)
        assert_ok(d9di_duplicates_add(&d, (d9d_hash){0, docs[i].text}, docs[i].keys));
    assert_true(d9d_fs_exists("band-000"));
    assert_ok(d9di_duplicates_find(&d));
    for (size_t i = 0; i < 9; i++) {
        assert_int_equal(d.first[i], docs[i].first);
        assert_int_equal(d.exact[i], docs[i].exact);
    }
    d9di_duplicates_release(&d);
    assert_false(d9d_fs_exists("band-000"));
    assert_false(d9d_fs_exists("band-001"));
}

static void put_file(const char *path, const char *text)
{
    assert_ok(d9d_fs_write_atomic(path, text, strlen(text)));
}

static void test_contamination(void **state)
{
    static const char *const paths[] = {"eval.jsonl"};
    static const struct {
        const char *text;
        bool found;
    } cases[] = {{"so One, TWO three  four", true},
                 {"one two three", false},
                 {"q r s t u", true},
                 {"", false}};
    d9di_contamination c = {.n = 0};
    d9di_text_words w = {.n = 0};

    (void)state;
    put_file("eval.jsonl", "{\"a\": [\"one two three four.\", 7], \"b\": {\"c\": \"q r s t\"}}\n\n"
                           "plain text of words\n{\"d\": \"x y\"}\n");
    assert_ok(d9di_contamination_read(paths, 1, 4, &c));
    assert_int_equal(c.n, 3);
    assert_int_equal(c.texts, 4);
    assert_int_equal(c.too_short, 1);
    for (size_t i = 0; i < 4; i++) {
        assert_ok(d9di_text_words_fold(&w, cases[i].text, strlen(cases[i].text)));
        assert_int_equal(d9di_contamination_find(&c, &w), cases[i].found);
    }
    d9di_text_words_release(&w);
    d9di_contamination_release(&c);
    put_file("eval.jsonl", "{\"a\": 1}\n{\"a\"\n");
    assert_fails_like(d9di_contamination_read(paths, 1, 4, &c), D9D_EFORMAT, "eval.jsonl: line 2");
}

/* A sentence with a line end, in files of all kinds. */
static void test_contamination_files(void **state)
{
    static const struct {
        const char *name, *content;
    } files[] = {
        {"lines.jsonl", "{\"q\": \"one two\\nthree four\"}\n"},
        {"mark.jsonl", "\xef\xbb\xbf{\"q\": \"one two\\nthree four\"}\n"},
        {"array.json", " [\n {\"q\": \"one two\\nthree four\"},\n {\"q\": 1}\n]\n"},
        {"table.csv", "q,a\r\n\"one two\nthree four\",5\r\n"},
        {"table.tsv", "q\ta\n\"one two\r\nthree four\"\t5"},
        {"text.txt", "[{a\none two three four\n"},
        {"list.json", "[\"one two three four\"]\n[\"five\"]\n"},
    };
    static const char found[] = "zero one two three four five";
    d9di_text_words w = {.n = 0};

    (void)state;
    assert_ok(d9di_text_words_fold(&w, found, strlen(found)));
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        d9di_contamination c = {.n = 0};

        put_file(files[i].name, files[i].content);
        assert_ok(d9di_contamination_read(&files[i].name, 1, 4, &c));
        assert_true(d9di_contamination_find(&c, &w));
        d9di_contamination_release(&c);
    }
    d9di_text_words_release(&w);
}

/* Texts of which every third is that of an earlier document, with words changed. */
static void write_corpus(const char *path, int n)
{
    d9d_buf b = {0};

    for (int i = 0; i < n; i++) {
        const int of = i % 3 == 2 ? i - 2 : i;

        assert_ok(d9d_buf_printf(&b, "{\"n\": %d, \"text\": \"", i));
        for (int k = 0; k < 200; k++)
            assert_ok(d9d_buf_printf(&b, "w%d ", i % 6 == 5 && k == 7 ? i : of * 1000 + k));
        assert_ok(d9d_buf_printf(&b, "\"}\n"));
    }
    assert_ok(d9d_fs_write_atomic(path, b.data, b.len));
    d9d_buf_release(&b);
}

static void test_threads(void **state)
{
    enum { N = 3000 };
    static const char *const inputs[] = {"corpus.jsonl"};
    d9d_hash first = {0, 0}, hash;
    d9d_filter_report made;
    uint64_t bytes;

    (void)state;
    write_corpus(inputs[0], N);
    for (int jobs = 1; jobs <= 5; jobs += 2) {
        const d9d_filter_opts opts = {.inputs = inputs,
                                      .n_inputs = 1,
                                      .out = "out",
                                      .exact = true,
                                      .similarity = 0.7,
                                      .seed = 1,
                                      .jobs = jobs,
                                      .replace = true};

        assert_ok(d9d_filter_run(&opts, NULL, &made));
        assert_int_equal(made.read, N);
        assert_int_equal(made.kept, 2 * N / 3);
        assert_int_equal(made.removed[D9DI_TEXT_RULE_EXACT], N / 6);
        assert_int_equal(made.removed[D9DI_TEXT_RULE_NEAR], N / 6);
        assert_ok(d9d_hash_file("out/documents.jsonl", &hash, &bytes));
        assert_true(jobs == 1 || d9d_hash_equal(hash, first));
        first = hash;
        assert_false(d9d_fs_exists("out/band-000"));
    }
}

static void test_refusals(void **state)
{
    static const char *const inputs[] = {"docs.jsonl"}, *const stdin_input[] = {"-"};
    static const struct {
        d9d_filter_opts opts;
        const char *part;
    } cases[] = {
        {{.inputs = inputs}, "nothing to filter by"},
        {{.inputs = stdin_input, .exact = true}, "standard input: inputs are read twice"},
        {{.inputs = inputs, .exact = true, .bands = 3}, "are for --near-duplicates"},
        {{.inputs = inputs, .similarity = 1.5}, "must be above 0 and below 1"},
        {{.inputs = inputs, .similarity = 0.5, .bands = 3}, "give both --bands and --rows"},
        {{.inputs = inputs, .similarity = 0.5, .bands = 30, .rows = 9},
         "30 bands of 9 rows are more than 256 hashes"},
        {{.inputs = inputs, .exact = true, .lines = true}, "--lines is for --format text"},
        {{.inputs = inputs, .quality = true, .thresholds = "no_rule=1"},
         "--threshold: there is no rule \"no_rule\""},
        {{.inputs = inputs, .quality = true, .thresholds = "dup_line_frac=1"},
         "dup_line_frac is of a group that is not asked for"},
        {{.inputs = inputs, .quality = true, .thresholds = "gopher_short_doc"},
         "must be gopher_short_doc=NUMBER"},
    };

    (void)state;
    put_file("docs.jsonl", "{\"text\": \"a\"}\n");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        d9d_filter_opts opts = cases[i].opts;
        d9d_filter_report made;

        opts.n_inputs = 1;
        opts.out = "out";
        assert_fails_like(d9d_filter_run(&opts, NULL, &made), D9D_ECONFIG, cases[i].part);
        assert_false(d9d_fs_exists("out"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_recall),
        unit_test_in_dir(test_groups),
        unit_test_in_dir(test_contamination),
        unit_test_in_dir(test_contamination_files),
        unit_test_in_dir(test_threads),
        unit_test_in_dir(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
