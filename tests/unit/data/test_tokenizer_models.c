/* test_tokenizer_models.c - models other than byte-level BPE, with small vocabularies: ids, their
 * bytes, decoding; charsmaps; files of other tokenizers. */
#include "support/unit.h"

#include <stdio.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/data/tokenizer/tokenizer.h"
#include "data/tokenizer/charsmap.h"
#include "data/tokenizer/tokenizer_private.h"

#define SPACE "\xe2\x96\x81" /* U+2581 */

/* A text, its ids, their offsets, and the decoded text. */
struct text {
    const char *text, *ids, *spans, *decoded;
};

static const char metaspace[] =
    "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"" SPACE
    "\", \"prepend_scheme\": \"always\"}, \"decoder\": {\"type\": \"Metaspace\", "
    "\"replacement\": \"" SPACE "\", \"prepend_scheme\": \"always\"}, ";

static const char unigram[] =
    "{%s\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, \"byte_fallback\": %s, \"vocab\": "
    "[[\"<unk>\", 0], [\"" SPACE
    "\", -2], [\"a\", -1], [\"aa\", -2.5], [\"aaa\", -2], [\"b\", -3], "
    "[\"<0x78>\", 0], [\"<0xC3>\", 0], [\"<0xA9>\", 0], [\"b\", -4]]}}";

static const char wordpiece[] =
    "{\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, \"decoder\": {\"type\": \"WordPiece\", "
    "\"prefix\": \"##\", \"cleanup\": %s}, \"model\": {\"unk_token\": \"?\", "
    "\"continuing_subword_prefix\": \"##\", \"max_input_chars_per_word\": 6, \"vocab\": {\"?\": 0, "
    "\"un\": 1, \"##a\": 2, \"##able\": 3, \"una\": 4, \"!\": 5, \"\xc3\xa9\": 6, \"##\": 7}}}";

static const char suffixed[] =
    "{\"pre_tokenizer\": {\"type\": \"WhitespaceSplit\"}, \"decoder\": {\"type\": \"BPEDecoder\", "
    "\"suffix\": \"_\"}, \"model\": {\"type\": \"BPE\", \"end_of_word_suffix\": \"_\", "
    "\"continuing_subword_prefix\": \"#\", \"vocab\": {\"a\": 0, \"#b\": 1, \"#b_\": 2, \"ab\": 3, "
    "\"a_\": 4, \"ab_\": 5}, \"merges\": [\"a #b\", \"a #b_\"]}}";

/* An unknown character after the bytes of another, as in HF. */
static const char some_bytes[] =
    "{\"decoder\": {\"type\": \"ByteFallback\"}, \"model\": {\"type\": \"BPE\", \"unk_token\": "
    "\"?\", "
    "\"byte_fallback\": true, \"merges\": [], \"vocab\": {\"?\": 0, \"a\": 1, \"<0xC3>\": 2, "
    "\"<0xA9>\": 3}}}";

static void format_ids(const d9d_token_ids *ids, d9d_buf *out)
{
    out->len = 0;
    for (size_t i = 0; i < ids->len; i++)
        assert_ok(d9d_buf_printf(out, "%s%u", i > 0 ? " " : "", ids->data[i]));
    assert_ok(d9d_buf_append(out, "", 0));
}

static void format_spans(const d9di_alignments *spans, d9d_buf *out)
{
    out->len = 0;
    for (size_t i = 0; i < spans->len; i++)
        assert_ok(d9d_buf_printf(out, "%s%u-%u", i > 0 ? " " : "", spans->data[i].from,
                                 spans->data[i].to));
    assert_ok(d9d_buf_append(out, "", 0));
}

static void check_text(const d9d_tokenizer *tok, const struct text *t)
{
    d9d_tokenizer_scratch *s;
    d9di_alignments spans = {0};
    d9d_token_ids ids = {0}, traced = {0};
    d9d_buf out = {0};

    assert_ok(d9d_tokenizer_scratch_create(tok, &s));
    assert_ok(d9d_tokenizer_encode(tok, s, t->text, strlen(t->text), &ids));
    format_ids(&ids, &out);
    assert_string_equal(out.data, t->ids);
    assert_ok(d9di_tokenizer_encode_data(tok, s, t->text, strlen(t->text), NULL, &traced, &spans));
    format_ids(&traced, &out);
    assert_string_equal(out.data, t->ids);
    format_spans(&spans, &out);
    assert_string_equal(out.data, t->spans);
    out.len = 0;
    assert_ok(d9d_tokenizer_decode(tok, ids.data, ids.len, 0, &out));
    assert_string_equal(out.data, t->decoded);
    D9D_VEC_RELEASE(&spans);
    D9D_VEC_RELEASE(&ids);
    D9D_VEC_RELEASE(&traced);
    d9d_buf_release(&out);
    d9d_tokenizer_scratch_free(s);
}

