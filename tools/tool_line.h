/* tool_line.h - a command line, read by the tables of tool.h. */
#ifndef D9D_TOOL_LINE_H
#define D9D_TOOL_LINE_H

#include "tool.h"

/* What every command has. */
typedef struct tool_common {
    bool help, version, quiet, json;
} tool_common;

typedef struct tool_line {
    tool_run *run; /* its command, operands and arena */
    tool_common common;
    char *options; /* the command's struct, in the arena */
    int argc;
    char **argv;
    int at;        /* next argument: 1 at first */
    bool alone;    /* something was asked that needs no operands */
    uint64_t seen; /* bits of the command's options */
} tool_line;

/* The command, its options and operands.  A command's word is removed from argv.  ECONFIG. */
d9d_status tool_line_parse(tool_line *p);

/* On standard output, for all commands, or one. */
void tool_help(const tool *t, const tool_command *only);

#endif /* D9D_TOOL_LINE_H */
