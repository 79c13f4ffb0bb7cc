/* test_csv.c - rows of tables as JSON objects. */
#include "support/unit.h"

#include <string.h>

#include "data/io/csv.h"

static d9d_status convert(char separator, const char *header, const char *row, d9d_buf *out,
                          d9di_jsonl_error *error)
{
    out->len = 0;
    return d9di_csv_row_to_json(separator, header, strlen(header), row, strlen(row), out, error);
}

static void rows_are_objects(void **state)
{
    static const struct row {
        char separator;
        const char *header, *text, *object;
    } rows[] = {
        {',', "a,b", "1,2", "{\"a\": \"1\", \"b\": \"2\"}"},
        {',', "a,b\r", "1,\r", "{\"a\": \"1\", \"b\": \"\"}"},
        {',', "\"a\"\"\",\"b,c\"", "\"x\ny\",\"q\"\"\"\"\"",
         "{\"a\\\"\": \"x\\ny\", \"b,c\": \"q\\\"\\\"\"}"},
        {',', "a", "5\" tall\t\\", "{\"a\": \"5\\\" tall\\t\\\\\"}"},
        {',', "a", "6\"\"7", "{\"a\": \"6\\\"\\\"7\"}"},
        {',', "a,b", "\"x\"y,z", "{\"a\": \"xy\", \"b\": \"z\"}"},
        {'\t', "a\tb", "1,2\t3", "{\"a\": \"1,2\", \"b\": \"3\"}"},
        {',', "", "", "{\"\": \"\"}"},
    };
    d9di_jsonl_error error;
    d9d_buf out = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_ok(convert(rows[i].separator, rows[i].header, rows[i].text, &out, &error));
        assert_int_equal(out.len, strlen(rows[i].object));
        assert_memory_equal(out.data, rows[i].object, out.len);
    }
    d9d_buf_release(&out);
}

static void rows_that_do_not_fit_are_refused(void **state)
{
    d9di_jsonl_error error = {.offset = 7};
    d9d_buf out = {0};

    (void)state;
    assert_int_equal(convert(',', "a,b", "1,2,3", &out, &error), D9D_EFORMAT);
    assert_string_equal(error.message, "has 3 fields, and the header 2");
    assert_int_equal(convert(',', "a,b", "\"1,2", &out, &error), D9D_EFORMAT);
    assert_string_equal(error.message, "has 1 fields, and the header 2");
    assert_int_equal(convert(',', "a,b", "1,\"2\"\"", &out, &error), D9D_EFORMAT);
    assert_string_equal(error.message, "a quoted field has no end");
    assert_int_equal(error.offset, 0);
    assert_int_equal(error.reason, D9D_SHARD_BAD_JSON);
    d9d_buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_objects),
        cmocka_unit_test(rows_that_do_not_fit_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
