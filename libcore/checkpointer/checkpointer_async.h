/* checkpointer_async.h - asynchronous saves: checkpoints that are written while training continues.
 *
 *     step          k-1 |  k: forward, backward   update |  k+1  |  k+2  |  k+3  |
 *     training     begin|                wait_copy|         advance         advance
 *     thread, all       | copy ...... | write ............... |
 *     thread, first rank of 64                                  | merge |
 *     thread, rank 0                                                    | commit, prune |
 *
 * begin() starts a thread, which copies this rank's part into host memory while the next step's
 * forward and backward read the same tensors.  wait_copy() waits for the copy before the update
 * changes them. The thread then writes the rank's files.
 *
 * The thread uses no collectives.  Each rank adds its progress to the number that is summed with
 * every step's report.  When the sum says that all ranks have written, the first rank of each
 * directory merges what its ranks say; then rank 0's thread commits the checkpoint and prunes old
 * ones.  The sum reports each in the same way.  If a rank cannot
 * write, all ranks exit after the step, and each returns that rank's error.
 *
 *     D9D_TRY(d9di_checkpointer_async_open(&opts, &s));
 *     each period: D9D_TRY(d9di_checkpointer_async_begin(s, &state, wait));
 *     each step:   own.saved = d9di_checkpointer_async_progress(s, step);
 *                  D9D_TRY(d9di_checkpointer_async_wait_copy(s));           // then the update
 *                  ... D9D_TRY(d9di_checkpointer_async_advance(s, step, report->saved));
 *     at the end:  D9D_TRY(d9di_checkpointer_async_finish(s));
 *
 * One save is in flight at a time.  The next one waits for it as long as the period between them,
 * and at least patience_s, but no longer than half of timeout_s, as other ranks wait with it. After
 * that it is left out, with a warning, and training goes on.  A synchronous save, and every save
 * without memory for the host copy, is written by the caller directly from the tensors. */
#ifndef D9DI_CHECKPOINTER_CHECKPOINTER_ASYNC_H
#define D9DI_CHECKPOINTER_CHECKPOINTER_ASYNC_H

#include "d9d/checkpointer/checkpointer.h"
#include "d9d/track/track.h"

typedef struct d9di_checkpointer_async d9di_checkpointer_async;

typedef struct d9di_checkpointer_async_opts {
    const char *dir;
    int64_t keep;                    /* as for d9d_checkpointer_prune() */
    bool async;                      /* false: all saves are synchronous */
    const d9d_checkpointer_set *set; /* tensors and counts of all ranks; borrowed with its names */
    d9d_device *dev;                 /* where its tensors are */
    d9d_mesh *mesh;                  /* NULL: alone */
    double patience_s;               /* how long a save waits at least for the one in flight */
    double timeout_s;                /* of collective calls that wait for other ranks' writing */
    const char *timeout_name;        /* its name in messages */
    d9d_tracker *tracker; /* records what each save cost; NULL: none, as on ranks other than 0 */
    const d9d_log *log;
} d9di_checkpointer_async_opts;

/* Allocates the host copy: pinned memory for this rank's part of the set.  If a node has too little
 * memory, the function logs a warning and all ranks save synchronously.  Collective over the
 * mesh. */
d9d_status d9di_checkpointer_async_open(const d9di_checkpointer_async_opts *opts,
                                        d9di_checkpointer_async **out);
/* Abandons a save in flight.  NULL is fine for this and the functions below; nothing is saved
 * then. */
void d9di_checkpointer_async_close(d9di_checkpointer_async *s);

/* Saves the set as of now.  `wait`: returns when the checkpoint is complete; otherwise the save may
 * be left out, and *begun is then false, on all ranks.  All writes to the
 * set's tensors must have completed; until wait_copy() they may only be read.  Collective. */
d9d_status d9di_checkpointer_async_begin(d9di_checkpointer_async *s,
                                         const d9d_checkpointer_state *state, bool wait,
                                         bool *begun);
/* This rank's contribution to the progress number of the step being enqueued. */
double d9di_checkpointer_async_progress(d9di_checkpointer_async *s, int64_t step);
/* Waits until the tensors may be changed. */
d9d_status d9di_checkpointer_async_wait_copy(d9di_checkpointer_async *s);
/* Advances the save, given the sum of a step's progress numbers over all ranks.  All ranks call it
 * at the same point of the program.  Collective. */
d9d_status d9di_checkpointer_async_advance(d9di_checkpointer_async *s, int64_t step, double sum);
/* The step of the newest checkpoint that this process completed; -1: none. */
int64_t d9di_checkpointer_async_committed(const d9di_checkpointer_async *s);
/* Waits for the save in flight, if any.  Collective. */
d9d_status d9di_checkpointer_async_finish(d9di_checkpointer_async *s);

#endif /* D9DI_CHECKPOINTER_CHECKPOINTER_ASYNC_H */
