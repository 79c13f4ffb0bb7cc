/* test_values.c - own values of a run: what metrics.jsonl has of them, and what is refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/track/values.h"
#include "support/unit.h"

static const char png[] = "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x02\0\0\0\x03...";

static void check_file(const char *want)
{
    d9d_buf text = {0};

    assert_ok(d9d_fs_read("m.jsonl", 1 << 20, &text));
    assert_string_equal(text.data, want);
    d9d_buf_release(&text);
}

static d9d_tensor host_tensor(d9d_device *dev, const float *v, int64_t n)
{
    d9d_tensor t;

    assert_ok(d9d_tensor_from_host(dev, D9D_F32, D9D_SHAPE(n), v, &t));
    return t;
}

/* The values of all steps up to this one are in the file, and no others. */
static void write_until(d9d_values *v, int64_t step)
{
    d9d_tracker *t;

    assert_ok(d9d_tracker_open("m.jsonl", &t));
    assert_ok(d9d_values_write(v, step, t, NULL));
    d9d_tracker_close(t);
}

static void values_of_a_step_are_lines(void **state)
{
    static const float of_device[] = {0.5F, 3, 4};
    static const double counts[] = {1, 0, 2}, edges[] = {-1, 0, 1, 4};
    d9d_values *v;
    d9d_device *dev;
    d9d_tensor t, one, two;

    (void)state;
    assert_ok(d9d_device_open("cpu", &dev));
    assert_ok(d9d_values_create(true, ".", &v));
    t = host_tensor(dev, of_device, 3);
    one = d9d_tensor_rows(&t, 0, 1);
    two = d9d_tensor_rows(&t, 1, 2);
    d9d_values_set_step(v, 1);
    assert_ok(d9d_values_text(v, "a/text", "of \"one\"\n", 9));
    assert_ok(d9d_values_scalar(v, "a/b", 1));
    assert_ok(d9d_values_scalar_tensor(v, "a/c", &one));
    assert_ok(d9d_values_scalar(v, "a/b", 2)); /* in place of 1 */
    assert_ok(d9d_values_histogram(v, "a/h", counts, edges, 3));
    assert_ok(d9d_values_histogram_tensor(v, "a/t", &two, NULL));
    d9d_values_set_step(v, 2);
    assert_ok(d9d_values_scalar(v, "a/b", INFINITY));
    assert_ok(d9d_values_picture(v, "a/p", png, sizeof(png)));
    d9d_tensor_release(&two);
    d9d_tensor_release(&one);
    d9d_tensor_release(&t); /* what is pending is the collector's own */
    write_until(v, 1);
#define FIRST                                                                                      \
    "{\"values\": 1, \"a/c\": 0.5, \"a/b\": 2.0}\n"                                                \
    "{\"text\": \"a/text\", \"step\": 1, \"content\": \"of \\\"one\\\"\\n\"}\n"                    \
    "{\"histogram\": \"a/h\", \"step\": 1, \"edges\": [-1.0, 0.0, 1.0, 4.0], \"counts\": [1.0, "   \
    "0.0, 2.0]}\n"                                                                                 \
    "{\"histogram\": \"a/t\", \"step\": 1, \"edges\": [0.0, 1.0, 2.0], \"counts\": [3.0, 4.0]}\n"
    check_file(FIRST);
    write_until(v, 5);
    check_file(FIRST "{\"values\": 2, \"a/b\": null}\n"
                     "{\"picture\": \"a/p\", \"step\": 2, \"file\": "
                     "\"pictures/a/p/step-00000002.png\", \"width\": 2, \"height\": 3}\n");
    assert_true(d9d_fs_exists("pictures/a/p/step-00000002.png"));
    write_until(v, 5); /* nothing is left */
    d9d_values_free(v);
    d9d_device_close(dev);
}

static void check_refused(d9d_status st, const char *part)
{
    assert_int_equal(st, D9D_EINVAL);
    if (strstr(d9d_err_message(), part) == NULL)
        fail_msg("%s", d9d_err_message());
}

