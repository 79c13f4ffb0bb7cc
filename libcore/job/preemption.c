/* preemption.c - polled signals, and Slurm's time limit.  See d9d/job/preemption.h. */
#include "d9d/job/preemption.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "d9d/base/thread.h"

enum { NO_LIMIT_S = 1 << 30 }; /* seconds that count as no limit */

struct d9d_preemption {
    sigset_t signals, old_mask;
    bool limited;
    int64_t leave_ns;     /* if limited: exit at this d9d_clock_ns() */
    bool received;        /* a signal to exit */
    bool sleep_requested; /* SIGUSR2 came */
    char reason[64];
};

static const struct {
    int number;
    const char *name;
} stop_signals[] = {{SIGTERM, "SIGTERM"}, {SIGUSR1, "SIGUSR1"}, {SIGINT, "SIGINT"}};
enum { N_STOP_SIGNALS = sizeof(stop_signals) / sizeof(stop_signals[0]), MAX_DIGITS = 8 };

/* Parses a number of at most MAX_DIGITS digits; advances *p. */
static bool parse_number(const char **p, int64_t *out)
{
    const size_t env_digits = strspn(*p, "0123456789");

    if (env_digits == 0 || env_digits > MAX_DIGITS)
        return false;
    *out = strtoll(*p, NULL, 10);
    *p += env_digits;
    return true;
}

/* Parses up to three colon-separated numbers; returns how many, or 0. */
static int parse_clock(const char **p, int64_t fields[3])
{
    for (int n = 0; n < 3; n++) {
        if (!parse_number(p, &fields[n]))
            return 0;
        if (**p != ':' || n == 2)
            return n + 1;
        ++*p;
    }
    return 0;
}

/* "D-H", "D-H:M", "D-H:M:S", or "S", "M:S", "H:M:S". */
int64_t d9d_preemption_parse_slurm_time(const char *text)
{
    int64_t fields[3] = {0}, clock[3] = {0}, days = 0; /* hours, minutes, seconds */
    const char *p = text + strspn(text, " "), *dash;
    int n;

    dash = strchr(p, '-');
    if (dash != NULL && (!parse_number(&p, &days) || p++ != dash))
        return -1;
    n = parse_clock(&p, fields);
    if (n == 0 || p[strspn(p, " \n")] != '\0')
        return -1;
    memcpy(dash != NULL ? clock : clock + 3 - n, fields, (size_t)n * sizeof(fields[0]));
    return ((days * 24 + clock[0]) * 60 + clock[1]) * 60 + clock[2];
}

/* An environment variable of up to 18 digits, or NULL. */
static const char *env_digits(const char *name)
{
    const char *v = getenv(name);
    size_t n = v != NULL ? strlen(v) : 0;

    return n > 0 && n <= 18 && strspn(v, "0123456789") == n ? v : NULL;
}

/* The job id for the controller.  For an array job this is the task's id, since the number of the
 * last task is the array's id and names all tasks.  False outside a job. */
static bool slurm_job_name(char *out, size_t size)
{
    const char *job = env_digits("SLURM_JOB_ID"), *array = env_digits("SLURM_ARRAY_JOB_ID");
    const char *task = env_digits("SLURM_ARRAY_TASK_ID");

    if (job == NULL)
        return false;
    if (array != NULL && task != NULL)
        (void)snprintf(out, size, "%s_%s", array, task);
    else
        (void)snprintf(out, size, "%s", job);
    return true;
}

/* Asks the controller; -1 without an answer.  The command inherits the blocked signals, so a
 * timeout kills it with SIGKILL. */
static int64_t query_slurm_end(const char *job)
{
    char command[160], line[64] = "";
    FILE *p;

    (void)snprintf(command, sizeof(command),
                   "timeout -s KILL 20 squeue -h -j %s -o %%L 2>/dev/null </dev/null", job);
    p = popen(command, "r");
    if (p == NULL)
        return -1;
    if (fgets(line, sizeof(line), p) == NULL)
        line[0] = '\0';
    (void)pclose(p);
    return d9d_preemption_parse_slurm_time(line);
}

/* From the environment, or else from the controller; -1 without an answer. */
static int64_t slurm_seconds_left(const d9d_log *log)
{
    const char *says = getenv("SLURM_JOB_END_TIME"), *end = env_digits("SLURM_JOB_END_TIME");
    char job[64];

    if (!slurm_job_name(job, sizeof(job)))
        return -1;
    if (end != NULL) {
        const int64_t left = strtoll(end, NULL, 10) - (int64_t)time(NULL);

        return left > 0 ? left : 0;
    }
    if (says != NULL)
        d9d_log_warn(log, "SLURM_JOB_END_TIME is \"%s\", no number of seconds; asking Slurm", says);
    return query_slurm_end(job);
}

