/* test_track.c - metrics.jsonl: its lines, and its state after a crash. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/track/track.h"
#include "support/unit.h"

static const d9d_track_step_record plain = {.step = 3,
                                            .loss = 2.5,
                                            .grad_norm = 0.1,
                                            .lr = 1e-3,
                                            .tokens = 300,
                                            .samples = 12,
                                            .step_ms = 10.25,
                                            .data_ms = 0.25,
                                            .tokens_per_s = 9756.5,
                                            .mfu = NAN,
                                            .mem_bytes = 1 << 20};
static const char plain_line[] =
    "{\"step\": 3, \"loss\": 2.5, \"grad_norm\": 0.1, \"lr\": 0.001, \"tokens\": 300, "
    "\"samples\": 12, \"step_ms\": 10.25, \"tokens_per_s\": 9756.5, \"data_ms\": 0.25, "
    "\"mem_bytes\": 1048576}\n";

static const char restart_line[] = "{\"restart\": 1, \"step\": 2, \"time\": \"x\"}\n";

static void write_text(const char *text, size_t n)
{
    assert_ok(d9d_fs_write_atomic("m.jsonl", text, n));
}

static void check_text(const char *want)
{
    d9d_buf text = {0};

    assert_ok(d9d_fs_read("m.jsonl", 1 << 20, &text));
    assert_string_equal(text.data, want);
    d9d_buf_release(&text);
}

/* Open what is there, add one record, close; the number of restarts. */
static int64_t add_one(void)
{
    d9d_tracker *t;
    int64_t restarts;

    assert_ok(d9d_tracker_open("m.jsonl", &t));
    restarts = d9d_tracker_restarts(t);
    assert_ok(d9d_tracker_step(t, &plain));
    d9d_tracker_close(t);
    return restarts;
}

static void test_resumable_lines(void **state)
{
    d9d_track_step_record r = plain;
    d9d_tracker *t;
    char want[1024];

    (void)state;
    assert_ok(d9d_tracker_open("m.jsonl", &t));
    assert_int_equal(d9d_tracker_restarts(t), 0);
    assert_ok(d9d_tracker_step(t, &plain));
    check_text(plain_line); /* at once, not when closed */
    r.grad_norm = NAN;
    r.loss = INFINITY;
    r.mfu = 0.5;
    r.host_bytes = 4096;
    r.joules = 42.5;
    r.tokens_per_joule = 4;
    assert_ok(d9d_tracker_step(t, &r));
    d9d_tracker_close(t);
    (void)snprintf(
        want, sizeof(want),
        "%s{\"step\": 3, \"loss\": null, \"lr\": 0.001, \"tokens\": 300, \"samples\": "
        "12, \"step_ms\": 10.25, \"tokens_per_s\": 9756.5, \"data_ms\": 0.25, \"mfu\": 0.5, "
        "\"mem_bytes\": 1048576, \"host_bytes\": 4096, \"joules\": 42.5, \"tokens_per_joule\": "
        "4.0}\n",
        plain_line);
    check_text(want);
}

/* A number reads back as the same double. */
static void test_full_precision(void **state)
{
    d9d_track_step_record r = plain;
    d9d_tracker *t;
    json_t *line;
    double loss;

    (void)state;
    r.loss = 0.1 + 0.2;
    assert_ok(d9d_tracker_open("m.jsonl", &t));
    assert_ok(d9d_tracker_step(t, &r));
    d9d_tracker_close(t);
    assert_ok(d9d_json_read("m.jsonl", 4096, &line));
    assert_ok(d9d_json_get_f64(line, "line", "loss", &loss));
    assert_true(loss == 0.1 + 0.2);
    json_decref(line);
}

static void test_restarts_count_up(void **state)
{
    (void)state;
    for (int64_t start = 0; start < 3; start++) {
        d9d_tracker *t;

        assert_ok(d9d_tracker_open("m.jsonl", &t));
        assert_int_equal(d9d_tracker_restarts(t), start);
        assert_ok(d9d_tracker_restart(t, 10 * start));
        assert_int_equal(d9d_tracker_restarts(t), start + 1);
        d9d_tracker_close(t);
    }
    {
        d9d_buf text = {0};
        json_t *first;
        const char *time;
        int64_t n;

        assert_ok(d9d_fs_read("m.jsonl", 4096, &text));
        assert_ok(d9d_json_parse("line", text.data, strcspn(text.data, "\n"), &first));
        assert_ok(d9d_json_get_i64(first, "line", "restart", 1, 1, &n));
        assert_ok(d9d_json_get_i64(first, "line", "step", 0, 0, &n));
        assert_ok(d9d_json_get_str(first, "line", "time", &time));
        assert_int_equal(strlen(time), 20);
        json_decref(first);
        d9d_buf_release(&text);
    }
}

