/* test_config_schema.c - the JSON Schema of a key table, letter by letter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "d9d/config/config.h"
#include "d9d/config/period.h"

struct item {
    d9d_list items;
    double lr;
};
struct file {
    d9d_union u;
    int64_t n, old;
    int e;
    struct item *maybe;
    d9d_str_int_map m;
    d9d_step_period p;
};

static const d9d_table item_table;
static const d9d_table *const choices[] = {&item_table, NULL};
static const char *const tag[] = {"type", NULL};
static const char *const words[] = {"a", "b", NULL};
static const d9d_key elem = {.kind = D9D_KIND_UNION, .names = tag, .choices = choices};
static const d9d_key item_keys[] = {
    D9D_KEY_LIST(struct item, items, "[]", &elem, "more", .max = 3),
    D9D_KEY_REAL(struct item, lr, D9D_REQUIRED, 0, 0.5, "rate", .flags = D9D_ABOVE_MIN),
    D9D_KEY_END,
};
static const d9d_table item_table = D9D_TABLE(struct item, "item", item_keys, "a thing");
static const d9d_key file_keys[] = {
    D9D_KEY_UNION(struct file, u, D9D_REQUIRED, tag, choices, "which"),
    D9D_KEY_INT(struct file, n, "1", 1, INT64_MAX, "count"),
    D9D_KEY_INT(struct file, old, "0", 0, 1, "gone", .flags = D9D_NO_EFFECT),
    D9D_KEY_ENUM(struct file, e, "null", words, "word", .flags = D9D_NULLABLE, .former = "letter"),
    {.name = "maybe",
     .kind = D9D_KIND_TABLE,
     .flags = D9D_NULLABLE,
     .offset = offsetof(struct file, maybe),
     .def = "null",
     .table = &item_table,
     .doc = "perhaps"},
    D9D_KEY_MAP(struct file, m, "{}", 1, 9, "sizes"),
    D9D_KEY_PERIOD(struct file, p, "\"disable\"", "how often"),
    D9D_KEY_END,
};
static const d9d_table file_table = D9D_TABLE(struct file, "file", file_keys, "a file");

static const char expected[] =
    "{'$schema': 'https://json-schema.org/draft/2020-12/schema', '$id': 'd9d.file.v1',"
    " 'title': 'file', 'description': 'a file', 'type': 'object', 'properties': {"
    "'u': {'oneOf': [{'$ref': '#/$defs/item'}], 'description': 'which'}, "
    "'n': {'type': 'integer', 'minimum': 1, 'description': 'count', 'default': 1}, "
    "'old': {'type': 'integer', 'minimum': 0, 'maximum': 1,"
    " 'description': 'gone (accepted, but has no effect)', 'default': 0}, "
    "'e': {'anyOf': [{'enum': ['a', 'b']}, {'type': 'null'}], 'description': 'word',"
    " 'default': null}, "
    "'letter': {'anyOf': [{'enum': ['a', 'b']}, {'type': 'null'}], 'description': 'now e',"
    " 'deprecated': true}, "
    "'maybe': {'anyOf': [{'$ref': '#/$defs/item-2'}, {'type': 'null'}],"
    " 'description': 'perhaps', 'default': null}, "
    "'m': {'type': 'object', 'additionalProperties': {'type': 'integer', 'minimum': 1,"
    " 'maximum': 9}, 'description': 'sizes', 'default': {}}, "
    "'p': {'anyOf': [{'type': 'integer', 'minimum': 1}, {'enum': ['last_step', 'disable']}],"
    " 'description': 'how often', 'default': 'disable'}}, "
    "'required': ['u'], 'additionalProperties': false, '$defs': {"
    "'item': {'title': 'item', 'description': 'a thing', 'type': 'object', 'properties': {"
    "'type': {'const': 'item'}, "
    "'items': {'type': 'array', 'items': {'oneOf': [{'$ref': '#/$defs/item'}]}, 'maxItems': 3,"
    " 'description': 'more', 'default': []}, "
    "'lr': {'type': 'number', 'exclusiveMinimum': 0, 'maximum': 0.5, 'description': 'rate'}}, "
    "'required': ['type', 'lr'], 'additionalProperties': false}, "
    "'item-2': {'title': 'item', 'description': 'a thing', 'type': 'object', 'properties': {"
    "'items': {'type': 'array', 'items': {'oneOf': [{'$ref': '#/$defs/item'}]}, 'maxItems': 3,"
    " 'description': 'more', 'default': []}, "
    "'lr': {'type': 'number', 'exclusiveMinimum': 0, 'maximum': 0.5, 'description': 'rate'}}, "
    "'required': ['lr'], 'additionalProperties': false}}}";

static void every_kind_is_described(void **state)
{
    d9d_buf schema = {0}, line = {0};
    json_t *v;

    (void)state;
    assert_int_equal(d9d_config_schema(&file_table, "d9d.file.v1", &schema), D9D_OK);
    assert_int_equal(schema.data[schema.len - 1], '\n');
    v = json_loads(schema.data, 0, NULL);
    assert_non_null(v);
    assert_int_equal(d9d_json_put(&line, v, -1), D9D_OK);
    for (size_t i = 0; i < line.len; i++)
        if (line.data[i] == '"')
            line.data[i] = '\'';
    assert_string_equal(line.data, expected);
    json_decref(v);
    d9d_buf_release(&line);
    d9d_buf_release(&schema);
}

static void a_default_that_is_not_json_is_refused(void **state)
{
    static const d9d_key keys[] = {
        D9D_KEY_INT(struct file, n, "one", 1, 9, "count"),
        D9D_KEY_END,
    };
    static const d9d_table table = D9D_TABLE(struct file, "file", keys, "a file");
    d9d_buf schema = {0};

    (void)state;
    assert_int_equal(d9d_config_schema(&table, "d9d.file.v1", &schema), D9D_EINVAL);
    d9d_buf_release(&schema);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_is_described),
        cmocka_unit_test(a_default_that_is_not_json_is_refused),
    };

    return cmocka_run_group_tests_name("config_schema", tests, NULL, NULL);
}