static void check_model(const char *json, const struct text *texts, size_t n)
{
    d9d_tokenizer *tok;

    assert_ok(d9d_tokenizer_parse("t.json", json, strlen(json), &tok));
    for (size_t i = 0; i < n; i++)
        check_text(tok, &texts[i]);
    d9d_tokenizer_free(tok);
}

/* "aaa" has a better score than its parts.  The last of two equal tokens counts.  Adjacent unknown
 * characters are one token, or the bytes of each if all have one. */
static void test_unigram(void **state)
{
    static const struct text unknown[] = {
        {"aaaa", "1 2 4", "0-1 0-1 1-4", "aaaa"},
        {"b xyb", "1 9 1 0 9", "0-1 0-1 1-2 2-4 4-5", "b <unk>b"},
    };
    static const struct text bytes[] = {
        {"x\xc3\xa9", "6 7 8", "0-1 1-2 2-3", "<0x78><0xC3><0xA9>"},
        {"xya", "0 2", "0-2 2-3", "<unk>a"},
    };
    char json[1024];

    (void)state;
    snprintf(json, sizeof(json), unigram, metaspace, "false");
    check_model(json, unknown, 2);
    snprintf(json, sizeof(json), unigram, "\"decoder\": {\"type\": \"Fuse\"}, ", "true");
    check_model(json, bytes, 2);
}

/* Without unk_id a character that is not a token is an error. */
static void test_unigram_without_unk(void **state)
{
    static const char json[] = "{\"model\": {\"type\": \"Unigram\", \"unk_id\": null, \"vocab\": "
                               "[[\"a\", -1.5]]}}";
    d9d_tokenizer_scratch *s;
    d9d_tokenizer *tok;
    d9d_token_ids ids = {0};

    (void)state;
    assert_ok(d9d_tokenizer_parse("t.json", json, sizeof(json) - 1, &tok));
    assert_ok(d9d_tokenizer_scratch_create(tok, &s));
    assert_ok(d9d_tokenizer_encode(tok, s, "aa", 2, &ids));
    assert_int_equal(ids.len, 2);
    assert_fails(d9d_tokenizer_encode(tok, s, "ab", 2, &ids), D9D_EFORMAT,
                 "\"b\" is no token, and the model has no unk_id");
    assert_int_equal(ids.len, 2);
    D9D_VEC_RELEASE(&ids);
    d9d_tokenizer_scratch_free(s);
    d9d_tokenizer_free(tok);
}

/* The longest token first, even if a shorter one would leave parts that are tokens. */
static void test_wordpiece(void **state)
{
    static const struct text texts[] = {
        {"unaa un!", "4 2 1 5", "0-3 3-4 5-7 7-8", "unaa un!"},
        {"unable una", "0 4", "0-6 7-10", "? una"},
        {"unxable", "0", "0-7", "?"},
        {"\xc3\xa9\xc3\xa9", "0", "0-4", "?"},
    };
    static const struct text spaced[] = {{"un !", "1 5", "0-2 3-4", "un !"}};
    char json[1024];

    (void)state;
    snprintf(json, sizeof(json), wordpiece, "true");
    check_model(json, texts, 4);
    snprintf(json, sizeof(json), wordpiece, "false");
    check_model(json, spaced, 1);
}