/* Whatever is behind the last newline goes, whole lines stay. */
static void test_cut_line_is_removed(void **state)
{
    char text[4096], want[4096];

    (void)state;
    for (size_t n = 0; n < sizeof(plain_line) - 1; n++) {
        (void)snprintf(text, sizeof(text), "%s%.*s", restart_line, (int)n, plain_line);
        write_text(text, strlen(text));
        assert_int_equal(add_one(), 1);
        (void)snprintf(want, sizeof(want), "%s%s", restart_line, plain_line);
        check_text(want);
    }
    for (size_t n = 0; n < sizeof(restart_line) - 1; n++) {
        write_text(restart_line, n);
        assert_int_equal(add_one(), 0);
        check_text(plain_line);
    }
}

static void test_what_is_no_restart(void **state)
{
    static const char text[] = "{\"restart\"\n\n{\"step\": {\"restart\": 1}}\nx{\"restart\": 1}\n"
                               "{\"restart\": 1}\n{\"restart\":\n{\"restarts\": 1}\n";

    (void)state;
    write_text(text, sizeof(text) - 1);
    assert_int_equal(add_one(), 2);
}

/* Blocks that a crash left as zeros are no line. */
static void test_zeros_at_the_end(void **state)
{
    char text[300] = {0};

    (void)state;
    memcpy(text, restart_line, sizeof(restart_line) - 1);
    write_text(text, sizeof(text));
    assert_int_equal(add_one(), 1);
    (void)snprintf(text, sizeof(text), "%s%s", restart_line, plain_line);
    check_text(text);
}

/* Lines that lie across the pieces in which a long file is read. */
static void test_long_file(void **state)
{
    enum { LINES = 20000 };
    d9d_buf text = {0};

    (void)state;
    for (int i = 0; i < LINES; i++)
        assert_ok(i % 10 == 0 ? d9d_buf_append(&text, restart_line, sizeof(restart_line) - 1)
                              : d9d_buf_printf(&text, "{\"step\": %d}\n", i));
    assert_ok(d9d_buf_append(&text, "{\"st", 4));
    write_text(text.data, text.len);
    assert_int_equal(add_one(), LINES / 10);
    text.len -= 4;
    text.data[text.len] = '\0';
    assert_ok(d9d_buf_append(&text, plain_line, sizeof(plain_line) - 1));
    check_text(text.data);
    d9d_buf_release(&text);
}

static void test_end(void **state)
{
    static const char *const words[] = {"done", "saved", "failed"};
    d9d_tracker *t;

    (void)state;
    for (int i = 0; i < 3; i++) {
        char want[64];
        d9d_buf text = {0};

        assert_ok(d9d_tracker_open("m.jsonl", &t));
        assert_ok(d9d_tracker_save(t, D9D_TRACK_SAVE, 7, 0.5, 2000));
        assert_ok(d9d_tracker_save(t, D9D_TRACK_LOCAL_SAVE, 6, 0.25, 20));
        assert_ok(d9d_tracker_end(t, words[i], 7));
        assert_ok(d9d_tracker_sync(t));
        d9d_tracker_close(t);
        assert_ok(d9d_fs_read("m.jsonl", 1 << 20, &text));
        (void)snprintf(want, sizeof(want), "{\"end\": \"%s\", \"step\": 7, \"time\": \"20",
                       words[i]);
        unit_check_has(text.data, want, __FILE__, __LINE__);
        unit_check_has(text.data,
                       "{\"save\": 7, \"blocked_ms\": 0.5, \"total_ms\": 2000.0, \"time\": \"20",
                       __FILE__, __LINE__);
        unit_check_has(
            text.data,
            "{\"local_save\": 6, \"blocked_ms\": 0.25, \"total_ms\": 20.0, \"time\": \"20",
            __FILE__, __LINE__);
        d9d_buf_release(&text);
    }
}

static void test_pipeline(void **state)
{
    const double busy[] = {80, 60.5}, prices[] = {1, 2, 3, 4};
    const d9d_track_pipeline_record r = {.step = 5,
                                         .schedule = "1f1b x2",
                                         .micro_batches = 8,
                                         .rows = 2,
                                         .step_ms = 100,
                                         .bubble = 0.25,
                                         .ranks = 2,
                                         .stages = 4,
                                         .compute_ms = busy,
                                         .forward_ms = prices,
                                         .dgrad_ms = prices,
                                         .wgrad_ms = prices};
    d9d_buf text = {0};
    d9d_tracker *t;

    (void)state;
    assert_ok(d9d_tracker_open("m.jsonl", &t));
    assert_ok(d9d_tracker_pipeline(t, &r));
    d9d_tracker_close(t);
    assert_ok(d9d_fs_read("m.jsonl", 1 << 20, &text));
    unit_check_has(
        text.data,
        "{\"pipeline\": 5, \"schedule\": \"1f1b x2\", \"micro_batches\": 8, \"rows\": 2, "
        "\"pipeline_ms\": 100.0, \"bubble\": 0.25, \"compute_ms\": [80.0, 60.5], "
        "\"forward_ms\": [1.0, 2.0, 3.0, 4.0], \"dgrad_ms\": [1.0, ",
        __FILE__, __LINE__);
    d9d_buf_release(&text);
}

