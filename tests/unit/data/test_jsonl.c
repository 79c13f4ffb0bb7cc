/* test_jsonl.c - members of JSON lines, against Jansson. */
#include "support/unit.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/rng.h"
#include "data/io/jsonl.h"

static void check_text(const char *line, const char *want, size_t n)
{
    d9di_jsonl_error error;
    d9d_buf out = {0};

    assert_ok(d9di_jsonl_get_text(line, strlen(line), "text", &out, &error));
    assert_int_equal(out.len, n);
    assert_memory_equal(out.data ? out.data : "", want, n);
    d9d_buf_release(&out);
}

/* Every special byte at every offset of strings of every length up to a few machine words. */
static void test_places(void **state)
{
    static const char specials[] = "\"\\\n\x01\x1f\x7f\x80\xff !#[]";

    (void)state;
    for (size_t n = 1; n < 27; n++)
        for (size_t at = 0; at < n; at++)
            for (const char *c = specials; *c; c++) {
                const bool escaped = *c == '"' || *c == '\\' || (unsigned char)*c < 0x20;
                char want[32], line[80];
                size_t len = (size_t)sprintf(line, "{\"x\": 1.5e3, \"text\": \"");

                memset(want, 'a' + (int)n % 26, n);
                want[at] = *c;
                for (size_t i = 0; i < n; i++)
                    len += (size_t)(i == at && escaped
                                        ? sprintf(line + len, "\\u%04x", (unsigned char)*c)
                                        : sprintf(line + len, "%c", want[i]));
                sprintf(line + len, "\", \"y\": null}");
                check_text(line, want, n);
            }
}

/* An unescaped control character is rejected at its position. */
static void test_control(void **state)
{
    (void)state;
    for (int at = 0; at < 20; at++) {
        d9di_jsonl_error error = {0};
        d9d_buf out = {0};
        char line[64];

        sprintf(line, "{\"text\": \"%20s\"}", "");
        line[10 + at] = '\t';
        assert_int_equal(d9di_jsonl_get_text(line, strlen(line), "text", &out, &error),
                         D9D_EFORMAT);
        assert_int_equal(error.offset, 10 + at);
        assert_string_equal(error.message, "a control character in a string");
        d9d_buf_release(&out);
    }
}

/* Random text through Jansson's escapes and back. */
static void test_random(void **state)
{
    static const char *const tokens[] = {"a",    "\"",       "\\",
                                         "\n",   "\xc3\xa9", "\xf0\x9f\x98\x80",
                                         "\x01", "/",        "long run of plain text ",
                                         "\t",   "\x7f"};
    const d9d_rng rng = {3, 1};
    uint64_t k = 0;

    (void)state;
    for (int round = 0; round < 2000; round++) {
        char want[1024] = "", *line;
        json_t *v;

        for (uint64_t n = d9d_rng_u32(rng, k++) % 30; n > 0; n--)
            strcat(want, tokens[d9d_rng_u32(rng, k++) % 11]);
        v = json_pack("{s:[{s:s}], s:s, s:{}}", "deep", "text", want, "text", want, "z");
        line = json_dumps(v, round % 2 ? JSON_ENSURE_ASCII : JSON_ESCAPE_SLASH);
        check_text(line, want, strlen(want));
        free(line);
        json_decref(v);
    }
}

