/* reward_command.c - the reward `command`: a program that reads completions and writes numbers. See
 * d9d/tasks/reward_function.h.
 *
 * One process for the completions of a rank and round.  Lines are sent while numbers are read, so
 * that neither side waits for the other, and both within the timeout.
 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "d9d/base/child.h"
#include "d9d/base/json.h"
#include "d9d/base/num_format.h"
#include "d9d/base/thread.h"
#include "d9d/tasks/reward_function.h"
#include "tasks/tasks.h"

typedef struct command_section {
    d9d_list command; /* const char * */
    int64_t timeout;
} command_section;

typedef struct program {
    const char *name;
    int64_t timeout, end_ns; /* seconds; when it is over */
    pid_t pid;
    int fd; /* its standard input and output: a socket, so that no SIGPIPE arises; -1: none */
    d9d_buf lines, answer;
    size_t sent;
} program;

/* --- a process ------------------------------------------------------------------------------ */

/* In a group of its own, with what it starts. */
static int child_start(const command_section *c, int end, pid_t *pid)
{
    const char **args = calloc(c->command.n + 1, sizeof(*args));
    int e;

    if (args == NULL)
        return ENOMEM;
    memcpy(args, c->command.items, c->command.n * sizeof(*args));
    e = d9d_child_start(args, end, end, true, pid);
    free(args);
    return e;
}

static d9d_status program_start(const command_section *c, program *p)
{
    int ends[2], e;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return D9D_FAIL(D9D_EIO, "reward command: %s: no socket for it: %s", p->name,
                        strerror(errno));
    e = child_start(c, ends[1], &p->pid);
    (void)close(ends[1]);
    p->fd = ends[0];
    if (e == 0)
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG, "reward command: %s: cannot be started: %s", p->name, strerror(e));
}

/* Ends it, with whatever it has started, if it has not left. */
static void program_end(program *p)
{
    if (p->fd >= 0)
        (void)close(p->fd);
    if (p->pid != 0) {
        (void)kill(-p->pid, SIGKILL);
        (void)waitpid(p->pid, NULL, 0);
    }
    d9d_buf_release(&p->lines);
    d9d_buf_release(&p->answer);
}

static d9d_status fail_timeout(const program *p)
{
    return D9D_FAIL(D9D_EIO, "reward command: %s: has not answered within %lld s", p->name,
                    (long long)p->timeout);
}

static int left_ms(const program *p)
{
    const int64_t left = (p->end_ns - d9d_clock_ns()) / 1000000;

    return left > 0 ? (int)left + 1 : 0;
}

/* Waits until it has left; its exit status must be 0. */
static d9d_status program_wait(program *p)
{
    int status;

    for (;;) {
        const pid_t got = waitpid(p->pid, &status, WNOHANG);

        if (got == p->pid)
            break;
        if (left_ms(p) == 0)
            return fail_timeout(p);
        (void)poll(NULL, 0, 1);
    }
    p->pid = 0;
    if (WIFSIGNALED(status))
        return D9D_FAIL(D9D_EIO, "reward command: %s: ended by signal %d", p->name,
                        WTERMSIG(status));
    if (WEXITSTATUS(status) != 0)
        return D9D_FAIL(D9D_EIO, "reward command: %s: ended with status %d", p->name,
                        WEXITSTATUS(status));
    return D9D_OK;
}

/* --- talking -------------------------------------------------------------------------------- */

/* A program that reads no more is found out by its answer or its status. */
static void send_some(program *p)
{
    const ssize_t n =
        send(p->fd, p->lines.data + p->sent, p->lines.len - p->sent, MSG_DONTWAIT | MSG_NOSIGNAL);

    if (n >= 0)
        p->sent += (size_t)n;
    else if (errno != EAGAIN && errno != EINTR)
        p->sent = p->lines.len;
    if (p->sent == p->lines.len)
        (void)shutdown(p->fd, SHUT_WR);
}

static d9d_status receive_some(program *p, bool *ended)
{
    char part[1 << 14];
    const ssize_t n = recv(p->fd, part, sizeof(part), MSG_DONTWAIT);

    if (n > 0)
        return d9d_buf_append(&p->answer, part, (size_t)n);
    *ended = n == 0 || (errno != EAGAIN && errno != EINTR);
    return D9D_OK;
}

