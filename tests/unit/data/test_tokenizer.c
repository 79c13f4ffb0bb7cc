/* test_tokenizer.c - invalid or unsupported tokenizer.json files; scratch and errors of encoding;
 * translation of patterns.  Ids are checked in tests/golden. */
#include "support/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/data/tokenizer/tokenizer.h"
#include "data/tokenizer/bytelevel.h"
#include "data/tokenizer/split_pattern.h"
#include "data/tokenizer/utf8.h"

/* A tokenizer with the 256 bytes as ids 0 to 255, "ab" 256 and "abc" 257; parts may be replaced. */
struct parts {
    const char *top, *normalizer, *pre, *model, *merges, *added;
};

static void put_vocab(d9d_buf *b)
{
    for (int i = 0; i < 256; i++) {
        char c[5] = "";
        const unsigned n = d9di_utf8_encode(d9di_bytelevel_char((unsigned char)i), c);

        assert_ok(d9d_buf_printf(b, "\"%s%.*s\": %d, ", c[0] == '"' || c[0] == '\\' ? "\\" : "",
                                 (int)n, c, i));
    }
    assert_ok(d9d_buf_printf(b, "\"ab\": 256, \"abc\": 257"));
}

static const char * or (const char *s, const char *other)
{
    return s ? s : other;
}

static d9d_status parse(const struct parts *p, d9d_tokenizer **out)
{
    static const char decoder[] = "\"decoder\": {\"type\": \"ByteLevel\"}, ";
    static const char pre[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}";
    d9d_buf b = {0};
    d9d_status st;

    assert_ok(
        d9d_buf_printf(&b,
                       "{%s%s\"normalizer\": %s, \"pre_tokenizer\": %s, \"added_tokens\": [%s], "
                       "\"model\": {\"type\": \"BPE\"%s, \"merges\": [%s], \"vocab\": {",
                       or (p->top, ""), p->top && strstr(p->top, "decoder") ? "" : decoder,
                       or (p->normalizer, "null"), or (p->pre, pre), or (p->added, ""),
                       or (p->model, ""), or (p->merges, "\"a b\", [\"ab\", \"c\"]")));
    put_vocab(&b);
    assert_ok(d9d_buf_printf(&b, "}}}"));
    st = d9d_tokenizer_parse("t.json", b.data, b.len, out);
    d9d_buf_release(&b);
    return st;
}

