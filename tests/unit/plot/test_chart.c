/* test_chart.c - charts as SVG and as text, letter by letter; PNG and PDF by their shape. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "d9d/plot/chart.h"
#include "plot/axis.h"

static const double x[] = {0, 1, 2, 3, 4};
static const double y[] = {0, 1, 4, 9, 16};
static const double gap[] = {1, 2, NAN, 2, 1};
static const d9d_chart_series squares = {"squares", x, y, 5};
static const d9d_chart_series two[] = {{"squares", x, y, 5}, {"a<b> & \xff\n", x, gap, 5}};
static const d9d_chart plain = {
    .title = "Squares", .x_label = "step", .series = &squares, .n_series = 1};
static const d9d_chart both = {.title = "Two", .series = two, .n_series = 2};

static const char golden_svg[] =
    "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"320\" height=\"200\" viewBox=\"0 0 320 "
    "200\">\n"
    "<g font-family=\"DejaVu Sans, Verdana, sans-serif\">\n"
    "<rect x=\"0\" y=\"0\" width=\"320\" height=\"200\" fill=\"#ffffff\"/>\n"
    "<text x=\"20\" y=\"35\" font-size=\"15\" fill=\"#1f2937\" font-weight=\"bold\">Two</text>\n"
    "<polyline fill=\"none\" stroke=\"#2563af\" stroke-width=\"2.6\" points=\"20,54 38,54\"/>\n"
    "<text x=\"45\" y=\"58\" font-size=\"12\" fill=\"#1f2937\">squares</text>\n"
    "<polyline fill=\"none\" stroke=\"#d95f0e\" stroke-width=\"2.6\" points=\"115.76,54 "
    "133.76,54\"/>\n"
    "<text x=\"140.76\" y=\"58\" font-size=\"12\" fill=\"#1f2937\">a&lt;b&gt; &amp; ��</text>\n"
    "<polyline fill=\"none\" stroke=\"#e5e7eb\" stroke-width=\"1\" points=\"44.08,158 300,158\"/>\n"
    "<text x=\"36.08\" y=\"161.85\" font-size=\"11\" fill=\"#6b7280\" "
    "text-anchor=\"end\">0</text>\n"
    "<polyline fill=\"none\" stroke=\"#e5e7eb\" stroke-width=\"1\" points=\"44.08,105.62 "
    "300,105.62\"/>\n"
    "<text x=\"36.08\" y=\"109.47\" font-size=\"11\" fill=\"#6b7280\" "
    "text-anchor=\"end\">10</text>\n"
    "<polyline fill=\"none\" stroke=\"#9ca3af\" stroke-width=\"1\" points=\"44.08,158 300,158\"/>\n"
    "<polyline fill=\"none\" stroke=\"#9ca3af\" stroke-width=\"1\" points=\"44.08,158 "
    "44.08,163\"/>\n"
    "<text x=\"44.08\" y=\"176\" font-size=\"11\" fill=\"#6b7280\" "
    "text-anchor=\"middle\">0</text>\n"
    "<polyline fill=\"none\" stroke=\"#9ca3af\" stroke-width=\"1\" points=\"172.04,158 "
    "172.04,163\"/>\n"
    "<text x=\"172.04\" y=\"176\" font-size=\"11\" fill=\"#6b7280\" "
    "text-anchor=\"middle\">2</text>\n"
    "<polyline fill=\"none\" stroke=\"#9ca3af\" stroke-width=\"1\" points=\"300,158 300,163\"/>\n"
    "<text x=\"300\" y=\"176\" font-size=\"11\" fill=\"#6b7280\" text-anchor=\"middle\">4</text>\n"
    "<polyline fill=\"none\" stroke=\"#2563af\" stroke-width=\"1.8\" stroke-linejoin=\"round\" "
    "stroke-linecap=\"round\" points=\"44.08,158 108.06,152.76 172.04,137.05 236.02,110.86 "
    "300,74.19\"/>\n"
    "<polyline fill=\"none\" stroke=\"#d95f0e\" stroke-width=\"1.8\" points=\"44.08,152.76 "
    "108.06,147.52\"/>\n"
    "<polyline fill=\"none\" stroke=\"#d95f0e\" stroke-width=\"1.8\" points=\"236.02,147.52 "
    "300,152.76\"/>\n"
    "</g>\n"
    "</svg>\n";

static void an_svg_has_these_bytes(void **state)
{
    const d9d_figure f = {.charts = &both, .n = 1, .width = 320, .height = 200};
    d9d_buf b = {0}, again = {0};

    (void)state;
    assert_int_equal(d9d_figure_render(&f, D9D_IMAGE_SVG, &b), D9D_OK);
    assert_string_equal(b.data, golden_svg);
    assert_int_equal(d9d_figure_render(&f, D9D_IMAGE_SVG, &again), D9D_OK);
    assert_string_equal(again.data, golden_svg);
    d9d_buf_release(&again);
    d9d_buf_release(&b);
}

static void cairo_draws_the_same_file_twice(void **state)
{
    static const struct {
        d9d_image_kind kind;
        const char *magic;
    } rows[] = {{D9D_IMAGE_PNG, "\x89PNG"}, {D9D_IMAGE_PDF, "%PDF"}};
    const d9d_figure f = {.title = "All", .charts = &both, .n = 1, .columns = 2};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        d9d_buf a = {0}, b = {0};
        const d9d_status st = d9d_figure_render(&f, rows[i].kind, &a);

        if (st == D9D_ENOTSUP) { /* a build without cairo */
            assert_non_null(strstr(d9d_err_message(), "choose a name that ends in .svg"));
            assert_int_equal(a.len, 0);
            skip();
        }
        assert_int_equal(st, D9D_OK);
        assert_int_equal(d9d_figure_render(&f, rows[i].kind, &b), D9D_OK);
        assert_memory_equal(a.data, rows[i].magic, 4);
        assert_int_equal(a.len, b.len);
        assert_memory_equal(a.data, b.data, a.len);
        d9d_buf_release(&a);
        d9d_buf_release(&b);
    }
}

