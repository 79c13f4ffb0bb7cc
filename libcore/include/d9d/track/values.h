/* values.h - own values of a run: scalars, histograms, texts and pictures that event handlers and
 * tasks record beside what the loop records.
 *
 *     static d9d_status after_step(void *self, const d9d_job_event *e)     // train.step.post
 *     {
 *         D9D_TRY(d9d_values_scalar(e->values, "mine/temperature", 0.7));
 *         D9D_TRY(d9d_values_scalar_tensor(e->values, "mine/entropy", &entropy));
 *         return d9d_values_text(e->values, "mine/answer", answer, strlen(answer));
 *     }
 *
 * They go to metrics.jsonl (d9d/track/track.h) and to all trackers, after the record of their step.
 * d9d-metrics treats a scalar as a column.
 *
 * Nothing waits.  A tensor is copied to the host asynchronously, and read with the report of its
 * step, which the host collects one or two steps later.  The tensor may be overwritten or released
 * once the call returns, by work that is enqueued after it.
 *
 * Every rank may call; rank 0's values are recorded, and the others' are checked and dropped.  A
 * value over all ranks is the caller's reduction.  With NULL for `v`, as in events that have no run
 * to record, every function does nothing.
 *
 * A name has a slash inside, such as "mine/entropy", which no key of the loop's own records has at
 * its place; at most 200 printable ASCII characters, without quotes and backslashes.  A name that
 * is recorded again in a step replaces the earlier value.  A scalar that is not finite is null in
 * metrics.jsonl.
 */
#ifndef D9D_TRACK_VALUES_H
#define D9D_TRACK_VALUES_H

#include "d9d/tensor/tensor.h"
#include "d9d/track/track.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { D9D_VALUES_NAME_MAX = 200, D9D_VALUES_BINS_MAX = 4096, D9D_VALUES_TEXT_MAX = 128 << 10 };

typedef struct d9d_values d9d_values;

/* True if the values are recorded on this rank: where computing one is costly, ask first. */
D9D_API bool d9d_values_are_recorded(const d9d_values *v);

/* A number, and one in a float32 or bfloat16 tensor of one element.  EINVAL for a bad name or
 * tensor, as below. */
D9D_API D9D_MUST_USE d9d_status d9d_values_scalar(d9d_values *v, const char *name, double value);
D9D_API D9D_MUST_USE d9d_status d9d_values_scalar_tensor(d9d_values *v, const char *name,
                                                         const d9d_tensor *value);
/* counts[n] of n bins, at most D9D_VALUES_BINS_MAX; bin i is [edges[i], edges[i + 1]), with
 * ascending finite edges[n + 1].  NULL: bin i is [i, i + 1).  The tensor is float32 or bfloat16. */
D9D_API D9D_MUST_USE d9d_status d9d_values_histogram(d9d_values *v, const char *name,
                                                     const double *counts, const double *edges,
                                                     size_t n);
D9D_API D9D_MUST_USE d9d_status d9d_values_histogram_tensor(d9d_values *v, const char *name,
                                                            const d9d_tensor *counts,
                                                            const double *edges);
/* UTF-8, at most D9D_VALUES_TEXT_MAX bytes. */
D9D_API D9D_MUST_USE d9d_status d9d_values_text(d9d_values *v, const char *name, const char *text,
                                                size_t bytes);
/* A PNG image.  It is written to RUN/pictures/, under its name and step. */
D9D_API D9D_MUST_USE d9d_status d9d_values_picture(d9d_values *v, const char *name, const void *png,
                                                   size_t bytes);

/* --- for the loop -------------------------------------------------------------------------- */

/* `recorded`: on rank 0.  `dir` is the run directory, borrowed. */
D9D_API D9D_MUST_USE d9d_status d9d_values_create(bool recorded, const char *dir, d9d_values **out);
/* Before the device closes; values that were not written are lost.  NULL is fine. */
D9D_API void d9d_values_free(d9d_values *v);
/* The step that the following values belong to, counted from 1; 0: before the first. */
D9D_API void d9d_values_set_step(d9d_values *v, int64_t step);
/* Writes the values of steps up to this one, and forgets them.  Waits for their tensors, which have
 * arrived where the step's report has.  A picture that cannot be written is a warning. */
D9D_API D9D_MUST_USE d9d_status d9d_values_write(d9d_values *v, int64_t step, d9d_tracker *tracker,
                                                 const d9d_log *log);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TRACK_VALUES_H */