static void test_refusals(void **state)
{
    static const struct {
        struct parts parts;
        d9d_status st;
        const char *part;
    } cases[] = {
        {{.top = "\"extra\": 1, "}, D9D_ENOTSUP, "t.json: the key \"extra\" is not supported"},
        {{.top = "\"decoder\": {\"type\": \"CTC\"}, "},
         D9D_ENOTSUP,
         "t.json: decoder: the type \"CTC\" is not supported"},
        {{.top = "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, "
                 "{\"type\": \"Strip\", \"content\": \"ab\", \"start\": 0, \"stop\": 1}]}, "},
         D9D_EFORMAT,
         "t.json: decoder: decoders[1]: content: must be one character"},
        {{.top = "\"decoder\": {\"type\": \"BPEDecoder\", \"suffix\": \"\"}, "},
         D9D_ENOTSUP,
         "t.json: decoder: suffix: is empty"},
        {{.top = "\"decoder\": {\"type\": \"Replace\", \"content\": \"\", \"pattern\": "
                 "{\"Regex\": \"a\"}}, "},
         D9D_ENOTSUP,
         "t.json: decoder: pattern: Regex is not supported"},
        {{.top = "\"post_processor\": {\"type\": \"Sequence\", \"processors\": [{\"type\": "
                 "\"X\"}]}, "},
         D9D_ENOTSUP,
         "t.json: post_processor: processors[0]: the type \"X\" is not supported"},
        {{.top = "\"post_processor\": {\"type\": \"BertProcessing\", \"sep\": [\"x\", 1]}, "},
         D9D_EFORMAT,
         "t.json: post_processor: cls: must be a token and its id"},
        {{.top = "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [\"$A\"], "
                 "\"pair\": [], \"special_tokens\": {}}, "},
         D9D_EFORMAT,
         "t.json: post_processor: single[0]: must be a Sequence or a SpecialToken"},
        {{.top =
              "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": "
              "{\"id\": \"C\", \"type_id\": 0}}], \"pair\": [], \"special_tokens\": {}}, "},
         D9D_EFORMAT,
         "t.json: post_processor: single[0]: the id \"C\" must be A or B"},
        {{.top = "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [], \"pair\": "
                 "[], "
                 "\"special_tokens\": {\"<s>\": {\"ids\": [-1]}}}, "},
         D9D_EFORMAT,
         "t.json: post_processor: special_tokens: \"<s>\" has no ids"},
        {{.normalizer = "{\"type\": \"Unidecode\"}"},
         D9D_ENOTSUP,
         "normalizer: the type \"Unidecode\""},
        {{.normalizer = "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AA*A\"}"},
         D9D_EFORMAT,
         "normalizer: precompiled_charsmap: byte 2 is no base64"},
        {{.normalizer = "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"CAAAAAAAAAA=\"}"},
         D9D_EFORMAT,
         "precompiled_charsmap: its trie has 8 bytes, of the 8 that are there"},
        {{.normalizer = "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"BAAAAAAAAAD/\"}"},
         D9D_EFORMAT,
         "precompiled_charsmap: its texts are not UTF-8"},
        {{.pre = "{\"type\": \"UnicodeScripts\"}"},
         D9D_ENOTSUP,
         "pre_tokenizer: the type \"UnicodeScripts\" is not supported"},
        {{.pre = "{\"type\": \"CharDelimiterSplit\", \"delimiter\": \"\"}"},
         D9D_EFORMAT,
         "delimiter: must be one character"},
        {{.pre = "{\"type\": \"FixedLength\", \"length\": 0}"}, D9D_EFORMAT, "length"},
        {{.normalizer = "{\"type\": \"NFC\", \"x\": 1}"}, D9D_ENOTSUP, "normalizer: the key \"x\""},
        {{.normalizer = "7"}, D9D_EFORMAT, "normalizer: must be an object or null"},
        {{.pre = "{\"type\": \"Metaspace\", \"replacement\": \"ab\"}"},
         D9D_EFORMAT,
         "pre_tokenizer: replacement: must be one character"},
        {{.pre = "{\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"x\"}"},
         D9D_ENOTSUP,
         "prepend_scheme: must be always, first or never"},
        {{.pre = "{\"type\": \"Metaspace\", \"replacement\": \"_\", \"add_prefix_space\": false}"},
         D9D_EFORMAT,
         "add_prefix_space contradicts prepend_scheme"},
        {{.pre = "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Metaspace\", "
                 "\"replacement\": \"_\"}, {\"type\": \"ByteLevel\"}]}"},
         D9D_ENOTSUP,
         "pretokenizers[1]: is the second that changes spaces"},
        {{.model = ", \"byte_fallback\": true, \"end_of_word_suffix\": \"_\""},
         D9D_ENOTSUP,
         "byte_fallback is set beside a prefix or suffix of symbols"},
        {{.model = ", \"continuing_subword_prefix\": \"####\""},
         D9D_EFORMAT,
         "merges[0]: \"b\" lacks continuing_subword_prefix"},
        {{.pre =
              "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}, {\"type\": "
              "\"ByteLevel\"}]}"},
         D9D_ENOTSUP,
         "pretokenizers[1]: is the second ByteLevel"},
        {{.pre =
              "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\", "
              "\"add_prefix_space\": false}, {\"type\": \"Metaspace\", \"replacement\": \"_\"}]}"},
         D9D_ENOTSUP,
         "pretokenizers[1]: comes after ByteLevel"},
        {{.pre =
              "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, \"behavior\": \"Isolated\"}"},
         D9D_ENOTSUP,
         "pattern: missing closing parenthesis"},
        {{.pre = "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Apart\"}"},
         D9D_ENOTSUP,
         "the behavior \"Apart\" is not supported"},
        {{.model = ", \"dropout\": 0.1"}, D9D_ENOTSUP, "model: dropout is 0.1"},
        {{.model = ", \"end_of_word_suffix\": 7"},
         D9D_ENOTSUP,
         "end_of_word_suffix: must be a string of at most 31 bytes"},
        {{.merges = "\"a b c\""}, D9D_EFORMAT, "merges[0]: must be \"a b\" or [\"a\", \"b\"]"},
        {{.merges = "\"b a\""}, D9D_EFORMAT, "merges[0]: \"ba\" is not in the vocabulary"},
        {{.added = "{\"id\": 300, \"content\": \"<e>\"}"},
         D9D_EFORMAT,
         "added_tokens[0]: \"<e>\" has the id 300, its place gives it 258"},
        {{.added = "{\"id\": 258, \"content\": \"<e>\"}, {\"id\": 258, \"content\": \"<e>\"}"},
         D9D_EFORMAT,
         "added_tokens[1]: \"<e>\" is given twice"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        d9d_tokenizer *tok = NULL;

        assert_fails_like(parse(&cases[i].parts, &tok), cases[i].st, cases[i].part);
    }
}

static void test_not_a_tokenizer(void **state)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "t.json: is empty"},
        {"[]", "t.json: must be an object"},
        {"{}", "t.json: model: must be an object"},
        {"{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}}", "t.json: model: must be an object"},
        {"{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"merges\": [], \"vocab\": "
         "{\"a\": "
         "4294967296}}}",
         "vocab: \"a\" must have an id from 0 to 16777214"},
        {"{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"merges\": [], \"vocab\": "
         "{\"a\": 1, "
         "\"b\": 1}}}",
         "the id 1 is that of"},
        {"{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"merges\": [], \"vocab\": "
         "{}}}",
         "t.json: has no tokens"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        d9d_tokenizer *tok = NULL;

        assert_int_not_equal(
            d9d_tokenizer_parse("t.json", cases[i].text, strlen(cases[i].text), &tok), D9D_OK);
        unit_check_has(d9d_err_message(), cases[i].part, __FILE__, __LINE__);
    }
}

