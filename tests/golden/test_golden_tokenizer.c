/* test_golden_tokenizer.c - ids against HF tokenizers, text by text; decoding gives the text
 * back wherever nothing was normalised away. */
#include "support/unit.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "d9d/base/fs.h"
#include "d9d/data/tokenizer/tokenizer.h"
#include "support/vectors.h"

typedef struct fixture {
    d9d_tokenizer *tok;
    d9d_tokenizer_scratch *scratch;
    d9d_token_ids ids;
    d9d_buf back;
    size_t lines;
} fixture;

static bool same_ids(const d9d_token_ids *got, const json_t *want)
{
    if (got->len != json_array_size(want))
        return false;
    for (size_t i = 0; i < got->len; i++)
        if (got->data[i] != (uint32_t)json_integer_value(json_array_get(want, i)))
            return false;
    return true;
}

/* What a text was encoded to decodes to text; to this one, where it is given and HF has not put
 * replacement characters into it. */
static void check_back(fixture *f, const char *where, const json_t *decoded)
{
    const size_t n = f->ids.len;
    uint32_t *first = malloc((n + 1) * sizeof(*first));

    assert_non_null(first);
    for (size_t i = 0; i < n; i++)
        first[i] = f->ids.data[i];
    f->back.len = 0;
    assert_ok(d9d_tokenizer_decode(f->tok, first, n, 0, &f->back));
    if (d9d_utf8_valid_up_to(f->back.data ? f->back.data : "", f->back.len) != f->back.len)
        fail_msg("%s: decodes to what is not UTF-8", where);
    if (decoded && !strstr(json_string_value(decoded), "\xef\xbf\xbd") &&
        (f->back.len != json_string_length(decoded) ||
         memcmp(f->back.data, json_string_value(decoded), f->back.len) != 0))
        fail_msg("%s: line %zu: decodes to \"%.200s\", not \"%.200s\"", where, f->lines + 1,
                 f->back.data, json_string_value(decoded));
    free(first);
}

static void check_line(fixture *f, const char *where, const char *line, size_t n)
{
    json_error_t e;
    json_t *v = json_loadb(line, n, JSON_ALLOW_NUL, &e);
    const json_t *text = json_object_get(v, "text"), *ids = json_object_get(v, "ids");

    if (!json_is_string(text) || !json_is_array(ids))
        fail_msg("%s: line %zu: %s", where, f->lines + 1, e.text);
    f->ids.len = 0;
    assert_ok(d9d_tokenizer_encode(f->tok, f->scratch, json_string_value(text),
                                   json_string_length(text), &f->ids));
    if (!same_ids(&f->ids, ids))
        fail_msg("%s: line %zu: other ids (%zu for %zu): %.200s", where, f->lines + 1, f->ids.len,
                 json_array_size(ids), json_string_value(text));
    check_back(f, where, json_object_get(v, "decoded"));
    f->lines++;
    json_decref(v);
}

static void check_file(fixture *f, const char *name)
{
    const char *path = vectors_path("tokenizer", name);
    gzFile in = gzopen(path, "rb"); /* reads plain files too */
    size_t cap = 1 << 24, len = 0;
    char *line = malloc(cap);

    assert_non_null(in);
    assert_non_null(line);
    while (gzgets(in, line + len, (int)(cap - len)) != NULL) {
        len += strlen(line + len);
        assert_true(len > 0 && line[len - 1] == '\n');
        check_line(f, name, line, len - 1);
        len = 0;
    }
    gzclose(in);
    free(line);
}

/* A tokenizer, and the files that were made with it. */
struct family {
    const char *tokenizer, *files[4];
};

static void check_family(const char *tokenizer, const char *const *files)
{
    fixture f = {.lines = 0};

    assert_ok(d9d_tokenizer_load(tokenizer, &f.tok));
    assert_ok(d9d_tokenizer_scratch_create(f.tok, &f.scratch));
    for (; *files != NULL; files++) {
        f.lines = 0;
        check_file(&f, *files);
        assert_true(f.lines > 0);
    }
    d9d_tokenizer_scratch_free(f.scratch);
    d9d_tokenizer_free(f.tok);
    D9D_VEC_RELEASE(&f.ids);
    d9d_buf_release(&f.back);
}

