/* test_report_html.c - the page of runs: buckets that lose nothing, escaped text, a bounded size.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "d9d/base/fs.h"
#include "d9d/report/html.h"
#include "report/html/downsample.h"
#include "report/html/html_charts.h"
#include "report/html/html_writer.h"

/* --- buckets ---------------------------------------------------------------------------------- */

static void buckets_keep_extremes_and_counts(void **state)
{
    enum { N = 1003 };
    double v[N];
    size_t rows[N];

    (void)state;
    for (size_t i = 0; i < N; i++) {
        v[i] = sin((double)i);
        rows[i] = i;
    }
    v[500] = 1e9;
    v[777] = -1e9;
    v[3] = (double)NAN;
    v[4] = (double)INFINITY;
    for (size_t max = 1; max < 1100; max = max * 2 + 1) {
        const size_t count = d9di_downsample_count(N, max);
        size_t n = 0, lost = 0;
        double low = (double)INFINITY, high = -(double)INFINITY, sum = 0, all = 0;

        assert_true(count == (max < N ? max : N));
        for (size_t i = 0; i < count; i++) {
            const d9di_downsample_bucket b = d9di_downsample_take(v, rows, i, count, N);

            assert_int_equal(d9di_downsample_begin(i, count, N), n);
            assert_true(b.n == N / count || b.n == N / count + 1);
            n += b.n;
            lost += b.lost;
            if (b.lost == b.n) {
                assert_true(isnan(b.mean) && isnan(b.low) && isnan(b.high));
                continue;
            }
            assert_true(b.low <= b.mean * (1 + 1e-12) + 1e-3 && b.mean <= b.high + 1e-3);
            low = fmin(low, b.low);
            high = fmax(high, b.high);
            sum += b.mean * (double)(b.n - b.lost);
        }
        for (size_t i = 0; i < N; i++)
            all += isfinite(v[i]) ? v[i] : 0;
        assert_int_equal(n, N);
        assert_int_equal(lost, 2);
        assert_true(low == -1e9 && high == 1e9);
        assert_true(fabs(sum - all) < 1e-3);
    }
}

static void a_bucket_of_huge_values_is_finite(void **state)
{
    const double v[] = {1.5e308, 1.7e308, 1.6e308};
    const size_t rows[] = {0, 1, 2};
    const d9di_downsample_bucket b = d9di_downsample_take(v, rows, 0, 1, 3);

    (void)state;
    assert_true(fabs(b.mean / 1.6e308 - 1) < 1e-12);
    assert_true(b.low == 1.5e308 && b.high == 1.7e308);
}

/* --- text ------------------------------------------------------------------------------------- */

static void text_is_escaped(void **state)
{
    d9d_buf b = {0};
    d9di_html_writer w = {.out = &b};

    (void)state;
    d9di_html_text(&w, "</script><b a=\"1\" c='2'>&amp;\x01\xff");
    assert_int_equal(w.st, D9D_OK);
    assert_string_equal(b.data, "&lt;/script&gt;&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;amp;"
                                "\xef\xbf\xbd\xef\xbf\xbd");
    b.len = 0;
    d9di_html_json_text(&w, "</script>\"\\&\n");
    assert_string_equal(b.data, "\"\\u003c/script\\u003e\\\"\\\\\\u0026\\n\"");
    b.len = 0;
    d9di_html_text_head(&w, "ab\xc3\xa4<cd", 3); /* not within a character */
    assert_string_equal(b.data, "ab\xe2\x80\xa6");
    b.len = 0;
    d9di_html_json_number(&w, (double)NAN);
    d9di_html_json_number(&w, 0.1234567);
    assert_string_equal(b.data, "null0.123457");
    d9d_buf_release(&b);
}