/* Of the whole allocation; 0 if the environment does not say. */
static int64_t slurm_seconds_whole(void)
{
    const char *start = env_digits("SLURM_JOB_START_TIME"), *end = env_digits("SLURM_JOB_END_TIME");

    return start != NULL && end != NULL ? strtoll(end, NULL, 10) - strtoll(start, NULL, 10) : 0;
}

/* A whole allocation that is longer than the margin is enough for a requeued job. */
static d9d_status fail_too_late(int64_t left, int64_t margin_s)
{
    const bool requeue = slurm_seconds_whole() > margin_s;

    return D9D_FAIL(requeue ? D9D_EINTR : D9D_ECONFIG,
                    "the allocation ends in %lld s, and %lld s before its end there is no time but "
                    "to save: %s",
                    (long long)left, (long long)margin_s,
                    requeue ? "this start is for the next allocation"
                            : "ask for more time (sbatch --time), or for a smaller "
                              "trainer.timeout.save_margin");
}

/* Sets the deadline `margin_s` before the end; it must be in the future. */
static d9d_status set_deadline(d9d_preemption *s, int64_t left, int64_t margin_s,
                               const d9d_log *log)
{
    if (left <= margin_s)
        return fail_too_late(left, margin_s);
    d9d_log_info(log, "the allocation ends in %lld s; saving %lld s before", (long long)left,
                 (long long)margin_s);
    s->leave_ns = d9d_clock_ns() + (left - margin_s) * 1000000000;
    s->limited = true;
    return D9D_OK;
}

d9d_status d9d_preemption_open(int64_t margin_s, const d9d_log *log, d9d_preemption **out)
{
    d9d_preemption *s = calloc(1, sizeof(*s));
    d9d_status st = D9D_OK;
    int64_t left;

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "signals: %zu bytes", sizeof(*s));
    sigemptyset(&s->signals);
    for (int i = 0; i < N_STOP_SIGNALS; i++)
        sigaddset(&s->signals, stop_signals[i].number);
    sigaddset(&s->signals, SIGUSR2);
    (void)pthread_sigmask(SIG_BLOCK, &s->signals, &s->old_mask);
    left = margin_s == D9D_PREEMPTION_NO_LIMIT ? -1 : slurm_seconds_left(log);
    if (left >= 0 && left < NO_LIMIT_S)
        st = set_deadline(s, left, margin_s, log);
    if (st == D9D_OK)
        *out = s;
    else
        d9d_preemption_close(s);
    return st;
}

/* Consumes the signals that are pending or arrive within a time. */
static void consume_signals(d9d_preemption *s, struct timespec within)
{
    int got;

    while ((got = sigtimedwait(&s->signals, NULL, &within)) > 0) {
        within = (struct timespec){0};
        s->sleep_requested = s->sleep_requested || got == SIGUSR2;
        s->received = s->received || got != SIGUSR2;
        for (int i = 0; i < N_STOP_SIGNALS; i++)
            if (got == stop_signals[i].number && s->reason[0] == '\0')
                (void)snprintf(s->reason, sizeof(s->reason), "%s", stop_signals[i].name);
    }
}

void d9d_preemption_close(d9d_preemption *s)
{
    if (s == NULL)
        return;
    consume_signals(s, (struct timespec){0});
    if (!s->received)
        (void)pthread_sigmask(SIG_SETMASK, &s->old_mask, NULL);
    free(s);
}

bool d9d_preemption_sleep_requested(d9d_preemption *s)
{
    bool came;

    consume_signals(s, (struct timespec){0});
    came = s->sleep_requested;
    s->sleep_requested = false;
    return came;
}

void d9d_preemption_wait_wake(d9d_preemption *s)
{
    while (!d9d_preemption_sleep_requested(s) && d9d_preemption_reason(s) == NULL)
        consume_signals(s, (struct timespec){.tv_sec = 1});
}

const char *d9d_preemption_reason(d9d_preemption *s)
{
    consume_signals(s, (struct timespec){0});
    if (s->reason[0] == '\0' && s->limited && d9d_clock_ns() >= s->leave_ns)
        (void)snprintf(s->reason, sizeof(s->reason), "the end of the Slurm allocation");
    return s->reason[0] != '\0' ? s->reason : NULL;
}
