/* test_watchdog.c - the thread that watches the collectives of a rank. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/watch/watchdog.h"
#include "d9d/base/thread.h"
#include "support/unit.h"

enum { LIMIT_MS = 300, PATIENCE_S = 60 };

static void never(int code)
{
    fail_msg("the watchdog ended a rank that goes on, with %d", code);
}

/* Collectives that complete at once, for several times the timeout: none times out. With SAN=thread
 * this also tests the locking between the two threads. */
static void one_that_goes_on_is_let_be(void **state)
{
    const d9d_parallel_degrees one = {1, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};
    const d9d_mesh_opts opts = {.timeout_s = LIMIT_MS / 1e3, .exit_fn = never};
    const d9di_comm_call call = {
        .coll = D9DI_COLL_ALL_REDUCE, .t = D9D_F32, .n = 1, .label = "loss"};
    const int64_t until = d9d_clock_ns() + (int64_t)4 * LIMIT_MS * 1000000;
    d9di_watchdog *dog;
    char name[] = "world";
    d9d_comm c = {.name = name, .size = 1};
    d9d_bootstrap *bootstrap;

    (void)state;
    assert_ok(d9d_bootstrap_simulate(0, 1, &bootstrap));
    assert_ok(d9di_flight_ring_create(NULL, &c.ring));
    d9di_flight_ring_init(c.ring, bootstrap, &one, 7);
    c.group = d9di_flight_ring_add_group(c.ring, D9D_AXES_WORLD);
    assert_ok(d9di_watchdog_start(c.ring, bootstrap, &opts, NULL, &dog));
    while (d9d_clock_ns() < until) {
        c.calls++;
        d9di_flight_ring_call_end(d9di_flight_ring_call_begin(&c, &call),
                                  D9DI_FLIGHT_CALL_COMPLETED);
    }
    d9di_watchdog_stop(dog, D9DI_FLIGHT_CLOSED);
    d9d_bootstrap_close(bootstrap);
}

static void say_for_ever(void *arg, d9d_log_level level, const char *text)
{
    (void)arg, (void)level, (void)text;
    for (;;)
        (void)pause();
}

/* A process that others wait for.  SIGALRM is blocked and ignored, as some launchers leave it, and
 * its standard error is blocked. */
static void wait_for_ever(void)
{
    const d9d_parallel_degrees one = {1, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};
    const d9d_log log = {.line = say_for_ever};
    const d9d_mesh_opts opts = {.timeout_s = LIMIT_MS / 1e3, .log = &log};
    const d9di_comm_call call = {
        .coll = D9DI_COLL_ALL_REDUCE, .t = D9D_F32, .n = 1, .label = "loss"};
    d9di_watchdog *dog;
    char name[] = "world";
    d9d_comm c = {.name = name, .size = 1};
    d9d_bootstrap *bootstrap;
    sigset_t bell;

    (void)sigemptyset(&bell);
    (void)sigaddset(&bell, SIGALRM);
    (void)sigprocmask(SIG_BLOCK, &bell, NULL);
    (void)signal(SIGALRM, SIG_IGN);
    if (d9d_bootstrap_simulate(0, 1, &bootstrap) != D9D_OK ||
        d9di_flight_ring_create(NULL, &c.ring) != D9D_OK)
        _exit(1);
    d9di_flight_ring_init(c.ring, bootstrap, &one, 7);
    c.group = d9di_flight_ring_add_group(c.ring, D9D_AXES_WORLD);
    if (d9di_watchdog_start(c.ring, bootstrap, &opts, NULL, &dog) != D9D_OK)
        _exit(1);
    (void)d9di_flight_ring_call_begin(&c, &call);
    for (;;)
        (void)pause();
}

static void the_end_waits_for_nothing_that_the_watchdog_says(void **state)
{
    const int64_t until = d9d_clock_ns() + (int64_t)PATIENCE_S * 1000000000;
    const pid_t pid = fork();
    int status = 0;
    pid_t gone = 0;

    (void)state;
    assert_true(pid >= 0);
    if (pid == 0)
        wait_for_ever();
    while (gone == 0 && d9d_clock_ns() < until) {
        (void)usleep(20000);
        gone = waitpid(pid, &status, WNOHANG);
    }
    if (gone == 0) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
    }
    assert_int_equal(gone, pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGALRM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_that_goes_on_is_let_be),
        cmocka_unit_test(the_end_waits_for_nothing_that_the_watchdog_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