static void test_wordlevel(void **state)
{
    static const char json[] =
        "{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"WordLevel\", "
        "\"unk_token\": \"?\", \"vocab\": {\"\xc4\xa0na\": 0, \"\xc3\x83\xc2\xa9\": 1}}}";
    d9d_tokenizer_scratch *s;
    d9d_tokenizer *tok;
    d9d_token_ids ids = {0};

    (void)state;
    assert_ok(d9d_tokenizer_parse("t.json", json, sizeof(json) - 1, &tok));
    assert_ok(d9d_tokenizer_scratch_create(tok, &s));
    assert_ok(d9d_tokenizer_encode(tok, s, "na na", 5, &ids));
    assert_int_equal(ids.len, 2);
    assert_fails_like(d9d_tokenizer_encode(tok, s, "ab", 2, &ids), D9D_EFORMAT,
                      "ab\" is no token, and the vocabulary lacks unk_token");
    D9D_VEC_RELEASE(&ids);
    d9d_tokenizer_scratch_free(s);
    d9d_tokenizer_free(tok);
}

static void test_bpe(void **state)
{
    static const struct text affixes[] = {
        {"ab abb a", "5 3 2 4", "0-2 3-5 5-6 7-8", "ab ab#b a"},
    };

    (void)state;
    check_model(suffixed, affixes, 1);
}

/* "first" prepends to the beginning of the raw text, not to what is left of it. */
static void test_first(void **state)
{
    static const char json[] =
        "{\"normalizer\": {\"type\": \"Strip\"}, \"pre_tokenizer\": {\"type\": \"Metaspace\", "
        "\"replacement\": \"_\", \"prepend_scheme\": \"first\"}, \"decoder\": {\"type\": "
        "\"Fuse\"}, \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {\"_\": 0, "
        "\"a\": 1}}}";
    static const struct text texts[] = {
        {"a a ", "0 1 0 1", "0-1 0-1 1-2 2-3", "_a_a"},
        {" a a", "1 0 1", "1-2 2-3 3-4", "a_a"},
    };

    (void)state;
    check_model(json, texts, 2);
}

/* Only the order of ids matters here. */
static void test_some_bytes(void **state)
{
    static const uint32_t want[] = {1, 2, 3, 0, 1};
    d9d_tokenizer_scratch *s;
    d9d_tokenizer *tok;
    d9d_token_ids ids = {0};

    (void)state;
    assert_ok(d9d_tokenizer_parse("t.json", some_bytes, sizeof(some_bytes) - 1, &tok));
    assert_ok(d9d_tokenizer_scratch_create(tok, &s));
    assert_ok(d9d_tokenizer_encode(tok, s,
                                   "ay\xc3\xa9"
                                   "a",
                                   5, &ids));
    assert_int_equal(ids.len, 5);
    assert_memory_equal(ids.data, want, sizeof(want));
    D9D_VEC_RELEASE(&ids);
    d9d_tokenizer_scratch_free(s);
    d9d_tokenizer_free(tok);
}

/* The last written token ends the text, not a special one after it. */
static void test_places(void **state)
{
    static const char json[] =
        "{\"added_tokens\": [{\"id\": 2, \"content\": \"<s>\", \"special\": true}], \"decoder\": "
        "{\"type\": \"BPEDecoder\", \"suffix\": \"_\"}, \"model\": {\"type\": \"BPE\", \"merges\": "
        "[], \"vocab\": {\"a_\": 0, \"b_\": 1}}}";
    const uint32_t ids[] = {2, 0, 1, 2};
    d9d_tokenizer *tok;
    d9d_buf out = {0};

    (void)state;
    assert_ok(d9d_tokenizer_parse("t.json", json, sizeof(json) - 1, &tok));
    assert_ok(d9d_tokenizer_decode(tok, ids, 4, D9D_TOKENIZER_SKIP_SPECIAL, &out));
    assert_string_equal(out.data, "a b");
    out.len = 0;
    assert_ok(d9d_tokenizer_decode(tok, ids, 4, 0, &out));
    assert_string_equal(out.data, "<s>a b <s>");
    d9d_buf_release(&out);
    d9d_tokenizer_free(tok);
}

/* A trie of a single node has no keys. */
static void test_charsmap(void **state)
{
    static const char empty[] = "BAAAAAAAAABhAA==";
    d9di_charsmap m = {0};

    (void)state;
    assert_ok(d9di_charsmap_init(empty, sizeof(empty) - 1, "w", &m));
    assert_null(d9di_charsmap_find(&m, "a", 1));
    assert_null(d9di_charsmap_find(&m, "", 0));
    d9di_charsmap_release(&m);
    assert_fails(d9di_charsmap_init("", 0, "w", &m), D9D_EFORMAT,
                 "w: precompiled_charsmap: its trie has 0 bytes, of the 0 that are there");
    d9di_charsmap_release(&m);
}

