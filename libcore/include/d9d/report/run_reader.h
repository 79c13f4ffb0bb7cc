/* run_reader.h - reading the metrics of a run, finished or still running.
 *
 *     D9D_TRY(d9d_run_reader_open("runs/demo", log, &run));
 *     loss = d9d_run_reader_values(run, "loss");            // NULL: not logged
 *     for (size_t i = 0; i < run->n; i++)
 *         printf("%" PRId64 " %g\n", run->step[i], loss[i]);
 *     d9d_run_reader_close(run);
 *
 * metrics.jsonl has one object per line (d9d/track/track.h).  Any key with numbers is a column;
 * null, or a record without the key, is NaN.  Steps ascend: {"restart": n, "step": s} discards the
 * records beyond step s.  A record that repeats a step replaces the earlier one, with a log
 * message.  A last line without a newline is still being written: the next poll reads it.  Any
 * other line that is not an object is skipped; the log names the first one and their number.  A
 * file without any valid line is EFORMAT.
 *
 * A record holds the values of a training step, of the evaluations at that step, or both.
 * `sources` is a bit mask for each record and each column: bit 0 is training, bit 1 + i is
 * evaluation i; a record with own values alone has none.  `logged` tells null from a record without
 * the key.
 *
 * Values of one layer or expert (training keys with a slash, "expert_load/3/17") take at most
 * D9D_RUN_READER_DETAILS_MAX of the columns.  The newest record that has them is kept whole.
 *
 * Own values (d9d/track/values.h) are columns too, of the record of their step.  Of their
 * histograms, texts and pictures the newest of each name is kept.
 */
#ifndef D9D_REPORT_RUN_READER_H
#define D9D_REPORT_RUN_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "d9d/base/json.h"
#include "d9d/base/log.h"
#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { D9D_RUN_READER_COLUMNS_MAX = 2048 }; /* further keys are ignored */
enum { D9D_RUN_READER_DETAILS_MAX = 32 };   /* of these, training keys with a slash */
enum { D9D_RUN_READER_PIPELINES_MAX = 32 }; /* newest pipeline lines that are kept */

enum { D9D_RUN_READER_STRAGGLERS_MAX = 64 }; /* newest straggler lines that are kept */

enum {
    D9D_RUN_READER_TRAINING = 1,
    D9D_RUN_READER_EVALUATIONS_MAX = 31
}; /* further evaluations share the last bit */

typedef struct d9d_run_reader_column {
    char *name;
    double *values;   /* [n] */
    bool *logged;     /* [n]; false: the record has no such key.  NULL: every record has it */
    uint32_t sources; /* mask of the sources that logged it */
    bool is_own;      /* an own value */
} d9d_run_reader_column;

/* What is no record: {"restart"}, {"save"}, {"local_save"} and {"end"}, in the order of the file.
 */
typedef enum d9d_run_reader_event_kind {
    D9D_RUN_READER_RESTART,
    D9D_RUN_READER_SAVE,
    D9D_RUN_READER_LOCAL_SAVE,
    D9D_RUN_READER_END
} d9d_run_reader_event_kind;

typedef struct d9d_run_reader_event {
    d9d_run_reader_event_kind kind;
    int64_t step;                /* -1: the line has none */
    double time;                 /* seconds since 1970; NaN: the line has none */
    double blocked_ms, total_ms; /* of both kinds of saves; NaN: unknown */
    int64_t discarded;           /* of a restart: training steps that are done again */
    double discarded_s;          /* the seconds that they took */
    char word[16];               /* of an end: "done", "saved", "failed" */
} d9d_run_reader_event;

