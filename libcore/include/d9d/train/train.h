/* train.h - the training loop: from a bound configuration to a trained model.
 *
 *     RUN_DIR/config.json      the resolved configuration of the latest life
 *     RUN_DIR/manifest.json    versions, host, Slurm job, restarts
 *     RUN_DIR/metrics.jsonl    a record a step, see d9d/track/track.h
 *     RUN_DIR/checkpoints/     see d9d/checkpointer/checkpointer.h
 *     RUN_DIR/export/          the finished model, HuggingFace layout
 *
 * A step takes G samples of the stream in micro-batches, sums the losses of their targets,
 * runs backward on each, and divides by the number of targets of the whole step together
 * with clipping; so the loss is the mean over target tokens whatever the accumulation.
 *
 * On many ranks, placed by the configuration's "mesh", each data-parallel rank takes its part of
 * the G samples and rank 0 writes the records: losses, norms and weights are those of one rank but
 * for rounding.  A signal to any rank saves and ends all of them after one step.
 *
 * Called again on the same configuration a run goes on from its newest complete checkpoint,
 * bit for bit as if it had not stopped.  On SIGTERM, SIGUSR1, SIGINT or near the end of a
 * Slurm allocation it saves and returns D9D_EINTR.  A loss or gradient that is not finite is
 * D9D_ENUMERIC, and neither that step nor one after it has updated anything: the sentence names
 * the step, the tensor and the samples, and the last checkpoint stands.  The host queues a step
 * while the device does the one before, and reads losses one step late.
 */
#ifndef D9D_TRAIN_TRAIN_H
#define D9D_TRAIN_TRAIN_H

#include "d9d/job/job.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_train_summary {
    int64_t first_step; /* steps done before this life */
    int64_t steps, total_steps;
    int64_t tokens, samples;
    uint64_t
        host_waits; /* times that the host stood still for the device while it queued a step, the
                     * first two of this life not counted: 0, or the device is idle meanwhile */
    uint64_t mem_bytes;                   /* peak of this rank's device */
    double first_loss, last_loss;         /* of this life; NaN when no step was done */
    char run_dir[4096], export_dir[4096]; /* "" when nothing was exported */
} d9d_train_summary;

/* `resolved` is what config.json of the run will hold.  The summary is filled also when the status
 * is D9D_EINTR.  Collective: over the job; of a failure that d9d_bootstrap_failure_is_collective()
 * does not know the other ranks know nothing, and may wait for this one. */
D9D_API D9D_MUST_USE d9d_status d9d_train(const d9d_train_config *config, const json_t *resolved,
                                          const d9d_job *where, d9d_train_summary *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TRAIN_TRAIN_H */
