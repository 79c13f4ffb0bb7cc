/* track.h - metrics.jsonl, the record of a run.
 *
 * One JSON object a line, written with a single write(2) so that a reader never sees half of
 * one but at a crash:
 *
 *     {"step": 1, "loss": 5.41, "grad_norm": 1.2, "lr": 0.001, "tokens": 4096, ...}
 *     {"restart": 1, "step": 1, "time": "2026-01-31T12:00:00Z"}
 *     {"step": 2, ...}
 *     {"evaluation": "valid", "step": 2, "valid/tokens": 8192, "valid/samples": 16,
 *      "valid/loss": 5.01, "valid/ms": 31.5, ...}
 *     {"save": 2, "blocked_ms": 1.5, "total_ms": 310.2, "time": "2026-01-31T12:04:00Z"}
 *     {"pipeline": 2, "schedule": "1f1b", "micro_batches": 8, "rows": 1, "pipeline_ms": 103.2, ...}
 *     {"documents": 2, "tokens": 4096, "worst": [{"sample": 17, "document": 0, "tokens": 512,
 *      "mean_loss": 9.25}, ...]}
 *     {"end": "done", "step": 2, "time": "2026-01-31T12:05:00Z"}
 *
 * Steps count from 1.  After a restart line from step N the records that follow stand in
 * place of any earlier ones beyond N.  An end line closes each life of the run that was not
 * killed: "done", "saved" (to be gone on with) or "failed".  A save line says that the checkpoint
 * of a step is complete, how long training stood still for it, and how long it took from its
 * beginning.  A pipeline line says what the ranks of a pipeline did in a step, which is known two
 * steps later.  A documents line names those of a step that raise its mean loss most, the worst
 * first.  Numbers have full precision; a number that is not finite is null.
 *
 * Copies of it for people to look at go to sinks: d9d/track/sink.h.
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
    double loss, grad_norm, lr; /* grad_norm NaN: not computed, left out */
    int64_t tokens, samples;    /* since the beginning of the run */
    double step_ms, tokens_per_s;
    double data_ms; /* of step_ms, waiting for batches; NaN: left out */
    double mfu;     /* NaN where the device's peak is not known: left out */
    uint64_t mem_bytes;
    const char *const *names; /* n of them: values besides, such as metrics of a task */
    const double *values;
    size_t n;
} d9d_track_step_record;

/* Of a step of a pipeline: d9d/pipe/stage_timer.h. */
typedef struct d9d_track_pipeline_record {
    int64_t step;
    const char *schedule;        /* in words */
    int64_t micro_batches, rows; /* of a rank's step; of a micro-batch */
    double step_ms;              /* the longest that a rank's micro-batches took, with waiting */
    double bubble; /* share of all ranks' pipeline_ms in which they computed nothing */
    size_t ranks, stages;
    const double *compute_ms;                       /* [ranks] */
    const double *forward_ms, *dgrad_ms, *wgrad_ms; /* [stages], of a micro-batch */
} d9d_track_pipeline_record;

/* A document of a step. */
typedef struct d9d_track_document_loss {
    int64_t stream, sample; /* number in the stream, and in its split */
    int32_t dataset;        /* of a blend */
    int64_t document;       /* among the documents of its sample */
    int64_t targets;
    double sum; /* of its losses */
} d9d_track_document_loss;

typedef struct d9d_track_documents_record {
    int64_t step, targets; /* of the whole step */
    bool blended;          /* datasets are said */
    const d9d_track_document_loss *worst;
    int64_t n;
} d9d_track_documents_record;

typedef struct d9d_tracker d9d_tracker;

/* Open for appending.  A last line cut by a crash is removed first.  EIO while another process
 * has it open, where the file system has locks. */
D9D_API D9D_MUST_USE d9d_status d9d_tracker_open(const char *path, d9d_tracker **out);
/* From here on every line goes to these too; NULL: to none.  Borrowed. */
D9D_API void d9d_tracker_set_sinks(d9d_tracker *t, d9d_sinks *sinks);
/* From here on a thread writes the lines, and nobody waits for the file system but flush and sync;
 * a failure is the next record's.  Once. */
D9D_API D9D_MUST_USE d9d_status d9d_tracker_start_writer(d9d_tracker *t,
                                                         const d9d_writer_opts *how);
/* Number of lines that were there and are no objects of text, which readers leave out; `first`,
 * from 1, is the first of them. */
D9D_API int64_t d9d_tracker_damaged_lines(const d9d_tracker *t, int64_t *first);
/* Number of restart lines in the file. */
D9D_API int64_t d9d_tracker_restarts(const d9d_tracker *t);
D9D_API D9D_MUST_USE d9d_status d9d_tracker_restart(d9d_tracker *t, int64_t from_step);
D9D_API D9D_MUST_USE d9d_status d9d_tracker_step(d9d_tracker *t, const d9d_track_step_record *r);
D9D_API D9D_MUST_USE d9d_status d9d_tracker_save(d9d_tracker *t, int64_t step, double blocked_ms,
                                                 double total_ms);
D9D_API D9D_MUST_USE d9d_status d9d_tracker_pipeline(d9d_tracker *t,
                                                     const d9d_track_pipeline_record *r);
D9D_API D9D_MUST_USE d9d_status d9d_tracker_documents(d9d_tracker *t,
                                                      const d9d_track_documents_record *r);
/* What an evaluation says after a step: n values by name, the first `whole` of them whole. */
D9D_API D9D_MUST_USE d9d_status d9d_tracker_evaluation(d9d_tracker *t, const char *name,
                                                       int64_t step, const char *const *names,
                                                       const double *values, size_t n,
                                                       size_t whole);
/* `how` is one of the words above. */
D9D_API D9D_MUST_USE d9d_status d9d_tracker_end(d9d_tracker *t, const char *how, int64_t step);
/* What was recorded is in the file. */
D9D_API D9D_MUST_USE d9d_status d9d_tracker_flush(d9d_tracker *t);
/* Make what was recorded durable. */
D9D_API D9D_MUST_USE d9d_status d9d_tracker_sync(d9d_tracker *t);
D9D_API void d9d_tracker_close(d9d_tracker *t);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TRACK_TRACK_H */
