/* sink_command.c - the sink `command`: records to a program's standard input.  See
 * d9d/track/sink.h. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "d9d/base/json.h"
#include "d9d/base/thread.h"
#include "track/sink_kinds.h"

enum { MAX_PENDING_BYTES = 16 << 20, GRACE_MS = 1000, TICK_MS = 20 };

typedef struct command_config {
    d9d_list command; /* const char * */
    int64_t patience;
} command_config;

static const d9d_key arg_elem = {.kind = D9D_KIND_STR, .min = 1, .doc = "a word"};
static const d9d_key command_keys[] = {
    D9D_KEY_LIST(command_config, command, D9D_REQUIRED, &arg_elem,
                 "program and arguments; it reads JSON lines", .min = 1),
    D9D_KEY_INT(command_config, patience, "30", 0, 86400,
                "seconds that it has to leave, when the run ends"),
    D9D_KEY_END,
};

typedef struct command {
    const char *name; /* its name in log messages */
    const d9d_log *log;
    int64_t patience;
    pid_t pid;
    int fd; /* its standard input: a socket, so that writing to an exited program raises no SIGPIPE
             */
    d9d_buf waiting; /* bytes [sent, len) are still to be sent */
    size_t sent;
    int64_t lost; /* lines dropped since the last warning */
} command;

extern char **environ;

/* --- starting --------------------------------------------------------------------------- */

/* The child gets its end as standard input, our standard error as its output, and no blocked
 * signals. */
static int fork_child(const command_config *c, int input, pid_t *pid)
{
    char **args = calloc(c->command.n + 1, sizeof(*args));
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none;
    int e = args == NULL ? ENOMEM : 0;

    if (e != 0)
        return e;
    memcpy(args, c->command.items, c->command.n * sizeof(*args));
    (void)sigemptyset(&none);
    (void)posix_spawn_file_actions_init(&files);
    (void)posix_spawnattr_init(&attr);
    (void)posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
    (void)posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    (void)posix_spawnattr_setsigmask(&attr, &none);
    (void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    e = posix_spawnp(pid, args[0], &files, &attr, args, environ);
    (void)posix_spawnattr_destroy(&attr);
    (void)posix_spawn_file_actions_destroy(&files);
    free(args);
    return e;
}

static d9d_status program_start(command *p, const command_config *c)
{
    int ends[2], e;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return D9D_FAIL(D9D_EIO, "%s: no socket for it: %s", p->name, strerror(errno));
    e = fork_child(c, ends[1], &p->pid);
    (void)close(ends[1]);
    p->fd = ends[0];
    if (e == 0)
        return D9D_OK;
    p->pid = 0;
    return D9D_FAIL(D9D_EIO, "%s: cannot be started: %s", p->name, strerror(e));
}

/* --- lines ------------------------------------------------------------------------------ */

/* Sends as much as the program accepts without blocking.  EIO if it has exited. */
static d9d_status send_pending(command *p)
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

static d9d_status queue_line(command *p, const char *line, size_t n)
{
    if (p->waiting.len - p->sent + n + 1 > MAX_PENDING_BYTES) {
        p->lost++;
        return send_pending(p);
    }
    if (p->lost > 0)
        d9d_log_warn(p->log, "tracker command: %s: has not read for long; %lld lines were left out",
                     p->name, (long long)p->lost);
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

static d9d_status queue_run_info(command *p, const d9d_sink_run *run)
{
    json_t *v =
        json_pack("{s:o, s:o, s:o, s:o, s:I, s:I, s:O?}", "run", d9d_json_str(run->id), "name",
                  d9d_json_str(run->name), "description", d9d_json_str(run->description), "dir",
                  d9d_json_str(run->dir), "restarts", (json_int_t)run->restarts, "step",
                  (json_int_t)run->step, "hparams", run->hparams);
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

static bool child_has_exited(command *p)
{
    int wait_status;

    if (p->pid != 0 && waitpid(p->pid, &wait_status, WNOHANG) == p->pid) {
        if (WIFSIGNALED(wait_status))
            d9d_log_warn(p->log, "tracker command: %s: ended by signal %d", p->name,
                         WTERMSIG(wait_status));
        else if (WEXITSTATUS(wait_status) != 0)
            d9d_log_warn(p->log, "tracker command: %s: ended with status %d", p->name,
                         WEXITSTATUS(wait_status));
        p->pid = 0;
    }
    return p->pid == 0;
}

static bool child_exits_within(command *p, int64_t ms)
{
    const int64_t end = d9d_clock_ns() + ms * 1000000;

    while (!child_has_exited(p) && d9d_clock_ns() < end)
        (void)poll(NULL, 0, TICK_MS);
    return child_has_exited(p);
}

/* Sends the rest within `patience`; returns the remaining patience in milliseconds. */
static int64_t send_rest(command *p)
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

static void command_close(void *self)
{
    command *p = self;
    int64_t left = p->fd >= 0 ? send_rest(p) : 0;

    if (p->fd >= 0)
        (void)close(p->fd);
    if (p->pid != 0 && !child_exits_within(p, left)) {
        d9d_log_warn(p->log, "tracker command: %s: has not left after %lld s and is ended", p->name,
                     (long long)p->patience);
        (void)kill(p->pid, SIGTERM);
        if (!child_exits_within(p, GRACE_MS)) {
            (void)kill(p->pid, SIGKILL);
            (void)child_exits_within(p, GRACE_MS); /* otherwise it is left behind */
        }
    }
    d9d_buf_release(&p->waiting);
    free(p);
}

static d9d_status command_open(const void *config, const d9d_sink_run *run, void **self)
{
    const command_config *c = config;
    command *p = calloc(1, sizeof(*p));
    d9d_status st;

    if (p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "run %s: a program for its records", run->name);
    *p = (command){.name = *(const char *const *)c->command.items,
                   .log = run->log,
                   .patience = c->patience,
                   .fd = -1};
    st = program_start(p, c);
    if (st == D9D_OK)
        st = queue_run_info(p, run);
    if (st == D9D_OK)
        *self = p;
    else
        command_close(p);
    return st;
}

static d9d_status command_put(void *self, const d9d_sink_record *r)
{
    command *p = self;
    const d9d_status st = queue_line(p, r->line, r->bytes);

    if (st != D9D_OK)
        p->patience = 0; /* the program failed: do not wait for it at close */
    return st;
}

static const d9d_sink_kind command_kind = {.size = sizeof(d9d_sink_kind),
                                           .table = &d9di_sink_command_table,
                                           .open = command_open,
                                           .put = command_put,
                                           .close = command_close};
const d9d_table d9di_sink_command_table = D9D_TABLE(
    command_config, "command", command_keys, "JSON lines to a program", .row = &command_kind);