/* Read only; a poll may move the arrays. */
typedef struct d9d_run_reader {
    char *name;           /* of the run directory, or of a file that is not called metrics.jsonl */
    char *path;           /* of the file */
    size_t n;             /* records */
    size_t first_changed; /* first record that the last poll added or changed */
    size_t first_new;     /* first record that it added; earlier ones got evaluation values only */
    int64_t *step;        /* ascending */
    double *wall;         /* seconds since 1970 if the file has times, else since the start */
    uint32_t *sources;    /* mask of the sources of each record */
    d9d_run_reader_column *columns; /* in order of first appearance */
    size_t n_columns;
    char *evaluations[D9D_RUN_READER_EVALUATIONS_MAX]; /* names, in order of first appearance */
    size_t n_evaluations;
    int64_t begin; /* the step that the file begins after: of a restart before all records, or 0 */
    int64_t restarts;
    char *end;        /* "done", "saved" or another word once {"end": word} was read; else NULL */
    bool torn;        /* the last line is not complete */
    uint64_t damaged; /* lines that were left out */
    /* The newest lines about a pipeline, of 0.1 too by the keys that they have now; `bubble` and
     * `pipeline_ms` are columns too. */
    json_t *pipeline[D9D_RUN_READER_PIPELINES_MAX];
    size_t n_pipelines;
    json_t
        *straggler[D9D_RUN_READER_STRAGGLERS_MAX]; /* the newest lines about ranks, oldest first */
    size_t n_stragglers;
    json_t *own;     /* object of the newest line of each own value that is no number; NULL: none */
    json_t *details; /* the newest record with training keys that have a slash; NULL: none */
    char *detail_left_out; /* the first such key that is no column; NULL: all are */
    d9d_run_reader_event *events;
    size_t n_events;
    struct d9di_run_reader_state *reader;
} d9d_run_reader;

/* `path` is a run directory or the file.  ENOTFOUND, EFORMAT. */
D9D_API D9D_MUST_USE d9d_status d9d_run_reader_open(const char *path, const d9d_log *log,
                                                    d9d_run_reader **out);
/* Reads the lines appended since the last call. */
D9D_API D9D_MUST_USE d9d_status d9d_run_reader_poll(d9d_run_reader *r);
D9D_API void d9d_run_reader_close(d9d_run_reader *r);

/* A column's values, borrowed, or NULL. */
D9D_API const double *d9d_run_reader_values(const d9d_run_reader *r, const char *key);

/* A column, borrowed, or NULL. */
D9D_API const d9d_run_reader_column *d9d_run_reader_find_column(const d9d_run_reader *r,
                                                                const char *key);
/* Whether record i has the column, be it null; of a column that is NULL, false. */
D9D_API bool d9d_run_reader_is_logged(const d9d_run_reader_column *c, size_t i);

/* The index of the evaluation whose loss or metric this column is, or -1.  The columns NAME/tokens,
 * NAME/samples, NAME/ms and those of multi-valued metrics (NAME/METRIC/...) give -1. */
D9D_API int d9d_run_reader_evaluation_of(const d9d_run_reader *r, const d9d_run_reader_column *c);

/* --- several runs ----------------------------------------------------------- */

typedef struct d9d_run_reader_list {
    d9d_run_reader **run;
    size_t n;
} d9d_run_reader_list;

/* Opens all, and logs which have an incomplete last line; after a failure none stays open. */
D9D_API D9D_MUST_USE d9d_status d9d_run_reader_list_open(char *const *paths, size_t n,
                                                         const d9d_log *log,
                                                         d9d_run_reader_list *out);
/* ECONFIG if `out`, an output file, is the record of one of the runs. */
D9D_API D9D_MUST_USE d9d_status d9d_run_reader_list_check_output(const d9d_run_reader_list *runs,
                                                                 const char *out);
D9D_API void d9d_run_reader_list_close(d9d_run_reader_list *r);

/* Logs a key of each run that `details` alone have, for output of columns. */
D9D_API void d9d_run_reader_list_warn_left_out(const d9d_run_reader_list *r, const d9d_log *log);

/* ECONFIG for a key that no run has as a column; the message suggests the nearest. */
D9D_API D9D_MUST_USE d9d_status d9d_run_reader_list_check_columns(const d9d_run_reader_list *r,
                                                                  const char *const *keys,
                                                                  size_t n);

#ifdef __cplusplus
}
#endif
#endif /* D9D_REPORT_RUN_READER_H */
