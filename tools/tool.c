/* tool.c - what every d9d-* program shares.  See tool.h. */
#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "d9d/base/size.h"

enum { HELP_WIDTH = 80, HELP_COLUMN = 26, CONFIG_MAX = 64 << 20 };

struct common {
    bool help, version, quiet, json;
};

static const tool_option common_options[] = {
    TOOL_OPT(struct common, help, FLAG, "help", 'h', NULL, "show this help", .alone = true),
    TOOL_OPT(struct common, version, FLAG, "version", 'V', NULL, "show the version", .alone = true),
    TOOL_OPT(struct common, quiet, FLAG, "quiet", 'q', NULL, "only warnings and errors on stderr"),
    TOOL_OPT(struct common, json, FLAG, "json", 0, NULL, "results as JSON on stdout"),
    TOOL_END,
};

static const tool_option no_options[] = {TOOL_END};

static const tool_option *options_of(const tool_command *c)
{
    return c->options != NULL ? c->options : no_options;
}

/* --- help ------------------------------------------------------------------- */

static void print_usage(const tool *t, const tool_command *c, const char *lead)
{
    printf("%s %s%s%s [OPTION]...%s%s\n", lead, t->name, c->name != NULL ? " " : "",
           c->name != NULL ? c->name : "", c->operands != NULL ? " " : "",
           c->operands != NULL ? c->operands : "");
}

/* Words of `text` after `at` columns, broken at the width, lines indented by `indent`. */
static void print_wrapped(const char *text, int at, int indent)
{
    int col = at;

    while (*text != '\0') {
        const int n = (int)strcspn(text, " ");

        if (col > indent && col + 1 + n > HELP_WIDTH) {
            printf("\n%*s", indent, "");
            col = indent;
        } else if (col > indent) {
            putchar(' ');
            col++;
        }
        printf("%.*s", n, text);
        col += n;
        text += n + (int)strspn(text + n, " ");
    }
    putchar('\n');
}

static void print_options(const tool_option *o)
{
    for (; o->name != NULL; o++) {
        char head[80];
        int n = snprintf(head, sizeof(head), "  %c%c%s --%s%s%s", o->letter ? '-' : ' ',
                         o->letter ? o->letter : ' ', o->letter ? "," : " ", o->name,
                         o->arg != NULL ? " " : "", o->arg != NULL ? o->arg : "");

        printf("%-*s", HELP_COLUMN, head);
        if (n > HELP_COLUMN - 2)
            printf("\n%*s", HELP_COLUMN, "");
        print_wrapped(o->help, HELP_COLUMN, HELP_COLUMN);
    }
}

static void print_command(const tool_command *c, bool several)
{
    if (c->about != NULL) {
        putchar('\n');
        if (several && c->name != NULL)
            printf("%s:", c->name);
        print_wrapped(c->about, several && c->name != NULL ? (int)strlen(c->name) + 1 : 0, 0);
    }
    print_options(options_of(c));
}

/* The whole of it, or only one command's. */
static void print_help(const tool *t, const tool_command *only)
{
    const char *lead = "usage:";

    for (const tool_command *c = t->commands; c->run != NULL; c++)
        if (only == NULL || only == c) {
            print_usage(t, c, lead);
            lead = "      ";
        }
    if (only == NULL) {
        putchar('\n');
        print_wrapped(t->about, 0, 0);
    }
    for (const tool_command *c = t->commands; c->run != NULL; c++)
        if (only == NULL || only == c)
            print_command(c, only == NULL);
    printf("\nCommon options:\n");
    print_options(common_options);
    printf(
        "\nExit status: 0 done, 1 failed, 2 usage or configuration, 75 state saved (requeue).\n");
}

/* --- values ------------------------------------------------------------------ */

