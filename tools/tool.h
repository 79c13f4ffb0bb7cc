/* tool.h - what every d9d-* program shares: options, help, talk, leaving.
 *
 * A program is a table of commands, a command is a table of options and a function:
 *
 *     struct opts { int64_t steps; const char *out; };
 *
 *     static const tool_option options[] = {
 *         TOOL_OPT(struct opts, steps, INT, "steps", 'n', "N", "stop after N steps", .min = 1),
 *         TOOL_OPT(struct opts, out, STRING, "out", 'o', "FILE", "write to FILE"),
 *         TOOL_END,
 *     };
 *     static const tool_command commands[] = {
 *         {.operands = "CONFIG.json", .min = 1, .max = 1, .about = "Plot a schedule.",
 *          .options = options, .size = sizeof(struct opts), .run = run},
 *         {.name = NULL, .run = NULL},
 *     };
 *     static const tool lrplot = {"d9d-lrplot", "Plot learning-rate schedules.", commands};
 *
 *     int main(int argc, char **argv) { return tool_main(&lrplot, argc, argv); }
 *
 * Every command also has --help, --version, --quiet and --json; --help is made from
 * the tables.  Options and operands may be mixed, "--" ends the options, "-" is an
 * operand, values are "--steps 5", "--steps=5", "-n 5" or "-n5".
 */
#ifndef D9D_TOOL_H
#define D9D_TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "d9d/comm/bootstrap.h"
#include "d9d/config/config.h"
#include "d9d/job/job.h"
#include "d9d/tasks/plugin.h"

/* What an option's value becomes in the struct of options. */
typedef enum tool_kind {
    TOOL_FLAG,   /* bool, set to true; no value */
    TOOL_STRING, /* const char * */
    TOOL_INT,    /* int64_t within [min, max]; both 0: any */
    TOOL_REAL,   /* double within [min, max]; both 0: any */
    TOOL_SIZE,   /* int64_t bytes: 4096, 512kB, 4GB, 1.5GiB; at least min */
    TOOL_WORD,   /* int, index into `words` */
    TOOL_LIST,   /* tool_list: the option may be repeated */
    TOOL_COMMAS  /* tool_list: words between commas; may be repeated too */
} tool_kind;

typedef struct tool_list {
    const char **item;
    size_t n;
} tool_list;

/* At most 64 of them are a command's. */
typedef struct tool_option {
    const char *name; /* "steps"; NULL ends the table */
    char letter;      /* 'n', or 0 */
    tool_kind kind;
    size_t offset;
    const char *arg; /* "N"; NULL for a flag */
    const char *help;
    double min, max;
    const char *const *names; /* WORD: NULL-ended */
    bool no_operands;         /* FLAG: operands and required options need not be there */
    bool required;
    const char *former; /* its long name until the last version: still taken, said in the log, and
                           not in --help; NULL: it had no other */
} tool_option;

#define TOOL_OPT(S, field, k, long_name, short_name, arg_name, ...)                                \
    {                                                                                              \
        .name = (long_name), .letter = (short_name), .kind = TOOL_##k,                             \
        .offset = offsetof(S, field), .arg = (arg_name), .help = __VA_ARGS__                       \
    }
#define TOOL_END                                                                                   \
    {                                                                                              \
        .name = NULL                                                                               \
    }

/* What a command's function is given. */
typedef struct tool_run {
    const struct tool *tool;
    const struct tool_command *command;
    char **args; /* the operands */
    int n_args;
    bool quiet, json;
    bool mute;          /* what fails is said already, or by another rank */
    struct talk *talk;  /* where the log goes */
    const d9d_log *log; /* to stderr; one redrawn status line on a terminal */
    d9d_log errors;     /* the log of a rank that is not the first */
    d9d_arena arena;    /* lives as long as the run */
} tool_run;

typedef struct tool_command {
    const char *name;     /* "plan"; NULL for the one that needs no word */
    const char *operands; /* "SRC DST", for the synopsis */
    int min, max;         /* how many operands; max -1: any number */
    const char *about;    /* one or more sentences for --help */
    const tool_option *options;
    size_t size;                                         /* of the struct of options */
    const void *defaults;                                /* its initial value, or NULL for zeros */
    d9d_status (*run)(tool_run *r, const void *options); /* NULL ends the table */
} tool_command;

typedef struct tool {
    const char *name;  /* "d9d-map" */
    const char *about; /* one line */
    const tool_command *commands;
} tool;

/* Parse, run, report a failure, check that stdout was written; main()'s exit code:
 * 0 done, 1 failed, 2 usage or configuration, 75 state saved, requeue. */
int tool_main(const tool *t, int argc, char **argv);

/* --- ranks -------------------------------------------------------------- */

/* Under a launcher every task is a rank.  From here on the first one talks for all, but for a
 * failure on which they have not agreed.  Then leave, with it or without: that one ends all. */
