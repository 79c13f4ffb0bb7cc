/* train_integrity.h - silent data corruption in a run: when to look for it, and how the run ends.
 *
 * A processor may compute wrongly, or a memory or link flip bits, without any error (SDC).  Three
 * checks, each by checksums and exact (engine/integrity.h):
 *
 *     replicas   every period_steps and before every save: bits of weights or optimizer state that
 *                differ between ranks that store the same.  The minority is to blame
 *     memory     every step, from update to update: bits that changed at rest.  The rank itself
 * says rerun      every rerun_period_steps: a loss, a gradient or a sum over ranks that is another
 *                one when computed again.  Ranks whose own gradients differ are to blame
 *
 *     enqueue of a step k:   keep(k-1) | forward backward (rerun) | verify(k-1) | update | keep(k)
 *
 * What is found ends the run with ECORRUPT, which no later save precedes: the newest checkpoint is
 * the last one that was good.  The node's name becomes a file in RUN/excluded_nodes; train.sbatch
 * requeues the job without it.
 *
 * Cost.  A pass reads the arrays once, at the bandwidth of the memory: 8 billion parameters in
 * bfloat16 with AdamW and master weights, 12 bytes each, on 8 GPUs are 12 GB a rank, 5 ms at
 * 2.5 TB/s.  `memory` needs two passes a step, `replicas` one a period and 8 bytes of
 * communication, a rerun the time of a forward and a backward.
 */
#ifndef D9DI_TRAIN_TRAIN_INTEGRITY_H
#define D9DI_TRAIN_TRAIN_INTEGRITY_H

#include "d9d/device/readback.h"
#include "engine/integrity.h"
#include "train/train_run.h"

/* What of a step is compared when it is computed again; on the host. */
typedef struct d9di_train_integrity_capture {
    uint64_t *own;     /* [params]: this rank's gradients, before any reduction */
    uint64_t *reduced; /* [params] */
    double *losses;    /* [micro-batches]; zeros but on the last stage */
} d9di_train_integrity_capture;

/* The step itself; two repetitions, the last of which only a difference asks for; the samples of
 * the next data-parallel rank, twice likewise. */
enum {
    D9DI_TRAIN_INTEGRITY_FIRST,
    D9DI_TRAIN_INTEGRITY_SECOND,
    D9DI_TRAIN_INTEGRITY_THIRD,
    D9DI_TRAIN_INTEGRITY_PEER,
    D9DI_TRAIN_INTEGRITY_PEER_AGAIN,
    D9DI_TRAIN_INTEGRITY_RUNS
};

typedef struct d9di_train_integrity {
    const struct d9d_job_integrity_section *c; /* borrowed; NULL: nothing is on */
    d9di_engine *engine;                       /* borrowed */
    d9di_integrity arrays;
    int64_t good_step; /* of the newest checkpoint; -1: none.  The caller sets it */
    /* memory */
    d9d_tensor passes; /* [2, arrays]: after the last update; before the next one */
    d9d_readback *pending[2];
    bool is_pending[2], has_kept;
    bool keeps_late; /* handlers may change weights between two steps */
    /* rerun */
    bool reruns; /* this step */
    bool on_peer;
    d9d_tensor own, reduced;
    size_t last; /* index of the parameter that the hook saw last */
    d9d_checksum_array *list;
    d9di_train_integrity_capture runs[D9DI_TRAIN_INTEGRITY_RUNS];
} d9di_train_integrity;

/* ECONFIG for a task whose steps cannot be repeated. */
d9d_status d9di_train_integrity_check_task(const d9d_train_config *c, const d9di_task *task);
/* After the stepper; scale: its grad_finalize.scale.  `a` outlives it.  A plan's run has neither a
 * log nor events.  Collective. */
d9d_status d9di_train_integrity_open(d9di_train_integrity *it, const d9di_train_run *run,
                                     d9di_engine *e, d9d_optimizer *optimizer,
                                     const d9d_tensor *scale, d9d_arena *a);
void d9di_train_integrity_close(d9di_train_integrity *it);

/* True if the replicas are to be compared after `step`; `saves`: a save of it follows. */
bool d9di_train_integrity_is_due(const d9di_train_integrity *it, const d9di_train_run *run,
                                 int64_t step, bool saves);
/* Compares them, with no step enqueued.  ECORRUPT on all ranks.  Collective. */
d9d_status d9di_train_integrity_check(d9di_train_integrity *it, const d9di_train_run *run,
                                      int64_t step);

/* Memory before a save, with no step enqueued: nothing has changed since the last update.  Not
 * where handlers may write between steps.  ECORRUPT, on all ranks.  Waits for the device.
 * Collective. */
d9d_status d9di_train_integrity_check_memory(d9di_train_integrity *it, const d9di_train_run *run,
                                             int64_t step);

/* Memory, without waiting: a step begins; before its update; it ends.  collect() is called when the
 * report of the step after `step` steps is collected: ECORRUPT, on this rank alone. */
d9d_status d9di_train_integrity_begin_step(d9di_train_integrity *it, const d9di_train_run *run,
                                           int64_t step);
d9d_status d9di_train_integrity_verify(d9di_train_integrity *it, int64_t step);
d9d_status d9di_train_integrity_end_step(d9di_train_integrity *it);
d9d_status d9di_train_integrity_collect(d9di_train_integrity *it, const d9di_train_run *run,
                                        int64_t step);

/* Ends the run: ECORRUPT with the sentence, to which the newest checkpoint is added.  The nodes of
 * the suspects become files; one that cannot be written is a warning. */
d9d_status d9di_train_integrity_fail(const d9di_train_integrity *it, const d9di_train_run *run,
                                     const char *sentence);
void d9di_train_integrity_exclude(const d9di_train_run *run, const char *node,
                                  const char *sentence);

/* --- train_rerun.c, train_rerun_verdict.c ------------------------------------------------------
 */

struct d9di_train_stepper;

d9d_status d9di_train_rerun_open(d9di_train_integrity *it, const d9di_train_run *run, d9d_arena *a);
/* Before the forward and backward of a step that is repeated; nothing to do for others.
 * Collective. */
d9d_status d9di_train_rerun_begin(d9di_train_integrity *it, struct d9di_train_stepper *s,
                                  const d9di_train_run *run);
/* After the step's forward and backward: computes both again, and compares.  The gradients are then
 * the newest ones.  ECORRUPT on all ranks, before anything is updated.  Collective. */
d9d_status d9di_train_rerun_check(d9di_train_integrity *it, struct d9di_train_stepper *s,
                                  const d9di_train_run *run);

/* Of two runs on this rank: whether losses, its own gradients or the reduced ones differ. */
enum { D9DI_TRAIN_RERUN_LOSS = 1, D9DI_TRAIN_RERUN_OWN = 2, D9DI_TRAIN_RERUN_REDUCED = 4 };
unsigned d9di_train_rerun_differences(const d9di_train_integrity *it, const d9di_train_run *run,
                                      int a, int b);
/* A hash of the losses and of the own gradients of a run. */
uint64_t d9di_train_rerun_digest(const d9di_train_integrity *it, const d9di_train_run *run, int i);
/* End the run, after all runs: the repetition of step `step` differed; that on peers did. */
d9d_status d9di_train_rerun_fail(const d9di_train_integrity *it, const d9di_train_run *run,
                                 int64_t step);
d9d_status d9di_train_rerun_fail_peer(const d9di_train_integrity *it, const d9di_train_run *run,
                                      int64_t step);

#endif /* D9DI_TRAIN_TRAIN_INTEGRITY_H */