static d9d_status read_int(const tool_option *o, const char *text, int64_t *out)
{
    char *end;
    long long v;

    errno = 0;
    v = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0)
        return D9D_FAIL(D9D_ECONFIG, "--%s: \"%s\" is not an integer", o->name, text);
    if ((o->min != 0 || o->max != 0) && (double)v < o->min)
        return D9D_FAIL(D9D_ECONFIG, "--%s: %lld is below the minimum of %.0f", o->name, v, o->min);
    if (o->max != 0 && (double)v > o->max)
        return D9D_FAIL(D9D_ECONFIG, "--%s: %lld is above the maximum of %.0f", o->name, v, o->max);
    *out = v;
    return D9D_OK;
}

static d9d_status read_real(const tool_option *o, const char *text, double *out)
{
    char *end;
    const double v = strtod(text, &end);

    if (end == text || *end != '\0' || !isfinite(v))
        return D9D_FAIL(D9D_ECONFIG, "--%s: \"%s\" is not a number", o->name, text);
    if ((o->min != 0 || o->max != 0) && (v < o->min || v > o->max))
        return D9D_FAIL(D9D_ECONFIG, "--%s: %g is not within %g and %g", o->name, v, o->min,
                        o->max);
    *out = v;
    return D9D_OK;
}

static d9d_status read_size(const tool_option *o, const char *text, int64_t *out)
{
    uint64_t v;

    if (!d9d_size_parse(text, &v))
        return D9D_FAIL(D9D_ECONFIG, "--%s: \"%s\" is not a size such as 4096, 512MB or 4GiB",
                        o->name, text);
    if ((double)v < o->min)
        return D9D_FAIL(D9D_ECONFIG, "--%s: %s is below the minimum of %.0f bytes", o->name, text,
                        o->min);
    *out = (int64_t)v;
    return D9D_OK;
}

static d9d_status read_word(tool_run *r, const tool_option *o, const char *text, int *out)
{
    const char *near = d9d_config_nearest(text, o->words), *all = "";

    for (int i = 0; o->words[i] != NULL; i++) {
        if (strcmp(o->words[i], text) == 0) {
            *out = i;
            return D9D_OK;
        }
        all = d9d_arena_printf(&r->arena, "%s%s%s", all, i > 0 ? ", " : "", o->words[i]);
        if (all == NULL)
            return D9D_FAIL(D9D_ENOMEM, "--%s: no memory", o->name);
    }
    if (near != NULL)
        return D9D_FAIL(D9D_ECONFIG, "--%s: unknown word \"%s\"; did you mean \"%s\"?", o->name,
                        text, near);
    return D9D_FAIL(D9D_ECONFIG, "--%s: unknown word \"%s\"; expected one of %s", o->name, text,
                    all);
}

