/* tool_completion.c - prints completions for bash and zsh, made of the tables of a program.  See
 * tool_cli.h. */
#include <stdio.h>

#include "tool_cli.h"

static const char *name_of(const tool_command *c)
{
    return c->name != NULL ? c->name : "";
}

/* The shell function that completes: _d9d_map. */
static void print_function(const tool *t)
{
    putchar('_');
    for (const char *p = t->name; *p != '\0'; p++)
        putchar(*p == '-' ? '_' : *p);
}

/* The commands' words, each behind `lead` but for the first. */
static int print_commands(const tool *t, const char *lead)
{
    int n = 0;

    for (const tool_command *c = t->commands; c->run != NULL; c++)
        if (c->name != NULL)
            printf("%s%s", n++ > 0 ? lead : "", c->name);
    return n;
}

static void print_names(const tool_option *o)
{
    for (size_t i = 0; o->names[i] != NULL; i++)
        printf("%s%s", i > 0 ? " " : "", o->names[i]);
}

static bool is_file(tool_kind k)
{
    return k == TOOL_STRING || k == TOOL_LIST;
}

/* The first word of the line that is a command becomes the variable `command`. */
static void print_find_command(const tool *t, const char *words)
{
    printf(
        "    local word command=\n    for word in \"${%s}\"; do\n        case $word in\n        ",
        words);
    if (print_commands(t, " | ") == 0)
        printf("''");
    printf(") command=$word && break ;;\n        esac\n    done\n");
}

/* --- bash --------------------------------------------------------------------------------- */

static void print_bash_values(const tool_command *c)
{
    for (const tool_option *o = cli_options_of(c); o->name != NULL; o++) {
        if (o->kind == TOOL_FLAG)
            continue;
        printf("    \"%s --%s\"", name_of(c), o->name);
        if (o->letter != 0)
            printf(" | \"%s -%c\"", name_of(c), o->letter);
        printf(")");
        if (o->kind == TOOL_WORD) {
            printf(" mapfile -t COMPREPLY < <(compgen -W '");
            print_names(o);
            printf("' -- \"$cur\");");
        } else if (is_file(o->kind)) {
            printf(" mapfile -t COMPREPLY < <(compgen -f -- \"$cur\");");
        }
        printf(" return ;;\n");
    }
}

static void print_bash_options(const tool_option *o)
{
    for (; o->name != NULL; o++)
        if (!o->hidden)
            printf(" --%s", o->name);
}

void cli_print_bash_completion(const tool *t)
{
    printf("# bash completion of %s, made by %s --completion-bash\n", t->name, t->name);
    print_function(t);
    printf("()\n{\n    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} "
           "options\n");
    printf("    [ \"$cur\" != = ] || cur=\n"
           "    [ \"$prev\" != = ] || prev=${COMP_WORDS[COMP_CWORD - 2]}\n");
    print_find_command(t, "COMP_WORDS[@]:1:COMP_CWORD-1");
    printf("    COMPREPLY=()\n    case \"$command $prev\" in\n");
    for (const tool_command *c = t->commands; c->run != NULL; c++)
        print_bash_values(c);
    printf("    esac\n    case $command in\n");
    for (const tool_command *c = t->commands; c->run != NULL; c++) {
        printf("    '%s') options='", name_of(c));
        print_bash_options(cli_options_of(c));
        printf("' ;;\n");
    }
    printf("    esac\n    options+='");
    print_bash_options(cli_common_options());
    printf("'\n    case $cur in\n"
           "    -*) mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$cur\") ;;\n"
           "    *) mapfile -t COMPREPLY < <([ -n \"$command\" ] || compgen -W '");
    (void)print_commands(t, " ");
    printf("' -- \"$cur\"; compgen -f -- \"$cur\") ;;\n    esac\n}\ncomplete -o filenames -F ");
    print_function(t);
    printf(" %s\n", t->name);
}

/* --- zsh ---------------------------------------------------------------------------------- */

/* In a specification within single quotes. */
static void print_escaped(const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            printf("'\\'");
        else if (*text == '[' || *text == ']' || *text == ':' || *text == '\\')
            putchar('\\');
        putchar(*text);
    }
}

/* One form of an option, "-t+" or "--to=", for _arguments. */
static void print_zsh_form(const tool_option *o, bool is_letter)
{
    const bool has_value = o->kind != TOOL_FLAG;

    printf("        '");
    if (o->kind == TOOL_LIST || o->kind == TOOL_COMMAS)
        putchar('*');
    else if (o->letter != 0)
        printf("(-%c --%s)", o->letter, o->name);
    if (is_letter)
        printf("-%c%s", o->letter, has_value ? "+" : "");
    else
        printf("--%s%s", o->name, has_value ? "=" : "");
    putchar('[');
    print_escaped(o->help);
    putchar(']');
    if (has_value) {
        putchar(':');
        print_escaped(o->arg);
        putchar(':');
        if (o->kind == TOOL_WORD) {
            putchar('(');
            print_names(o);
            putchar(')');
        } else {
            printf(is_file(o->kind) ? "_files" : " ");
        }
    }
    printf("'\n");
}

static void print_zsh_options(const tool_option *o)
{
    for (; o->name != NULL; o++) {
        if (o->hidden)
            continue;
        if (o->letter != 0)
            print_zsh_form(o, true);
        print_zsh_form(o, false);
    }
}

void cli_print_zsh_completion(const tool *t)
{
    printf("#compdef %s\n# zsh completion of %s, made by %s --completion-zsh\n", t->name, t->name,
           t->name);
    print_function(t);
    printf("()\n{\n    local -a options\n");
    print_find_command(t, "(@)words[2,CURRENT-1]");
    printf("    case $command in\n");
    for (const tool_command *c = t->commands; c->run != NULL; c++) {
        printf("    '%s') options=(\n", name_of(c));
        print_zsh_options(cli_options_of(c));
        printf("        ) ;;\n");
    }
    printf("    esac\n    options+=(\n");
    print_zsh_options(cli_common_options());
    printf("    )\n    [[ -n $command || $words[CURRENT] == -* ]] || compadd -- ");
    (void)print_commands(t, " ");
    printf("\n    _arguments -s -S : $options '*: :_files'\n}\n");
    print_function(t);
    printf(" \"$@\"\n");
}
