/* test_framing.c - documents of lines, arrays and tables, read in blocks of every size. */
#include "support/unit.h"

#include <stdio.h>
#include <string.h>

#include "data/io/framing.h"

enum { MOST = 8 };

typedef struct input {
    d9di_framing framing;
    const char *text;
    const char *documents[MOST];
} input;

static const input inputs[] = {
    {D9DI_FRAMING_LINES, "a\nbc\r\n\nd", {"a", "bc\r", "", "d"}},
    {D9DI_FRAMING_LINES, "", {NULL}},
    {D9DI_FRAMING_ARRAY, "[]", {NULL}},
    {D9DI_FRAMING_ARRAY, " \n[ ] \n", {NULL}},
    {D9DI_FRAMING_ARRAY, "\xef\xbb\xbf[{}]", {"{}"}},
    {D9DI_FRAMING_ARRAY,
     "[\n {\"a\": [1, {\"b\": \"}\\\"]\"}]},\n\n{\"c\\\\\": 2} , {\"\\\\\": \"\n\"}]\n",
     {"{\"a\": [1, {\"b\": \"}\\\"]\"}]}", "{\"c\\\\\": 2}", "{\"\\\\\": \"\n\"}"}},
    {D9DI_FRAMING_CSV,
     "a,b\n\"1\n2\",\"x\"\"\ny\"\n5\" tall,6\"\"7\r\n\n,",
     {"a,b", "\"1\n2\",\"x\"\"\ny\"", "5\" tall,6\"\"7\r", "", ","}},
    {D9DI_FRAMING_TSV, "a,\"b\n\t\"c\nd\"\n", {"a,\"b", "\t\"c\nd\""}},
};
enum { INPUTS = sizeof(inputs) / sizeof(inputs[0]) };

/* Reads the input in blocks of `block` bytes; every document must be the next of the list. */
static void read_in_blocks(const input *in, size_t block)
{
    const size_t all = strlen(in->text);
    size_t at = 0, have = block < all ? block : all, n = 0;
    d9di_framing_scan scan = {0};

    for (;;) {
        d9di_framing_span f;

        assert_ok(d9di_framing_find(in->framing, in->text + at, have - at, at == 0, have == all,
                                    &scan, &f));
        if (!f.found && have == all)
            break;
        if (!f.found) {
            have = have + block < all ? have + block : all;
            continue;
        }
        assert_non_null(in->documents[n]);
        assert_int_equal(f.len, strlen(in->documents[n]));
        assert_memory_equal(in->text + at + f.begin, in->documents[n++], f.len);
        at += f.used;
        scan = (d9di_framing_scan){0};
    }
    assert_null(in->documents[n]);
}

static void documents_are_those_of_any_blocks(void **state)
{
    (void)state;
    for (int i = 0; i < INPUTS; i++)
        for (size_t block = 1; block <= strlen(inputs[i].text) + 1; block++)
            read_in_blocks(&inputs[i], block);
}

static void what_is_no_array_of_objects_is_refused(void **state)
{
    static const struct bad {
        const char *text, *why;
        bool first;
    } bad[] = {
        {"[1]", "an element of the array is not an object", true},
        {"[[{}]]", "an element of the array is not an object", true},
        {"[{\"a\": 1", "the array has no end", true},
        {"[", "the array has no end", true},
        {",{}", "the array has no end", false}, /* behind the object */
        {"{}", "',' or ']' is expected after an element of the array", false},
        {"] x", "something follows the array", false},
        {"[] {}", "something follows the array", true},
        {",]", "an element of the array is not an object", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        size_t at = 0;
        const size_t n = strlen(bad[i].text);
        d9d_status st = D9D_OK;

        for (d9di_framing_span f = {.found = true}; st == D9D_OK && f.found; at += f.used) {
            d9di_framing_scan scan = {0};

            st = d9di_framing_find(D9DI_FRAMING_ARRAY, bad[i].text + at, n - at,
                                   bad[i].first && at == 0, true, &scan, &f);
        }
        assert_fails(st, D9D_EFORMAT, bad[i].why);
    }
}

static void names_and_first_bytes_tell_the_framing(void **state)
{
    (void)state;
    assert_int_equal(d9di_framing_of("a.csv", "[", 1), D9DI_FRAMING_CSV);
    assert_int_equal(d9di_framing_of("a.csv.gz", "", 0), D9DI_FRAMING_CSV);
    assert_int_equal(d9di_framing_of("a.tsv.zst", "", 0), D9DI_FRAMING_TSV);
    assert_int_equal(d9di_framing_of(".csv", "{", 1), D9DI_FRAMING_LINES);
    assert_int_equal(d9di_framing_of("-", " \n[", 3), D9DI_FRAMING_ARRAY);
    assert_int_equal(d9di_framing_of("a.json", "{}", 2), D9DI_FRAMING_LINES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_are_those_of_any_blocks),
        cmocka_unit_test(what_is_no_array_of_objects_is_refused),
        cmocka_unit_test(names_and_first_bytes_tell_the_framing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