static void test_straggler(void **state)
{
    d9d_track_straggler_record r = {
        .step = 60, .rank = 5, .host = "h\"2", .since = 40, .compute_ms = 13, .peers_ms = 10};
    d9d_buf text = {0};
    d9d_tracker *t;

    (void)state;
    assert_ok(d9d_tracker_open("m.jsonl", &t));
    assert_ok(d9d_tracker_straggler(t, &r));
    r.recovered = true;
    assert_ok(d9d_tracker_straggler(t, &r));
    d9d_tracker_close(t);
    assert_ok(d9d_fs_read("m.jsonl", 1 << 20, &text));
    unit_check_has(text.data,
                   "{\"straggler\": 60, \"rank\": 5, \"host\": \"h\\\"2\", \"slower\": 1.3, "
                   "\"since\": 40, \"compute_ms\": 13.0, \"peers_ms\": 10.0, \"time\": ",
                   __FILE__, __LINE__);
    unit_check_has(text.data, "\"peers_ms\": 10.0, \"recovered\": true, \"time\": ", __FILE__,
                   __LINE__);
    d9d_buf_release(&text);
}

static void test_documents(void **state)
{
    const d9d_track_document_loss worst[] = {{.sample = 7, .document = 2, .targets = 4, .sum = 10},
                                             {.sample = 9, .dataset = 1, .targets = 1, .sum = 1}};
    d9d_track_documents_record r = {
        .step = 5, .targets = 64, .blended = true, .worst = worst, .n = 2};
    d9d_tracker *t;

    (void)state;
    assert_ok(d9d_tracker_open("m.jsonl", &t));
    assert_ok(d9d_tracker_documents(t, &r));
    r.blended = false;
    r.n = 1;
    assert_ok(d9d_tracker_documents(t, &r));
    d9d_tracker_close(t);
    check_text(
        "{\"documents\": 5, \"tokens\": 64, \"worst\": ["
        "{\"sample\": 7, \"dataset\": 0, \"document\": 2, \"tokens\": 4, \"mean_loss\": 2.5}, "
        "{\"sample\": 9, \"dataset\": 1, \"document\": 0, \"tokens\": 1, \"mean_loss\": 1.0}]}\n"
        "{\"documents\": 5, \"tokens\": 64, \"worst\": ["
        "{\"sample\": 7, \"document\": 2, \"tokens\": 4, \"mean_loss\": 2.5}]}\n");
}

static void test_unwritable(void **state)
{
    d9d_tracker *t;

    (void)state;
    assert_fails_like(d9d_tracker_open("none/m.jsonl", &t), D9D_EIO, "none/m.jsonl");
    assert_ok(d9d_fs_mkdirs("dir"));
    assert_fails_like(d9d_tracker_open("dir", &t), D9D_EIO, "dir: ");
    d9d_tracker_close(NULL);
}

/* Two runs never write one record. */
static void test_one_writer(void **state)
{
    d9d_tracker *first, *second;

    (void)state;
    assert_ok(d9d_tracker_open("m.jsonl", &first));
    assert_fails(d9d_tracker_open("m.jsonl", &second), D9D_EIO,
                 "m.jsonl: another process is writing it; wait for its end, or name another");
    assert_ok(d9d_tracker_step(first, &plain));
    d9d_tracker_close(first);
    assert_ok(d9d_tracker_open("m.jsonl", &second));
    d9d_tracker_close(second);
    check_text(plain_line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(test_resumable_lines),    unit_test_in_dir(test_full_precision),
        unit_test_in_dir(test_restarts_count_up),  unit_test_in_dir(test_cut_line_is_removed),
        unit_test_in_dir(test_what_is_no_restart), unit_test_in_dir(test_zeros_at_the_end),
        unit_test_in_dir(test_long_file),          unit_test_in_dir(test_end),
        unit_test_in_dir(test_pipeline),           unit_test_in_dir(test_straggler),
        unit_test_in_dir(test_documents),          unit_test_in_dir(test_unwritable),
        unit_test_in_dir(test_one_writer),
    };

    return cmocka_run_group_tests_name("track", tests, NULL, NULL);
}