static void a_terminal_shows_braille(void **state)
{
    const d9d_chart_text_style style = {.columns = 30, .rows = 10, .utf8 = true};
    d9d_buf b = {0};

    (void)state;
    assert_int_equal(d9d_chart_text(&plain, &style, &b), D9D_OK);
    assert_string_equal(b.data, "Squares\n"
                                "   │                        ⣀⠔\n"
                                "   │                     ⢀⠤⠊\n"
                                "10 ┤                   ⡠⠒⠁\n"
                                "   │               ⢀⠤⠒⠉\n"
                                "   │           ⣀⡠⠔⠊⠁\n"
                                " 0 ┤⣀⣀⣀⡠⠤⠤⠤⠔⠒⠉⠉\n"
                                "   └┬────────────┬───────────┬\n"
                                "    0            2           4\n"
                                "                          step\n");
    d9d_buf_release(&b);
}

static void a_plain_terminal_shows_letters(void **state)
{
    const d9d_chart_text_style style = {.columns = 30, .rows = 12};
    d9d_buf b = {0};

    (void)state;
    assert_int_equal(d9d_chart_text(&both, &style, &b), D9D_OK);
    assert_string_equal(b.data, "Two\n"
                                "  * squares  + a<b> & ��\n"
                                "   |                        **\n"
                                "15 +                      **\n"
                                "   |                    **\n"
                                "10 +                  **\n"
                                "   |               ***\n"
                                " 5 +            ***\n"
                                "   |   ++++ ****       +++\n"
                                " 0 ++++*****              ++++\n"
                                "   ++------------+-----------+\n"
                                "    0            2           4\n");
    d9d_buf_release(&b);
}

/* Charts of nothing, of one point, of huge and of tiny values must not fail. */
static void odd_data_is_drawn(void **state)
{
    static const double ones[] = {1e300, -1e300, 1e-300, NAN, INFINITY};
    static const double zeros[5];
    const d9d_chart_series series[] = {
        {"none", x, y, 0},     {"one", x, y, 1},     {"odd", x, ones, 5},
        {"flat", x, zeros, 5}, {"back", ones, y, 5}, {"nothing", x, ones + 3, 2},
    };
    const d9d_chart_text_style style = {.columns = 1, .rows = 1, .utf8 = true, .colour = true};

    (void)state;
    for (size_t i = 0; i < sizeof(series) / sizeof(series[0]); i++)
        for (int log_y = 0; log_y < 2; log_y++) {
            const d9d_chart c = {.title = "", .series = &series[i], .n_series = 1, .log_y = log_y};
            const d9d_figure f = {.charts = &c, .n = 1};
            d9d_buf b = {0};

            for (int kind = D9D_IMAGE_SVG; kind <= D9D_IMAGE_PDF; kind++) {
                const d9d_status st = d9d_figure_render(&f, (d9d_image_kind)kind, &b);

                if (st != D9D_ENOTSUP || kind == D9D_IMAGE_SVG) /* a build without cairo */
                    assert_int_equal(st, D9D_OK);
            }
            assert_int_equal(d9d_chart_text(&c, &style, &b), D9D_OK);
            d9d_buf_release(&b);
        }
}

static void ticks_are_round(void **state)
{
    static const struct {
        double lo, hi;
        const char *labels;
    } rows[] = {
        {0, 10, "0 2 4 6 8 10"},
        {0, 1, "0 0.2 0.4 0.6 0.8 1.0"},
        {3, 97, "20 40 60 80"},
        {0, 20000, "0 5k 10k 15k 20k"},
        {0, 3e6, "0 1M 2M 3M"},
        {0, 0.001, "0 2e-4 4e-4 6e-4 8e-4 1e-3"},
        {100, 100.5, "100.0 100.1 100.2 100.3 100.4 100.5"},
        {0, 0, "-0.4 -0.2 0 0.2 0.4"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const double ends[] = {rows[i].lo, rows[i].hi};
        const d9d_chart_series s = {"s", ends, y, 2};
        const d9d_chart c = {.title = "", .series = &s, .n_series = 1};
        char labels[256] = "";
        d9di_axis a;

        d9di_axis_x(&c, 5, &a);
        for (int k = 0; k < a.n; k++) {
            strcat(labels, k > 0 ? " " : "");
            strcat(labels, a.label[k]);
        }
        assert_string_equal(labels, rows[i].labels);
    }
}

static void names_tell_the_kind(void **state)
{
    d9d_image_kind kind;

    (void)state;
    assert_int_equal(d9d_image_kind_of("a/b.PNG", &kind), D9D_OK);
    assert_int_equal(kind, D9D_IMAGE_PNG);
    assert_int_equal(d9d_image_kind_of("b.jpg", &kind), D9D_ECONFIG);
    assert_string_equal(d9d_err_message(), "b.jpg: an image ends in .svg, .png or .pdf");
    assert_int_equal(d9d_image_kind_of(".svg", &kind), D9D_ECONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_svg_has_these_bytes),
        cmocka_unit_test(cairo_draws_the_same_file_twice),
        cmocka_unit_test(a_terminal_shows_braille),
        cmocka_unit_test(a_plain_terminal_shows_letters),
        cmocka_unit_test(odd_data_is_drawn),
        cmocka_unit_test(ticks_are_round),
        cmocka_unit_test(names_tell_the_kind),
    };

    return cmocka_run_group_tests_name("chart", tests, NULL, NULL);
}
