/* sink.h - where the records of a run go besides metrics.jsonl, while it runs.
 *
 *     "logging": {"tracker": [{"provider": "tensorboard"},
 *                             {"provider": "command", "command": ["python3", "to_wandb.py"]}]}
 *
 * metrics.jsonl is the truth; a sink is a copy for people to look at.  So what goes wrong with one
 * is a warning, said once, and the run goes on without it.
 *
 * tensorboard writes DIR/events.out.tfevents.N.d9d, DIR being tensorboard in the run directory: one
 * file for each life of the run, N counting them from 0, which begins with the mark that has
 * TensorBoard forget the steps that the run does again.  (A directory called tfevents it would take
 * for a file.)
 *
 * command starts a program and writes lines of JSON to its standard input:
 *
 *     {"run": "<id>", "name": "demo", "dir": "runs/demo", "restarts": 0, "step": 0, "hparams":
 * {...}}
 *     {"step": 1, "loss": 5.41, ...}             as in metrics.jsonl
 *     {"end": "done", "step": 2, "time": "..."}
 *
 * after which its input ends.  The id is the same in all lives of a run, and is in manifest.json.
 * Nothing waits for the program while the run goes on: what it does not read is kept, up to 16 MiB,
 * and after that left out.  At the end it has `patience` seconds to read the rest and to leave;
 * then it gets SIGTERM, and a second later SIGKILL.  Its output is the job's standard error.
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
    int64_t restarts, step;                    /* lives before this one; steps that are done */
    const d9d_log *log;
} d9d_sink_run;

/* A record: the line as metrics.jsonl has it, without its newline, and its numbers. */
typedef struct d9d_sink_record {
    const char *line;
    size_t bytes;
    int64_t step;
    const char *const *names; /* n of them: none for a line about the run itself */
    const double *values;
    size_t n;
} d9d_sink_record;

typedef struct d9d_sink_kind {
    size_t size;            /* sizeof(d9d_sink_kind) */
    const d9d_table *table; /* its section; its name is the word after "provider" */
    /* NULL: nothing to do.  `config` is the section, bound. */
    d9d_status (*open)(const void *config, const d9d_sink_run *run, void **self);
    d9d_status (*put)(void *self, const d9d_sink_record *r);
    void (*close)(void *self);
} d9d_sink_kind;

/* "provider"; the built-in choices "null", "tensorboard", "command", and their kinds in the same
 * order; ending in NULL. */
D9D_API extern const char *const d9d_sink_tag[];
D9D_API extern const d9d_table *const d9d_sink_choices[];

/* Those of a list of d9d_union over such choices, of one run. */
typedef struct d9d_sinks d9d_sinks;

/* Fails for want of memory alone. */
D9D_API D9D_MUST_USE d9d_status d9d_sinks_open(const d9d_list *configs, const d9d_sink_run *run,
                                               d9d_sinks **out);
D9D_API void d9d_sinks_write(d9d_sinks *s, const d9d_sink_record *r);
/* Waits for what is slow, as far as it has patience.  NULL is fine. */
D9D_API void d9d_sinks_close(d9d_sinks *s);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TRACK_SINK_H */
