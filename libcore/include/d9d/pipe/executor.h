/* executor.h - runs a pipeline program: what one rank of a pipeline does in a step.
 *
 *     D9D_TRY(d9d_program_build(&opts, ranks, micros, &program));
 *     D9D_TRY(d9d_program_insert_p2p(&program));
 *     D9D_TRY(d9d_executor_create(&(d9d_executor_opts){.program = &program, .rank = rank,
 *                                 .dev = dev, .down = down, .up = up, .ops = &ops, .self = me},
 *                                 &x));
 *     each step:  D9D_TRY(d9d_executor_run(x));
 *
 * The executor knows nothing of models: the owner of the stages passes a table of functions.  A
 * single rank with one stage runs "0F0 0B0 0F1 0B1 ..." and sends nothing.
 *
 *     F     the stage's forward on a tape of that micro-batch, from the tensors of the previous
 *           stage; then only the arrays that backward needs stay alive
 *     B     its backward, from the gradients of the next stage; the tape is free afterwards
 *     I W   dgrad and wgrad, the two halves of B; the tape is free after W
 *     SEND  tensors travel down the pipeline, their gradients up: posted asynchronously, a message
 *           for each tensor of the tuple (d9d/pipe/stage_tensor.h)
 *     RECV  likewise; the action that needs a transfer waits for it, else the end of the step
 *
 * Between two stages of one rank arrays are handed over without a copy.  Joined actions ("F|B") of
 * two stages are interleaved by coroutines (d9d/base/coroutine.h).  While one waits for an
 * all-to-all of expert parallelism, the computation of the other is enqueued (DualPipe).
 *
 * Memory.  Each forward whose backward is not complete holds a tape; a rank has at most
 * d9d_timeline's `live` of them, and tapes are reused.  The executor owns the receive buffers and
 * reuses them for later micro-batches.  Sizes may differ between micro-batches: both sides know
 * them from the batch, so no message carries them.
 *
 * On a GPU each direction has a stream of its own.  A transfer that waits for its peer delays
 * neither the computation nor the other direction.  Between GPUs of one host copy engines move the
 * data and no SM is used (d9d_p2p_ring_enable()).
 *
 * After a failure only d9d_executor_free() may be called.
 */
#ifndef D9D_PIPE_EXECUTOR_H
#define D9D_PIPE_EXECUTOR_H

#include "d9d/pipe/program.h"
#include "d9d/pipe/stage_tensor.h"
#include "d9d/pipe/stage_timer.h"
#include "d9d/tape/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stages are numbered over the whole pipeline. */
typedef struct d9d_executor_ops {
    /* Forward of a stage on `t`, which records in training.  in: the tensors that enter the stage,
     * none of the first.  out: those that enter the next one, NULL when called; ignored for the
     * last stage, whose backward takes no seed (d9d_node_make_root()). */
    d9d_status (*forward)(void *self, int stage, int micro, d9d_tape *t, d9d_var *const *in,
                          d9d_var **out);
    /* The tensors of a micro-batch that enter a stage but the first, equal on all ranks; called
     * before any of its forwards.  *n is at most the executor's `tensors`. */
    d9d_status (*tensors)(void *self, int stage, int micro, d9d_stage_tensor *out, size_t *n);
    /* Called before a B, I or W of the stage.  `last`: the stage's parameters get no gradient after
     * it. NULL: nothing to do. */
    d9d_status (*backward)(void *self, int stage, int micro, bool last);
    /* This rank has finished its last action of the micro-batch.  NULL: nothing to do. */
    void (*done)(void *self, int micro);
} d9d_executor_ops;

enum { D9D_EXECUTOR_TENSORS_MAX = 2 * D9D_STAGE_TENSORS_MAX };

typedef struct d9d_executor d9d_executor;

typedef struct d9d_executor_opts {
    const d9d_program *program; /* with transfers (d9d_program_insert_p2p()); borrowed */
    int rank;                   /* whose lane is run */
    d9d_device *dev;
    d9d_comm *down, *up; /* the program's ranks in order, for tensors and for their gradients; they
                            may be one group. NULL: a program of one rank */
    size_t tensors;      /* most that enter a stage, at most D9D_EXECUTOR_TENSORS_MAX; 0: one */
    bool simulated;      /* transfers take no time: the newest send counts as being on its way */
    const d9d_executor_ops *ops;
    void *self;
} d9d_executor_opts;

/* EINVAL if the groups do not have the program's ranks, or for too many tensors.  Collective: over
 * the groups. */
D9D_API D9D_MUST_USE d9d_status d9d_executor_create(const d9d_executor_opts *opts,
                                                    d9d_executor **out);
D9D_API void d9d_executor_free(d9d_executor *x);

/* Run the rank's lane once.  On a GPU all work is enqueued when it returns, and the device's stream
 * waits for all transfers.  Collective: over the groups. */
D9D_API D9D_MUST_USE d9d_status d9d_executor_run(d9d_executor *x);

/* From now on each run restarts the timer and records its computations in it; NULL: none. Borrowed.
 */
D9D_API void d9d_executor_set_timer(d9d_executor *x, d9d_stage_timer *m);

/* The largest number of tapes alive at once, over all runs so far. */
D9D_API int d9d_executor_max_live(const d9d_executor *x);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PIPE_EXECUTOR_H */
