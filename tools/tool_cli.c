/* tool_cli.c - parses options and operands, and prints help, for every d9d-* program.  See
 * tool_cli.h. */
#include "tool_cli.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/base/num_format.h"
#include "d9d/base/size.h"

enum { HELP_WIDTH = 80, HELP_COLUMN = 26 };

static const tool_option common_options[] = {
    TOOL_OPT(cli_common, help, FLAG, "help", 'h', NULL, "show this help", .no_operands = true),
    TOOL_OPT(cli_common, version, FLAG, "version", 'V', NULL, "show the version",
             .no_operands = true),
    TOOL_OPT(cli_common, quiet, FLAG, "quiet", 'q', NULL, "only warnings and errors on stderr"),
    TOOL_OPT(cli_common, json, FLAG, "json", 0, NULL, "results as JSON on stdout"),
    TOOL_OPT(cli_common, completion_bash, FLAG, "completion-bash", 0, NULL,
             "print the completion for bash", .no_operands = true, .hidden = true),
    TOOL_OPT(cli_common, completion_zsh, FLAG, "completion-zsh", 0, NULL,
             "print the completion for zsh", .no_operands = true, .hidden = true),
    TOOL_END,
};

static const tool_option no_options[] = {TOOL_END};

const tool_option *cli_options_of(const tool_command *c)
{
    return c->options != NULL ? c->options : no_options;
}

const tool_option *cli_common_options(void)
{
    return common_options;
}

/* --- help ------------------------------------------------------------------- */

static void print_usage(const tool *t, const tool_command *c, const char *lead)
{
    printf("%s %s%s%s [OPTION]...%s%s\n", lead, t->name, c->name != NULL ? " " : "",
           c->name != NULL ? c->name : "", c->operands != NULL ? " " : "",
           c->operands != NULL ? c->operands : "");
}

/* Prints the words of `text`, beginning at column `at`, wrapped at the width and indented by
 * `indent`. */
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
        int n;

        if (o->hidden)
            continue;
        n = snprintf(head, sizeof(head), "  %c%c%s --%s%s%s", o->letter ? '-' : ' ',
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
    print_options(cli_options_of(c));
}

void cli_help(const tool *t, const tool_command *only)
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
    printf("\nExit status: 0 done, 1 failed, 2 usage or configuration, 75 state saved (requeue),\n"
           "76 silent data corruption (requeue elsewhere).\n");
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

static d9d_status read_enum(tool_run *r, const tool_option *o, const char *text, int *out)
{
    const char *near = d9d_config_did_you_mean(text, o->names), *all = "";

    for (int i = 0; o->names[i] != NULL; i++) {
        if (strcmp(o->names[i], text) == 0) {
            *out = i;
            return D9D_OK;
        }
        all = d9d_arena_printf(&r->arena, "%s%s%s", all, i > 0 ? ", " : "", o->names[i]);
        if (all == NULL)
            return D9D_FAIL(D9D_ENOMEM, "--%s: no memory", o->name);
    }
    if (near != NULL)
        return D9D_FAIL(D9D_ECONFIG, "--%s: unknown word \"%s\"; did you mean \"%s\"?", o->name,
                        text, near);
    return D9D_FAIL(D9D_ECONFIG, "--%s: unknown word \"%s\"; expected one of %s", o->name, text,
                    all);
}

static d9d_status push_item(tool_run *r, tool_list *list, const char *text, size_t n)
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

static d9d_status push_comma_list(tool_run *r, const tool_option *o, tool_list *list,
                                  const char *text)
{
    for (;;) {
        const size_t n = strcspn(text, ",");

        if (n == 0)
            return D9D_FAIL(D9D_ECONFIG, "--%s: an empty word in its list", o->name);
        D9D_TRY(push_item(r, list, text, n));
        if (text[n] == '\0')
            return D9D_OK;
        text += n + 1;
    }
}

static d9d_status store_value(tool_run *r, const tool_option *o, const char *text, char *base)
{
    void *field = base + o->offset;

    switch (o->kind) {
    case TOOL_FLAG: *(bool *)field = true; break;
    case TOOL_STRING: *(const char **)field = text; break;
    case TOOL_INT: return read_int(o, text, field);
    case TOOL_REAL: return read_real(o, text, field);
    case TOOL_SIZE: return read_size(o, text, field);
    case TOOL_WORD: return read_enum(r, o, text, field);
    case TOOL_LIST: return push_item(r, field, text, text != NULL ? strlen(text) : 0);
    case TOOL_COMMAS: return push_comma_list(r, o, field, text);
    }
    return D9D_OK;
}

