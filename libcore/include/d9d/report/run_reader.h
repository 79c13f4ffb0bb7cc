/* run_reader.h - reading the metrics of a run, finished or still running.
 *
 *     D9D_TRY(d9d_run_reader_open("runs/demo", log, &run));
 *     loss = d9d_run_reader_values(run, "loss");            // NULL: nobody logged it
 *     for (size_t i = 0; i < run->n; i++)
 *         printf("%" PRId64 " %g\n", run->step[i], loss[i]);
 *     d9d_run_reader_close(run);
 *
 * metrics.jsonl has one object a line (d9d/track/track.h).  A key with numbers is a
 * column, known or not; null, or a record without the key, is NaN.  Steps rise: after
 * {"restart": n, "step": s} the records beyond step s are forgotten, and so are those
 * that a later record repeats, which the log hears of.  A last line without its newline
 * is being written: it is left for the next poll.  Any other line that is no object is
 * left out, and the log hears of the first of them and how many there are; a file that has
 * no others is EFORMAT.
 *
 * A record holds what a step logged, what evaluations logged at that step, or both; `sources` says
 * of each record and of each column which: bit 0 is training, bit 1 + i evaluation i.  So a value
 * that is null is told from one that nobody asked for.
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

enum { D9D_RUN_READER_COLUMNS_MAX = 64 };   /* further keys are left out */
enum { D9D_RUN_READER_PIPELINES_MAX = 32 }; /* lines about a pipeline that are kept */

enum {
    D9D_RUN_READER_TRAINING = 1,
    D9D_RUN_READER_EVALUATIONS_MAX = 31
}; /* further ones count as the last */

typedef struct d9d_run_reader_column {
    char *name;
    double *values;   /* n of them */
    uint32_t sources; /* that have logged it */
} d9d_run_reader_column;

/* To be read only; the arrays move when the run is polled. */
typedef struct d9d_run_reader {
    char *name;        /* of its directory, or of a file that is not called metrics.jsonl */
    char *path;        /* of the file */
    size_t n;          /* records */
    size_t fresh;      /* those from here on have something new since the last poll but one, */
    size_t known;      /* those before here evaluations alone */
    int64_t *step;     /* rising */
    double *wall;      /* seconds since 1970 where the file has times, else since the start */
    uint32_t *sources; /* what each record holds */
    d9d_run_reader_column *columns; /* in the order in which they appeared */
    size_t n_columns;
    char *evaluations[D9D_RUN_READER_EVALUATIONS_MAX]; /* their names, in the order in which they
                                                          appeared */
    size_t n_evaluations;
    int64_t restarts;
    char *end;        /* "done", "saved" or another word once {"end": word} was read; else NULL */
    bool torn;        /* the last line is not complete */
    uint64_t damaged; /* lines that were left out */
    /* The newest lines about a pipeline, of 0.1 too by the keys that they have now; `bubble` and
     * `pipeline_ms` are columns too. */
    json_t *pipeline[D9D_RUN_READER_PIPELINES_MAX];
    size_t n_pipelines;
    struct d9di_run_reader_state *reader;
} d9d_run_reader;

/* `path` is a run directory or the file.  ENOTFOUND, EFORMAT. */
D9D_API D9D_MUST_USE d9d_status d9d_run_reader_open(const char *path, const d9d_log *log,
                                                    d9d_run_reader **out);
/* Read what was appended since. */
D9D_API D9D_MUST_USE d9d_status d9d_run_reader_poll(d9d_run_reader *r);
D9D_API void d9d_run_reader_close(d9d_run_reader *r);

/* A column's values, borrowed, or NULL. */
D9D_API const double *d9d_run_reader_values(const d9d_run_reader *r, const char *key);

/* The sources that have logged a key; all bits for a key that is no column. */
D9D_API uint32_t d9d_run_reader_sources(const d9d_run_reader *r, const char *key);

/* Which evaluation's loss or metric a column is; -1: another column.  What an evaluation says of
 * itself (NAME/tokens, samples, ms) and metrics of many values (NAME/METRIC/...) are others. */
D9D_API int d9d_run_reader_evaluation_of(const d9d_run_reader *r, const d9d_run_reader_column *c);

/* --- several runs ----------------------------------------------------------- */

typedef struct d9d_run_reader_list {
    d9d_run_reader **run;
    size_t n;
} d9d_run_reader_list;

D9D_API D9D_MUST_USE d9d_status d9d_run_reader_list_open(char *const *paths, size_t n,
                                                         const d9d_log *log,
                                                         d9d_run_reader_list *out);
/* ECONFIG where `out`, a file that is to be replaced, is the record of one of them. */
D9D_API D9D_MUST_USE d9d_status d9d_run_reader_list_check_output(const d9d_run_reader_list *runs,
                                                                 const char *out);
D9D_API void d9d_run_reader_list_close(d9d_run_reader_list *r);

/* ECONFIG for a key that none of the runs has as a column; the sentence has the nearest. */
D9D_API D9D_MUST_USE d9d_status d9d_run_reader_list_check_columns(const d9d_run_reader_list *r,
                                                                  const char *const *keys,
                                                                  size_t n);

#ifdef __cplusplus
}
#endif
#endif /* D9D_REPORT_RUN_READER_H */