d9d_status tool_join(tool_run *r, d9d_bootstrap **out);
d9d_status tool_leave(tool_run *r, d9d_bootstrap *boot, d9d_status st);

/* From here on nobody waits for long for a terminal, a pipe or a file system that takes nothing of
 * what is said: ranks wait for each other, and a long run is to hear signals. */
void tool_log_async(tool_run *r);

/* Collective: ECONFIG unless all ranks are this program, started as `as` ("--selftest", ""), with
 * this document; with these operands and options. */
d9d_status rank_args_check(const tool_run *r, d9d_bootstrap *boot, const char *as, json_t *doc);
d9d_status rank_args_check_options(const tool_run *r, d9d_bootstrap *boot, const void *options);

/* --- output --------------------------------------------------------------- */

/* All of `b` to stdout.  tool_main() reports what could not be written. */
void tool_put(const d9d_buf *b);
/* The same of a report for people, in which control characters of names become "?". */
void tool_put_sanitized(d9d_buf *b);
/* A value and a newline to stdout; takes over the reference. */
d9d_status tool_put_json(json_t *v);
/* A number as JSON can say it: null where it is not finite. */
json_t *tool_json_real(double v);

/* What stdout can show.  Without a terminal it is 80 columns without colour. */
typedef struct tool_screen {
    int columns, rows;
    bool terminal, colour, utf8;
} tool_screen;
tool_screen tool_screen_get(void);

/* --- configurations ---------------------------------------------------------- */

typedef struct tool_config_options {
    tool_list set;
    bool print_config, print_schema;
} tool_config_options;

/* Rows for a command whose operand is a configuration. */
#define TOOL_CONFIG_OPTIONS(S, field)                                                              \
    TOOL_OPT(S, field.set, LIST, "set", 0, "KEY=VALUE",                                            \
             "override a.b.c of the configuration; VALUE is JSON or a word; may be repeated"),     \
        TOOL_OPT(S, field.print_config, FLAG, "print-config", 0, NULL,                             \
                 "print the configuration with every default, and stop"),                          \
        TOOL_OPT(S, field.print_schema, FLAG, "print-schema", 0, NULL,                             \
                 "print the configuration's JSON Schema, and stop", .no_operands = true)

/* How an operand stands in sentences: "-" is "standard input". */
const char *tool_input_name(const char *path);

/* Read a JSON document ("-" is stdin) and apply --set.  What is wrong with it, or with
 * its path, is ECONFIG. */
d9d_status tool_config_read(const char *path, const tool_list *set, json_t **out);

/* The same, then load its plugins and resolve; *out is NULL when --print-config or --print-schema
 * was asked for and has been served: there is nothing left to do.  *table becomes the one to bind
 * with, as long as *plugins is open; the caller closes it, also after a failure.
 *
 *     D9D_TRY_OR(st, tool_config_load(r, "d9d.train.v1", &o->config, &table, &plugins, &doc), out);
 *     if (doc != NULL)
 *         st = d9d_config_bind(table, doc, r->args[0], r->log, &r->arena, &config); */
d9d_status tool_config_load(tool_run *r, const char *schema_id, const tool_config_options *o,
                            const d9d_table **table, d9d_plugins **plugins, json_t **out);

/* --- jobs --------------------------------------------------------------------- */

/* A program whose operand is a configuration and that computes on a device. */
typedef struct tool_job_options {
    tool_config_options config;
    const char *device, *skip_samples;
} tool_job_options;
/* Rows for such a command; the device is "auto" before one is given. */
#define TOOL_JOB_OPTIONS(S, field)                                                                 \
    TOOL_CONFIG_OPTIONS(S, field.config),                                                          \
        TOOL_OPT(S, field.skip_samples, STRING, "skip-samples", 0, "LIST|FILE",                    \
                 "leave samples of the split out: 3,17,100-200, or a file of such numbers; "       \
                 "data.skip_samples of the configuration"),                                        \
        TOOL_OPT(S, field.device, STRING, "device", 'd', "NAME",                                   \
                 "cpu, cuda, cuda:N or auto (the GPU if there is one); NAME@SIZE limits its "      \
                 "memory")

/* Both structs are made by tool_job_run(), zeroed; `run` fills the summary. */
typedef struct tool_job {
    const d9d_table *table;
    const char *schema_id;
    size_t config_size, summary_size;
    d9d_status (*run)(const void *config, const json_t *doc, const d9d_job *where, void *summary);
    json_t *(*json)(const void *summary);
    d9d_status (*text)(const void *summary, d9d_buf *out); /* whole lines */
    bool prints_everify; /* of what ends in EVERIFY the summary is printed too */
} tool_job;

/* Load the configuration, bind it, run, print. */
d9d_status tool_job_run(tool_run *r, const tool_job *job, const tool_job_options *o);

#endif /* D9D_TOOL_H */