static void test_families(void **state)
{
    static const struct family families[] = {
        {"gpt2.tokenizer.json", {"gpt2.jsonl", "gpt2-random.jsonl.gz"}},
        {"gpt2-prefix.tokenizer.json", {"gpt2-prefix.jsonl", "gpt2-prefix-random.jsonl.gz"}},
        {"llama3.tokenizer.json", {"llama3.jsonl", "llama3-random.jsonl.gz"}},
        {"flags.tokenizer.json", {"flags.jsonl", "flags-random.jsonl.gz"}},
        {"llama2.tokenizer.json", {"llama2.jsonl.gz"}},
        {"metaspace.tokenizer.json", {"metaspace.jsonl.gz"}},
        {"metaspace-never.tokenizer.json", {"metaspace-never.jsonl.gz"}},
        {"metaspace-always.tokenizer.json", {"metaspace-always.jsonl.gz"}},
        {"digits.tokenizer.json", {"digits.jsonl.gz"}},
        {"splits.tokenizer.json", {"splits.jsonl.gz"}},
        {"nfkc.tokenizer.json", {"nfkc.jsonl.gz"}},
        {"nfkd.tokenizer.json", {"nfkd.jsonl.gz"}},
        {"whitespace.tokenizer.json", {"whitespace.jsonl.gz"}},
        {"punctuation.tokenizer.json", {"punctuation.jsonl.gz"}},
        {"punctuation-contiguous.tokenizer.json", {"punctuation-contiguous.jsonl.gz"}},
        {"falcon.tokenizer.json", {"falcon.jsonl.gz"}},
        {"bloom.tokenizer.json", {"bloom.jsonl.gz"}},
        {"words.tokenizer.json", {"words.jsonl.gz"}},
        {"flags-normal.tokenizer.json", {"flags-normal.jsonl.gz"}},
        {"t5.tokenizer.json", {"t5.jsonl.gz"}},
        {"unigram-bytes.tokenizer.json", {"unigram-bytes.jsonl.gz"}},
        {"unigram-spelled.tokenizer.json", {"unigram-spelled.jsonl.gz"}},
        {"bert.tokenizer.json", {"bert.jsonl.gz"}},
        {"bert-cased.tokenizer.json", {"bert-cased.jsonl.gz"}},
        {"wordlevel.tokenizer.json", {"wordlevel.jsonl.gz"}},
        {"clip.tokenizer.json", {"clip.jsonl.gz"}},
        {"bpe-suffix.tokenizer.json", {"bpe-suffix.jsonl.gz"}},
        {"bpe-prefix.tokenizer.json", {"bpe-prefix.jsonl.gz"}},
        {"gemma.tokenizer.json", {"gemma.jsonl.gz"}},
        {"gemma-fused.tokenizer.json", {"gemma-fused.jsonl.gz"}},
        {"spelled.tokenizer.json", {"spelled.jsonl.gz"}},
        {"deepseek.tokenizer.json", {"deepseek.jsonl.gz"}},
        {"o200k.tokenizer.json", {"o200k.jsonl.gz"}},
        {"../../../examples/tokenizer/tokenizer.json",
         {"demo.jsonl", "demo-random.jsonl.gz", "demo-long.jsonl.gz"}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        check_family(vectors_path("tokenizer", families[i].tokenizer), families[i].files);
}

/* The published vocabulary is not kept in the repository: D9D_QWEN3_TOKENIZER names it, or it
 * lies beside the checkout. */
static void test_qwen3(void **state)
{
    static const char *const files[] = {"qwen3.jsonl", "qwen3-random.jsonl.gz",
                                        "qwen3-long.jsonl.gz", NULL};
    const char *path = getenv("D9D_QWEN3_TOKENIZER");
    char beside[4096];

    (void)state;
    if (!path) {
        snprintf(beside, sizeof(beside), "%s",
                 vectors_path("../../../shared/data/qwen3-tokenizer", "tokenizer.json"));
        path = beside;
    }
    if (!d9d_fs_exists(path)) {
        print_message("# no Qwen3 tokenizer: set D9D_QWEN3_TOKENIZER\n");
        skip();
    }
    check_family(path, files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_qwen3),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
