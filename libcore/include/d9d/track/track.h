/* track.h - metrics.jsonl, the record of a run.
 *
 * One JSON object per line, written with a single write(2), so that only a crash can leave a
 * partial line:
 *
 *     {"step": 1, "loss": 5.41, "grad_norm": 1.2, "lr": 0.001, "tokens": 4096, ...}
 *     {"restart": 1, "step": 1, "time": "2026-01-31T12:00:00Z"}
 *     {"step": 2, ...}
 *     {"evaluation": "valid", "step": 2, "valid/tokens": 8192, "valid/samples": 16,
 *      "valid/loss": 5.01, "valid/ms": 31.5, ...}
 *     {"save": 2, "blocked_ms": 1.5, "total_ms": 310.2, "time": "2026-01-31T12:04:00Z"}
 *     {"local_save": 2, "blocked_ms": 0.1, "total_ms": 12.4, "time": "2026-01-31T12:04:00Z"}
 *     {"pipeline": 2, "schedule": "1f1b", "micro_batches": 8, "rows": 1, "pipeline_ms": 103.2, ...}
 *     {"documents": 2, "tokens": 4096, "worst": [{"sample": 17, "document": 0, "tokens": 512,
 *      "mean_loss": 9.25}, ...]}
 *     {"straggler": 60, "rank": 5, "host": "h2", "slower": 1.31, "since": 40, "compute_ms": 13.1,
 *      "peers_ms": 10.0, "time": "2026-01-31T12:04:00Z"}
 *     {"values": 2, "mine/entropy": 1.25, "mine/temperature": 0.7}
 *     {"histogram": "mine/lengths", "step": 2, "edges": [0, 1, 2], "counts": [5, 3]}
 *     {"text": "mine/answer", "step": 2, "content": "..."}
 *     {"picture": "mine/attention", "step": 2, "file": "pictures/mine/attention/step-00000002.png",
 *      "width": 64, "height": 64}
 *     {"end": "done", "step": 2, "time": "2026-01-31T12:05:00Z"}
 *
 * Steps count from 1.  Numbers have full precision; a number that is not finite is null.
 *
 *     restart     a restart from step N: the records after it replace earlier ones beyond N
 *     save        a complete checkpoint: how long training was blocked, and how long the save took
 *     local_save  the same of one in the memory of hosts, when the next one begins
 *     pipeline    times of the pipeline's ranks in a step; written two steps later
 *     documents   the documents that raise the step's mean loss most, the worst first
 *     straggler   a rank that computes slower than its peers, or, with "recovered", no longer does
 *     values      own scalars of a step, after its record: d9d/track/values.h; histogram, text and
 *                 picture are other own values, the file of the last in the run directory
 *     end         the end of the process, unless it was killed: "done", "saved" (to be resumed) or
 *                 "failed"
 *
 * Sinks receive copies of the lines: d9d/track/sink.h.
 */
#ifndef D9D_TRACK_TRACK_H
#define D9D_TRACK_TRACK_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/writer.h"
#include "d9d/track/sink.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_track_step_record {
    int64_t step;
    double loss, grad_norm; /* NaN: there is none, left out */
    double lr;
    int64_t tokens, samples; /* totals since the beginning of the run */
    double step_ms, tokens_per_s;
    double data_ms; /* part of step_ms spent waiting for batches; NaN: left out */
    double mfu;     /* NaN if the device's peak is unknown: left out */
    uint64_t mem_bytes;
    uint64_t host_bytes; /* what is offloaded there; 0: nothing, left out */
    /* Energy of rank 0's device since the record before, and its share of the tokens over it;
     * joules 0 or NaN: not measured, left out. */
    double joules, tokens_per_joule;
    const char *const *names; /* [n]: further values, such as a task's metrics */
    const double *values;
    size_t n;
} d9d_track_step_record;

/* Times of one pipeline step: d9d/pipe/stage_timer.h. */
typedef struct d9d_track_pipeline_record {
    int64_t step;
    const char *schedule;        /* its name for people */
    int64_t micro_batches, rows; /* micro-batches of a rank's step; sequences of a micro-batch */
    double step_ms;              /* the longest rank's time for its micro-batches, waiting included;
                                    `pipeline_ms` in              the file */
    double bubble;               /* share of all ranks' step_ms in which they computed nothing */
    size_t ranks, stages;
    const double *compute_ms;                       /* [ranks] */
    const double *forward_ms, *dgrad_ms, *wgrad_ms; /* [stages], per micro-batch */
} d9d_track_pipeline_record;