static void test_encode_decode(void **state)
{
    static const uint32_t want[] = {'x', 257, 258, 'a', ' ', 256, 0xc3, 0xa9};
    const struct parts parts = {.added = "{\"id\": 258, \"content\": \"<e>\", \"special\": true}"};
    const char text[] = "xabc<e>a ab\xc3\xa9";
    d9d_tokenizer *tok;
    d9d_tokenizer_scratch *s;
    d9d_token_ids ids = {0};
    d9d_buf back = {0};
    const uint32_t none = 259;
    uint32_t id;

    (void)state;
    assert_ok(parse(&parts, &tok));
    assert_ok(d9d_tokenizer_scratch_create(tok, &s));
    assert_int_equal(d9d_tokenizer_vocab_size(tok), 259);
    for (int turn = 0; turn < 2; turn++) { /* the second one from the cache */
        ids.len = 0;
        assert_ok(d9d_tokenizer_encode(tok, s, text, strlen(text), &ids));
        assert_int_equal(ids.len, 8);
        assert_memory_equal(ids.data, want, sizeof(want));
    }
    assert_fails(d9d_tokenizer_encode(tok, s, "ab\xff", 3, &ids), D9D_EFORMAT,
                 "byte 2 (0xff) is not valid UTF-8");
    assert_int_equal(ids.len, 8);
    assert_ok(d9d_tokenizer_decode(tok, ids.data, ids.len, 0, &back));
    assert_string_equal(back.data, text);
    back.len = 0;
    assert_ok(d9d_tokenizer_decode(tok, ids.data, ids.len, D9D_TOKENIZER_SKIP_SPECIAL, &back));
    assert_string_equal(back.data, "xabca ab\xc3\xa9");
    assert_fails_like(d9d_tokenizer_decode(tok, &none, 1, 0, &back), D9D_EINVAL, "ids[0] is 259");
    assert_true(d9d_tokenizer_find(tok, "<e>", 3, &id) && id == 258);
    assert_true(d9d_tokenizer_find(tok, "\xc4\xa0", 2, &id) && id == ' ');
    assert_false(d9d_tokenizer_find(tok, "<f>", 3, &id));
    D9D_VEC_RELEASE(&ids);
    d9d_buf_release(&back);
    d9d_tokenizer_scratch_free(s);
    d9d_tokenizer_free(tok);
}

