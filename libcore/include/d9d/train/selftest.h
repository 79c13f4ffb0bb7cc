/* selftest.h - a check before a long job: the job's mesh against a single rank.
 *
 * Trains the first steps of the run on all ranks, and again on rank 0 alone, from the same initial
 * state and on the same samples.  Both use the learning rate before the schedule, which might begin
 * at zero.  Losses and gradient norms must agree up to rounding:
 *
 *     step  loss       alone      difference   norm       alone      difference
 *        1  5.0562115  5.0562115           0   0.7110403  0.7110404     1.3e-07
 *        2  5.0454292  5.0454296     8.8e-08   0.6996402  0.6996402     3.1e-08
 *     4 ranks (dps 2 tp 2) compute what one computes: 1.3e-07 apart at most, 1e-05 allowed
 *
 * Records go to a directory beside the run's, RUN_DIR.selftest.tmp-*.  It is removed at the end, or
 * by the next self-test if this one is killed.  Nothing else is written.
 */
#ifndef D9D_TRAIN_SELFTEST_H
#define D9D_TRAIN_SELFTEST_H

#include "d9d/job/job.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { D9D_SELFTEST_STEPS = 4 };

/* [0]: on the mesh; [1]: on rank 0 alone. */
typedef struct d9d_selftest_step {
    int64_t step;
    double loss[2], norm[2];
} d9d_selftest_step;

typedef struct d9d_selftest_summary {
    int64_t ranks, n; /* steps */
    char mesh[96];    /* "dps 2 tp 2" */
    d9d_selftest_step step[D9D_SELFTEST_STEPS];
    double worst, allowed; /* relative differences: 1e-5 in float32, 1e-2 in bfloat16 */
} d9d_selftest_summary;

/* Runs the self-test, and fills the summary on rank 0.  EVERIFY if the results differ by more than
 * is allowed; ECONFIG for a job of one rank; EOOM if the whole model does not fit on rank 0.
 * Collective over the job.
 */
D9D_API D9D_MUST_USE d9d_status d9d_selftest(const d9d_train_config *config, const json_t *resolved,
                                             const d9d_job *where, d9d_selftest_summary *out);
/* Compares the records of two runs; sets s->step, s->n and s->worst.  EVERIFY if worst exceeds
 * s->allowed or is NaN, or if the runs have different steps. */
D9D_API D9D_MUST_USE d9d_status d9d_selftest_compare(const char *together, const char *alone,
                                                     d9d_selftest_summary *s);

/* Appends the summary as text, in the form above. */
D9D_API D9D_MUST_USE d9d_status d9d_selftest_print(const d9d_selftest_summary *s, d9d_buf *out);
D9D_API json_t *d9d_selftest_json(const d9d_selftest_summary *s);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TRAIN_SELFTEST_H */
