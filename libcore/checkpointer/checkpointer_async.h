/* checkpointer_async.h - checkpoints that are written while training goes on.
 *
 *     step          k-1 |  k: forward, backward   update |  k+1  |  k+2  |  k+3  |
 *     training     begin|                     hold|             told            told
 *     thread, all       | copy ...... | write ............... |
 *     thread, rank 0                                            | commit, prune |
 *
 * Begin starts a thread, which copies what this rank keeps into host memory while the next step's
 * forward and backward read it too; hold waits for the copy before an update changes it.  Then the
 * thread writes the rank's files.  It talks to nobody: how far the ranks are is a number that each
 * adds to its next steps' reports, and when the sum says that all have written, rank 0's thread
 * makes the checkpoint of what they wrote and removes old ones; the same number says when.  A rank
 * that cannot write lets all of them leave after the step, with its sentence on every rank.
 *
 *     D9D_TRY(d9di_checkpointer_async_open(&how, &s));
 *     each period: D9D_TRY(d9di_checkpointer_async_begin(s, &state, wait));
 *     each step:   own.saved = d9di_checkpointer_async_progress(s, step);
 *                  D9D_TRY(d9di_checkpointer_async_wait_copy(s));           // then the update
 *                  ... D9D_TRY(d9di_checkpointer_async_advance(s, step, report->saved));
 *     at the end:  D9D_TRY(d9di_checkpointer_async_finish(s));
 *
 * One save is under way at a time: the next one waits for it.  A save that is waited for, and each
 * where there is no memory for a copy, is written from where the arrays are, by the caller. */
#ifndef D9DI_CHECKPOINTER_CHECKPOINTER_ASYNC_H
#define D9DI_CHECKPOINTER_CHECKPOINTER_ASYNC_H

#include "d9d/checkpointer/checkpointer.h"
#include "d9d/track/track.h"

typedef struct d9di_checkpointer_async d9di_checkpointer_async;

typedef struct d9di_checkpointer_async_opts {
    const char *dir;
    int64_t keep; /* as d9d_checkpointer_prune() */
    bool async;   /* false: all saves are waited for */
    const d9d_checkpointer_set
        *set;                 /* of all ranks' tensors and counts; borrowed with what it names */
    d9d_device *dev;          /* where its tensors are */
    d9d_mesh *mesh;           /* NULL: alone */
    double timeout_s;         /* for calls of ranks that wait for each other's writing */
    const char *timeout_name; /* what that is called */
    d9d_tracker *tracker; /* hears what each save cost; NULL: nobody, as on other ranks than 0 */
    const d9d_log *log;
} d9di_checkpointer_async_opts;

/* Takes the memory for the copy: as much as the set has here, pinned on the host.  A node that has
 * not so much is a warning, and no rank writes behind.  Collective: over the mesh. */
d9d_status d9di_checkpointer_async_open(const d9di_checkpointer_async_opts *how,
                                        d9di_checkpointer_async **out);
/* What is under way is given up.  NULL is fine, here and below: nothing is saved then. */
void d9di_checkpointer_async_close(d9di_checkpointer_async *s);

/* Save the set as of now.  `wait`: until the checkpoint is there.  From here to hold, the set's
 * tensors may be read alone, and what was written to them must be done.  Collective. */
d9d_status d9di_checkpointer_async_begin(d9di_checkpointer_async *s,
                                         const d9d_checkpointer_state *state, bool wait);
/* This rank's part of the number that belongs to a step which is queued now. */
double d9di_checkpointer_async_progress(d9di_checkpointer_async *s, int64_t step);
/* Until the tensors may be changed. */
d9d_status d9di_checkpointer_async_wait_copy(d9di_checkpointer_async *s);
/* The sum over ranks of a step's numbers, with which all ranks come here at the same point of their
 * program.  Collective. */
d9d_status d9di_checkpointer_async_advance(d9di_checkpointer_async *s, int64_t step, double sum);
/* Until the save that is under way is there; at once when there is none.  Collective. */
d9d_status d9di_checkpointer_async_finish(d9di_checkpointer_async *s);

#endif /* D9DI_CHECKPOINTER_CHECKPOINTER_ASYNC_H */
