/* test_num_format.c - numbers in files have a decimal point in every locale. */
#include <locale.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/base/num_format.h"
#include "d9d/base/size.h"
#include "d9d/plot/chart.h"
#include "support/unit.h"

/* A locale with a decimal comma: one of this machine, or one compiled from its sources. */
static bool speak_german(void)
{
    static const char name[] = "de_DE.UTF-8";

    if (setlocale(LC_NUMERIC, name) == NULL &&
        (system("localedef -i de_DE -f UTF-8 ./de_DE.UTF-8 >/dev/null 2>&1") == -1 ||
         setenv("LOCPATH", ".", 1) != 0 || setlocale(LC_NUMERIC, name) == NULL))
        return false;
    return strcmp(localeconv()->decimal_point, ",") == 0;
}

static void write_all(d9d_buf *b)
{
    static const double x[] = {0, 1, 2, 3}, y[] = {0, 0.25, 1.5, 7};
    const d9d_chart_series series = {"half", x, y, 4};
    const d9d_chart chart = {.title = "t", .series = &series, .n_series = 1};
    const d9d_figure figure = {.charts = &chart, .n = 1};
    d9d_arena a = {0};

    assert_ok(d9d_buf_printf(b, "%.3f %g\n", 0.125, 1e-3));
    assert_ok(d9d_json_put_f64(b, 0.1));
    assert_ok(d9d_json_put_f64(b, 1.0 / 3));
    assert_ok(d9d_buf_printf(b, "%s\n", d9d_arena_printf(&a, "%.1f", 0.5)));
    (void)D9D_FAIL(D9D_EINVAL, "%.2f is too much", 0.75);
    assert_ok(d9d_buf_printf(b, "%s\n", d9d_err_message()));
    assert_ok(d9d_figure_render(&figure, D9D_IMAGE_SVG, b));
    d9d_arena_release(&a);
}

static void files_have_the_same_bytes_in_every_locale(void **state)
{
    d9d_buf plain = {0}, german = {0};
    uint64_t bytes = 0;

    (void)state;
    write_all(&plain);
    if (!speak_german()) {
        d9d_buf_release(&plain);
        skip();
    }
    write_all(&german);
    assert_string_equal(german.data, plain.data);
    assert_true(d9d_size_parse("1.5kB", &bytes));
    assert_int_equal(bytes, 1500);
    assert_string_equal(localeconv()->decimal_point, ",");
    d9d_buf_release(&german);
    d9d_buf_release(&plain);
}

/* An umlaut has two bytes, a euro three and a face four. */
#define WORD "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80z"

static void a_precision_ends_at_a_character(void **state)
{
    const char unended[3] = {'x', 'y', '\xc3'};
    char text[128];

    (void)state;
#define ENDS_AT(n, end)                                                                            \
    assert_int_equal(d9d_num_format(text, sizeof(text), "<%." #n "s>", WORD), (end) + 2);          \
    assert_memory_equal(text + 1, WORD, end)
    ENDS_AT(0, 0);
    ENDS_AT(1, 1);
    ENDS_AT(2, 1);
    ENDS_AT(3, 3);
    ENDS_AT(5, 3);
    ENDS_AT(6, 6);
    ENDS_AT(7, 6);
    ENDS_AT(9, 6);
    ENDS_AT(10, 10);
    ENDS_AT(12, 11);
#undef ENDS_AT
    assert_int_equal(d9d_num_format(text, sizeof(text), "%.3s", unended), 2);
    assert_int_equal(d9d_num_format(NULL, 0, "%.2s", "\xe4\xf6\xfc"), 1); /* no UTF-8 */
    assert_int_equal(d9d_num_format(NULL, 0, "%.3s", "\xa4\xb6\xbc"), 3);
    /* Whatever stands before it is passed over. */
    (void)d9d_num_format(text, sizeof(text),
                         "%% %d %lld %zu %5.2f %c %-4s|%*d|%.*f %.2s %p %.20s %.3g %.4s|", 1,
                         1LL << 40, (size_t)7, 0.5, 'c', "ab", 3, 2, 1, 0.25, WORD, (void *)NULL,
                         "whole", 0.125, WORD);
    assert_string_equal(text,
                        "% 1 1099511627776 7  0.50 c ab  |  2|0.2 a (nil) whole 0.125 a\xc3\xa4|");
    (void)D9D_FAIL(D9D_EINVAL, "\"%.5s\" is unknown", WORD);
    assert_string_equal(d9d_err_message(), "\"a\xc3\xa4\" is unknown");
}

/* The same where the precision is an argument, for which texts without an end are given. */
static void a_star_ends_at_a_character(void **state)
{
    static const int ends[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11};
    const char unended[3] = {'x', 'y', '\xc3'};
    char text[128];

    (void)state;
    for (int n = 0; n < (int)(sizeof(ends) / sizeof(ends[0])); n++) {
        assert_int_equal(d9d_num_format(text, sizeof(text), "<%.*s>%d", n, WORD, 7), ends[n] + 3);
        assert_memory_equal(text + 1, WORD, ends[n]);
        assert_string_equal(text + 1 + ends[n], ">7");
    }
    assert_int_equal(d9d_num_format(text, sizeof(text), "%.*s", 3, unended), 2);
    assert_int_equal(d9d_num_format(text, sizeof(text), "%.*s", -1, WORD), 11); /* none */
    assert_int_equal(d9d_num_format(text, sizeof(text), "%.s%.*s", WORD, 0, WORD), 0);
    (void)d9d_num_format(text, sizeof(text), "%d|%*.*s|%-*.*s|%-6.2s|%6.2s|%*s|%.*s|%lld", 1, 5, 2,
                         WORD, 5, 4, WORD, WORD, WORD, 3, "b", 2, "c", 8LL);
    assert_string_equal(text, "1|    a|a\xc3\xa4  |a     |     a|  b|c|8");
    /* What does not fit is counted. */
    memset(text, '#', sizeof(text));
    assert_int_equal(d9d_num_format(text, 4, "%s%.*s%s", "ab", 4, WORD, "xyz"), 8);
    assert_string_equal(text, "aba");
    assert_int_equal(text[4], '#');
    assert_int_equal(d9d_num_format(NULL, 0, "%d%.*s%d", 12, 5, WORD, 345), 8);
    (void)D9D_FAIL(D9D_EINVAL, "%s: \"%.*s\" is %d", "x", 5, WORD, 3);
    assert_string_equal(d9d_err_message(), "x: \"a\xc3\xa4\" is 3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(files_have_the_same_bytes_in_every_locale),
        cmocka_unit_test(a_precision_ends_at_a_character),
        cmocka_unit_test(a_star_ends_at_a_character),
    };

    return cmocka_run_group_tests_name("point", tests, NULL, NULL);
}