/* Bytes that the vocabulary lacks are dropped, or become unk_token. */
static void test_missing_bytes(void **state)
{
    static const char *const models[] = {"", "\"unk_token\": \"a\", ",
                                         "\"unk_token\": \"a\", \"fuse_unk\": true, "};
    static const size_t lengths[] = {2, 4, 3};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        d9d_tokenizer_scratch *s;
        d9d_tokenizer *tok;
        d9d_token_ids ids = {0};
        char text[256];

        snprintf(text, sizeof(text),
                 "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                 "\"use_regex\": false}, \"model\": {%s\"merges\": [], \"vocab\": {\"a\": 0, "
                 "\"b\": 1}}}",
                 models[i]);
        assert_ok(d9d_tokenizer_parse("t.json", text, strlen(text), &tok));
        assert_ok(d9d_tokenizer_scratch_create(tok, &s));
        assert_ok(d9d_tokenizer_encode(tok, s, "bxyb", 4, &ids));
        assert_int_equal(ids.len, lengths[i]);
        D9D_VEC_RELEASE(&ids);
        d9d_tokenizer_scratch_free(s);
        d9d_tokenizer_free(tok);
    }
}

static d9d_status parse_few(d9d_tokenizer **out)
{
    static const char few[] = "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                              "\"add_prefix_space\": false}, \"model\": "
                              "{\"merges\": [], \"vocab\": {\"a\": 0}}}";

    return d9d_tokenizer_parse("t.json", few, strlen(few), out);
}

static void test_long_runs(void **state)
{
    const size_t n = 1000000, limit = ((size_t)16 << 20) + 1;
    char *text = malloc(limit);
    const struct parts parts = {0};
    d9d_tokenizer_scratch *s;
    d9d_tokenizer *tok;
    d9d_token_ids ids = {0};

    (void)state;
    assert_non_null(text);
    assert_ok(parse(&parts, &tok));
    assert_ok(d9d_tokenizer_scratch_create(tok, &s));
    for (size_t i = 0; i < n; i++)
        text[i] = "abc"[i % 3];
    assert_ok(d9d_tokenizer_encode(tok, s, text, n, &ids));
    assert_int_equal(ids.len, n / 3 + 1);
    assert_int_equal(ids.data[n / 3], 'a');
    memset(text, 'a', limit);
    ids.len = 0;
    assert_ok(d9d_tokenizer_encode(tok, s, text, limit, &ids));
    assert_int_equal(ids.len, limit);
    d9d_tokenizer_scratch_free(s);
    d9d_tokenizer_free(tok);
    assert_ok(parse_few(&tok)); /* vocabulary without all bytes: merged, with more memory */
    assert_ok(d9d_tokenizer_scratch_create(tok, &s));
    assert_fails_like(d9d_tokenizer_encode(tok, s, text, limit, &ids), D9D_EFORMAT,
                      "16777217 bytes without a place to split at");
    D9D_VEC_RELEASE(&ids);
    d9d_tokenizer_scratch_free(s);
    d9d_tokenizer_free(tok);
    free(text);
}

/* Parses a tokenizer whose post_processor is the rest of a template's JSON. */
static d9d_tokenizer *parse_template(const char *rest)
{
    char top[768];
    const struct parts parts = {.top = top,
                                .added = "{\"id\": 258, \"content\": \"<s>\", \"special\": true}"};
    d9d_tokenizer *tok = NULL;

    snprintf(top, sizeof(top), "\"post_processor\": {\"type\": \"TemplateProcessing\", %s}, ",
             rest);
    assert_ok(parse(&parts, &tok));
    return tok;
}

#define ITEM_A "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}"
#define ITEM_S "{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}"
#define TOKEN_S                                                                                    \
    "\"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [258], \"tokens\": [\"<s>\"]}}"