/* A repeated key is an error if it is requested; others matter only in chats. */
static void test_twice(void **state)
{
    static const char *const lines[][2] = {
        {"{\"messages\": [], \"messages\": []}", "\"messages\" is given twice"},
        {"{\"messages\": [{\"role\": \"a\", \"role\": \"b\", \"content\": \"\"}]}", "duplicate"},
        {"{\"messages\": [], \"system\": \"a\", \"system\": \"b\"}", "duplicate"}};
    static const char ids[] = "{\"input_ids\": [1], \"x\": 1, \"x\": 2, \"input_ids\": [2]}";
    static const char text[] = "{\"x\": 1, \"text\": \"a\", \"x\": 2}";
    d9di_jsonl_error error;
    d9di_token_labels labels = {0};
    d9d_token_ids got = {0};
    d9d_buf out = {0};
    json_t *chat;
    bool has;

    (void)state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        assert_int_equal(d9di_jsonl_get_chat(lines[i][0], strlen(lines[i][0]), NULL, &chat, &error),
                         D9D_EFORMAT);
        assert_non_null(strstr(error.message, lines[i][1]));
    }
    assert_int_equal(d9di_jsonl_get_tokens(ids, strlen(ids), 9, &got, &labels, &has, &error),
                     D9D_EFORMAT);
    assert_non_null(strstr(error.message, "\"input_ids\" is given twice"));
    assert_ok(d9di_jsonl_get_text(text, strlen(text), "text", &out, &error));
    d9d_buf_release(&out);
    D9D_VEC_RELEASE(&got);
    D9D_VEC_RELEASE(&labels);
}

/* Everything of the line is kept, and a system text becomes the first message. */
static void test_chats(void **state)
{
    static const char *const lines[][2] = {
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\\u00e9\", \"x\": 1}], \"system\": "
         "\"s\", \"tools\": [{\"f\": 1.5}]}",
         "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":"
         "\"a\xc3\xa9\",\"x\":1}],\"tools\":[{\"f\":1.5}]}"},
        {"{\"system\": null, \"messages\": [{\"role\": \"a\", \"tool_calls\": []}]}",
         "{\"messages\":[{\"role\":\"a\",\"tool_calls\":[]}]}"},
        {" {\"messages\": []} ", "{\"messages\":[]}"},
    };
    d9di_jsonl_error error;

    (void)state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        json_t *chat;
        char *text;

        assert_ok(d9di_jsonl_get_chat(lines[i][0], strlen(lines[i][0]), NULL, &chat, &error));
        text = json_dumps(chat, JSON_COMPACT);
        assert_string_equal(text, lines[i][1]);
        free(text);
        json_decref(chat);
    }
}

/* Numbers that RFC 8259 has, and others: what is no JSON is told so wherever a number is read. */
static const struct number {
    const char *text;
    bool json, integer;
} numbers[] = {
    {"0", true, true},          {"7", true, true},           {"-0", true, true},
    {"10", true, true},         {"1.0", true, false},        {"0.5", true, false},
    {"1e1", true, false},       {"0E0", true, false},        {"1e+1", true, false},
    {"1.5e-1", true, false},    {"01", false, false},        {"00", false, false},
    {"-01", false, false},      {"01.5", false, false},      {"+1", false, false},
    {".5", false, false},       {"-.5", false, false},       {"1.", false, false},
    {"1.e1", false, false},     {"-", false, false},         {"--1", false, false},
    {"1e", false, false},       {"1e+", false, false},       {"1E-", false, false},
    {"0x10", false, false},     {"1_0", false, false},       {"NaN", false, false},
    {"Infinity", false, false}, {"-Infinity", false, false}, {"1f", false, false},
    {"true", true, false},      {"null", true, false},       {"[1]", true, false},
};

static d9d_status read_ids(const char *line, d9di_jsonl_error *error)
{
    d9di_token_labels labels = {0};
    d9d_token_ids ids = {0};
    bool has;
    const d9d_status st =
        d9di_jsonl_get_tokens(line, strlen(line), 100, &ids, &labels, &has, error);

    D9D_VEC_RELEASE(&ids);
    D9D_VEC_RELEASE(&labels);
    return st;
}

static d9d_status read_class(const char *line, d9di_jsonl_error *error)
{
    int32_t class;

    return d9di_jsonl_get_label(line, strlen(line), "class", 100, &class, error);
}

static d9d_status read_other(const char *line, d9di_jsonl_error *error)
{
    d9d_buf text = {0};
    const d9d_status st = d9di_jsonl_get_text(line, strlen(line), "text", &text, error);

    d9d_buf_release(&text);
    return st;
}

