/* test_log.c - lines and progress, on a terminal and off it. */
#include <stdio.h>
#include <string.h>

#include "d9d/base/log.h"
#include "d9d/base/thread.h"
#include "support/unit.h"

struct captured_log {
    char line[256], status[256];
    d9d_log_level level;
    int lines, redraws;
    size_t length;
    char end[4];
};

static void hear_line(void *arg, d9d_log_level level, const char *text)
{
    struct captured_log *h = arg;

    (void)snprintf(h->line, sizeof(h->line), "%s", text);
    h->length = strlen(text);
    (void)snprintf(h->end, sizeof(h->end), "%s", text + (h->length > 3 ? h->length - 3 : 0));
    h->level = level;
    h->lines++;
}

static void hear_status(void *arg, const char *text)
{
    struct captured_log *h = arg;

    (void)snprintf(h->status, sizeof(h->status), "%s", text);
    h->redraws++;
}

static void levels_filter(void **state)
{
    struct captured_log h = {.lines = 0};
    d9d_log log = {.line = hear_line, .arg = &h, .level = D9D_LOG_INFO};

    (void)state;
    d9d_log_info(&log, "%d files", 3);
    assert_string_equal(h.line, "3 files");
    assert_int_equal(h.level, D9D_LOG_INFO);
    d9d_log_debug(&log, "more");
    assert_int_equal(h.lines, 1);
    log.level = D9D_LOG_DEBUG;
    d9d_log_debug(&log, "more");
    assert_int_equal(h.lines, 2);
    d9d_log_warn((d9d_log *)NULL, "nobody hears");
}

/* Pretends that the work began `s` seconds ago. */
static void age(d9d_progress *p, double s)
{
    p->start_ns = d9d_clock_ns() - (int64_t)(s * 1e9);
    p->last_ns = p->start_ns;
}

static void lines_are_plain_and_have_an_end(void **state)
{
    char big[4000];
    struct captured_log h = {.lines = 0};
    const d9d_log log = {.line = hear_line, .arg = &h, .level = D9D_LOG_INFO};

    (void)state;
    d9d_log_info(&log, "read \"%s\"", "a\033[31m");
    assert_string_equal(h.line, "read \"a?[31m\"");
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    d9d_log_info(&log, "%s: why", big); /* its middle is left out */
    assert_int_equal(h.length, 2047);
    assert_string_equal(h.end, "why");
}

static void off_a_terminal_lines_come_seldom(void **state)
{
    struct captured_log h = {.lines = 0};
    const d9d_log log = {.line = hear_line, .arg = &h, .level = D9D_LOG_INFO};
    d9d_progress p;

    (void)state;
    d9d_progress_start(&p, &log, "map", "B", 4000000000u);
    for (int i = 0; i < 1000; i++)
        d9d_progress_add(&p, 1000000);
    assert_int_equal(h.lines, 0);
    age(&p, 20);
    d9d_progress_add(&p, 0);
    assert_int_equal(h.lines, 0);
    age(&p, 100);
    d9d_progress_add(&p, 0);
    d9d_progress_add(&p, 0);
    assert_int_equal(h.lines, 1);
    assert_string_equal(h.line, "map: 1.00 GB of 4.00 GB (25%), 10.0 MB/s, 5:00 left");
    age(&p, 100);
    d9d_progress_end(&p);
    assert_string_equal(h.line, "map: 1.00 GB in 1:40, 10.0 MB/s");
}

static void on_a_terminal_one_line_is_redrawn(void **state)
{
    struct captured_log h = {.lines = 0};
    const d9d_log log = {
        .line = hear_line, .status = hear_status, .arg = &h, .level = D9D_LOG_INFO};
    d9d_progress p;

    (void)state;
    d9d_progress_start(&p, &log, "train", "steps", 10000);
    p.first = p.done = 1000;
    age(&p, 10);
    d9d_progress_note(&p, "loss %.2f", 2.3125);
    for (int i = 0; i < 20; i++)
        d9d_progress_add(&p, i == 0 ? 20 : 0);
    assert_int_equal(h.redraws, 1);
    assert_string_equal(h.status, "train: 1020 of 10000 steps (10%), 2.00 steps/s, 1:14:50 left, "
                                  "loss 2.31");
    age(&p, 10);
    d9d_progress_end(&p);
    assert_string_equal(h.status, "");
    assert_int_equal(h.lines, 1);
    assert_string_equal(h.line, "train: 1020 steps in 0:10, 2.00 steps/s, loss 2.31");
}

static void one_is_no_plural(void **state)
{
    struct captured_log h = {.lines = 0};
    const d9d_log log = {.line = hear_line, .arg = &h, .level = D9D_LOG_INFO};
    d9d_progress p;

    (void)state;
    d9d_progress_start(&p, &log, "train", "steps", 1);
    d9d_progress_add(&p, 1);
    d9d_progress_show(&p);
    assert_int_equal(strncmp(h.line, "train: 1 of 1 step (100%)", 25), 0);
    d9d_progress_end(&p);
    assert_int_equal(strncmp(h.line, "train: 1 step in ", 17), 0);
    d9d_progress_start(&p, &log, "train", "steps", 2);
    d9d_progress_add(&p, 1);
    d9d_progress_add(&p, 1);
    d9d_progress_end(&p);
    assert_int_equal(strncmp(h.line, "train: 2 steps in ", 18), 0);
}

static void strange_totals_do_no_harm(void **state)
{
    struct captured_log h = {.lines = 0};
    const d9d_log log = {.line = hear_line, .arg = &h, .level = D9D_LOG_INFO, .every_s = 1e-9};
    d9d_progress p;

    (void)state;
    d9d_progress_start(&p, &log, "read", "", 0);
    age(&p, 2);
    d9d_progress_add(&p, 5);
    assert_string_equal(h.line, "read: 5, 2.50/s");
    d9d_progress_start(&p, &log, "read", "B", UINT64_MAX);
    p.done = 1;
    age(&p, 1e6);
    d9d_progress_add(&p, 0);
    assert_string_equal(h.line, "read: 1 B of 18.4 EB (0%), 0 B/s, 9999:00:00 left");
    d9d_progress_start(&p, &log, "read", "B", 10);
    age(&p, 1);
    d9d_progress_add(&p, 20);
    assert_string_equal(h.line, "read: 20 B of 10 B (200%), 20 B/s");
}

static void silence_is_silent(void **state)
{
    struct captured_log h = {.lines = 0};
    const d9d_log quiet = {
        .line = hear_line, .status = hear_status, .arg = &h, .level = D9D_LOG_WARN};
    const d9d_log *logs[] = {NULL, &quiet};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        d9d_progress p;

        d9d_progress_start(&p, logs[i], "map", "B", 10);
        age(&p, 100);
        d9d_progress_add(&p, 5);
        d9d_progress_note(&p, "x");
        d9d_progress_end(&p);
        assert_int_equal(p.done, 5);
    }
    assert_int_equal(h.lines + h.redraws, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_filter),
        cmocka_unit_test(lines_are_plain_and_have_an_end),
        cmocka_unit_test(off_a_terminal_lines_come_seldom),
        cmocka_unit_test(on_a_terminal_one_line_is_redrawn),
        cmocka_unit_test(one_is_no_plural),
        cmocka_unit_test(strange_totals_do_no_harm),
        cmocka_unit_test(silence_is_silent),
    };

    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
