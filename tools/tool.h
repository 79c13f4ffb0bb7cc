/* tool.h - the common parts of all d9d-* programs: command line, help, log, ranks, output, exit.
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
 * Every command also has --help, --version, --quiet and --json; --help and
 * the completions of shells are generated from the tables.  Options and operands may be mixed, "--"
 * ends the options, and "-" is an operand.  Values are "--steps 5", "--steps=5", "-n 5" or "-n5";
 * two different values of one option are an error, unless it makes a list.
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

/* The type of an option's value in the struct of options. */
typedef enum tool_kind {
    TOOL_FLAG,   /* bool, set to true; no value */
    TOOL_STRING, /* const char * */
    TOOL_INT,    /* int64_t within [min, max]; both 0: any */
    TOOL_REAL,   /* double within [min, max]; both 0: any */
    TOOL_SIZE,   /* int64_t bytes: 4096, 512kB, 4GB, 1.5GiB; at least min */
    TOOL_WORD,   /* int, index into `words` */
    TOOL_LIST,   /* tool_list; the option may be repeated */
    TOOL_COMMAS  /* tool_list of comma-separated words; may be repeated */
} tool_kind;

typedef struct tool_list {
    const char **item;
    size_t n;
} tool_list;

/* A command has at most 64 options. */
typedef struct tool_option {
    const char *name; /* "steps"; NULL ends the table */
    char letter;      /* 'n', or 0 */
    tool_kind kind;
    size_t offset;
    const char *arg; /* "N"; NULL for a flag */
    const char *help;
    double min, max;
    const char *const *names; /* WORD: the values, NULL-terminated */
    bool no_operands;         /* FLAG: operands and required options may be missing */
    bool required;
    bool hidden;        /* not in --help nor in completions */
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

/* The argument of a command's function. */
typedef struct tool_run {
    const struct tool *tool;
    const struct tool_command *command;
    char **args; /* the operands */
    int n_args;
    bool quiet, json;
    bool mute;          /* the failure is reported already, or by another rank */
    struct talk *talk;  /* state of the log */
    const d9d_log *log; /* to stderr; one redrawn status line on a terminal */
    d9d_log errors;     /* log of a rank other than 0 */
    d9d_arena arena;    /* valid during the run */
} tool_run;

typedef struct tool_command {
    const char *name;     /* "plan"; NULL for the command without a name */
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

/* Parses the command line, runs the command, reports a failure and checks that stdout was written.
 * Returns main()'s exit code: 0 done, 1 failed, 2 usage or configuration, 75 state saved, requeue,
 * 76 data corrupted, requeue elsewhere. */
int tool_main(const tool *t, int argc, char **argv);

/* --- ranks -------------------------------------------------------------- */

/* Joins the job: under a launcher each task is a rank.  From here on rank 0 logs for all, except
 * for failures on which the ranks have not agreed. tool_leave() leaves the job; without agreement
 * it aborts the job. */
d9d_status tool_join(tool_run *r, d9d_bootstrap **out);
d9d_status tool_leave(tool_run *r, d9d_bootstrap *bootstrap, d9d_status st);

/* From here on logging does not block for long on a terminal, pipe or file system that is stuck:
 * other ranks wait for this one, and a long run must react to signals. */
void tool_log_async(tool_run *r);

/* Collective: ECONFIG unless all ranks run this program in the mode `as` ("--selftest", ""), with
 * the same document, operands and options. */
d9d_status rank_args_check(const tool_run *r, d9d_bootstrap *bootstrap, const char *as,
                           json_t *doc);
d9d_status rank_args_check_options(const tool_run *r, d9d_bootstrap *bootstrap,
                                   const void *options);

/* --- output --------------------------------------------------------------- */

/* Writes all of `b` to stdout. tool_main() reports write errors. */
void tool_put(const d9d_buf *b);
/* The same for text for people: control characters in names become "?". */
void tool_put_sanitized(d9d_buf *b);
/* Writes a value and a newline to stdout; takes ownership of the reference. */
d9d_status tool_put_json(json_t *v);
/* A JSON number; null if it is not finite. */
json_t *tool_json_real(double v);

/* Capabilities of stdout.  Without a terminal: 80 columns, no colour. */
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

/* Option table rows of a command whose operand is a configuration. */
#define TOOL_CONFIG_OPTIONS(S, field)                                                              \
    TOOL_OPT(S, field.set, LIST, "set", 0, "KEY=VALUE",                                            \
             "override a.b.c of the configuration; VALUE is JSON or a word; may be repeated"),     \
        TOOL_OPT(S, field.print_config, FLAG, "print-config", 0, NULL,                             \
                 "print the configuration with every default, and stop"),                          \
        TOOL_OPT(S, field.print_schema, FLAG, "print-schema", 0, NULL,                             \
                 "print the configuration's JSON Schema, and stop", .no_operands = true)

/* The name of an operand in messages: "-" is "standard input". */
const char *tool_input_name(const char *path);

/* Reads a JSON document ("-" is stdin) and applies --set, by the keys of a table.  Errors in it or
 * in its path are ECONFIG. */
d9d_status tool_config_read(const char *path, const d9d_table *table, const tool_list *set,
                            json_t **out);

/* The same, then loads its plugins and resolves it.  *out is NULL if --print-config or
 * --print-schema was given and has been printed: nothing remains to do.  *table becomes the table
 * to bind with while *plugins is open.  The caller closes *plugins, also after a failure.
 *
 *     D9D_TRY_OR(st, tool_config_load(r, "d9d.train.v1", &o->config, &table, &plugins, &doc), out);
 *     if (doc != NULL)
 *         st = d9d_config_bind(table, doc, r->args[0], r->log, &r->arena, &config); */
d9d_status tool_config_load(tool_run *r, const char *schema_id, const tool_config_options *o,
                            const d9d_table **table, d9d_plugins **plugins, json_t **out);

/* --- jobs --------------------------------------------------------------------- */

/* Options of a program whose operand is a configuration and that computes on a device. */
typedef struct tool_job_options {
    tool_config_options config;
    const char *device, *skip_samples;
} tool_job_options;
/* Option table rows of such a command; the default device is "auto". */
#define TOOL_JOB_OPTIONS(S, field)                                                                 \
    TOOL_CONFIG_OPTIONS(S, field.config),                                                          \
        TOOL_OPT(S, field.skip_samples, STRING, "skip-samples", 0, "LIST|FILE",                    \
                 "leave samples of the split out: 3,17,100-200, or a file of such numbers; "       \
                 "data.skip_samples of the configuration"),                                        \
        TOOL_OPT(S, field.device, STRING, "device", 'd', "NAME",                                   \
                 "cpu, cuda, cuda:N or auto (the GPU if there is one); NAME@SIZE limits its "      \
                 "memory")

/* tool_job_run() allocates both structs, zeroed; `run` fills the summary. */
typedef struct tool_job {
    const d9d_table *table;
    const char *schema_id;
    size_t config_size, summary_size;
    d9d_status (*run)(const void *config, const json_t *doc, const d9d_job *where, void *summary);
    json_t *(*json)(const void *summary);
    d9d_status (*text)(const void *summary, d9d_buf *out); /* whole lines */
    bool prints_everify; /* also print the summary if the status is EVERIFY */
} tool_job;

/* Loads and binds the configuration, runs the job and prints the summary. */
d9d_status tool_job_run(tool_run *r, const tool_job *job, const tool_job_options *o);

#endif /* D9D_TOOL_H */
