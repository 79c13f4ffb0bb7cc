/* test_index_set.c - sets of numbers from lists and files. */
#include "support/unit.h"

#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/data/loader/index_set.h"

static void check(const char *text, const char *members, int64_t count, int64_t last)
{
    d9d_index_set s;

    assert_ok(d9d_index_set_read(text, &s));
    for (size_t i = 0; i < strlen(members); i++)
        assert_int_equal(d9d_index_set_has(&s, (int64_t)i), members[i] == 'x');
    assert_int_equal(d9d_index_set_count(&s), count);
    assert_int_equal(d9d_index_set_max(&s), last);
    d9d_index_set_release(&s);
}

static void test_lists(void **state)
{
    (void)state;
    check("0", "x.", 1, 0);
    check("3,1", ".x.x.", 2, 3);
    check("2-4 3-5, 6", "..xxxxx.", 5, 6);
}

static void test_files(void **state)
{
    static const char file[] = "# bad ones\n3-5 7\n\n0 # the first\n4-6,1\n";

    (void)state;
    assert_ok(d9d_fs_write_atomic("skip", file, strlen(file)));
    check("skip", "xx.xxxxx.", 7, 7);
    assert_ok(d9d_fs_write_atomic("none", "# nothing\n", 10));
    check("none", "..", 0, -1);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"5-3", "list of samples: \"5-3\" at byte 0 is no number or range"},
        {"1, 4-", "list of samples: \"4-\" at byte 3 is no number or range"},
        {"1-2-3", "\"1-2-3\" at byte 0"},
        {"99999999999999999999", "\"99999999999999999999\" at byte 0"},
        {"no/such/file", "no/such/file"},
    };
    d9d_index_set s;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        const d9d_status st = d9d_index_set_read(bad[i].text, &s);

        assert_true(st == D9D_ECONFIG || st == D9D_ENOTFOUND);
        assert_non_null(strstr(d9d_err_message(), bad[i].says));
    }
    assert_ok(d9d_fs_write_atomic("zero", "1\0002", 3));
    assert_fails_like(d9d_index_set_read("zero", &s), D9D_ECONFIG, "zero: is no text: byte 1 is 0");
    assert_ok(d9d_fs_write_atomic("words", "1 two", 5));
    assert_fails_like(d9d_index_set_read("words", &s), D9D_ECONFIG, "words: \"two\" at byte 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        unit_test_in_dir(test_files),
        unit_test_in_dir(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