static d9d_status push(tool_run *r, tool_list *list, const char *text, size_t n)
{
    const char **item = d9d_arena_alloc(&r->arena, (list->n + 1) * sizeof(*item));
    const char *copy = d9d_arena_strndup(&r->arena, text, n);

    if (item == NULL || copy == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the command line");
    if (list->n > 0)
        memcpy(item, list->item, list->n * sizeof(*item));
    item[list->n] = copy;
    *list = (tool_list){item, list->n + 1};
    return D9D_OK;
}

static d9d_status push_words(tool_run *r, const tool_option *o, tool_list *list, const char *text)
{
    for (;;) {
        const size_t n = strcspn(text, ",");

        if (n == 0)
            return D9D_FAIL(D9D_ECONFIG, "--%s: an empty word in its list", o->name);
        D9D_TRY(push(r, list, text, n));
        if (text[n] == '\0')
            return D9D_OK;
        text += n + 1;
    }
}

static d9d_status store(tool_run *r, const tool_option *o, const char *text, char *base)
{
    void *field = base + o->offset;

    switch (o->kind) {
    case TOOL_FLAG: *(bool *)field = true; break;
    case TOOL_STRING: *(const char **)field = text; break;
    case TOOL_INT: return read_int(o, text, field);
    case TOOL_REAL: return read_real(o, text, field);
    case TOOL_SIZE: return read_size(o, text, field);
    case TOOL_WORD: return read_word(r, o, text, field);
    case TOOL_LIST: return push(r, field, text, strlen(text));
    case TOOL_COMMAS: return push_words(r, o, field, text);
    }
    return D9D_OK;
}

/* --- the command line ------------------------------------------------------------ */

struct parse {
    tool_run *run;
    struct common common;
    char *options; /* the command's struct */
    int argc;
    char **argv;
    int at;        /* next argument */
    bool alone;    /* something was asked that needs no operands */
    uint64_t seen; /* bits of the command's options */
};

/* An option of the command or a common one, by name (of n bytes) or by letter. */
static const tool_option *lookup(const struct parse *p, const char *name, size_t n, char letter,
                                 bool *common)
{
    const tool_option *tables[] = {options_of(p->run->command), common_options};

    for (size_t i = 0; i < 2; i++)
        for (const tool_option *o = tables[i]; o->name != NULL; o++)
            if (letter != 0 ? o->letter == letter
                            : strlen(o->name) == n && memcmp(o->name, name, n) == 0) {
                *common = i == 1;
                return o;
            }
    return NULL;
}

static d9d_status unknown_option(struct parse *p, const char *name, size_t n)
{
    const tool_option *tables[] = {options_of(p->run->command), common_options};
    const char *words[128], *given = d9d_arena_strndup(&p->run->arena, name, n), *near;
    size_t count = 0;

    for (size_t i = 0; i < 2; i++)
        for (const tool_option *o = tables[i]; o->name != NULL && count < 127; o++)
            words[count++] = o->name;
    words[count] = NULL;
    near = given != NULL ? d9d_config_nearest(given, words) : NULL;
    if (near != NULL)
        return D9D_FAIL(D9D_ECONFIG, "unknown option --%.*s; did you mean --%s?", (int)n, name,
                        near);
    return D9D_FAIL(D9D_ECONFIG, "unknown option --%.*s", (int)n, name);
}

/* Take option `o`; `value` is what stood behind "=" or the letter, or NULL. */
static d9d_status take(struct parse *p, const tool_option *o, bool common, const char *value)
{
    if (o->kind != TOOL_FLAG && value == NULL) {
        if (p->at >= p->argc)
            return D9D_FAIL(D9D_ECONFIG, "--%s needs a value, %s", o->name, o->arg);
        value = p->argv[p->at++];
    }
    if (o->kind == TOOL_FLAG && value != NULL)
        return D9D_FAIL(D9D_ECONFIG, "--%s takes no value, got \"%s\"", o->name, value);
    p->alone |= o->alone;
    if (!common)
        p->seen |= UINT64_C(1) << (o - options_of(p->run->command));
    return store(p->run, o, value, common ? (char *)&p->common : p->options);
}

static d9d_status parse_long(struct parse *p, const char *arg)
{
    const size_t n = strcspn(arg, "=");
    bool common;
    const tool_option *o = lookup(p, arg, n, 0, &common);

    if (o == NULL)
        return unknown_option(p, arg, n);
    return take(p, o, common, arg[n] == '=' ? arg + n + 1 : NULL);
}

/* "-qn5": flags may be joined, the rest of the word is the value of another kind. */
static d9d_status parse_letters(struct parse *p, const char *arg)
{
    for (; *arg != '\0'; arg++) {
        bool common;
        const tool_option *o = lookup(p, NULL, 0, *arg, &common);

        if (o == NULL)
            return D9D_FAIL(D9D_ECONFIG, "unknown option -%c", *arg);
        if (o->kind != TOOL_FLAG)
            return take(p, o, common, arg[1] != '\0' ? arg + 1 : NULL);
        D9D_TRY(take(p, o, common, NULL));
    }
    return D9D_OK;
}

/* Where a command was needed and none was given. */
static const tool_command no_command = {.max = -1};

static d9d_status check_operands(const struct parse *p)
{
    const tool_command *c = p->run->command;

    if (p->alone)
        return D9D_OK;
    if (c == &no_command)
        return D9D_FAIL(D9D_ECONFIG, "expected a command");
    if (p->run->n_args < c->min)
        return D9D_FAIL(D9D_ECONFIG, "expected %s, got %d operand%s", c->operands, p->run->n_args,
                        p->run->n_args == 1 ? "" : "s");
    if (c->max >= 0 && p->run->n_args > c->max)
        return D9D_FAIL(D9D_ECONFIG, "expected %s, got one operand too many, \"%s\"",
                        c->operands != NULL ? c->operands : "no operands", p->run->args[c->max]);
    return D9D_OK;
}

static d9d_status check_required(const struct parse *p)
{
    const tool_option *options = options_of(p->run->command);

    for (const tool_option *o = options; o->name != NULL && !p->alone; o++)
        if (o->required && !(p->seen >> (o - options) & 1))
            return D9D_FAIL(D9D_ECONFIG, "--%s %s is needed", o->name, o->arg);
    return D9D_OK;
}

static d9d_status parse_args(struct parse *p)
{
    bool only_operands = false;

    while (p->at < p->argc) {
        const char *arg = p->argv[p->at++];

        if (!only_operands && strcmp(arg, "--") == 0)
            only_operands = true;
        else if (!only_operands && strncmp(arg, "--", 2) == 0)
            D9D_TRY(parse_long(p, arg + 2));
        else if (!only_operands && arg[0] == '-' && arg[1] != '\0')
            D9D_TRY(parse_letters(p, arg + 1));
        else
            p->run->args[p->run->n_args++] = p->argv[p->at - 1];
    }
    D9D_TRY(check_operands(p));
    return check_required(p);
}

static d9d_status unknown_command(const tool *t, const char *given)
{
    const char *words[32], *near;
    size_t n = 0;

    for (const tool_command *c = t->commands; c->run != NULL && n < 31; c++)
        words[n++] = c->name;
    words[n] = NULL;
    near = d9d_config_nearest(given, words);
    if (near != NULL)
        return D9D_FAIL(D9D_ECONFIG, "unknown command \"%s\"; did you mean \"%s\"?", given, near);
    return D9D_FAIL(D9D_ECONFIG, "unknown command \"%s\"", given);
}

/* The command is the first word, when it is the name of one.  A tool without a nameless
 * command takes no other first word.  The word is removed from argv. */
static d9d_status choose_command(struct parse *p)
{
    const tool *t = p->run->tool;
    int word = 1;

    p->run->command = &no_command;
    for (const tool_command *c = t->commands; c->run != NULL; c++)
        if (c->name == NULL)
            p->run->command = c;
    while (word < p->argc && p->argv[word][0] == '-' && strcmp(p->argv[word], "--") != 0 &&
           p->run->command == &no_command)
        word++;
    if (word >= p->argc)
        return D9D_OK;
    for (const tool_command *c = t->commands; c->run != NULL; c++)
        if (c->name != NULL && strcmp(c->name, p->argv[word]) == 0) {
            p->run->command = c;
            memmove(p->argv + word, p->argv + word + 1,
                    (size_t)(p->argc - word) * sizeof(*p->argv));
            p->argc--;
            return D9D_OK;
        }
    return p->run->command != &no_command ? D9D_OK : unknown_command(t, p->argv[word]);
}

static d9d_status parse_line(struct parse *p)
{
    const tool_command *c;

    D9D_TRY(choose_command(p));
    c = p->run->command;
    p->run->args = d9d_arena_alloc(&p->run->arena, (size_t)(p->argc + 1) * sizeof(char *));
    p->options = d9d_arena_alloc(&p->run->arena, c->size + 1);
    if (p->run->args == NULL || p->options == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the command line");
    if (c->defaults != NULL)
        memcpy(p->options, c->defaults, c->size);
    return parse_args(p);
}

/* --- talk ------------------------------------------------------------------------- */

struct talk {
    pthread_mutex_t lock;
    const char *name;
    bool shown; /* a status line stands on the terminal */
};

static int terminal_columns(int fd)
{
    const char *env = getenv("COLUMNS");
    struct winsize w;

    if (ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 0)
        return w.ws_col;
    return env != NULL && atoi(env) > 0 ? atoi(env) : 80;
}

static bool is_dumb(void)
{
    const char *term = getenv("TERM");

    return term == NULL || strcmp(term, "dumb") == 0;
}

static void talk_line(void *arg, d9d_log_level level, const char *text)
{
    struct talk *t = arg;
    const char *kind = level == D9D_LOG_ERROR  ? "error: "
                       : level == D9D_LOG_WARN ? "warning: "
                                               : "";

    pthread_mutex_lock(&t->lock);
    fprintf(stderr, "%s%s: %s%s\n", t->shown ? "\r\033[K" : "", t->name, kind, text);
    t->shown = false;
    pthread_mutex_unlock(&t->lock);
}

static void talk_status(void *arg, const char *text)
{
    struct talk *t = arg;
    int n = (int)strlen(text), room = terminal_columns(STDERR_FILENO) - 1;

    pthread_mutex_lock(&t->lock);
    if (n > room)
        n = room;
    while (n > 0 && text[n] != '\0' && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--;
    if (n > 0 || t->shown)
        fprintf(stderr, "\r%.*s\033[K%s", n, text, n == 0 ? "\r" : "");
    fflush(stderr);
    t->shown = n > 0;
    pthread_mutex_unlock(&t->lock);
}

static d9d_log talk_log(struct talk *t, const struct common *c)
{
    return (d9d_log){
        .line = talk_line,
        .status = !c->quiet && isatty(STDERR_FILENO) && !is_dumb() ? talk_status : NULL,
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

json_t *tool_real(double v)
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
    s.colour = s.terminal && !is_dumb() && (no_colour == NULL || *no_colour == '\0');
    s.columns = terminal_columns(STDOUT_FILENO);
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_row > 0)
        s.rows = w.ws_row;
    return s;
}

/* A full disk shows up here, not in printf(). */
static d9d_status close_stdout(void)
{
    const bool pending = __fpending(stdout) > 0, failed = ferror(stdout) != 0;

    errno = 0;
    if (fclose(stdout) != 0 && (pending || errno != EBADF))
        return D9D_FAIL(D9D_EIO, "standard output: %s", strerror(errno));
    return failed ? D9D_FAIL(D9D_EIO, "standard output: not all of it could be written") : D9D_OK;
}

static int report(const tool *t, d9d_status st, bool usage)
{
    if (st == D9D_OK)
        return 0;
    if (usage && st == D9D_ECONFIG)
        fprintf(stderr, "%s: %s\n%s: --help shows what there is\n", t->name, d9d_err_message(),
                t->name);
    else
        fprintf(stderr, "%s: %s: %s\n%s", t->name, d9d_status_text(st), d9d_err_message(),
                d9d_err_trace());
    return d9d_status_exit_code(st);
}

/* --- ranks ------------------------------------------------------------------------------ */

d9d_status tool_join(tool_run *r, d9d_boot **out)
{
    D9D_TRY(d9d_boot_open(out));
    if (d9d_boot_rank(*out) > 0) {
        r->mute = true;
        r->log = NULL;
    }
    return D9D_OK;
}

/* None leaves before a failure that all know is said: launchers kill the rest of a job when a task
 * fails.  Of another one the others know nothing, and may wait for this rank: it speaks and ends
 * them. */
d9d_status tool_leave(tool_run *r, d9d_boot *boot, d9d_status st)
{
    if (st != D9D_OK && d9d_boot_size(boot) > 1) {
        const bool agreed = d9d_boot_agreed(boot);

        if (r->log != NULL && r->log->status != NULL)
            r->log->status(r->log->arg, "");
        if (!r->mute || !agreed)
            (void)report(r->tool, st, false);
        r->mute = true;
        if (agreed)
            (void)!d9d_boot_agree(boot, D9D_OK);
        else
            d9d_boot_abort(boot, d9d_status_exit_code(st), d9d_err_message());
    }
    d9d_boot_close(boot);
    return st;
}

/* A closed standard stream would lend its number to the next file that is opened, and what is
 * said would go into that file.  Opened the wrong way round, input and output still fail. */
static d9d_status hold_streams(void)
{
    static const int how[] = {O_WRONLY, O_RDONLY, O_WRONLY};

    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", how[fd]) != fd)
            return D9D_FAIL(D9D_EIO, "/dev/null: cannot open: %s", strerror(errno));
    return D9D_OK;
}

/* A checkpoint has as many files as its writer liked; 1024 at once is a limit for select(). */
static void allow_files(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

int tool_main(const tool *t, int argc, char **argv)
{
    tool_run run = {.tool = t};
    struct parse p = {.run = &run, .argc = argc, .argv = argv, .at = 1};
    struct talk talk = {.lock = PTHREAD_MUTEX_INITIALIZER, .name = t->name};
    d9d_log log;
    d9d_status st, closed;
    bool usage = false;

    (void)setlocale(LC_CTYPE, "");
    allow_files();
    st = hold_streams();
    if (st == D9D_OK) {
        st = parse_line(&p);
        usage = st != D9D_OK;
    }
    log = talk_log(&talk, &p.common);
    run.log = &log;
    run.quiet = p.common.quiet;
    run.json = p.common.json;
    if (st == D9D_OK && p.common.help)
        print_help(t, run.command->name != NULL ? run.command : NULL);
    else if (st == D9D_OK && p.common.version)
        printf("%s %s\n", t->name, D9D_VERSION);
    else if (st == D9D_OK)
        st = run.command->run(&run, p.options);
    if (talk.shown)
        talk_status(&talk, "");
    closed = st == D9D_OK ? close_stdout() : D9D_OK;
    d9d_arena_release(&run.arena);
    st = st != D9D_OK ? st : closed;
    return run.mute ? d9d_status_exit_code(st) : report(t, st, usage);
}

/* --- configurations ------------------------------------------------------------------ */

/* A configuration that is absent or no JSON is a wrong request, not a failed one. */
static d9d_status as_config(d9d_status st)
{
    d9d_err_copy copy;

    if (st != D9D_ENOTFOUND && st != D9D_EFORMAT)
        return st;
    d9d_err_save(&copy, D9D_ECONFIG);
    return d9d_err_restore(&copy);
}

static d9d_status read_stdin(json_t **out)
{
    d9d_buf b = {0};
    d9d_status st = D9D_OK;
    char piece[65536];
    size_t n;

    while (st == D9D_OK && (n = fread(piece, 1, sizeof(piece), stdin)) > 0)
        st = b.len + n <= CONFIG_MAX
                 ? d9d_buf_append(&b, piece, n)
                 : D9D_FAIL(D9D_ECONFIG, "standard input: more than %d bytes", CONFIG_MAX);
    if (st == D9D_OK && ferror(stdin))
        st = D9D_FAIL(D9D_EIO, "standard input: %s", strerror(errno));
    if (st == D9D_OK)
        st = d9d_json_parse("standard input", b.data != NULL ? b.data : "", b.len, out);
    d9d_buf_release(&b);
    return st;
}

const char *tool_input_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

static d9d_status apply(json_t *doc, const char *path, const tool_list *set)
{
    if (!json_is_object(doc))
        return D9D_FAIL(D9D_ECONFIG, "%s: expected a JSON object", tool_input_name(path));
    for (size_t i = 0; i < set->n; i++)
        D9D_TRY(d9d_config_set(doc, set->item[i]));
    return D9D_OK;
}

d9d_status tool_config_read(const char *path, const tool_list *set, json_t **out)
{
    json_t *doc = NULL;
    d9d_status st =
        strcmp(path, "-") == 0 ? read_stdin(&doc) : d9d_json_read(path, CONFIG_MAX, &doc);

    D9D_TRY(as_config(st));
    st = apply(doc, path, set);
    if (st != D9D_OK) {
        json_decref(doc);
        return st;
    }
    *out = doc;
    return D9D_OK;
}

static d9d_status print_schema(const d9d_table *table, const char *schema_id)
{
    d9d_buf b = {0};
    d9d_status st = d9d_config_schema(table, schema_id, &b);

    if (st == D9D_OK)
        tool_put(&b);
    d9d_buf_release(&b);
    return st;
}

/* The document, and the table with what its plugins bring. */
static d9d_status config_open(tool_run *r, const tool_config_options *o, const d9d_table **table,
                              d9d_plugins **plugins, json_t **doc)
{
    D9D_TRY(tool_config_read(r->args[0], &o->set, doc));
    D9D_TRY(d9d_plugins_open(*doc, tool_input_name(r->args[0]), plugins));
    return d9d_plugins_table(*plugins, *table, table);
}

d9d_status tool_config_load(tool_run *r, const char *schema_id, const tool_config_options *o,
                            const d9d_table **table, d9d_plugins **plugins, json_t **out)
{
    json_t *doc = NULL, *full = NULL;
    d9d_status st = r->n_args > 0 ? config_open(r, o, table, plugins, &doc) : D9D_OK;

    *out = NULL;
    if (st == D9D_OK && o->print_schema)
        st = print_schema(*table, schema_id);
    else if (st == D9D_OK)
        st = d9d_config_resolve(*table, doc, tool_input_name(r->args[0]), &full);
    json_decref(doc);
    D9D_TRY(st);
    if (full != NULL && o->print_config)
        return tool_put_json(full);
    *out = full;
    return D9D_OK;
}

/* --- jobs ------------------------------------------------------------------------ */

/* --skip-samples is one more --set, behind those that were given. */
static d9d_status set_skipped(tool_run *r, tool_job_options *o)
{
    const char **all = d9d_arena_alloc(&r->arena, (o->config.set.n + 1) * sizeof(*all));
    d9d_buf b = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_buf_printf(&b, "data.skip_samples="), out);
    D9D_TRY_OR(st, d9d_json_put_str(&b, o->skip_samples, strlen(o->skip_samples)), out);
    if (all == NULL ||
        (all[o->config.set.n] = d9d_arena_strndup(&r->arena, b.data, b.len)) == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "--skip-samples: out of memory");
        goto out;
    }
    if (o->config.set.n > 0)
        memcpy(all, o->config.set.item, o->config.set.n * sizeof(*all));
    o->config.set.item = all;
    o->config.set.n++;
out:
    d9d_buf_release(&b);
    return st;
}

static d9d_status put_text(const tool_job *job, const void *summary)
{
    d9d_buf b = {0};
    d9d_status st = job->text(summary, &b);

    if (st == D9D_OK)
        tool_put(&b);
    d9d_buf_release(&b);
    return st;
}

/* From the configuration to what is printed. */
static d9d_status job_do(tool_run *r, const tool_job *job, const tool_job_options *o,
                         d9d_boot *boot, const d9d_table *table, const d9d_plugins *plugins,
                         json_t *doc)
{
    const d9d_job where = {.boot = boot, .device = o->device, .log = r->log, .plugins = plugins};
    void *config = d9d_arena_alloc(&r->arena, job->config_size);
    void *summary = d9d_arena_alloc(&r->arena, job->summary_size);
    d9d_status st;

    if (config == NULL || summary == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", job->schema_id);
    D9D_TRY(
        d9d_boot_agree(boot, d9d_config_bind(table, doc, r->args[0], r->log, &r->arena, config)));
    st = job->run(config, doc, &where, summary);
    if (st != D9D_OK && !(job->judges && st == D9D_EVERIFY))
        return st;
    if (r->json && !r->mute)
        D9D_TRY(tool_put_json(job->json(summary)));
    else if (!r->quiet && !r->mute)
        D9D_TRY(put_text(job, summary));
    return st;
}

d9d_status tool_job_run(tool_run *r, const tool_job *job, const tool_job_options *given)
{
    tool_job_options o = *given;
    const d9d_table *table = job->table;
    d9d_plugins *plugins = NULL;
    json_t *doc = NULL;
    d9d_boot *boot;
    d9d_status st;

    D9D_TRY(tool_join(r, &boot));
    st = o.skip_samples != NULL ? set_skipped(r, &o) : D9D_OK;
    if (st == D9D_OK)
        st = tool_config_load(r, job->schema_id, &o.config, &table, &plugins, &doc);
    st = d9d_boot_agree(boot, st);
    if (st == D9D_OK && doc != NULL)
        st = job_do(r, job, &o, boot, table, plugins, doc);
    json_decref(doc);
    d9d_plugins_close(plugins);
    return tool_leave(r, boot, st);
}
