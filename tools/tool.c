/* tool.c - the common parts of all d9d-* programs: log, output, ranks, exit.  See tool.h. */
#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "d9d/base/environment.h"
#include "d9d/base/writer.h"
#include "tool_cli.h"
#include "tool_sigbus.h"

/* --- log ------------------------------------------------------------------------- */

enum { LINE_SIZE = 4096, STDERR_TIMEOUT_MS = 1000 /* longest log line; longest wait for stderr */ };

struct talk {
    pthread_mutex_t lock; /* guards `shown` */
    const char *name;
    bool shown; /* the terminal shows a status line */
    d9d_writer
        *behind; /* asynchronous writer of a job; NULL: logging blocks until the line is written */
};

void tool_log_async(tool_run *r)
{
    d9d_file f = {.fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1),
                  .path = strdup("standard error")};

    if (r->talk->behind != NULL || f.fd < 0 || f.path == NULL ||
        d9d_writer_open(&f, &(d9d_writer_opts){.ignore_errors = true}, &r->talk->behind) != D9D_OK)
        d9d_file_release(&f); /* then logging blocks */
}

static void write_stderr(struct talk *t, const char *text, size_t n)
{
    if (t->behind != NULL)
        (void)d9d_writer_try_put(t->behind, text, n, STDERR_TIMEOUT_MS);
    else
        (void)!fwrite(text, 1, n, stderr);
}

static int terminal_columns(int fd)
{
    const char *env = getenv("COLUMNS");
    struct winsize w;

    if (ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 0)
        return w.ws_col;
    return env != NULL && atoi(env) > 0 ? atoi(env) : 80;
}

static bool is_dumb_terminal(void)
{
    const char *term = getenv("TERM");

    return term == NULL || strcmp(term, "dumb") == 0;
}

/* The time of a line, where D9D_LOG_TIME asks for it: "2026-11-27T09:01:02Z ". */
static void format_stamp(char *out, size_t size)
{
    const char *wish = getenv("D9D_LOG_TIME");
    const time_t now = time(NULL);
    struct tm utc;

    out[0] = '\0';
    if (wish != NULL && strcmp(wish, "0") != 0 && wish[0] != '\0' && gmtime_r(&now, &utc) != NULL)
        (void)!strftime(out, size, "%Y-%m-%dT%H:%M:%SZ ", &utc);
}

static void log_line(void *arg, d9d_log_level level, const char *text)
{
    struct talk *t = arg;
    const char *kind = level == D9D_LOG_ERROR  ? "error: "
                       : level == D9D_LOG_WARN ? "warning: "
                                               : "";
    char line[LINE_SIZE], stamp[32];
    int n;

    format_stamp(stamp, sizeof(stamp));
    pthread_mutex_lock(&t->lock);
    n = snprintf(line, sizeof(line), "%s%s%s: %s%s\n", t->shown ? "\r\033[K" : "", stamp, t->name,
                 kind, text);
    t->shown = false;
    pthread_mutex_unlock(&t->lock);
    write_stderr(t, line, n < LINE_SIZE ? (size_t)n : LINE_SIZE - 1);
}

