/* test_hex.c - bytes as hexadecimal digits, and back. */
#include <string.h>

#include "d9d/base/hex.h"
#include "support/unit.h"

static void all_bytes_go_both_ways(void **state)
{
    unsigned char bytes[256], back[256] = {0};
    char text[2 * 256 + 1];

    (void)state;
    for (size_t i = 0; i < 256; i++)
        bytes[i] = (unsigned char)(255 - i);
    d9d_hex_format(bytes, 256, text);
    assert_int_equal(strlen(text), 512);
    assert_memory_equal(text, "fffefdfc", 8);
    assert_int_equal(d9d_hex_parse(text, 256, back), 512);
    assert_memory_equal(bytes, back, 256);
}

static void nothing_is_an_empty_text(void **state)
{
    char text[] = "x";

    (void)state;
    d9d_hex_format("", 0, text);
    assert_string_equal(text, "");
    assert_int_equal(d9d_hex_parse("", 0, text), 0);
}

/* A text may end anywhere: nothing behind its NUL is read. */
static void what_is_no_digit_ends_it(void **state)
{
    static const struct {
        const char *text;
        size_t digits;
        unsigned char first, second;
    } cases[] = {{"0aFf", 4, 0x0a, 0xff}, {"0aF", 3, 0x0a, 7},  {"0g00", 1, 7, 7},
                 {"", 0, 7, 7},           {"12 3", 2, 0x12, 7}, {"12345", 4, 0x12, 0x34}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned char b[2] = {7, 7};

        assert_int_equal(d9d_hex_parse(cases[i].text, 2, b), cases[i].digits);
        assert_int_equal(b[0], cases[i].first);
        assert_int_equal(b[1], cases[i].second);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_bytes_go_both_ways),
        cmocka_unit_test(nothing_is_an_empty_text),
        cmocka_unit_test(what_is_no_digit_ends_it),
    };

    return cmocka_run_group_tests_name("hex", tests, NULL, NULL);
}
