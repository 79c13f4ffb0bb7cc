/* timeline.h - a program played with prices: when each action runs, and what waits.
 *
 *     D9D_TRY(d9d_timeline_make(&program, &prices, &t));
 *     printf("bubble %.1f %%\n", 100 * t.bubble);
 *     d9d_timeline_release(&t);
 *
 * Each rank does its actions in turn.  Transfers go beside the computation: what was computed is at
 * the other rank `transfer` later, and only the action that needs it waits.  With stages of equal
 * price, ranks P and micro-batches M the bubble of 1f1b is (P - 1) / (M + P - 1), that of
 * zero_bubble with equal thirds (P - 1) / (3 M + P - 1).
 */
#ifndef D9D_PIPE_TIMELINE_H
#define D9D_PIPE_TIMELINE_H

#include "d9d/pipe/program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Seconds, or any unit, of one micro-batch. */
typedef struct d9d_stage_costs {
    double forward, dgrad, wgrad; /* a whole backward is input + weight */
} d9d_stage_costs;

typedef struct d9d_pipe_costs {
    const d9d_stage_costs *stages; /* [stages] */
    double transfer;               /* of a micro-batch's hidden states between two ranks */
    double overlap; /* of joined actions the shorter's part, 0 to 1, that is hidden */
} d9d_pipe_costs;

typedef struct d9d_timeline_span {
    double begin, end; /* a transfer begins and ends when it is done with */
} d9d_timeline_span;

typedef struct d9d_timeline {
    int ranks;
    d9d_timeline_span **spans; /* [ranks][actions of the lane] */
    double total;              /* end of the last action */
    double bubble;             /* share of ranks x total in which a rank computes nothing */
    double *busy;              /* [ranks] */
    int *live; /* [ranks]: most forwards at once whose backward is not through; B and W free */
} d9d_timeline;

/* EINVAL for a program that cannot end. */
D9D_API D9D_MUST_USE d9d_status d9d_timeline_make(const d9d_program *p,
                                                  const d9d_pipe_costs *prices, d9d_timeline *out);
D9D_API void d9d_timeline_release(d9d_timeline *t);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PIPE_TIMELINE_H */
