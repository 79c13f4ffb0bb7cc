/* sink_program.c - see track/sink_program.h. */
#include "track/sink_program.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "d9d/base/child.h"
#include "d9d/base/json.h"
#include "d9d/base/thread.h"

enum { MAX_PENDING_BYTES = 16 << 20, GRACE_MS = 1000, TICK_MS = 20 };

typedef struct program {
    const char *kind, *name; /* in log messages: of the sink, of the program */
    const d9d_log *log;
    int64_t patience;
    pid_t pid;
    int fd; /* its standard input: a socket, so that writing to an exited program raises no SIGPIPE
             */
    d9d_buf waiting; /* bytes [sent, len) are still to be sent */
    size_t sent;
    int64_t lost; /* lines dropped since the last warning */
} program;

/* --- starting --------------------------------------------------------------------------- */

static d9d_status program_start(program *p, const char *const *args)
{
    int ends[2], e;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return D9D_FAIL(D9D_EIO, "%s: no socket for it: %s", p->name, strerror(errno));
    e = d9d_child_start(args, ends[1], STDERR_FILENO, false, &p->pid);
    (void)close(ends[1]);
    p->fd = ends[0];
    if (e == 0)
        return D9D_OK;
    return D9D_FAIL(D9D_EIO, "%s: cannot be started: %s", p->name, strerror(e));
}

/* --- lines ------------------------------------------------------------------------------ */

/* Sends as much as the program accepts without blocking.  EIO if it has exited. */
static d9d_status send_pending(program *p)
{
    while (p->sent < p->waiting.len) {
        const ssize_t n = send(p->fd, p->waiting.data + p->sent, p->waiting.len - p->sent,
                               MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n >= 0)
            p->sent += (size_t)n;
        else if (errno == EAGAIN)
            return D9D_OK;
        else if (errno != EINTR)
            return D9D_FAIL(D9D_EIO, "%s: reads no more: %s", p->name, strerror(errno));
    }
    p->sent = p->waiting.len = 0;
    return D9D_OK;
}

static d9d_status queue_line(program *p, const char *line, size_t n)
{
    if (p->waiting.len - p->sent + n + 1 > MAX_PENDING_BYTES) {
        p->lost++;
        return send_pending(p);
    }
    if (p->lost > 0)
        d9d_log_warn(p->log, "tracker %s: %s: has not read for long; %lld lines were left out",
                     p->kind, p->name, (long long)p->lost);
    p->lost = 0;
    if (p->sent > MAX_PENDING_BYTES / 2) { /* compact the buffer */
        p->waiting.len -= p->sent;
        memmove(p->waiting.data, p->waiting.data + p->sent, p->waiting.len);
        p->sent = 0;
    }
    D9D_TRY(d9d_buf_append(&p->waiting, line, n));
    D9D_TRY(d9d_buf_append(&p->waiting, "\n", 1));
    return send_pending(p);
}

static d9d_status queue_run_info(program *p, const d9d_sink_run *run, json_t *tracker)
{
    json_t *v =
        json_pack("{s:o, s:o, s:o, s:o, s:I, s:I, s:O?, s:O*, s:O*}", "run", d9d_json_str(run->id),
                  "name", d9d_json_str(run->name), "description", d9d_json_str(run->description),
                  "dir", d9d_json_str(run->dir), "restarts", (json_int_t)run->restarts, "step",
                  (json_int_t)run->step, "hparams", run->hparams, "config",
                  tracker != NULL ? run->config : NULL, "tracker", tracker);
    d9d_buf text = {0};
    d9d_status st = v == NULL ? D9D_FAIL(D9D_ENOMEM, "%s: cannot be described", run->name)
                              : d9d_json_put(&text, v, -1);

    json_decref(v);
    if (st == D9D_OK)
        st = queue_line(p, text.data, text.len);
    d9d_buf_release(&text);
    return st;
}

/* --- exit --------------------------------------------------------------------------------- */

static bool child_has_exited(program *p)
{
    int wait_status;

    if (p->pid != 0 && waitpid(p->pid, &wait_status, WNOHANG) == p->pid) {
        if (WIFSIGNALED(wait_status))
            d9d_log_warn(p->log, "tracker %s: %s: ended by signal %d", p->kind, p->name,
                         WTERMSIG(wait_status));
        else if (WEXITSTATUS(wait_status) != 0)
            d9d_log_warn(p->log, "tracker %s: %s: ended with status %d", p->kind, p->name,
                         WEXITSTATUS(wait_status));
        p->pid = 0;
    }
    return p->pid == 0;
}

static bool child_exits_within(program *p, int64_t ms)
{
    const int64_t end = d9d_clock_ns() + ms * 1000000;

    while (!child_has_exited(p) && d9d_clock_ns() < end)
        (void)poll(NULL, 0, TICK_MS);
    return child_has_exited(p);
}