static void values_are_for_people(void **state)
{
    static const struct {
        double v;
        d9di_html_unit unit;
        const char *text;
    } rows[] = {
        {1234567, D9DI_HTML_NUMBER, "1,234,567"},
        {-1234, D9DI_HTML_NUMBER, "-1,234"},
        {0.0123456, D9DI_HTML_NUMBER, "0.01235"},
        {0, D9DI_HTML_NUMBER, "0"},
        {1234.56, D9DI_HTML_NUMBER, "1234.6"},
        {INFINITY, D9DI_HTML_NUMBER, "infinite"},
        {NAN, D9DI_HTML_NUMBER, "\xe2\x80\x93"},
        {1.234e6, D9DI_HTML_COUNT, "1.23 M"},
        {12, D9DI_HTML_COUNT, "12"},
        {999999, D9DI_HTML_COUNT, "1 M"},
        {1073741824, D9DI_HTML_BYTES, "1 GiB"},
        {0, D9DI_HTML_BYTES, "0 B"},
        {12345, D9DI_HTML_SECONDS, "3 h 25 min"},
        {0.0125, D9DI_HTML_SECONDS, "12.5 ms"},
        {90061, D9DI_HTML_SECONDS, "1 d 1 h"},
        {0.412, D9DI_HTML_SHARE, "41.2 %"},
        {0.0004, D9DI_HTML_SHARE, "0.04 %"},
        {-1, D9DI_HTML_STEP, "\xe2\x80\x93"},
        {1e6, D9DI_HTML_STEP, "1,000,000"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[D9DI_HTML_VALUE_SIZE];

        assert_string_equal(d9di_html_format(rows[i].v, rows[i].unit, text), rows[i].text);
    }
}

/* --- pages ------------------------------------------------------------------------------------ */

static void put_file(const char *dir, const char *name, const char *text)
{
    assert_int_equal(d9d_fs_mkdirs(dir), D9D_OK);
    assert_int_equal(d9d_fs_write_in(dir, name, text, strlen(text)), D9D_OK);
}

static size_t count_of(const char *text, const char *part)
{
    size_t n = 0;

    for (const char *at = text; (at = strstr(at, part)) != NULL; at++)
        n++;
    return n;
}

static void page_of(char *const *paths, size_t n, d9d_buf *out)
{
    const d9d_report_html_opts opts = {.n_plans = 0};
    d9d_run_reader_list runs;

    assert_int_equal(d9d_run_reader_list_open(paths, n, NULL, &runs), D9D_OK);
    if (d9d_report_html(&runs, &opts, out) != D9D_OK)
        fail_msg("%s", d9d_err_message());
    d9d_run_reader_list_close(&runs);
}

/* Whatever a run says stays text: names of runs, evaluations, metrics, keys, documents, ends. */
static void nothing_of_a_run_becomes_markup(void **state)
{
    char dir[64] = "/tmp/d9d-test-html-XXXXXX", run[160];
    char *paths[] = {run};
    d9d_buf page = {0}, metrics = {0};

    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(run, sizeof(run), "%s/<xmp>\"'&", dir);
    for (int i = 1; i <= 40; i++)
        assert_int_equal(
            d9d_buf_printf(&metrics,
                           "{\"step\": %d, \"loss\": %d, \"</script><xmp>\": 1, \"<xmp>\": 2, "
                           "\"expert_load/0/1\": 3}\n",
                           i, i == 30 ? 99 : 2),
            D9D_OK);
    assert_int_equal(
        d9d_buf_printf(&metrics, "{\"evaluation\": \"</script><xmp>\", \"step\": 40, "
                                 "\"</script><xmp>/loss\": 2, \"</script><xmp>/</td>\": 3}\n"
                                 "{\"documents\": 30, \"tokens\": 9, \"worst\": [{\"sample\": 1, "
                                 "\"document\": 0, \"tokens\": 3, \"mean_loss\": 200}]}\n"
                                 "{\"pipeline\": 40, \"schedule\": \"</script><xmp>\", "
                                 "\"compute_ms\": [1, 2], \"forward_ms\": [1, 2]}\n"
                                 "{\"end\": \"</td><xmp>\", \"step\": 40}\n"),
        D9D_OK);
    put_file(run, "metrics.jsonl", metrics.data);
    put_file(run, "config.json",
             "{\"</script><xmp>\": \"</script><xmp>\", \"data\": {\"dataset\": \"</li><xmp>\", "
             "\"split\": \"<xmp>\"}}");
    put_file(run, "manifest.json",
             "{\"description\": \"</style></script><xmp>\", \"version\": \"<xmp>\"}");
    page_of(paths, 1, &page);
    assert_int_equal(count_of(page.data, "<xmp"), 0);
    assert_int_equal(count_of(page.data, "</script>"), 2);
    assert_int_equal(count_of(page.data, "</style>"), 1);
    assert_true(count_of(page.data, "\\u003c/script\\u003e") >= 1);
    assert_true(count_of(page.data, "\"\\u003cxmp\\u003e\"") >= 2); /* a title and a name */
    assert_true(count_of(page.data, "&lt;/script&gt;&lt;xmp&gt;") >= 5);
    assert_true(count_of(page.data, "&lt;/li&gt;&lt;xmp&gt;") >= 2);
    d9d_buf_release(&metrics);
    d9d_buf_release(&page);
    assert_int_equal(d9d_fs_remove_tree(dir), D9D_OK);
}

/* A run in memory, as the reader would have it, beside an empty file. */
typedef struct long_run {
    char path[64];
    d9d_run_reader reader;
    d9d_run_reader_column columns[10];
} long_run;

static void long_run_init(long_run *l, size_t n)
{
    static char name[] = "long";
    static char keys[10][16] = {"loss",    "grad_norm", "lr",           "tokens",    "samples",
                                "step_ms", "data_ms",   "tokens_per_s", "mem_bytes", "mfu"};

    *l = (long_run){.path = "/tmp/d9d-test-html-XXXXXX",
                    .reader = {.name = name, .n = n, .n_columns = 10}};
    assert_true(close(mkstemp(l->path)) == 0);
    l->reader.path = l->path;
    l->reader.columns = l->columns;
    l->reader.step = calloc(n, sizeof(*l->reader.step));
    l->reader.wall = calloc(n, sizeof(*l->reader.wall));
    l->reader.sources = calloc(n, sizeof(*l->reader.sources));
    assert_true(l->reader.step != NULL && l->reader.wall != NULL && l->reader.sources != NULL);
    for (size_t c = 0; c < 10; c++) {
        double *v = calloc(n, sizeof(*v));

        assert_non_null(v);
        for (size_t i = 0; i < n; i++)
            v[i] = (double)(c + 1) + 0.123456789 * (double)((i * 2654435761u) % 1000);
        l->columns[c] = (d9d_run_reader_column){
            .name = keys[c], .values = v, .sources = D9D_RUN_READER_TRAINING};
    }
    for (size_t i = 0; i < n; i++) {
        l->reader.step[i] = (int64_t)i + 1;
        l->reader.sources[i] = D9D_RUN_READER_TRAINING;
        l->columns[3].values[i] = 1048576.0 * (double)(i + 1);
    }
}

static void long_run_release(long_run *l)
{
    for (size_t c = 0; c < 10; c++)
        free(l->columns[c].values);
    free(l->reader.step);
    free(l->reader.wall);
    free(l->reader.sources);
    assert_int_equal(unlink(l->path), 0);
}

static void a_million_steps_take_less_than_a_megabyte(void **state)
{
    const d9d_report_html_opts opts = {.n_plans = 0};
    long_run l;
    d9d_run_reader *one = &l.reader;
    const d9d_run_reader_list runs = {&one, 1};
    d9d_buf page = {0};

    (void)state;
    long_run_init(&l, 1000000);
    l.columns[1].values[654321] = 98765; /* one gradient norm among a million */
    l.columns[0].values[777776] = 54321; /* one loss */
    assert_int_equal(d9d_report_html(&runs, &opts, &page), D9D_OK);
    assert_in_range(page.len, 300000, 1000000);
    assert_non_null(strstr(page.data, "98765"));
    assert_non_null(strstr(page.data, "54321"));
    assert_non_null(strstr(page.data, "<th scope=\"row\">777,777</th>")); /* among the spikes */
    d9d_buf_release(&page);
    long_run_release(&l);
}

static void plans_must_be_as_many_as_runs(void **state)
{
    const char *const plans[] = {"a", "b"};
    const d9d_report_html_opts opts = {plans, 2};
    long_run l;
    d9d_run_reader *one = &l.reader;
    const d9d_run_reader_list runs = {&one, 1};
    d9d_buf page = {0};

    (void)state;
    long_run_init(&l, 3);
    assert_int_equal(d9d_report_html(&runs, &opts, &page), D9D_ECONFIG);
    assert_non_null(strstr(d9d_err_message(), "2 plans are given for 1 run"));
    assert_int_equal(page.len, 0);
    long_run_release(&l);
}

static void a_run_without_records_has_a_page(void **state)
{
    const d9d_report_html_opts opts = {.n_plans = 0};
    char name[] = "none", path[] = "none.jsonl";
    d9d_run_reader r = {.name = name, .path = path};
    d9d_run_reader *one = &r;
    const d9d_run_reader_list runs = {&one, 1};
    d9d_buf page = {0};

    (void)state;
    assert_int_equal(d9d_report_html(&runs, &opts, &page), D9D_OK);
    assert_non_null(strstr(page.data, "</html>"));
    d9d_buf_release(&page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_keep_extremes_and_counts),
        cmocka_unit_test(a_bucket_of_huge_values_is_finite),
        cmocka_unit_test(text_is_escaped),
        cmocka_unit_test(values_are_for_people),
        cmocka_unit_test(nothing_of_a_run_becomes_markup),
        cmocka_unit_test(a_million_steps_take_less_than_a_megabyte),
        cmocka_unit_test(plans_must_be_as_many_as_runs),
        cmocka_unit_test(a_run_without_records_has_a_page),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