/* What is printed of a template, and which texts have its first tokens already; vectors of HF are
 * in tests/golden. */
static void test_special_tokens(void **state)
{
    d9d_tokenizer *tok = parse_template("\"single\": [" ITEM_S ", " ITEM_A "], \"pair\": [" ITEM_A
                                        ", " ITEM_S "], " TOKEN_S);
    const uint32_t with[] = {258, 'a'}, without[] = {'a', 258};
    d9d_buf text = {0};

    (void)state;
    assert_ok(d9d_tokenizer_print_special(tok, false, &text));
    assert_string_equal(text.data, "<s> $A");
    assert_ok(d9d_tokenizer_print_special(tok, true, &text));
    assert_string_equal(text.data, "<s> $A$A <s>");
    assert_true(d9d_tokenizer_has_special(tok, with, 2));
    assert_false(d9d_tokenizer_has_special(tok, without, 2));
    assert_false(d9d_tokenizer_has_special(tok, with, 0));
    d9d_buf_release(&text);
    d9d_tokenizer_free(tok);
}

/* What HF reads and cannot encode with is read, and refused when special tokens are asked for. */
static void test_special_tokens_refused(void **state)
{
    static const struct {
        const char *rest, *part;
    } cases[] = {
        {"\"single\": [" ITEM_S "], \"pair\": [], \"special_tokens\": {}",
         "t.json: post_processor: single[0]: \"<s>\" is not among special_tokens"},
        {"\"single\": [{\"Sequence\": {\"id\": \"B\", \"type_id\": 0}}], \"pair\": [], "
         "\"special_tokens\": {}",
         "single[0]: takes $B where there is no second text"},
        {"\"single\": [" ITEM_S "], \"pair\": [], \"special_tokens\": {\"<s>\": {\"ids\": [259]}}",
         "t.json: post_processor: puts the id 259 around a text, the vocabulary has 259"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        d9d_tokenizer *tok = parse_template(cases[i].rest);
        d9d_buf text = {0};
        size_t n;

        assert_fails_like(d9d_tokenizer_count_special(tok, false, &n), D9D_ENOTSUP, cases[i].part);
        assert_fails_like(d9d_tokenizer_print_special(tok, false, &text), D9D_ENOTSUP,
                          cases[i].part);
        d9d_tokenizer_free(tok);
    }
}

static void test_patterns(void **state)
{
    static const struct {
        const char *from, *to; /* NULL: rejected */
    } cases[] = {
        {"(?i:'s|'t)|[^\\r\\n\\p{L}\\p{^N}]?\\p{L}+", "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{^N}]?\\p{L}+"},
        {"\\p{N}{1,3}| ?[\\h_]\\v\\u00e9\\x{1F600}",
         "\\p{N}{1,3}| ?[0-9a-fA-F_]\\x0b\\x{e9}\\x{1f600}"},
        {"\\h", "[0-9a-fA-F]"},
        {"[^(\\s|[.,!?]a)]+", "[^(\\s|.,!?a)]+"}, /* BLOOM's, about */
        {"[a[bc]]", "[abc]"},
        {"[\\W]", NULL},
        {"[a[^b]]", NULL},
        {"[[:alpha:]]", NULL},
        {"[a-[b]]", NULL},
        {"[a[-b]]", NULL},
        {"[a[b-]]", NULL},
        {"[a[b]-c]", NULL},
        {"[a[b]", NULL},
        {"\\b", NULL},
        {"[\\p{Han}]\\p{^Han}", "[\\p{sc:Han}]\\p{^sc:Han}"},
        {"[\\p{Lu}a-c&&[^\\p{Han}]]*x", "(?:(?![\\p{sc:Han}])[\\p{Lu}a-c])*x"}, /* Kimi K2's */
        {"[a-z&&[x]]", "(?:(?=[x])[a-z])"},
        {"\\p{Thai}", NULL},
        {"(?i)a", NULL},
        {"(?<n>a)", NULL},
        {"a{2}+", NULL},
        {"a{,3}", NULL},
        {"[a&&b]", NULL},
        {"[^a&&[b]]", NULL},
        {"[a&&[b]c]", NULL},
        {"[a&&[b", NULL},
        {"[a[b&&[c]]]", NULL},
        {"[a", NULL},
        {"a\\", NULL},
        {"\\p{L", NULL},
        {"\\x{110000}", NULL},
        {"\xf0\x9e\x80\xb0", NULL}, /* U+1E030, of a later Unicode */
    };
    d9d_buf out = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        d9d_status st;

        out.len = 0;
        st = d9di_split_pattern_translate("p", cases[i].from, strlen(cases[i].from), &out);
        if ((st == D9D_OK) != (cases[i].to != NULL))
            fail_msg("%s: %s", cases[i].from, d9d_status_name(st));
        if (cases[i].to)
            assert_string_equal(out.data, cases[i].to);
    }
    d9d_buf_release(&out);
}