/* Sends the rest within `patience`; returns the remaining patience in milliseconds. */
static int64_t send_rest(program *p)
{
    const int64_t end = d9d_clock_ns() + p->patience * 1000000000;
    int64_t left;

    while ((left = (end - d9d_clock_ns()) / 1000000) > 0 && send_pending(p) == D9D_OK &&
           p->waiting.len > 0) {
        struct pollfd f = {.fd = p->fd, .events = POLLOUT};

        (void)poll(&f, 1, (int)left);
    }
    return left > 0 ? left : 0;
}

void d9di_sink_program_close(void *self)
{
    program *p = self;
    int64_t left = p->fd >= 0 ? send_rest(p) : 0;

    if (p->fd >= 0)
        (void)close(p->fd);
    if (p->pid != 0 && !child_exits_within(p, left)) {
        d9d_log_warn(p->log, "tracker %s: %s: has not left after %lld s and is ended", p->kind,
                     p->name, (long long)p->patience);
        (void)kill(p->pid, SIGTERM);
        if (!child_exits_within(p, GRACE_MS)) {
            (void)kill(p->pid, SIGKILL);
            (void)child_exits_within(p, GRACE_MS); /* otherwise it is left behind */
        }
    }
    d9d_buf_release(&p->waiting);
    free(p);
}

d9d_status d9di_sink_program_open(const d9di_sink_program_opts *opts, const d9d_sink_run *run,
                                  void **self)
{
    program *p = calloc(1, sizeof(*p));
    d9d_status st;

    if (p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "run %s: a program for its records", run->name);
    *p = (program){.kind = opts->kind,
                   .name = opts->args[0],
                   .log = run->log,
                   .patience = opts->patience,
                   .fd = -1};
    st = program_start(p, opts->args);
    if (st == D9D_OK)
        st = queue_run_info(p, run, opts->tracker);
    if (st == D9D_OK)
        *self = p;
    else
        d9di_sink_program_close(p);
    return st;
}

d9d_status d9di_sink_program_put(void *self, const d9d_sink_record *r)
{
    program *p = self;
    const d9d_status st = queue_line(p, r->line, r->bytes);

    if (st != D9D_OK)
        p->patience = 0; /* the program failed: do not wait for it at close */
    return st;
}

/* --- asking ------------------------------------------------------------------------------ */

/* Reads what the program prints, until it closes its output or the time is over. */
static void read_answer(int fd, int64_t end, char *answer, size_t size)
{
    size_t n = 0;
    int64_t left;

    while (n + 1 < size && (left = (end - d9d_clock_ns()) / 1000000) > 0) {
        struct pollfd f = {.fd = fd, .events = POLLIN};
        ssize_t got;

        if (poll(&f, 1, (int)left) <= 0)
            continue;
        got = read(fd, answer + n, size - 1 - n);
        if (got == 0 || (got < 0 && errno != EINTR))
            break;
        n += got > 0 ? (size_t)got : 0;
    }
    answer[n] = '\0';
    answer[strcspn(answer, "\n")] = '\0';
}

/* The program's exit status, 0 to 255; -1 without one. */
static int wait_for_exit(pid_t pid, int64_t end)
{
    int wait_status = 0;
    pid_t got;

    while ((got = waitpid(pid, &wait_status, WNOHANG)) == 0 && d9d_clock_ns() < end)
        (void)poll(NULL, 0, TICK_MS);
    if (got == 0) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, &wait_status, 0);
    }
    return got == pid && WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
}

d9d_status d9di_sink_program_ask(const char *kind, const char *const *args, int64_t seconds)
{
    const int64_t end = d9d_clock_ns() + seconds * 1000000000;
    char answer[1024];
    int ends[2], e, status;
    pid_t pid = 0;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return D9D_FAIL(D9D_EIO, "tracker %s: no socket for it: %s", kind, strerror(errno));
    e = d9d_child_start(args, ends[1], ends[1], false, &pid);
    (void)close(ends[1]);
    if (e != 0) {
        (void)close(ends[0]);
        return D9D_FAIL(D9D_ECONFIG, "tracker %s: %s: cannot be started: %s", kind, args[0],
                        strerror(e));
    }
    read_answer(ends[0], end, answer, sizeof(answer));
    (void)close(ends[0]);
    status = wait_for_exit(pid, end);
    if (status == 0)
        return D9D_OK;
    if (status < 0)
        return D9D_FAIL(D9D_ECONFIG, "tracker %s: %s: no answer within %lld s whether it can run",
                        kind, args[0], (long long)seconds);
    return D9D_FAIL(D9D_ECONFIG, "tracker %s: %s", kind,
                    answer[0] != '\0' ? answer : "its client ended with an error and said nothing");
}