/* The loss of one document of a step. */
typedef struct d9d_track_document_loss {
    int64_t stream, sample; /* number in the stream, and in its split */
    int32_t dataset;        /* its number in a blend */
    int64_t document;       /* index among the documents of its sample */
    int64_t targets;
    double sum; /* sum of its losses */
} d9d_track_document_loss;

typedef struct d9d_track_documents_record {
    int64_t step, targets; /* targets: of the whole step */
    bool blended;          /* there are several datasets: write `dataset` */
    const d9d_track_document_loss *worst;
    int64_t n;
} d9d_track_documents_record;

/* A rank whose computing is slow, or no longer is: the medians of a period's steps. */
typedef struct d9d_track_straggler_record {
    int64_t step; /* the end of the period */
    int rank;
    const char *host;
    bool recovered;
    int64_t since; /* the step after which it began */
    double compute_ms, peers_ms;
    double before; /* its mean ratio before; NaN: it was never quicker.  Not in the file */
} d9d_track_straggler_record;

typedef struct d9d_tracker d9d_tracker;

/* Opens for appending.  First removes a partial last line, as a crash leaves it.  EIO while another
 * process has the file open, if the file system supports locks. */
D9D_API D9D_MUST_USE d9d_status d9d_tracker_open(const char *path, d9d_tracker **out);
/* Sends every further line to these sinks as well; NULL: to none.  Borrowed. */
D9D_API void d9d_tracker_set_sinks(d9d_tracker *t, d9d_sinks *sinks);
/* Starts a thread that writes the lines, so that only flush and sync wait for the file system.  A
 * write error is reported by the next record.  Call once. */
D9D_API D9D_MUST_USE d9d_status d9d_tracker_start_writer(d9d_tracker *t,
                                                         const d9d_writer_opts *opts);
/* Number of existing lines that are not valid JSON objects; readers skip them.  `first` is the line
 * number of the first one, from 1. */
D9D_API int64_t d9d_tracker_damaged_lines(const d9d_tracker *t, int64_t *first);
/* Number of restart lines in the file. */
D9D_API int64_t d9d_tracker_restarts(const d9d_tracker *t);
/* Each appends one line, in the form above. */
D9D_API D9D_MUST_USE d9d_status d9d_tracker_restart(d9d_tracker *t, int64_t from_step);
D9D_API D9D_MUST_USE d9d_status d9d_tracker_step(d9d_tracker *t, const d9d_track_step_record *r);
typedef enum d9d_track_save_kind { D9D_TRACK_SAVE, D9D_TRACK_LOCAL_SAVE } d9d_track_save_kind;
D9D_API D9D_MUST_USE d9d_status d9d_tracker_save(d9d_tracker *t, d9d_track_save_kind kind,
                                                 int64_t step, double blocked_ms, double total_ms);
D9D_API D9D_MUST_USE d9d_status d9d_tracker_pipeline(d9d_tracker *t,
                                                     const d9d_track_pipeline_record *r);
D9D_API D9D_MUST_USE d9d_status d9d_tracker_straggler(d9d_tracker *t,
                                                      const d9d_track_straggler_record *r);
D9D_API D9D_MUST_USE d9d_status d9d_tracker_documents(d9d_tracker *t,
                                                      const d9d_track_documents_record *r);
/* Writes an evaluation line: n named values, the first `whole` of them as integers. */
D9D_API D9D_MUST_USE d9d_status d9d_tracker_evaluation(d9d_tracker *t, const char *name,
                                                       int64_t step, const char *const *names,
                                                       const double *values, size_t n,
                                                       size_t whole);
/* Own scalars of a step, written as one line. */
D9D_API D9D_MUST_USE d9d_status d9d_tracker_scalars(d9d_tracker *t, int64_t step,
                                                    const char *const *names, const double *values,
                                                    size_t n);
/* Another own value; its `kind` gives the line its form. */
D9D_API D9D_MUST_USE d9d_status d9d_tracker_value(d9d_tracker *t, const d9d_track_value *v);
/* `opts` is "done", "saved" or "failed". */
D9D_API D9D_MUST_USE d9d_status d9d_tracker_end(d9d_tracker *t, const char *opts, int64_t step);
/* Returns when all recorded lines are in the file. */
D9D_API D9D_MUST_USE d9d_status d9d_tracker_flush(d9d_tracker *t);
/* Makes all recorded lines durable (fsync). */
D9D_API D9D_MUST_USE d9d_status d9d_tracker_sync(d9d_tracker *t);
/* Writes what is pending and closes the file; flush or sync first to see errors.  NULL is fine. */
D9D_API void d9d_tracker_close(d9d_tracker *t);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TRACK_TRACK_H */
