/* test_wait_timer.c - the sum of waits between marks. */
#include <math.h>
#include <time.h>

#include "d9d/device/wait_timer.h"
#include "support/unit.h"

typedef struct bench {
    d9d_device *dev;
    d9d_wait_timer *t;
} bench;

static bench bench_open(void)
{
    bench b;

    assert_ok(d9d_device_open("cpu", &b.dev));
    assert_ok(d9d_wait_timer_create(b.dev, &b.t));
    return b;
}

static void bench_close(bench *b)
{
    d9d_wait_timer_free(b->t);
    d9d_device_close(b->dev);
}

static void nap_ms(long ms)
{
    struct timespec t = {.tv_nsec = ms * 1000000};

    while (nanosleep(&t, &t) != 0)
        ;
}

static double now_ms(void)
{
    struct timespec t;

    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &t), 0);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Only what lies between a begin and its end, in several rounds, whose marks are reused. */
static void sum_of_waits(void **state)
{
    bench b = bench_open();
    double ms, least, most;

    (void)state;
    assert_ok(d9d_wait_timer_read(b.t, &ms));
    assert_true(ms == 0);
    for (int round = 0; round < 3; round++) {
        most = -now_ms();
        d9d_wait_timer_reset(b.t);
        nap_ms(5); /* no wait */
        least = 0;
        for (int i = 0; i < 4; i++) {
            d9d_wait_timer_mark(b.t, true);
            nap_ms(3);
            d9d_wait_timer_mark(b.t, false);
            least += 3;
        }
        nap_ms(5);
        most += now_ms() - 10;
        assert_ok(d9d_wait_timer_read(b.t, &ms));
        assert_true(ms >= least && ms <= most);
    }
    bench_close(&b);
}

/* A wait during which the timer was reset has no begin; one that goes on has no end. */
static void marks_without_a_partner(void **state)
{
    bench b = bench_open();
    double ms;

    (void)state;
    d9d_wait_timer_mark(b.t, false);
    nap_ms(2);
    d9d_wait_timer_mark(b.t, true);
    assert_ok(d9d_wait_timer_read(b.t, &ms));
    assert_true(ms == 0);
    bench_close(&b);
}

/* So many that their sum is not kept. */
static void too_many_marks(void **state)
{
    bench b = bench_open();
    double ms;

    (void)state;
    for (int i = 0; i < 40000; i++) {
        d9d_wait_timer_mark(b.t, true);
        d9d_wait_timer_mark(b.t, false);
    }
    assert_ok(d9d_wait_timer_read(b.t, &ms));
    assert_true(isnan(ms));
    d9d_wait_timer_reset(b.t);
    assert_ok(d9d_wait_timer_read(b.t, &ms));
    assert_true(ms == 0);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sum_of_waits),
        cmocka_unit_test(marks_without_a_partner),
        cmocka_unit_test(too_many_marks),
    };

    return cmocka_run_group_tests_name("wait_timer", tests, NULL, NULL);
}
