/* test_golden_post_processor.c - the special tokens around a text and a pair, against HF
 * tokenizers: published shapes, random ones, and those with which HF fails. */
#include "support/unit.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "d9d/base/json.h"
#include "d9d/data/tokenizer/tokenizer.h"
#include "support/vectors.h"

enum { MAX_LINE = 1 << 20 };

/* A tokenizer of words with this post-processor. */
static d9d_tokenizer *make_tokenizer(const json_t *post_processor)
{
    static const char *const words[] = {"a", "b", "c", "[CLS]", "[SEP]", "<s>", "</s>", "<|x|>"};
    json_t *vocab = json_object(), *root;
    d9d_tokenizer *tok = NULL;
    char *text;

    for (int i = 0; i < 8; i++)
        assert_int_equal(json_object_set_new(vocab, words[i], json_integer(i)), 0);
    root = json_pack("{s:O, s:{s:s}, s:{s:s, s:o, s:s}}", "post_processor", post_processor,
                     "pre_tokenizer", "type", "WhitespaceSplit", "model", "type", "WordLevel",
                     "vocab", vocab, "unk_token", "a");
    text = json_dumps(root, 0);
    assert_non_null(text);
    assert_ok(d9d_tokenizer_parse("t.json", text, strlen(text), &tok));
    free(text);
    json_decref(root);
    return tok;
}

static void check_ids(const d9d_tokenizer *tok, const char *name, bool pair, const json_t *want,
                      const json_t *count)
{
    uint32_t ids[] = {0, 1, 2};
    const d9d_token_ids a = {.data = ids, .len = 2, .cap = 2},
                        b = {.data = ids + 2, .len = 1, .cap = 1};
    d9d_token_ids got = {0};
    size_t n = 0;
    const d9d_status st = d9d_tokenizer_add_special(tok, &a, pair ? &b : NULL, &got);

    assert_int_equal(d9d_tokenizer_count_special(tok, pair, &n), st);
    if ((st != D9D_OK) != json_is_null(want))
        fail_msg("%s, %d: %s", name, pair, st == D9D_OK ? "HF fails" : d9d_err_message());
    if (st != D9D_OK)
        unit_check_has(d9d_err_message(), "t.json: post_processor", __FILE__, __LINE__);
    if (st == D9D_OK && got.len != json_array_size(want))
        fail_msg("%s, %d: %zu ids, HF has %zu", name, pair, got.len, json_array_size(want));
    for (size_t i = 0; i < got.len; i++)
        if (got.data[i] != (uint32_t)json_integer_value(json_array_get(want, i)))
            fail_msg("%s, %d: ids[%zu] is %u", name, pair, i, got.data[i]);
    if (json_is_integer(count))
        assert_int_equal(n, json_integer_value(count));
    D9D_VEC_RELEASE(&got);
}

static void check_line(const char *text)
{
    json_error_t e;
    json_t *v = json_loads(text, 0, &e);
    const char *name = json_string_value(json_object_get(v, "name"));
    const json_t *count = json_object_get(v, "special");
    d9d_tokenizer *tok;

    if (!name)
        fail_msg("%s", e.text);
    tok = make_tokenizer(json_object_get(v, "post_processor"));
    check_ids(tok, name, false, json_object_get(v, "single"), json_array_get(count, 0));
    check_ids(tok, name, true, json_object_get(v, "pair"), json_array_get(count, 1));
    d9d_tokenizer_free(tok);
    json_decref(v);
}

static void test_vectors(void **state)
{
    gzFile in = gzopen(vectors_path("tokenizer", "post_processors.jsonl.gz"), "rb");
    char *line = malloc(MAX_LINE);
    size_t n = 0;

    (void)state;
    assert_non_null(in);
    assert_non_null(line);
    for (; gzgets(in, line, MAX_LINE); n++)
        check_line(line);
    assert_true(n > 300);
    gzclose(in);
    free(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_vectors)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
