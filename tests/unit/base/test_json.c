/* test_json.c - strict reading, members, printing. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "d9d/base/sanitize_text.h"
#include "support/unit.h"

static json_t *parse(const char *text)
{
    json_t *v = NULL;

    assert_ok(d9d_json_parse("t", text, strlen(text), &v));
    return v;
}

/* The messages are Jansson's and differ between its versions: only keywords are compared. */
static void what_is_not_one_value_is_refused_where_it_goes_wrong(void **state)
{
    static const struct {
        const char *text, *place, *gist;
    } rows[] = {
        {"", "t: is empty", "must have one JSON value"},
        {" \n\t\r", "t: is empty", "must have one JSON value"},
        {"{\"a\": 1,\n \"a\": 2}", "t: line 2, column ", "duplicate object key"},
        {"{} {}", "t: line 1, column ", "end of file expected"},
        {"{} // x", "t: line 1, column ", "end of file expected"},
        {"[1,]", "t: line 1, column ", "unexpected token"},
        {"[01]", "t: line 1, column ", "invalid token"},
        {"[NaN]", "t: line 1, column ", "; JSON has no such number"},
        {"[9223372036854775808]", "t: line 1, column ", "too big integer"},
        {"[1e999]", "t: line 1, column ", "real number overflow"},
        {"[1,\n]", "t: line 2, column ", "; the comma before it is one too many"},
        {"{\"a\": 1,}", "t: line 1, column ", "; the comma before it is one too many"},
        {"// x\n{}", "t: line 1, column ", "; JSON has no comments"},
        {"{\n # x\n}", "t: line 2, column ", "; JSON has no comments"},
        {"\xef\xbb\xbf{}", "t: line 1, column ", "byte-order mark"},
        {"{'a': 1}", "t: line 1, column ", "; JSON's strings stand in \""},
        {"[-Infinity]", "t: line 1, column ", "; JSON has no such number"},
        {"[True]", "t: line 1, column ", "; JSON writes true"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "t: line 1, column ",
         "pointer of Git LFS"},
        {"[\"\\ud800\"]", "t: line 1, column ", "invalid Unicode"},
    };
    json_t *v = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_fails_like(d9d_json_parse("t", rows[i].text, strlen(rows[i].text), &v), D9D_EFORMAT,
                          rows[i].gist);
        assert_memory_equal(d9d_err_message(), rows[i].place, strlen(rows[i].place));
    }
    assert_fails(d9d_json_parse("t", NULL, 0, &v), D9D_EFORMAT,
                 "t: is empty, must have one JSON value");
    assert_null(v);
}

static void bytes_that_are_no_text_are_refused(void **state)
{
    static const struct {
        const char *text;
        size_t n;
        const char *part;
    } rows[] = {
        {"{\"a\xff\": 1}", 9, "unable to decode byte 0xff"},
        {"\"\xc0\x80\"", 4, "unable to decode byte 0xc0"},
        {"\"\xed\xa0\x80\"", 5, "unable to decode byte 0xed"},
        {"{\"a\\u0000\": 1}", 14, "a string has the character U+0000"},
        {"\"a\\u0000\"", 9, "column 9: a string has the character U+0000"},
        {"\"a\0\"", 4, "control character 0x0"},
        {"{}\0", 3, "end of file expected"},
    };
    json_t *v = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_fails_like(d9d_json_parse("t", rows[i].text, rows[i].n, &v), D9D_EFORMAT,
                          rows[i].part);
    assert_null(v);
}

/* `depth` nested arrays, after a string that looks like more of them. */
static size_t nest(char *text, int depth)
{
    char *p = text + sprintf(text, "[\"[[\\\"[[{\",\n");

    memset(p, '[', (size_t)depth - 1);
    memset(p + depth - 1, ']', (size_t)depth);
    return (size_t)(p - text) + 2 * (size_t)depth - 1;
}

static void nesting_has_a_limit(void **state)
{
    char *text = malloc(4000000);
    json_t *v = NULL;
    d9d_buf b = {0};
    size_t n;

    (void)state;
    assert_non_null(text);
    n = nest(text, D9D_JSON_MAX_DEPTH);
    assert_ok(d9d_json_parse("t", text, n, &v));
    assert_ok(d9d_json_put(&b, v, -1));
    v = json_pack("[o]", v);
    assert_fails(d9d_json_put(&b, v, -1), D9D_EINVAL,
                 "JSON to write is nested deeper than 64 levels");
    json_decref(v);
    v = NULL;
    n = nest(text, D9D_JSON_MAX_DEPTH + 1);
    assert_fails(d9d_json_parse("t", text, n, &v), D9D_EFORMAT,
                 "t: line 2, column 64: nested deeper than 64 levels");
    n = nest(text, 1000000);
    assert_fails_like(d9d_json_parse("t", text, n, &v), D9D_EFORMAT, "nested deeper");
    assert_null(v);
    d9d_buf_release(&b);
    free(text);
}

