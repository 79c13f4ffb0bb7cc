/* tool_cli.h - parses a command line by the tables of tool.h. */
#ifndef D9D_TOOL_CLI_H
#define D9D_TOOL_CLI_H

#include "tool.h"

enum { CLI_MAX_OPTIONS = 64 };

/* Options of every command. */
typedef struct cli_common {
    bool help, version, quiet, json, completion_bash, completion_zsh;
} cli_common;

typedef struct cli_line {
    tool_run *run; /* its command, operands and arena */
    cli_common common;
    char *options; /* the command's struct, in the arena */
    int argc;
    char **argv;
    int at;                              /* next argument: 1 at first */
    bool no_operands;                    /* an option was given that needs no operands */
    uint64_t seen;                       /* bit set of the options given */
    uint64_t former;                     /* of those given by their former names */
    const char *values[CLI_MAX_OPTIONS]; /* the text of each option that has one value */
} cli_line;

/* Parses the command, its options and operands.  Removes the command's word from argv.  ECONFIG,
 * also if an option that has one value is given with two. */
d9d_status cli_parse(cli_line *p);

/* Says which options of the command line are called otherwise now. */
void cli_log_former(const cli_line *p, const d9d_log *log);

/* Prints the help of all commands, or of one, on stdout. */
void cli_help(const tool *t, const tool_command *only);

/* The options of a command, and those of every command; both end with TOOL_END. */
const tool_option *cli_options_of(const tool_command *c);
const tool_option *cli_common_options(void);

/* Prints the tool's completion for a shell on stdout. */
void cli_print_bash_completion(const tool *t);
void cli_print_zsh_completion(const tool *t);

#endif /* D9D_TOOL_CLI_H */
