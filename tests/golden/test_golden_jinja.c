/* test_golden_jinja.c - templates rendered as jinja2 renders them: text and spans of generation;
 * and what jinja2 refuses is an error. */
#include "support/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/data/jinja/jinja.h"
#include "support/vectors.h"

/* What strftime_now() of make_jinja.py tells. */
static const struct tm now = {.tm_year = 124,
                              .tm_mon = 6,
                              .tm_mday = 26,
                              .tm_hour = 13,
                              .tm_min = 5,
                              .tm_sec = 9,
                              .tm_wday = 5,
                              .tm_yday = 207};

static json_t *load(const char *name)
{
    json_error_t e;
    json_t *v = json_load_file(vectors_path("jinja", name), JSON_ALLOW_NUL, &e);

    if (v == NULL)
        fail_msg("%s: %s", name, e.text);
    return v;
}

static void check_spans(const char *name, const json_t *want, const d9d_jinja_spans *spans)
{
    if (want == NULL)
        return;
    if (json_array_size(want) != spans->len)
        fail_msg("%s: %zu spans, must be %zu", name, spans->len, json_array_size(want));
    for (size_t i = 0; i < spans->len; i++) {
        const json_t *span = json_array_get(want, i);

        assert_int_equal(json_integer_value(json_array_get(span, 0)), spans->data[i].begin);
        assert_int_equal(json_integer_value(json_array_get(span, 1)), spans->data[i].end);
    }
}

static void check_case(const json_t *c, const json_t *text, const json_t *context)
{
    const char *name = json_string_value(json_object_get(c, "name"));
    const json_t *want = json_object_get(c, "want"), *spans = json_object_get(c, "spans");
    const d9d_jinja_opts opts = {.now = &now, .data = context}; /* the text is the same */
    const d9d_jinja_template *t;
    d9d_jinja_trace found = {0};
    d9d_arena arena = {0};
    d9d_buf out = {0};
    d9d_status st =
        d9d_jinja_compile(json_string_value(text), json_string_length(text), name, &arena, &t);

    if (st == D9D_OK)
        st = d9d_jinja_render(t, context, &opts, &out, spans != NULL ? &found : NULL);
    if (want == NULL && st == D9D_OK)
        fail_msg("%s: \"%s\", must be an error: %s", name, out.data,
                 json_string_value(json_object_get(c, "error")));
    if (want != NULL && st != D9D_OK)
        fail_msg("%s: %s", name, d9d_err_message());
    if (want != NULL && (out.len != json_string_length(want) ||
                         memcmp(out.data, json_string_value(want), out.len) != 0))
        fail_msg("%s: \"%s\", must be \"%s\"", name, out.data, json_string_value(want));
    check_spans(name, spans, &found.generation);
    d9d_jinja_trace_release(&found);
    d9d_buf_release(&out);
    d9d_arena_release(&arena);
}

static void test_expressions(void **state)
{
    json_t *cases = load("expressions.json"), *context = load("context.json");

    (void)state;
    assert_true(json_array_size(cases) > 600);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check_case(json_array_get(cases, i), json_object_get(json_array_get(cases, i), "template"),
                   context);
    json_decref(cases);
    json_decref(context);
}

/* A template of jinja/, with chats. */
static void check_chats(const char *name)
{
    char file[100];
    d9d_buf text = {0};
    json_t *cases, *source;

    (void)snprintf(file, sizeof(file), "%s.json", name);
    cases = load(file);
    (void)snprintf(file, sizeof(file), "%s.jinja", name);
    assert_ok(d9d_fs_read(vectors_path("jinja", file), 1 << 20, &text));
    source = json_stringn(text.data, text.len);
    assert_int_equal(json_array_size(cases), 12);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check_case(json_array_get(cases, i), source,
                   json_object_get(json_array_get(cases, i), "context"));
    json_decref(source);
    json_decref(cases);
    d9d_buf_release(&text);
}

static void test_chatml_thinking(void **state)
{
    (void)state;
    check_chats("chatml_thinking");
}

static void test_headers_date(void **state)
{
    (void)state;
    check_chats("headers_date");
}

static void test_schemas_macros(void **state)
{
    (void)state;
    check_chats("schemas_macros");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expressions),
        cmocka_unit_test(test_chatml_thinking),
        cmocka_unit_test(test_headers_date),
        cmocka_unit_test(test_schemas_macros),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
