/* sink.h - where the records of a run go in addition to metrics.jsonl, while it runs.
 *
 *     "logging": {"tracker": [{"provider": "tensorboard"},
 *                             {"provider": "wandb", "project": "mine"},
 *                             {"provider": "command", "command": ["./to_mine"]}]}
 *
 * metrics.jsonl is authoritative; a sink is a copy for people to look at.  A failure of a sink is
 * therefore one warning, and the run continues without that sink.
 *
 * tensorboard writes DIR/events.out.tfevents.N.d9d, where DIR is `tensorboard` in the run
 * directory. Each start of the run writes a new file; N counts the starts from 0.  A file begins
 * with a session log START, which makes TensorBoard drop the steps that the run repeats.
 * (TensorBoard would take a directory whose name contains tfevents for a file.)  It has the
 * hyperparameters, scalars, histograms, texts and pictures.
 *
 * wandb, mlflow and aim start the client of that name in a Python which has it, and pass it the
 * lines that `command` would get.  The first has the members "tracker", its section, and "config",
 * the whole configuration.  A restart continues the same run there.  Whether the client can be
 * imported is checked before anything is spent.
 *
 * log prints the numbers of each record into the job's log.
 *
 * command starts a program and writes lines of JSON to its standard input:
 *
 *     {"run": "<id>", "name": "demo", "dir": "runs/demo", "restarts": 0, "step": 0,
 *      "hparams": {...}}                         one line
 *     {"step": 1, "loss": 5.41, ...}             as in metrics.jsonl
 *     {"end": "done", "step": 2, "time": "..."}
 *
 * Then its input ends.  The id is the same over all restarts of a run, and is in manifest.json.
 * The run never waits for the program: up to 16 MiB of unread lines are buffered, and further lines
 * are dropped.  At the end the program has `patience` seconds to read the rest and to exit; then it
 * gets SIGTERM, and SIGKILL a second later.  Its output goes to the job's standard error.
 */
#ifndef D9D_TRACK_SINK_H
#define D9D_TRACK_SINK_H

#include "d9d/base/log.h"
#include "d9d/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The run that a sink is opened for. */
typedef struct d9d_sink_run {
    const char *id, *name, *description, *dir; /* description may be NULL */
    const json_t *hparams;                     /* or NULL */
    int64_t restarts, step;                    /* earlier starts of the run; steps that are done */
    const d9d_log *log;
    const json_t *config; /* the whole configuration, with its defaults; or NULL */
} d9d_sink_run;

/* An own value that is no number. */
typedef enum d9d_track_value_kind {
    D9D_TRACK_HISTOGRAM = 1,
    D9D_TRACK_TEXT,
    D9D_TRACK_PICTURE
} d9d_track_value_kind;

typedef struct d9d_track_value {
    d9d_track_value_kind kind;
    const char *name;
    int64_t step;
    const double *counts, *edges; /* histogram: [n], [n + 1] */
    const char *bytes;            /* text, or a PNG image: [n] */
    size_t n;
    const char *file; /* of a picture, in the run directory */
    int64_t width, height;
} d9d_track_value;

/* One record: the line as in metrics.jsonl, without its newline, and its numbers. */
typedef struct d9d_sink_record {
    const char *line;
    size_t bytes;
    int64_t step;
    const char *const *names; /* [n]; n is 0 for a line about the run itself */
    const double *values;
    size_t n;
    const d9d_track_value *value; /* NULL: numbers, or a line about the run */
} d9d_sink_record;

typedef struct d9d_sink_kind {
    size_t size;            /* sizeof(d9d_sink_kind) */
    const d9d_table *table; /* its section; the table's name is the value of "provider" */
    /* `config` is the bound section.  open and close may be NULL: nothing to do. */
    d9d_status (*open)(const void *config, const d9d_sink_run *run, void **self);
    d9d_status (*put)(void *self, const d9d_sink_record *r);
    void (*close)(void *self);
    /* Whether it could be opened; called on rank 0 before anything is spent.  ECONFIG ends the job.
     * NULL: nothing to check. */
    d9d_status (*check)(const void *config);
} d9d_sink_kind;

/* The tag "provider", and the built-in choices; NULL-terminated. */
D9D_API extern const char *const d9d_sink_tag[];
D9D_API extern const d9d_table *const d9d_sink_choices[];

/* The open sinks of one run. */
typedef struct d9d_sinks d9d_sinks;

/* Checks the sinks of a list of d9d_union. */
D9D_API D9D_MUST_USE d9d_status d9d_sinks_check(const d9d_list *configs);
/* Opens the sinks of a list of d9d_union.  The only error is ENOMEM; other failures are
 * warnings. */
D9D_API D9D_MUST_USE d9d_status d9d_sinks_open(const d9d_list *configs, const d9d_sink_run *run,
                                               d9d_sinks **out);
/* Passes the record to every open sink; one that fails is closed with a warning. */
D9D_API void d9d_sinks_write(d9d_sinks *s, const d9d_sink_record *r);
/* Waits for slow sinks, at most their `patience`.  NULL is fine. */
D9D_API void d9d_sinks_close(d9d_sinks *s);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TRACK_SINK_H */