static void log_status(void *arg, const char *text)
{
    struct talk *t = arg;
    int n = (int)strlen(text), columns = terminal_columns(STDERR_FILENO) - 1, drawn = 0;
    char line[LINE_SIZE];

    if (n > columns)
        n = columns;
    while (n > 0 && text[n] != '\0' && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--;
    pthread_mutex_lock(&t->lock);
    if (n > 0 || t->shown)
        drawn = snprintf(line, sizeof(line), "\r%.*s\033[K%s", n, text, n == 0 ? "\r" : "");
    t->shown = n > 0;
    pthread_mutex_unlock(&t->lock);
    write_stderr(t, line, drawn < LINE_SIZE ? (size_t)drawn : LINE_SIZE - 1);
}

static d9d_log make_log(struct talk *t, const cli_common *c)
{
    return (d9d_log){
        .line = log_line,
        .status = !c->quiet && isatty(STDERR_FILENO) && !is_dumb_terminal() ? log_status : NULL,
        .arg = t,
        .level = c->quiet                      ? D9D_LOG_WARN
                 : getenv("D9D_DEBUG") != NULL ? D9D_LOG_DEBUG
                                               : D9D_LOG_INFO,
    };
}

/* --- output ------------------------------------------------------------------------- */

void tool_put(const d9d_buf *b)
{
    if (b->len > 0)
        (void)!fwrite(b->data, 1, b->len, stdout);
}

/* Replaces control characters in place, except line ends and tabs. */
void tool_put_sanitized(d9d_buf *b)
{
    for (size_t i = 0; i < b->len; i++)
        if (((unsigned char)b->data[i] < 0x20 && b->data[i] != '\n' && b->data[i] != '\t') ||
            b->data[i] == 0x7f)
            b->data[i] = '?';
    tool_put(b);
}

d9d_status tool_put_json(json_t *v)
{
    d9d_buf b = {0};
    d9d_status st = d9d_json_put(&b, v, 2);

    if (st == D9D_OK)
        st = d9d_buf_append(&b, "\n", 1);
    if (st == D9D_OK)
        tool_put(&b);
    d9d_buf_release(&b);
    json_decref(v);
    return st;
}

json_t *tool_json_real(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

tool_screen tool_screen_get(void)
{
    const char *no_colour = getenv("NO_COLOR");
    tool_screen s = {.columns = 80, .rows = 24};
    struct winsize w;

    s.utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    s.terminal = isatty(STDOUT_FILENO) != 0;
    s.colour = s.terminal && !is_dumb_terminal() && (no_colour == NULL || *no_colour == '\0');
    s.columns = terminal_columns(STDOUT_FILENO);
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_row > 0)
        s.rows = w.ws_row;
    return s;
}

/* A full disk is reported here, not by printf(). */
static d9d_status close_stdout(void)
{
    const bool pending = __fpending(stdout) > 0, failed = ferror(stdout) != 0;

    errno = 0;
    if (fclose(stdout) != 0 && (pending || errno != EBADF))
        return D9D_FAIL(D9D_EIO, "standard output: %s", strerror(errno));
    return failed ? D9D_FAIL(D9D_EIO, "standard output: not all of it could be written") : D9D_OK;
}

static int report_status(struct talk *t, d9d_status st, bool usage)
{
    char text[2 * LINE_SIZE];
    int n = 0;

    if (st != D9D_OK && usage && st == D9D_ECONFIG)
        n = snprintf(text, sizeof(text), "%s: %s\n%s: --help shows what there is\n", t->name,
                     d9d_err_message(), t->name);
    else if (st != D9D_OK)
        n = snprintf(text, sizeof(text), "%s: %s: %s\n%s", t->name, d9d_status_text(st),
                     d9d_err_message(), d9d_err_trace());
    write_stderr(t, text, n < (int)sizeof(text) ? (size_t)n : sizeof(text) - 1);
    return d9d_status_exit_code(st);
}

/* --- ranks ------------------------------------------------------------------------------ */

d9d_status tool_join(tool_run *r, d9d_bootstrap **out)
{
    const d9d_status st = d9d_bootstrap_open(out);

    if (st == D9D_ECONFIG)
        r->mute = d9d_bootstrap_is_nonroot_task();
    D9D_TRY(st);
    if (d9d_bootstrap_size(*out) > 1)
        tool_log_async(r);
    if (d9d_bootstrap_rank(*out) > 0) {
        r->mute = true;
        r->errors = *r->log; /* for the watchdog: rank 0 may be the one that hangs */
        r->errors.level = D9D_LOG_ERROR;
        r->errors.status = NULL;
        r->log = &r->errors;
    }
    return D9D_OK;
}

/* Leaves the job.  If all ranks know of the failure, none exits before it is reported: launchers
 * send SIGTERM to the rest of a job when a task fails.  A rank that is slow to release its device
 * would then exit with that signal's status instead of, say, 75.  If only this rank knows of the
 * failure, the others may wait for it, so it reports the failure and aborts the job. */
d9d_status tool_leave(tool_run *r, d9d_bootstrap *bootstrap, d9d_status st)
{
    if (st != D9D_OK && d9d_bootstrap_size(bootstrap) > 1) {
        const bool agreed = d9d_bootstrap_failure_is_collective(bootstrap),
                   reported = d9d_bootstrap_failure_reported(bootstrap);
        const struct timespec a_while = {.tv_sec = reported ? 3 : 0}; /* until the other ends it */

        if (r->log != NULL && r->log->status != NULL)
            r->log->status(r->log->arg, "");
        if (!reported && (!r->mute || !agreed))
            (void)report_status(r->talk, st, false);
        r->mute = true;
        (void)nanosleep(&a_while, NULL);
        if (agreed) {
            (void)signal(SIGTERM, SIG_IGN);
            (void)!d9d_bootstrap_agree_status(bootstrap, D9D_OK);
        } else {
            d9d_bootstrap_abort(bootstrap, d9d_status_exit_code(st), d9d_err_message());
        }
    }
    d9d_bootstrap_close(bootstrap);
    return st;
}

/* Opens closed standard streams, since the next opened file would get their number and receive the
 * output.  They are opened in the wrong direction, so input and output still fail. */
static d9d_status open_std_streams(void)
{
    static const int mode[] = {O_WRONLY, O_RDONLY, O_WRONLY};

    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", mode[fd]) != fd)
            return D9D_FAIL(D9D_EIO, "/dev/null: cannot open: %s", strerror(errno));
    return D9D_OK;
}

/* Raises the limit of open files: a checkpoint may have any number of files, and the usual 1024
 * exists only for select().  Ignores SIGXFSZ, so that a write beyond the file size limit fails like
 * one on a full disk. */
static void raise_file_limits(void)
{
    struct rlimit files;

    (void)signal(SIGXFSZ, SIG_IGN);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

/* Checks environment variables that libraries fail on. */
static d9d_status check_environment(void)
{
    d9d_environment e;

    d9d_environment_read(D9D_ENVIRONMENT_PROCESS, getenv, &e);
    return d9d_environment_check(&e);
}

int tool_main(const tool *t, int argc, char **argv)
{
    tool_run run = {.tool = t};
    cli_line p = {.run = &run, .argc = argc, .argv = argv, .at = 1};
    struct talk talk = {.lock = PTHREAD_MUTEX_INITIALIZER, .name = t->name};
    d9d_log log;
    d9d_status st, closed;
    bool usage = false;
    int code;

    run.talk = &talk;
    (void)setlocale(LC_CTYPE, "");
    sigbus_handler_install();
    raise_file_limits();
    st = open_std_streams();
    if (st == D9D_OK) {
        st = cli_parse(&p);
        usage = st != D9D_OK;
    }
    log = make_log(&talk, &p.common);
    run.log = &log;
    cli_log_former(&p, &log);
    run.quiet = p.common.quiet;
    run.json = p.common.json;
    if (st == D9D_OK && p.common.help)
        cli_help(t, run.command->name != NULL ? run.command : NULL);
    else if (st == D9D_OK && p.common.completion_bash)
        cli_print_bash_completion(t);
    else if (st == D9D_OK && p.common.completion_zsh)
        cli_print_zsh_completion(t);
    else if (st == D9D_OK && p.common.version)
        printf("%s %s\n", t->name, D9D_VERSION);
    else if (st == D9D_OK && (st = check_environment()) == D9D_OK)
        st = run.command->run(&run, p.options);
    if (talk.shown)
        log_status(&talk, "");
    closed = st == D9D_OK ? close_stdout() : D9D_OK;
    d9d_arena_release(&run.arena);
    st = st != D9D_OK ? st : closed;
    code = run.mute ? d9d_status_exit_code(st) : report_status(&talk, st, usage);
    d9d_writer_close(talk.behind);
    return code;
}
