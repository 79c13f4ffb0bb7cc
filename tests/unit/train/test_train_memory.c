/* test_train_memory.c - who is told that memory is short: steps that request blocks, and others. */
#include <stdio.h>
#include <string.h>

#include "support/unit.h"
#include "train/train_memory.h"

enum { LARGE = 1 << 16, SMALL = 1 << 15, STEPS = D9DI_TRAIN_MEMORY_STEPS };

typedef struct said {
    int lines;
    char text[512];
} said;

static void keep_line(void *arg, d9d_log_level level, const char *text)
{
    said *s = arg;

    assert_int_equal(level, D9D_LOG_WARN);
    s->lines++;
    (void)snprintf(s->text, sizeof(s->text), "%s", text);
}

/* Two sizes, one after the other: both are requested in each step if there is room for one. */
static void step(d9d_device *dev)
{
    static const uint64_t sizes[] = {LARGE, SMALL};
    void *p;

    for (int i = 0; i < 2; i++) {
        assert_ok(d9d_device_alloc(dev, sizes[i], &p));
        d9d_device_free(dev, p, sizes[i]);
    }
}

static void run(d9d_device *dev, uint64_t limit, int steps, d9di_train_memory *m, said *s)
{
    const d9d_log log = {.line = keep_line, .arg = s, .level = D9D_LOG_INFO};

    d9d_device_set_limit(dev, limit);
    for (int i = 0; i < steps; i++) {
        step(dev);
        d9di_train_memory_collect(m, dev, &log);
    }
}

static void steps_that_return_blocks_are_named_once(void **state)
{
    d9di_train_memory m = {0};
    said s = {0};
    d9d_device *dev;

    (void)state;
    assert_ok(d9d_device_open("cpu", &dev));
    run(dev, LARGE, STEPS - 1, &m, &s);
    assert_int_equal(s.lines, 0);
    run(dev, LARGE, 1, &m, &s);
    assert_int_equal(s.lines, 1);
    assert_non_null(strstr(s.text, "cpu: memory is short: 19 times in the last 10 steps"));
    run(dev, LARGE, 3 * STEPS, &m, &s);
    assert_int_equal(s.lines, 1);
    d9d_device_close(dev);
}

static void steps_with_memory_are_not_named(void **state)
{
    d9di_train_memory m = {0};
    said s = {0};
    d9d_device *dev;

    (void)state;
    assert_ok(d9d_device_open("cpu", &dev));
    for (int i = 0; i < 3; i++) { /* a quiet step ends the row */
        run(dev, LARGE, STEPS - 2, &m, &s);
        run(dev, LARGE + SMALL, 2, &m, &s);
    }
    run(dev, LARGE + SMALL, 3 * STEPS, &m, &s);
    assert_int_equal(s.lines, 0);
    d9d_device_close(dev);
}

/* Blocks of changing sizes are returned where the cache has more than the largest: no shortage. */
static void steps_of_changing_sizes_are_not_named(void **state)
{
    const uint64_t unit = 128 << 10;
    d9di_train_memory m = {0};
    said s = {0};
    const d9d_log log = {.line = keep_line, .arg = &s, .level = D9D_LOG_INFO};
    int in_a_row = 0, most = 0;
    d9d_device *dev;

    (void)state;
    assert_ok(d9d_device_open("cpu", &dev));
    for (uint64_t i = 0; i < (uint64_t)20 * STEPS; i++) {
        const uint64_t before = d9d_device_memory(dev).requests, n = (8 + 37 * i % 64) * unit;
        void *p;

        assert_ok(d9d_device_alloc(dev, n, &p));
        d9d_device_free(dev, p, n);
        d9di_train_memory_collect(&m, dev, &log);
        in_a_row = d9d_device_memory(dev).requests > before ? in_a_row + 1 : 0;
        most = in_a_row > most ? in_a_row : most;
    }
    assert_true(most > STEPS);
    assert_int_equal(s.lines, 0);
    d9d_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_that_return_blocks_are_named_once),
        cmocka_unit_test(steps_with_memory_are_not_named),
        cmocka_unit_test(steps_of_changing_sizes_are_not_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
