/* selftest.h - a certificate before a long job: the job's own mesh against one rank.
 *
 * A few steps of the configuration are trained as they would be, on all ranks, and then once more
 * by rank 0 alone, from the same beginning and on the same samples.  They are the first of the
 * run, whatever its length, but at the learning rate before the schedule, which may begin with
 * nothing.  Losses and norms must be the same but for rounding:
 *
 *     step  loss       alone      difference   norm       alone      difference
 *        1  5.0562115  5.0562115           0   0.7110403  0.7110404     1.3e-07
 *        2  5.0454292  5.0454296     8.8e-08   0.6996402  0.6996402     3.1e-08
 *     4 ranks (dps 2 tp 2) compute what one computes: 1.3e-07 apart at most, 1e-05 allowed
 *
 * Records go to a directory beside the run's, RUN_DIR.selftest.tmp-*, which is removed in the end,
 * or by the next self-test where this one is killed; nothing else is written.
 */
#ifndef D9D_TRAIN_SELFTEST_H
#define D9D_TRAIN_SELFTEST_H

#include "d9d/job/job.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { D9D_SELFTEST_STEPS = 4 };

/* [0]: on the mesh, [1]: alone. */
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

/* EVERIFY when they differ by more than is allowed; the summary is filled on rank 0.  ECONFIG for a
 * job of one rank.  Rank 0 needs memory for the whole model, EOOM else.  Collective: over the job.
 */
D9D_API D9D_MUST_USE d9d_status d9d_selftest(const d9d_train_config *config, const json_t *resolved,
                                             const d9d_job *where, d9d_selftest_summary *out);
/* What judges it: the records of two runs, into step, n and worst; EVERIFY where worst is not
 * within s->allowed, a NaN included, or the steps are not the same. */
D9D_API D9D_MUST_USE d9d_status d9d_selftest_compare(const char *together, const char *alone,
                                                     d9d_selftest_summary *s);

/* As above; `out` is appended to. */
D9D_API D9D_MUST_USE d9d_status d9d_selftest_print(const d9d_selftest_summary *s, d9d_buf *out);
D9D_API json_t *d9d_selftest_json(const d9d_selftest_summary *s);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TRAIN_SELFTEST_H */