static d9d_status put_nothing(void *arg, size_t array, const d9di_jsonl_number *v)
{
    (void)arg, (void)array, (void)v;
    return D9D_OK;
}

static d9d_status read_array(const char *line, d9di_jsonl_error *error, bool whole)
{
    const int64_t shape[] = {2};
    d9di_jsonl_array a = {
        .key = "x", .rank = 1, .shape = shape, .whole = whole, .min = -100, .max = 100};

    return d9di_jsonl_get_arrays(line, strlen(line), &a, 1, put_nothing, NULL, error);
}

static d9d_status read_reals(const char *line, d9di_jsonl_error *error)
{
    return read_array(line, error, false);
}

static d9d_status read_whole(const char *line, d9di_jsonl_error *error)
{
    return read_array(line, error, true);
}

struct place {
    const char *before, *after;
    d9d_status (*read)(const char *line, d9di_jsonl_error *error);
    bool (*takes)(const struct number *x);
    bool named; /* what does not begin as a number is a value that the member's name goes with */
};

static bool takes_integers(const struct number *x)
{
    return x->integer;
}

static bool takes_numbers(const struct number *x)
{
    return x->json && strchr("tn[", x->text[0]) == NULL;
}

static bool takes_all(const struct number *x)
{
    return x->json;
}

static const struct place places[] = {
    {"{\"input_ids\": [", ", 2]}", read_ids, takes_integers, false},
    {"{\"input_ids\": [1, 2], \"labels\": [2, ", "]}", read_ids, takes_integers, false},
    {"{\"class\": ", "}", read_class, takes_integers, false},
    {"{\"x\": [1, ", "]}", read_reals, takes_numbers, true},
    {"{\"x\": [", ", 1]}", read_whole, takes_integers, true},
    {"{\"text\": \"\", \"x\": ", "}", read_other, takes_all, false},
};

static bool is_value(const struct place *at, const struct number *x)
{
    return x->json || (at->named && strchr("-0123456789", x->text[0]) == NULL);
}

static void check_number(const struct place *at, const struct number *x)
{
    d9di_jsonl_error error = {.reason = D9D_SHARD_BAD_REASONS};
    char line[128];

    (void)snprintf(line, sizeof(line), "%s%s%s", at->before, x->text, at->after);
    assert_int_equal(at->read(line, &error), at->takes(x) ? D9D_OK : D9D_EFORMAT);
    if (!at->takes(x))
        assert_int_equal(error.reason, is_value(at, x) ? D9D_SHARD_BAD_VALUE : D9D_SHARD_BAD_JSON);
}

static void test_numbers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        for (size_t k = 0; k < sizeof(numbers) / sizeof(numbers[0]); k++)
            check_number(&places[i], &numbers[k]);
}

/* A class in a string, as tables have it, is no JSON number: zeros may stand in front. */
static void test_quoted_classes(void **state)
{
    static const struct {
        const char *text;
        int32_t class; /* -1: refused */
    } all[] = {{"0", 0},  {"007", 7}, {"00", 0},  {"99", 99},  {"100", -1}, {"", -1},
               {"-", -1}, {"1.", -1}, {"1x", -1}, {"0x1", -1}, {"+1", -1},  {"-1", -1}};
    char line[64];

    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        d9di_jsonl_error error;
        int32_t class = -1;

        (void)snprintf(line, sizeof(line), "{\"class\": \"%s\"}", all[i].text);
        assert_int_equal(d9di_jsonl_get_label(line, strlen(line), "class", 100, &class, &error),
                         all[i].class < 0 ? D9D_EFORMAT : D9D_OK);
        assert_int_equal(class, all[i].class);
        if (all[i].class < 0)
            assert_int_equal(error.reason, D9D_SHARD_BAD_VALUE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),        cmocka_unit_test(test_control),
        cmocka_unit_test(test_random),        cmocka_unit_test(test_twice),
        cmocka_unit_test(test_chats),         cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_quoted_classes)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