/* --- the command line ------------------------------------------------------------ */

static bool is_name(const char *option, const char *name, size_t n)
{
    return option != NULL && strlen(option) == n && memcmp(option, name, n) == 0;
}

/* An option of the command or a common one, by name (of n bytes) or by letter. */
static const tool_option *find_option(const cli_line *p, const char *name, size_t n, char letter,
                                      bool *common)
{
    const tool_option *tables[] = {cli_options_of(p->run->command), common_options};

    for (size_t i = 0; i < 2; i++)
        for (const tool_option *o = tables[i]; o->name != NULL; o++)
            if (letter != 0 ? o->letter == letter
                            : is_name(o->name, name, n) || is_name(o->former, name, n)) {
                *common = i == 1;
                return o;
            }
    return NULL;
}

static d9d_status unknown_option(cli_line *p, const char *name, size_t n)
{
    const tool_option *tables[] = {cli_options_of(p->run->command), common_options};
    const char *words[128], *given = d9d_arena_strndup(&p->run->arena, name, n), *near;
    size_t count = 0;

    for (size_t i = 0; i < 2; i++)
        for (const tool_option *o = tables[i]; o->name != NULL && count < 127; o++)
            words[count++] = o->name;
    words[count] = NULL;
    near = given != NULL ? d9d_config_did_you_mean(given, words) : NULL;
    if (near != NULL)
        return D9D_FAIL(D9D_ECONFIG, "unknown option --%.*s; did you mean --%s?", (int)n, name,
                        near);
    return D9D_FAIL(D9D_ECONFIG, "unknown option --%.*s", (int)n, name);
}

/* Remembers that an option of the command is given.  One that has a single value may only be
 * repeated with the same text. */
static d9d_status mark_seen(cli_line *p, const tool_option *o, const char *value)
{
    const ptrdiff_t i = o - cli_options_of(p->run->command);
    const bool single = o->kind != TOOL_FLAG && o->kind != TOOL_LIST && o->kind != TOOL_COMMAS;

    if (single && value != NULL && p->values[i] != NULL && strcmp(p->values[i], value) != 0)
        return D9D_FAIL(D9D_ECONFIG, "--%s is given twice, as \"%s\" and as \"%s\"", o->name,
                        p->values[i], value);
    p->values[i] = value;
    p->seen |= UINT64_C(1) << i;
    return D9D_OK;
}

/* Handles option `o`; `value` is the text after "=" or after the letter, or NULL. */
static d9d_status take_value(cli_line *p, const tool_option *o, bool common, const char *value)
{
    if (o->kind != TOOL_FLAG && value == NULL) {
        if (p->at >= p->argc)
            return D9D_FAIL(D9D_ECONFIG, "--%s needs a value, %s", o->name, o->arg);
        value = p->argv[p->at++];
    }
    if (o->kind == TOOL_FLAG && value != NULL)
        return D9D_FAIL(D9D_ECONFIG, "--%s takes no value, got \"%s\"", o->name, value);
    p->no_operands |= o->no_operands;
    if (!common)
        D9D_TRY(mark_seen(p, o, value));
    return store_value(p->run, o, value, common ? (char *)&p->common : p->options);
}

static d9d_status parse_long(cli_line *p, const char *arg)
{
    const size_t n = strcspn(arg, "=");
    bool common;
    const tool_option *o = find_option(p, arg, n, 0, &common);

    if (o == NULL)
        return unknown_option(p, arg, n);
    if (is_name(o->former, arg, n))
        p->former |= UINT64_C(1) << (o - cli_options_of(p->run->command));
    return take_value(p, o, common, arg[n] == '=' ? arg + n + 1 : NULL);
}

/* "-qn5": flags may be joined; the rest of the word is the value of another option. */
static d9d_status parse_letters(cli_line *p, const char *arg)
{
    for (; *arg != '\0'; arg++) {
        bool common;
        const tool_option *o = find_option(p, NULL, 0, *arg, &common);

        if (o == NULL)
            return D9D_FAIL(D9D_ECONFIG, "unknown option -%c", *arg);
        if (o->kind != TOOL_FLAG)
            return take_value(p, o, common, arg[1] != '\0' ? arg + 1 : NULL);
        D9D_TRY(take_value(p, o, common, NULL));
    }
    return D9D_OK;
}

