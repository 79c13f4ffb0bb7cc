/* cli_line.h - a command line, read by the tables of tool.h. */
#ifndef D9D_TOOL_LINE_H
#define D9D_TOOL_LINE_H

#include "tool.h"

/* What every command has. */
typedef struct cli_common {
    bool help, version, quiet, json;
} cli_common;

typedef struct cli_line {
    tool_run *run; /* its command, operands and arena */
    cli_common common;
    char *options; /* the command's struct, in the arena */
    int argc;
    char **argv;
    int at;           /* next argument: 1 at first */
    bool no_operands; /* something was asked that needs no operands */
    uint64_t seen;    /* bits of the command's options */
    uint64_t former;  /* of those that were given by the name that they had */
} cli_line;

/* The command, its options and operands.  A command's word is removed from argv.  ECONFIG. */
d9d_status cli_parse(cli_line *p);

/* Says which options of the command line are called otherwise now. */
void cli_log_former(const cli_line *p, const d9d_log *log);

/* On standard output, for all commands, or one. */
void cli_help(const tool *t, const tool_command *only);

#endif /* D9D_TOOL_LINE_H */