static void test_foreign(void **state)
{
    static const struct {
        const char *name, *part;
    } files[] = {
        {"tokenizer.model", "the file of SentencePiece"},
        {"tekken.json", "the file of Mistral's tekken"},
        {"qwen.tiktoken", "the file of tiktoken"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        d9d_tokenizer *tok;
        char path[64];

        snprintf(path, sizeof(path), "d%zu/%s", i, files[i].name);
        assert_ok(d9d_fs_make_parents(path));
        assert_ok(d9d_fs_write_atomic(path, "{}", 2));
        assert_fails_like(d9d_tokenizer_load(path, &tok), D9D_ECONFIG, files[i].part);
        unit_check_has(d9d_err_message(), "AutoTokenizer.from_pretrained(", __FILE__, __LINE__);
        snprintf(path, sizeof(path), "d%zu/tokenizer.json", i);
        assert_fails_like(d9d_tokenizer_load(path, &tok), D9D_ECONFIG, "is not there, and ");
        unit_check_has(d9d_err_message(), files[i].name, __FILE__, __LINE__);
        assert_ok(d9d_fs_write_atomic(path, "\nproto", 6));
        assert_fails_like(d9d_tokenizer_check(path), D9D_ECONFIG,
                          "is no tokenizer.json of HuggingFace; ");
        assert_ok(d9d_fs_write_atomic(path, " {}", 3));
        assert_ok(d9d_tokenizer_check(path));
    }
    assert_ok(d9d_tokenizer_check("nowhere/tokenizer.json"));
}

/* Ids that both have, of ordinary tokens, decide. */
static void test_same_ids(void **state)
{
#define TOKENS(added, vocab)                                                                       \
    "{\"pre_tokenizer\": null, \"added_tokens\": [" added                                          \
    "], \"model\": {\"type\": \"WordLevel\", "                                                     \
    "\"unk_token\": \"a\", \"vocab\": {" vocab "}}}"
#define ADDED(id, text) "{\"id\": " id ", \"content\": \"" text "\", \"special\": true}"
    static const char few[] = TOKENS(ADDED("2", "<s>"), "\"a\": 0, \"b\": 1");
    static const struct {
        const char *other, *says; /* NULL: nothing */
    } cases[] = {
        {TOKENS("", "\"a\": 0, \"b\": 1"), NULL},
        {TOKENS(ADDED("2", "<t>"), "\"a\": 0, \"b\": 1"), NULL},
        {TOKENS("", "\"a\": 0, \"b\": 1, \"c\": 2, \"d\": 3"), NULL},
        {TOKENS("", "\"a\": 0"), NULL},
        {TOKENS("", "\"b\": 0, \"a\": 1"),
         "few: its id 0 is the token \"a\", and in other \"b\"; ids of one tokenizer"},
        {TOKENS("", "\"a\": 0, \"bb\": 1"),
         "few: its id 1 is the token \"b\", and in other \"bb\""},
    };
    d9d_tokenizer *ours, *theirs;

    (void)state;
    assert_ok(d9d_tokenizer_parse("few", few, strlen(few), &ours));
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const char *json = cases[i].other;

        assert_ok(d9d_tokenizer_parse("other", json, strlen(json), &theirs));
        if (cases[i].says == NULL)
            assert_ok(d9d_tokenizer_check_same_ids(ours, "few", theirs, "other"));
        else
            assert_fails_like(d9d_tokenizer_check_same_ids(ours, "few", theirs, "other"),
                              D9D_EMISMATCH, cases[i].says);
        d9d_tokenizer_free(theirs);
    }
    d9d_tokenizer_free(ours);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unigram),   cmocka_unit_test(test_unigram_without_unk),
        cmocka_unit_test(test_wordpiece), cmocka_unit_test(test_wordlevel),
        cmocka_unit_test(test_bpe),       cmocka_unit_test(test_some_bytes),
        cmocka_unit_test(test_first),     cmocka_unit_test(test_places),
        cmocka_unit_test(test_charsmap),  unit_test_in_dir(test_foreign),
        cmocka_unit_test(test_same_ids),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