static void what_is_no_value_is_refused_on_every_rank(void **state)
{
    static const char *const names[] = {"loss",   "",      "/a",    "a/",        "a//b",
                                        "a/../b", "a/b\n", "a\"/b", "a/\xc3\xa4"};
    static const double counts[] = {1, 2}, edges[] = {0, 2, 1};
    static const float pair[] = {1, 2};
    static char *text;
    d9d_device *dev;
    d9d_tensor t;

    (void)state;
    assert_ok(d9d_device_open("cpu", &dev));
    t = host_tensor(dev, pair, 2);
    text = calloc(1, D9D_VALUES_TEXT_MAX + 1);
    assert_non_null(text);
    for (int rank = 0; rank < 2; rank++) {
        d9d_values *v;

        assert_ok(d9d_values_create(rank == 0, ".", &v));
        assert_int_equal(d9d_values_are_recorded(v), rank == 0);
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
            check_refused(d9d_values_scalar(v, names[i], 1), "a name is two or more parts");
        check_refused(d9d_values_scalar(v, NULL, 1), "a name is two or more parts");
        check_refused(d9d_values_scalar_tensor(v, "a/b", &t), "a tensor of 2 elements, not 1 to 1");
        check_refused(d9d_values_histogram(v, "a/b", counts, edges, 2), "edge 2 is 1, after 2");
        check_refused(d9d_values_histogram(v, "a/b", counts, NULL, 0), "0 bins, not 1 to 4096");
        check_refused(d9d_values_picture(v, "a/b", text, 100), "100 bytes that are no PNG");
        check_refused(d9d_values_text(v, "a/b", text, D9D_VALUES_TEXT_MAX + 1), "131073 bytes");
        assert_ok(d9d_values_scalar(v, "a/b", 1));
        write_until(v, 1);
        d9d_values_free(v);
    }
    check_file("{\"values\": 0, \"a/b\": 1.0}\n"); /* of rank 0 alone */
    free(text);
    d9d_tensor_release(&t);
    d9d_device_close(dev);
}

static void without_a_run_nothing_happens(void **state)
{
    (void)state;
    assert_false(d9d_values_are_recorded(NULL));
    assert_ok(d9d_values_scalar(NULL, "no name", 1));
    assert_ok(d9d_values_scalar_tensor(NULL, "a/b", NULL));
    assert_ok(d9d_values_histogram(NULL, "a/b", NULL, NULL, 0));
    assert_ok(d9d_values_histogram_tensor(NULL, "a/b", NULL, NULL));
    assert_ok(d9d_values_text(NULL, "a/b", NULL, 0));
    assert_ok(d9d_values_picture(NULL, "a/b", NULL, 0));
    d9d_values_set_step(NULL, 1);
    assert_ok(d9d_values_write(NULL, 1, NULL, NULL));
    d9d_values_free(NULL);
}

static void many_scalars_are_several_lines(void **state)
{
    d9d_values *v;
    d9d_buf text = {0};
    size_t lines = 0;

    (void)state;
    assert_ok(d9d_values_create(true, ".", &v));
    for (int i = 0; i < 10000; i++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "many/%d", i);
        assert_ok(d9d_values_scalar(v, name, i));
    }
    write_until(v, 0);
    assert_ok(d9d_fs_read("m.jsonl", 8 << 20, &text));
    for (const char *p = text.data; (p = strchr(p, '\n')) != NULL; p++)
        lines++;
    assert_int_equal(lines, 3);
    d9d_buf_release(&text);
    d9d_values_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(values_of_a_step_are_lines),
        unit_test_in_dir(what_is_no_value_is_refused_on_every_rank),
        unit_test_in_dir(without_a_run_nothing_happens),
        unit_test_in_dir(many_scalars_are_several_lines),
    };

    return cmocka_run_group_tests_name("values", tests, NULL, NULL);
}