static d9d_status talk(program *p)
{
    bool ended = false;

    while (!ended) {
        struct pollfd f = {.fd = p->fd,
                           .events = (short)(POLLIN | (p->sent < p->lines.len ? POLLOUT : 0))};

        if (poll(&f, 1, left_ms(p)) == 0)
            return fail_timeout(p);
        if ((f.revents & POLLOUT) != 0 && p->sent < p->lines.len)
            send_some(p);
        if ((f.revents & (POLLIN | POLLHUP | POLLERR)) != 0)
            D9D_TRY(receive_some(p, &ended));
    }
    return program_wait(p);
}

/* --- lines ---------------------------------------------------------------------------------- */

static d9d_status append_text(d9d_buf *b, const char *name, const char *text)
{
    D9D_TRY(d9d_buf_printf(b, ", \"%s\": ", name));
    return d9d_json_put_str(b, text, strlen(text));
}

static d9d_status append_line(const d9d_reward_sample *x, d9d_buf *b)
{
    D9D_TRY(
        d9d_buf_printf(b, "{\"sample\": %lld, \"dataset\": %d", (long long)x->sample, x->dataset));
    D9D_TRY(append_text(b, "prompt", x->prompt));
    D9D_TRY(append_text(b, "completion", x->completion));
    D9D_TRY(append_text(b, "answer", x->answer));
    return d9d_buf_printf(b, ", \"tokens\": %zu, \"terminated\": %s}\n", x->n_tokens,
                          x->terminated ? "true" : "false");
}

/* The k-th line of an answer as a number. */
static d9d_status parse_number(const program *p, const char *line, size_t k, double *out)
{
    const size_t n = strcspn(line, "\n");
    char *end;

    *out = strtod(line, &end);
    while (*end == ' ' || *end == '\t' || *end == '\r')
        end++;
    if (end == line || end != line + n || n == 0 || !isfinite(*out))
        return D9D_FAIL(D9D_EFORMAT,
                        "reward command: %s: line %zu of its answer is no number: "
                        "\"%.*s\"",
                        p->name, k + 1, (int)(n < 80 ? n : 80), line);
    return D9D_OK;
}

static d9d_status parse_answer(program *p, size_t n, double *rewards)
{
    const char *at;
    size_t k = 0;

    D9D_TRY(d9d_buf_append(&p->answer, "", 1));
    for (at = p->answer.data; *at != '\0' && k < n; k++) {
        D9D_TRY(parse_number(p, at, k, &rewards[k]));
        at += strcspn(at, "\n");
        at += *at == '\n';
    }
    if (k < n || *at != '\0')
        return D9D_FAIL(D9D_EFORMAT,
                        "reward command: %s: was given %zu completions and wrote %s%zu line%s",
                        p->name, n, k < n ? "" : "more than ", k, D9D_PLURAL(k));
    return D9D_OK;
}

static d9d_status command_score(void *self, const d9d_reward_sample *x, size_t n, double *rewards)
{
    const command_section *c = self;
    program p = {.name = ((const char *const *)c->command.items)[0],
                 .timeout = c->timeout,
                 .end_ns = d9d_clock_ns() + c->timeout * 1000000000,
                 .fd = -1};
    d9d_status st = D9D_OK;

    if (n == 0)
        return D9D_OK;
    for (size_t i = 0; i < n; i++)
        D9D_TRY_OR(st, append_line(&x[i], &p.lines), out);
    D9D_TRY_OR(st, program_start(c, &p), out);
    D9D_TRY_OR(st, talk(&p), out);
    st = parse_answer(&p, n, rewards);
out:
    program_end(&p);
    return st;
}

static const d9d_key arg_elem = {.kind = D9D_KIND_STR, .min = 1, .doc = "a word"};
static const d9d_key keys[] = {
    D9D_KEY_LIST(command_section, command, D9D_REQUIRED, &arg_elem,
                 "program and arguments; it reads a JSON line for each completion and writes a "
                 "number for each",
                 .min = 1),
    D9D_KEY_INT(command_section, timeout, "60", 1, 86400,
                "seconds that it has for the completions of a rank"),
    D9D_KEY_END,
};
static const d9d_reward_kind kind = {
    .size = sizeof(d9d_reward_kind), .table = &d9di_reward_command_table, .score = command_score};
const d9d_table d9di_reward_command_table = {.name = "command",
                                             .size = sizeof(command_section),
                                             .keys = keys,
                                             .doc = "what a program says",
                                             .row = &kind};