static void files_have_a_limit_and_a_name(void **state)
{
    json_t *v = NULL;

    (void)state;
    assert_fails(d9d_json_read("none.json", 100, &v), D9D_ENOTFOUND,
                 "none.json: cannot open: No such file or directory");
    assert_ok(d9d_fs_write_atomic("a.json", "{\"a\": tru}", 10));
    assert_fails(d9d_json_read("a.json", 9, &v), D9D_EFORMAT,
                 "a.json: has 10 bytes, at most 9 are read");
    assert_fails_like(d9d_json_read("a.json", 10, &v), D9D_EFORMAT, "a.json: line 1, column 9: ");
    assert_ok(d9d_fs_write_atomic("a.json", "7", 1));
    assert_ok(d9d_json_read("a.json", 1, &v));
    assert_int_equal(json_integer_value(v), 7);
    json_decref(v);
    v = NULL;
    assert_ok(d9d_fs_write_atomic("a.json", "", 0));
    assert_fails(d9d_json_read("a.json", 1, &v), D9D_EFORMAT,
                 "a.json: is empty, must have one JSON value");
}

static void members_are_got_by_type(void **state)
{
    json_t *o = parse("{\"i\": -3, \"r\": 2.5, \"s\": \"x\", \"t\": true, \"f\": false,"
                      " \"o\": {\"k\": 1}, \"a\": [1, 2], \"n\": null}");
    const char *s = NULL;
    json_t *child = NULL;
    int64_t i = 0;
    double r = 0;
    int t = -1;

    (void)state;
    assert_ok(d9d_json_get_i64(o, "t", "i", -3, -3, &i));
    assert_int_equal(i, -3);
    assert_ok(d9d_json_get_f64(o, "t", "r", &r));
    assert_true(r == 2.5);
    assert_ok(d9d_json_get_f64(o, "t", "i", &r));
    assert_true(r == -3);
    assert_ok(d9d_json_get_str(o, "t", "s", &s));
    assert_string_equal(s, "x");
    assert_ok(d9d_json_get_bool(o, "t", "t", &t));
    assert_int_equal(t, 1);
    assert_ok(d9d_json_get_bool(o, "t", "f", &t));
    assert_int_equal(t, 0);
    assert_ok(d9d_json_get_obj(o, "t", "o", &child));
    assert_int_equal(json_object_size(child), 1);
    assert_ok(d9d_json_get_arr(o, "t", "a", &child));
    assert_int_equal(json_array_size(child), 2);
    json_decref(o);
}

static void wrong_members_are_named(void **state)
{
    json_t *o = parse("{\"i\": 3, \"r\": 2.0, \"n\": null}");
    json_t *a = parse("[]"), *child = NULL;
    const char *s = NULL;
    int64_t i = 77;
    double r = 77;
    int t = 77;

    (void)state;
    assert_fails(d9d_json_get_i64(o, "m.json", "j", 0, 9, &i), D9D_EFORMAT,
                 "m.json: \"j\" is missing");
    assert_fails(d9d_json_get_i64(o, "m.json", "r", 0, 9, &i), D9D_EFORMAT,
                 "m.json: \"r\" must be an integer, is a real number");
    assert_fails(d9d_json_get_i64(o, "m.json", "i", 4, 9, &i), D9D_EFORMAT,
                 "m.json: \"i\" is 3, must be at least 4");
    assert_fails(d9d_json_get_i64(o, "m.json", "i", 0, 2, &i), D9D_EFORMAT,
                 "m.json: \"i\" is 3, must be at most 2");
    assert_fails(d9d_json_get_f64(o, "m.json", "n", &r), D9D_EFORMAT,
                 "m.json: \"n\" must be a number, is null");
    assert_fails(d9d_json_get_str(o, "m.json", "i", &s), D9D_EFORMAT,
                 "m.json: \"i\" must be a string, is an integer");
    assert_fails(d9d_json_get_bool(o, "m.json", "i", &t), D9D_EFORMAT,
                 "m.json: \"i\" must be a boolean, is an integer");
    assert_fails(d9d_json_get_obj(o, "m.json", "i", &child), D9D_EFORMAT,
                 "m.json: \"i\" must be an object, is an integer");
    assert_fails(d9d_json_get_arr(o, "m.json", "i", &child), D9D_EFORMAT,
                 "m.json: \"i\" must be an array, is an integer");
    assert_fails(d9d_json_get_arr(a, "m.json: files", "i", &child), D9D_EFORMAT,
                 "m.json: files: must be an object, is an array");
    assert_fails(d9d_json_get_arr(NULL, "m.json", "i", &child), D9D_EFORMAT,
                 "m.json: must be an object, is absent");
    assert_true(i == 77 && r == 77 && t == 77 && s == NULL && child == NULL);
    json_decref(a);
    json_decref(o);
}

