/* test_preemption.c - signals that are read between steps, and the end of a Slurm allocation. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "d9d/base/fs.h"
#include "d9d/job/preemption.h"
#include "support/unit.h"

static void test_slurm_times(void **state)
{
    static const struct {
        const char *text;
        int64_t seconds;
    } rows[] = {
        {"0:00", 0},
        {"59:59", 3599},
        {"59:59\n", 3599},
        {"  4:58 \n", 298},
        {"1:00:00", 3600},
        {"23:59:59", 86399},
        {"1-00:00:00", 86400},
        {"1-02:03:04", 93784},
        {"7-12", 648000},
        {"1-02:03", 93780},
        {"365-00:00:00", 31536000},
        {"30", 30},
        {"UNLIMITED", -1},
        {"NOT_SET", -1},
        {"INVALID", -1},
        {"", -1},
        {"\n", -1},
        {"-", -1},
        {"-1:00", -1},
        {"1-", -1},
        {"1--2", -1},
        {"1:", -1},
        {":1", -1},
        {"1::2", -1},
        {"1:-5", -1},
        {"1:+5", -1},
        {"1:2:3:4", -1},
        {"1-2:3:4:5", -1},
        {"1:2x", -1},
        {"x1:2", -1},
        {"1 2", -1},
        {"99999999999999999999", -1},
        {"999999999:00", -1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (d9d_preemption_parse_slurm_time(rows[i].text) != rows[i].seconds)
            fail_msg("\"%s\": %lld, should be %lld", rows[i].text,
                     (long long)d9d_preemption_parse_slurm_time(rows[i].text),
                     (long long)rows[i].seconds);
}

/* --- signals ------------------------------------------------------------------------------ */

static bool is_blocked(int number)
{
    sigset_t now;

    assert_int_equal(sigprocmask(SIG_BLOCK, NULL, &now), 0);
    return sigismember(&now, number) == 1;
}

/* Those that wait, and that they were blocked. */
static void forget_signals(void)
{
    sigset_t all;

    sigemptyset(&all);
    sigaddset(&all, SIGTERM);
    sigaddset(&all, SIGUSR1);
    sigaddset(&all, SIGUSR2);
    sigaddset(&all, SIGINT);
    while (sigtimedwait(&all, NULL, &(struct timespec){0}) > 0) {
    }
    assert_int_equal(sigprocmask(SIG_UNBLOCK, &all, NULL), 0);
}

static void test_signals(void **state)
{
    static const struct {
        int number;
        const char *name;
    } rows[] = {{SIGTERM, "SIGTERM"}, {SIGUSR1, "SIGUSR1"}, {SIGINT, "SIGINT"}};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        d9d_preemption *s;

        assert_ok(d9d_preemption_open(60, NULL, &s));
        assert_true(is_blocked(rows[i].number));
        assert_null(d9d_preemption_reason(s));
        assert_int_equal(kill(getpid(), rows[i].number), 0);
        assert_string_equal(d9d_preemption_reason(s), rows[i].name);
        assert_string_equal(d9d_preemption_reason(s), rows[i].name);
        /* The first reason stays; a second signal is taken all the same. */
        assert_int_equal(kill(getpid(), SIGTERM), 0);
        assert_string_equal(d9d_preemption_reason(s), rows[i].name);
        assert_int_equal(kill(getpid(), SIGUSR1), 0);
        d9d_preemption_close(s);                             /* or this test would end here */
        assert_int_equal(kill(getpid(), rows[i].number), 0); /* and here */
        assert_true(is_blocked(rows[i].number));
        forget_signals();
    }
    d9d_preemption_close(NULL);
}

/* What was blocked before stays so. */
static void test_mask_is_restored(void **state)
{
    sigset_t one;
    d9d_preemption *s;

    (void)state;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    sigaddset(&one, SIGUSR2);
    assert_int_equal(sigprocmask(SIG_BLOCK, &one, NULL), 0);
    assert_ok(d9d_preemption_open(60, NULL, &s));
    d9d_preemption_close(s);
    assert_true(is_blocked(SIGUSR1));
    assert_true(is_blocked(SIGUSR2));
    assert_false(is_blocked(SIGTERM));
    assert_int_equal(sigprocmask(SIG_UNBLOCK, &one, NULL), 0);
}

/* --- Slurm: a squeue that says what the test wants ------------------------------------------- */

static void fake_squeue(const char *says)
{
    char text[256], path[512], *here = getcwd(NULL, 0);

    assert_non_null(here);
    (void)snprintf(text, sizeof(text), "#!/bin/sh\necho \"$@\" >asked\n%s\n", says);
    assert_ok(d9d_fs_write_atomic("squeue", text, strlen(text)));
    assert_int_equal(chmod("squeue", 0755), 0);
    (void)snprintf(path, sizeof(path), "%s:/usr/bin:/bin", here);
    assert_int_equal(setenv("PATH", path, 1), 0);
    free(here);
}

static int slurm_setup(void **state)
{
    if (unit_dir_setup(state) != 0)
        return -1;
    return setenv("D9D_TEST_PATH", getenv("PATH"), 1) | setenv("SLURM_JOB_ID", "4711", 1);
}

