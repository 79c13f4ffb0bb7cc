/* train.h - the training loop: from a bound configuration to a trained model.
 *
 *     RUN_DIR/config.json      the resolved configuration of the latest start
 *     RUN_DIR/manifest.json    versions, host, Slurm job, restarts
 *     RUN_DIR/metrics.jsonl    a record per step, see d9d/track/track.h
 *     RUN_DIR/checkpoints/     see d9d/checkpointer/checkpointer.h
 *     RUN_DIR/export/          the finished model in HuggingFace's layout
 *
 * A step processes a global batch of G samples in micro-batches (gradient accumulation).  It sums
 * the losses of all targets, runs a backward for each micro-batch, and divides the gradient by the
 * step's number of targets, together with clipping.  So the loss is the mean over target tokens for
 * any number of micro-batches.
 *
 * With several ranks, arranged by the configuration's "mesh", each data-parallel rank takes its
 * share of the G samples, and rank 0 writes the records.  Losses, norms and weights equal those of
 * one rank up to rounding.  After a signal to any rank, all ranks save and exit one step later.
 *
 * Called again with the same configuration, a run resumes from its newest complete checkpoint, bit
 * for bit as if it had not stopped.  On SIGTERM, SIGUSR1, SIGINT or near the end of a Slurm
 * allocation it saves and returns D9D_EINTR.  A loss or gradient that is not finite is
 * D9D_ENUMERIC.  The message names the step, the tensor and the samples; neither that step nor a
 * later one has updated anything, and the last checkpoint remains valid.  The host enqueues a step
 * while the device runs the previous one, and reads losses one step late.
 */
#ifndef D9D_TRAIN_TRAIN_H
#define D9D_TRAIN_TRAIN_H

#include "d9d/job/job.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_train_summary {
    int64_t first_step; /* steps done before this start */
    int64_t steps, total_steps;
    int64_t tokens, samples;
    uint64_t
        host_waits; /* times the host blocked on the device while enqueueing a step, except for the
                       first two of this start; above 0 means that the device was idle meanwhile */
    uint64_t mem_bytes;                   /* peak of this rank's device */
    double first_loss, last_loss;         /* of this start; NaN when no step was done */
    char run_dir[4096], export_dir[4096]; /* "" when nothing was exported */
} d9d_train_summary;

/* Trains.  `resolved` is written to config.json of the run.  The summary is filled also when the
 * status is D9D_EINTR.  Collective over the job.  If d9d_bootstrap_failure_is_collective() is
 * false, only this rank has failed, and other ranks may be waiting for it. */
D9D_API D9D_MUST_USE d9d_status d9d_train(const d9d_train_config *config, const json_t *resolved,
                                          const d9d_job *where, d9d_train_summary *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TRAIN_TRAIN_H */