/* Character classes must not depend on the machine. */
static void test_unicode_versions(void **state)
{
    (void)state;
    assert_ok(d9di_split_pattern_check_unicode("t", "14.0.0"));
    assert_ok(d9di_split_pattern_check_unicode("t", "16.0.0"));
    assert_fails_like(d9di_split_pattern_check_unicode("t", "11.0.0"), D9D_ENOTSUP,
                      "t: pattern: PCRE2 has Unicode 11.0.0, must be 14 to 16");
    assert_fails_like(d9di_split_pattern_check_unicode("t", "17.0.0"), D9D_ENOTSUP,
                      "Unicode 17.0.0");
}

/* Parts that do not change ids are reported, not rejected. */
static void test_ignored(void **state)
{
    static const struct parts cases[] = {{0},
                                         {.top = "\"truncation\": {\"max_length\": 8}, "},
                                         {.top = "\"padding\": {\"pad_id\": 0}, "},
                                         {.top = "\"truncation\": {}, \"padding\": {}, "}};
    static const char *const want[] = {NULL, "truncation", "padding", "truncation and padding"};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        d9d_tokenizer *tok;

        assert_ok(parse(&cases[i], &tok));
        if (want[i])
            assert_string_equal(d9d_tokenizer_ignored(tok), want[i]);
        else
            assert_null(d9d_tokenizer_ignored(tok));
        d9d_tokenizer_free(tok);
    }
}

/* Without a decoder HF joins the spellings of tokens by spaces. */
static void test_no_decoder(void **state)
{
    const struct parts parts = {.top = "\"decoder\": null, "};
    const uint32_t ids[] = {257, ' ', 'a'};
    d9d_tokenizer *tok;
    d9d_buf back = {0};

    (void)state;
    assert_ok(parse(&parts, &tok));
    assert_ok(d9d_tokenizer_decode(tok, ids, 3, 0, &back));
    assert_string_equal(back.data, "abc \xc4\xa0 a");
    d9d_buf_release(&back);
    d9d_tokenizer_free(tok);
}

static void test_utf8(void **state)
{
    static const struct {
        const char *text;
        size_t n, good;
    } cases[] = {
        {"plain ASCII text, long", 22, 22},
        {"\xc3\xa9", 2, 2},
        {"a\xc3", 2, 1},
        {"\xc0\x80", 2, 0},
        {"\xed\xa0\x80", 3, 0},
        {"\xe0\x80\x80", 3, 0},
        {"\xf4\x90\x80\x80", 4, 0},
        {"\xf0\x9f\x98\x80x", 5, 5},
        {"\x80", 1, 0},
        {"12345678\xe2\x82", 10, 8},
        {"a\0b", 3, 3},
        {"", 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(d9d_utf8_valid_up_to(cases[i].text, cases[i].n), cases[i].good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),         cmocka_unit_test(test_not_a_tokenizer),
        cmocka_unit_test(test_encode_decode),    cmocka_unit_test(test_missing_bytes),
        cmocka_unit_test(test_unicode_versions), cmocka_unit_test(test_ignored),
        cmocka_unit_test(test_no_decoder),       cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_special_tokens),   cmocka_unit_test(test_special_tokens_refused),
        cmocka_unit_test(test_patterns),         cmocka_unit_test(test_utf8),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
