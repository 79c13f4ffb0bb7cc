/* test_thread.c - workers over a list, and clocks. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "d9d/base/thread.h"
#include "support/unit.h"

enum { N = 1000 };

struct job {
    atomic_int calls[N];
    atomic_int order_breaks, last;
    atomic_int foreign_workers, open_signals;
    int jobs;
    size_t bad[2];
};

static d9d_status count(void *arg, int worker, size_t item)
{
    struct job *j = arg;
    sigset_t blocked;

    atomic_fetch_add(&j->calls[item], 1);
    if (atomic_exchange(&j->last, (int)item) > (int)item)
        atomic_fetch_add(&j->order_breaks, 1);
    if (worker < 0 || worker >= j->jobs)
        atomic_fetch_add(&j->foreign_workers, 1);
    (void)pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    if (worker > 0 && !sigismember(&blocked, SIGTERM))
        atomic_fetch_add(&j->open_signals, 1);
    return D9D_OK;
}

static void every_item_runs_once(void **state)
{
    (void)state;
    for (int jobs = 1; jobs <= 8; jobs *= 2) {
        struct job j = {.jobs = jobs, .last = -1};

        assert_ok(d9d_thread_run(jobs, N, count, &j));
        for (size_t i = 0; i < N; i++)
            assert_int_equal(j.calls[i], 1);
        assert_int_equal(j.foreign_workers, 0);
        assert_int_equal(j.open_signals, 0);
        if (jobs == 1)
            assert_int_equal(j.order_breaks, 0);
    }
}

static void no_items_and_bad_counts(void **state)
{
    struct job j = {.jobs = 1, .last = -1};

    (void)state;
    assert_ok(d9d_thread_run(0, 0, count, &j));
    assert_ok(d9d_thread_run(4, 0, count, &j));
    assert_int_equal(j.last, -1);
    assert_fails(d9d_thread_run(-1, 1, count, &j), D9D_EINVAL,
                 "threads: -1 jobs; must be 0 or more");
    j.jobs = d9d_thread_cpus();
    assert_true(j.jobs >= 1);
    assert_ok(d9d_thread_run(0, N, count, &j));
    assert_int_equal(j.foreign_workers, 0);
}

/* The lower failing item is slow: the higher one fails first. */
static d9d_status fail_two(void *arg, int worker, size_t item)
{
    struct job *j = arg;

    (void)worker;
    atomic_fetch_add(&j->calls[item], 1);
    if (item != j->bad[0] && item != j->bad[1])
        return D9D_OK;
    if (item == j->bad[0])
        (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    return D9D_FAIL(item == j->bad[0] ? D9D_EFORMAT : D9D_EIO, "item %zu is bad", item);
}

static void the_lowest_failure_wins_and_stops_the_rest(void **state)
{
    (void)state;
    for (int jobs = 1; jobs <= 8; jobs *= 2) {
        struct job j = {.jobs = jobs, .bad = {40, 41}};

        assert_fails(d9d_thread_run(jobs, N, fail_two, &j), D9D_EFORMAT, "item 40 is bad");
        for (size_t i = 0; i <= 40; i++)
            assert_int_equal(j.calls[i], 1);
        /* Two workers are busy with the failing items; a third may continue. */
        for (size_t i = 42; i < N && jobs <= 2; i++)
            assert_int_equal(j.calls[i], 0);
    }
}

static void clocks(void **state)
{
    const int64_t t = d9d_clock_ns();
    char iso[24];

    (void)state;
    (void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    assert_true(d9d_clock_ns() - t >= 2000000);
    d9d_clock_iso(iso);
    assert_int_equal(strlen(iso), 20);
    for (size_t i = 0; i < 20; i++)
        assert_true("dddd-dd-ddTdd:dd:ddZ"[i] == 'd' ? iso[i] >= '0' && iso[i] <= '9'
                                                     : iso[i] == "dddd-dd-ddTdd:dd:ddZ"[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_runs_once),
        cmocka_unit_test(no_items_and_bad_counts),
        cmocka_unit_test(the_lowest_failure_wins_and_stops_the_rest),
        cmocka_unit_test(clocks),
    };

    return cmocka_run_group_tests_name("thread", tests, NULL, NULL);
}