static void schemas_are_distinguished(void **state)
{
    json_t *o = parse("{\"schema\": \"d9d.run.v2\"}"), *bare = parse("{}");

    (void)state;
    assert_ok(d9d_json_check_schema(o, "m.json", "run", 2));
    assert_fails(d9d_json_check_schema(o, "m.json", "run", 1), D9D_EFORMAT,
                 "m.json: \"schema\" is \"d9d.run.v2\", this build reads \"d9d.run.v1\"");
    assert_fails(d9d_json_check_schema(o, "m.json", "dataset", 2), D9D_EFORMAT,
                 "m.json: \"schema\" is \"d9d.run.v2\", this build reads \"d9d.dataset.v2\"");
    assert_fails(d9d_json_check_schema(bare, "m.json", "run", 1), D9D_EFORMAT,
                 "m.json: \"schema\" is missing");
    json_decref(bare);
    json_decref(o);
}

static void numbers_print_shortest_and_stay_real(void **state)
{
    static const struct {
        double v;
        const char *text;
    } rows[] = {
        {0.0, "0.0"},
        {-0.0, "-0.0"},
        {3, "3.0"},
        {-17, "-17.0"},
        {0.1, "0.1"},
        {1.0 / 3, "0.3333333333333333"},
        {0.1 + 0.2, "0.30000000000000004"},
        {1e-3, "0.001"},
        {1e300, "1e+300"},
        {123456789012345678.0, "1.2345678901234568e+17"},
        {9007199254740993.0, "9007199254740992.0"},
        {5e-324, "5e-324"},
        {DBL_MIN, "2.2250738585072014e-308"},
        {DBL_MAX, "1.7976931348623157e+308"},
        {NAN, "null"},
        {INFINITY, "null"},
        {-INFINITY, "null"},
    };
    d9d_buf b = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        b.len = 0;
        assert_ok(d9d_json_put_f64(&b, rows[i].v));
        assert_string_equal(b.data, rows[i].text);
        if (isfinite(rows[i].v)) {
            json_t *back = parse(b.data);

            assert_true(json_is_real(back) && json_real_value(back) == rows[i].v);
            json_decref(back);
        }
    }
    d9d_buf_release(&b);
}

static void strings_are_escaped_and_always_utf8(void **state)
{
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } rows[] = {
        {"", 0, "\"\""},
        {"a\"b\\c/", 6, "\"a\\\"b\\\\c/\""},
        {"\b\f\n\r\t\x01\x1f\x7f", 8, "\"\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\""},
        {"a\0b", 3, "\"a\\u0000b\""},
        {"\xc3\xa9\xf0\x9f\x98\x80", 6, "\"\xc3\xa9\xf0\x9f\x98\x80\""},
        {"\xff", 1, "\"\\ufffd\""},
        {"a\xc3", 2, "\"a\\ufffd\""},
        {"\xed\xa0\x80z", 4, "\"\\ufffd\\ufffd\\ufffdz\""},
        /* One for the beginning of a character that does not end, as in Rust and Python. */
        {"\xe2\x8dM", 3, "\"\\ufffdM\""},
        {"\xf0\x9f\x98", 3, "\"\\ufffd\""},
        {"\xf0\x9f\x98\xf0\x9f", 5, "\"\\ufffd\\ufffd\""},
        {"\xe0\x80\xc3(", 4, "\"\\ufffd\\ufffd\\ufffd(\""},
        {"\xf4\x90\xf0\x8f\xf5\x80", 6, "\"\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\""},
    };
    d9d_buf b = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        b.len = 0;
        assert_ok(d9d_json_put_str(&b, rows[i].in, rows[i].n));
        assert_string_equal(b.data, rows[i].out);
    }
    d9d_buf_release(&b);
}

