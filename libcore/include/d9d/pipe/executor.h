/* executor.h - a program played: what one rank of a pipeline does in a step.
 *
 *     D9D_TRY(d9d_program_build(&how, ranks, micros, &program));
 *     D9D_TRY(d9d_program_insert_p2p(&program));
 *     D9D_TRY(d9d_executor_create(&(d9d_executor_opts){.program = &program, .rank = rank,
 *                                 .dev = dev, .down = down, .up = up, .ops = &ops, .self = me},
 *                                 &x));
 *     each step:  D9D_TRY(d9d_executor_run(x));
 *
 * It knows nothing of models: whoever has the stages gives it a table of functions.  A rank alone
 * with one stage plays "0F0 0B0 0F1 0B1 ..." and sends nothing.
 *
 *     F     the stage's forward on a tape of the micro-batch's own, behind what the stage before
 *           has given; then no array stays but those that backward needs
 *     B     its backward, from the gradient that the stage behind has given; the tape is free then
 *     I W   the same in two halves; the tape is free after W
 *     SEND  hidden states go down the pipeline, their gradients up: posted, and waited for by
 *     RECV  the one action that needs them, or at the end of the step where nobody does
 *
 * Between two stages of one rank arrays change hands and nothing is copied.  Joined actions ("F|B")
 * of two stages are done in turns (d9d/base/coroutine.h): where one has rows of tokens under way to
 * other experts' ranks, what the other computes is queued before the device waits for them.
 *
 * Memory.  A forward whose backward is not through holds a tape, so that a rank has as many of them
 * at once as d9d_timeline's `live` says; tapes are used again.  What is received lies in arrays
 * that the executor keeps for the next micro-batches.  Sizes may differ from one micro-batch to the
 * next: both sides know them from the batch, and no message says them.
 *
 * On a GPU the two directions have queues of their own, so that a transfer which waits for its peer
 * holds up neither the computation nor the other direction; between GPUs of one host it takes no
 * multiprocessor from the computation either (d9d_p2p_ring_enable()).
 *
 * After a failure an executor is good for free alone.
 */
#ifndef D9D_PIPE_EXECUTOR_H
#define D9D_PIPE_EXECUTOR_H

#include "d9d/pipe/program.h"
#include "d9d/pipe/stage_timer.h"
#include "d9d/tape/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stages are counted in the whole pipeline. */
typedef struct d9d_executor_ops {
    /* Compute on `t`, which records in training.  in: hidden states, NULL for the first stage;
     * *out: hidden states, passed over for the last stage, whose backward takes no seed
     * (d9d_node_make_root()). */
    d9d_status (*forward)(void *self, int stage, int micro, d9d_tape *t, d9d_var *in,
                          d9d_var **out);
    /* Type and shape of a micro-batch's hidden states between stages, the same everywhere; before
     * any of its forwards. */
    d9d_status (*hidden)(void *self, int micro, d9d_dtype *dtype, d9d_shape *shape);
    /* A B, I or W of the stage comes now; `last`: the stage's parameters get no gradient after
     * it.  NULL: nothing to do. */
    d9d_status (*backward)(void *self, int stage, int micro, bool last);
    /* This rank has done all that it does with the micro-batch.  NULL: nothing to do. */
    void (*done)(void *self, int micro);
} d9d_executor_ops;

typedef struct d9d_executor d9d_executor;

typedef struct d9d_executor_opts {
    const d9d_program *program; /* connected; borrowed */
    int rank;                   /* whose lane is played */
    d9d_device *dev;
    d9d_comm *down, *up; /* the program's ranks in order: hidden states, and their gradients; the
                          * two may be one group.  NULL: a program of one rank */
    const d9d_executor_ops *ops;
    void *self;
} d9d_executor_opts;

/* EINVAL where the groups are not of the program's ranks.  Collective: over the groups. */
D9D_API D9D_MUST_USE d9d_status d9d_executor_create(const d9d_executor_opts *how,
                                                    d9d_executor **out);
D9D_API void d9d_executor_free(d9d_executor *x);

/* Do the rank's lane once.  On a GPU everything is queued then, and the device's stream goes on
 * behind all transfers.  Collective: over the groups. */
D9D_API D9D_MUST_USE d9d_status d9d_executor_run(d9d_executor *x);

/* From now on plays begin the meter anew and mark their computations; NULL: none.  Borrowed. */
D9D_API void d9d_executor_set_timer(d9d_executor *x, d9d_stage_timer *m);

/* The most forwards at once that had a tape, of all plays so far. */
D9D_API int d9d_executor_max_live(const d9d_executor *x);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PIPE_EXECUTOR_H */