static int slurm_teardown(void **state)
{
    (void)setenv("PATH", getenv("D9D_TEST_PATH"), 1);
    (void)unsetenv("SLURM_JOB_ID");
    return unit_dir_teardown(state);
}

static const char slurm_end[] = "the end of the Slurm allocation";

static void check_reason(int64_t margin, const char *want)
{
    d9d_preemption *s;

    assert_ok(d9d_preemption_open(margin, NULL, &s));
    if (want == NULL)
        assert_null(d9d_preemption_reason(s));
    else
        assert_string_equal(d9d_preemption_reason(s), want);
    d9d_preemption_close(s);
}

static void check_too_late(int64_t margin)
{
    d9d_preemption *s = NULL;

    assert_int_equal(d9d_preemption_open(margin, NULL, &s), D9D_ECONFIG);
    assert_null(s);
}

/* The task of an array is asked for, and a time that is none is asked for too. */
static void test_array_task(void **state)
{
    d9d_buf asked = {0};

    (void)state;
    fake_squeue("echo 5:00");
    assert_int_equal(setenv("SLURM_ARRAY_JOB_ID", "4711", 1), 0);
    assert_int_equal(setenv("SLURM_ARRAY_TASK_ID", "3", 1), 0);
    assert_int_equal(setenv("SLURM_JOB_END_TIME", "tomorrow", 1), 0);
    check_reason(60, NULL);
    assert_ok(d9d_fs_read("asked", 1000, &asked));
    assert_string_equal(asked.data, "-h -j 4711_3 -o %L\n");
    d9d_buf_release(&asked);
    assert_int_equal(unsetenv("SLURM_ARRAY_JOB_ID"), 0);
    assert_int_equal(unsetenv("SLURM_ARRAY_TASK_ID"), 0);
    assert_int_equal(unsetenv("SLURM_JOB_END_TIME"), 0);
}

static void test_time_limit(void **state)
{
    d9d_buf asked = {0};

    (void)state;
    fake_squeue("echo 5:00");
    check_reason(60, NULL);
    check_reason(299, NULL);
    check_too_late(300);
    check_too_late(100000);
    assert_non_null(strstr(d9d_err_message(), "ends in 300 s, and 100000 s before"));
    assert_false(is_blocked(SIGTERM));
    assert_ok(d9d_fs_read("asked", 1000, &asked));
    assert_string_equal(asked.data, "-h -j 4711 -o %L\n");
    d9d_buf_release(&asked);
}

static void test_time_runs_out(void **state)
{
    const struct timespec nap = {0, 20000000};
    d9d_preemption *s;
    int naps = 0;

    (void)state;
    fake_squeue("echo 0:01");
    assert_ok(d9d_preemption_open(0, NULL, &s));
    assert_null(d9d_preemption_reason(s));
    for (; d9d_preemption_reason(s) == NULL && naps < 500; naps++)
        (void)nanosleep(&nap, NULL);
    assert_string_equal(d9d_preemption_reason(s), slurm_end);
    assert_true(naps >= 20);
    /* A signal comes too late to be the reason. */
    assert_int_equal(kill(getpid(), SIGTERM), 0);
    assert_string_equal(d9d_preemption_reason(s), slurm_end);
    d9d_preemption_close(s);
}

static void test_no_time_limit(void **state)
{
    static const char *const says[] = {"echo UNLIMITED", "exit 1", "echo", "true",
                                       "echo slurm_load_jobs error >&2; exit 1"};

    (void)state;
    for (size_t i = 0; i < sizeof(says) / sizeof(says[0]); i++) {
        fake_squeue(says[i]);
        check_reason(100000, NULL);
    }
    assert_int_equal(unlink("squeue"), 0);
    assert_int_equal(setenv("PATH", "/nonexistent", 1), 0);
    check_reason(100000, NULL);
}

/* A job id that is none never gets near a shell. */
static void test_odd_job_ids(void **state)
{
    static const char *const ids[] = {"",   "1;touch owned",        "$(touch owned)", "12 ",
                                      "-1", "123456789012345678901"};

    (void)state;
    fake_squeue("echo 0:00");
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        assert_int_equal(setenv("SLURM_JOB_ID", ids[i], 1), 0);
        check_reason(100000, NULL);
        assert_false(d9d_fs_exists("asked"));
        assert_false(d9d_fs_exists("owned"));
    }
    assert_int_equal(unsetenv("SLURM_JOB_ID"), 0);
    check_reason(100000, NULL);
    assert_false(d9d_fs_exists("asked"));
}

#define in_slurm(f) cmocka_unit_test_setup_teardown(f, slurm_setup, slurm_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slurm_times),
        cmocka_unit_test(test_signals),
        cmocka_unit_test(test_mask_is_restored),
        in_slurm(test_time_limit),
        in_slurm(test_array_task),
        in_slurm(test_time_runs_out),
        in_slurm(test_no_time_limit),
        in_slurm(test_odd_job_ids),
    };

    (void)unsetenv("SLURM_JOB_ID"); /* this may be a job */
    return cmocka_run_group_tests_name("stop", tests, NULL, NULL);
}