/* Used if a required command is missing. */
static const tool_command no_command = {.max = -1};

static d9d_status check_operands(const cli_line *p)
{
    const tool_command *c = p->run->command;

    if (p->no_operands)
        return D9D_OK;
    if (c == &no_command)
        return D9D_FAIL(D9D_ECONFIG, "expected a command");
    if (p->run->n_args < c->min)
        return D9D_FAIL(D9D_ECONFIG, "expected %s, got %d operand%s", c->operands, p->run->n_args,
                        D9D_PLURAL(p->run->n_args));
    if (c->max >= 0 && p->run->n_args > c->max)
        return D9D_FAIL(D9D_ECONFIG, "expected %s, got one operand too many, \"%s\"",
                        c->operands != NULL ? c->operands : "no operands", p->run->args[c->max]);
    return D9D_OK;
}

static d9d_status check_required(const cli_line *p)
{
    const tool_option *options = cli_options_of(p->run->command);

    for (const tool_option *o = options; o->name != NULL && !p->no_operands; o++)
        if (o->required && !(p->seen >> (o - options) & 1))
            return D9D_FAIL(D9D_ECONFIG, "--%s %s is needed", o->name, o->arg);
    return D9D_OK;
}

static d9d_status parse_args(cli_line *p)
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

static const char *suggest_command(const tool *t, const char *given)
{
    const char *words[32];
    size_t n = 0;

    for (const tool_command *c = t->commands; c->run != NULL && n < 31; c++)
        if (c->name != NULL)
            words[n++] = c->name;
    words[n] = NULL;
    return d9d_config_did_you_mean(given, words);
}

/* An unknown command is an operand of the nameless command, unless it is not a file either and
 * looks like a command. */
static d9d_status unknown_command(const cli_line *p, const char *given)
{
    const char *near = suggest_command(p->run->tool, given);

    if (p->run->command != &no_command && (near == NULL || access(given, F_OK) == 0))
        return D9D_OK;
    if (near != NULL)
        return D9D_FAIL(D9D_ECONFIG, "unknown command \"%s\"; did you mean \"%s\"?", given, near);
    return D9D_FAIL(D9D_ECONFIG, "unknown command \"%s\"", given);
}

static bool is_common(const char *word)
{
    for (const tool_option *o = common_options; o->name != NULL; o++)
        if ((strncmp(word, "--", 2) == 0 && strcmp(word + 2, o->name) == 0) ||
            (o->letter != 0 && word[0] == '-' && word[1] == o->letter && word[2] == '\0'))
            return true;
    return false;
}

/* Finds the command: the first word after options that every command has, if it names a command.  A
 * tool without a nameless command accepts no other first word.  Removes the word from argv. */
static d9d_status choose_command(cli_line *p)
{
    const tool *t = p->run->tool;
    int word = 1;

    p->run->command = &no_command;
    for (const tool_command *c = t->commands; c->run != NULL; c++)
        if (c->name == NULL)
            p->run->command = c;
    while (word < p->argc && p->argv[word][0] == '-' && strcmp(p->argv[word], "--") != 0 &&
           (p->run->command == &no_command || is_common(p->argv[word])))
        word++;
    if (word >= p->argc || (p->argv[word][0] == '-' && p->run->command != &no_command))
        return D9D_OK;
    for (const tool_command *c = t->commands; c->run != NULL; c++)
        if (c->name != NULL && strcmp(c->name, p->argv[word]) == 0) {
            p->run->command = c;
            memmove(p->argv + word, p->argv + word + 1,
                    (size_t)(p->argc - word) * sizeof(*p->argv));
            p->argc--;
            return D9D_OK;
        }
    return unknown_command(p, p->argv[word]);
}

void cli_log_former(const cli_line *p, const d9d_log *log)
{
    const tool_option *options = cli_options_of(p->run->command);

    for (const tool_option *o = options; p->former != 0 && o->name != NULL; o++)
        if (p->former >> (o - options) & 1)
            d9d_log_warn(log, "--%s is now --%s", o->former, o->name);
}

d9d_status cli_parse(cli_line *p)
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
