/* test_parquet_columns.c - which values of a Parquet file's columns are null, by their types. */
#include "support/unit.h"

#include <string.h>

#include "data/io/parquet_columns.h"

static const struct column {
    const char *type, *sql; /* NULL: as it is */
} columns[] = {
    {"VARCHAR", NULL},
    {"BIGINT[]", NULL},
    {"DECIMAL(18,3)", NULL},
    {"STRUCT(a VARCHAR, \"BLOB\" BIGINT, b STRUCT(c VARCHAR)[])", NULL},
    {"MAP(BLOB, VARCHAR)", NULL},
    {"ENUM('a BLOB', '(')", NULL},
    {"BLOB", "NULL"},
    {"DOUBLE", "CASE WHEN isfinite(\"c\") THEN \"c\" END"},
    {"BLOB[]", "[NULL FOR d9d_1 IN \"c\"]"},
    {"FLOAT[][3]",
     "[[CASE WHEN isfinite(d9d_2) THEN d9d_2 END FOR d9d_2 IN d9d_1] FOR d9d_1 IN \"c\"]"},
    {"STRUCT(a VARCHAR, b BLOB)",
     "CASE WHEN \"c\" IS NOT NULL THEN struct_pack(\"a\" := struct_extract(\"c\", 'a'), \"b\" := "
     "NULL) END"},
    {"STRUCT(\"it's, \"\"so\"\" (x\" BLOB, d DECIMAL(4,2))[]",
     "[CASE WHEN d9d_1 IS NOT NULL THEN struct_pack(\"it's, \"\"so\"\" (x\" := NULL, \"d\" := "
     "struct_extract(d9d_1, 'd')) END FOR d9d_1 IN \"c\"]"},
    {"STRUCT(\"it's\" VARCHAR, b BLOB)",
     "CASE WHEN \"c\" IS NOT NULL THEN struct_pack(\"it's\" := struct_extract(\"c\", 'it''s'), "
     "\"b\" := NULL) END"},
    {"MAP(VARCHAR, STRUCT(b BLOB))",
     "CASE WHEN \"c\" IS NOT NULL THEN map_from_entries([struct_pack(k := struct_extract(d9d_1, "
     "'key'), v := CASE WHEN struct_extract(d9d_1, 'value') IS NOT NULL THEN struct_pack(\"b\" := "
     "NULL) END) FOR d9d_1 IN map_entries(\"c\")]) END"},
    /* What DuckDB does not write ends as well. */
    {"", NULL},
    {"]", NULL},
    {"STRUCT(", NULL},
    {"STRUCT()", NULL},
    {"STRUCT(\"a)", NULL},
    {"MAP()", NULL},
    {"STRUCT(a)", NULL},
};

static void test_types(void **state)
{
    d9d_arena a = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) {
        const char *got = "";

        assert_ok(d9di_parquet_column_print("c", columns[i].type, &a, &got));
        if (columns[i].sql == NULL)
            assert_null(got);
        else
            assert_string_equal(got, columns[i].sql);
    }
    d9d_arena_release(&a);
}

static void test_depth(void **state)
{
    char type[400] = "BLOB";
    d9d_arena a = {0};
    const char *got;

    (void)state;
    for (int i = 0; i < 100; i++)
        strcat(type, "[]");
    assert_fails(d9di_parquet_column_print("c", type, &a, &got), D9D_ENOTSUP,
                 "the column c is nested deeper than 64 levels");
    type[4 + 2 * 60] = '\0';
    assert_ok(d9di_parquet_column_print("c", type, &a, &got));
    assert_non_null(got);
    assert_string_equal(d9di_parquet_column_quote("a\"b", &a), "\"a\"\"b\"");
    d9d_arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_depth),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