static void values_print_in_their_order_and_read_back(void **state)
{
    static const char line[] = "{\"z\": [1, -9223372036854775808, 2.0], \"a\": {\"y\": null}, "
                               "\"m\": {}, \"b\": [], \"t\": true, \"f\": false, \"s\": \"\\n\"}";
    json_t *v = parse(line), *back;
    d9d_buf b = {0};

    (void)state;
    assert_ok(d9d_json_put(&b, v, -1));
    assert_string_equal(b.data, line);
    b.len = 0;
    assert_ok(d9d_json_put(&b, v, 2));
    assert_string_equal(b.data, "{\n"
                                "  \"z\": [\n"
                                "    1,\n"
                                "    -9223372036854775808,\n"
                                "    2.0\n"
                                "  ],\n"
                                "  \"a\": {\n"
                                "    \"y\": null\n"
                                "  },\n"
                                "  \"m\": {},\n"
                                "  \"b\": [],\n"
                                "  \"t\": true,\n"
                                "  \"f\": false,\n"
                                "  \"s\": \"\\n\"\n"
                                "}");
    back = parse(b.data);
    assert_true(json_equal(v, back));
    json_decref(back);
    json_decref(v);
    d9d_buf_release(&b);
}

static void sealed_documents_know_every_byte(void **state)
{
    d9d_buf b = {0};

    (void)state;
    assert_ok(d9d_buf_printf(&b, "{}"));
    assert_fails_like(d9d_json_checksum_append(&b), D9D_EINVAL, "seal: not the text of an object");
    b.len = 0;
    assert_ok(d9d_buf_printf(&b, "{\n  \"a\": 1\n}\n"));
    assert_fails(d9d_json_checksum_verify("f", b.data, b.len), D9D_EFORMAT,
                 "f: it was changed: its own hash does not agree");
    assert_ok(d9d_json_checksum_append(&b));
    assert_ok(d9d_json_checksum_verify("f", b.data, b.len));
    json_decref(parse(b.data));
    for (size_t i = 0; i < b.len; i++) {
        b.data[i] ^= 1;
        assert_int_equal(d9d_json_checksum_verify("f", b.data, b.len), D9D_EFORMAT);
        b.data[i] ^= 1;
        assert_int_equal(d9d_json_checksum_verify("f", b.data, i), D9D_EFORMAT);
    }
    d9d_buf_release(&b);
}

static void strings_that_are_no_utf8(void **state)
{
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"plain", "plain"},
        {"caf\xc3\xa9", "caf\xc3\xa9"},
        {"caf\xe9", "caf\xef\xbf\xbd"},
        {"\xff\xfe", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xe2\x8dM", "\xef\xbf\xbdM"},
        {"", ""},
    };
    d9d_buf b = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *v = d9d_json_str(rows[i].in);

        assert_non_null(v);
        assert_string_equal(json_string_value(v), rows[i].out);
        json_decref(v);
    }
    assert_true(json_is_null(d9d_json_str(NULL)));
    assert_ok(d9d_text_repair(&b, "8\0\xe2\x8d\xc3\xa9", 6));
    assert_string_equal(b.data, "8\xef\xbf\xbd\xef\xbf\xbd\xc3\xa9");
    assert_fails(d9d_json_put(&b, NULL, 2), D9D_ENOMEM, "JSON to write: out of memory");
    d9d_buf_release(&b);
}

static void values_are_put_together_whole_or_not_at_all(void **state)
{
    json_t *list = json_array(), *obj = json_object();

    (void)state;
    d9d_json_add(&list, json_integer(1));
    d9d_json_set(&obj, "a", json_integer(1));
    assert_int_equal(json_array_size(list) + json_object_size(obj), 2);
    d9d_json_add(&list, NULL);
    d9d_json_set(&obj, "b", NULL);
    assert_true(list == NULL && obj == NULL);
    d9d_json_add(&list, json_integer(2)); /* accepted nevertheless */
    d9d_json_set(&obj, "a", json_integer(2));
    assert_true(list == NULL && obj == NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_one_value_is_refused_where_it_goes_wrong),
        cmocka_unit_test(bytes_that_are_no_text_are_refused),
        cmocka_unit_test(nesting_has_a_limit),
        unit_test_in_dir(files_have_a_limit_and_a_name),
        cmocka_unit_test(members_are_got_by_type),
        cmocka_unit_test(wrong_members_are_named),
        cmocka_unit_test(schemas_are_distinguished),
        cmocka_unit_test(numbers_print_shortest_and_stay_real),
        cmocka_unit_test(strings_are_escaped_and_always_utf8),
        cmocka_unit_test(values_print_in_their_order_and_read_back),
        cmocka_unit_test(sealed_documents_know_every_byte),
        cmocka_unit_test(strings_that_are_no_utf8),
        cmocka_unit_test(values_are_put_together_whole_or_not_at_all),
    };

    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
