/* timeline.h - simulates a pipeline program with given costs: when each action runs, and which rank
 * waits.
 *
 *     D9D_TRY(d9d_timeline_make(&program, &prices, &t));
 *     printf("bubble %.1f %%\n", 100 * t.bubble);
 *     d9d_timeline_release(&t);
 *
 * Each rank runs its actions in order.  Transfers overlap with computation: a payload arrives
 * `transfer` after it was computed, and only the action that needs it waits.  With P ranks, M
 * micro-batches and stages of equal cost the bubble of 1f1b is (P - 1) / (M + P - 1).  That of
 * zero_bubble with F, I and W of equal cost is (P - 1) / (3 M + P - 1).
 */
#ifndef D9D_PIPE_TIMELINE_H
#define D9D_PIPE_TIMELINE_H

#include "d9d/pipe/program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Cost of one micro-batch, in seconds or any other unit. */
typedef struct d9d_stage_costs {
    double forward, dgrad, wgrad; /* B is dgrad + wgrad */
} d9d_stage_costs;

typedef struct d9d_pipe_costs {
    const d9d_stage_costs *stages; /* [stages] */
    double transfer;               /* one micro-batch's tensors between two ranks */
    double overlap; /* fraction of the shorter joined action that is hidden, 0 to 1 */
} d9d_pipe_costs;

typedef struct d9d_timeline_span {
    double begin, end; /* a transfer begins and ends when it is complete */
} d9d_timeline_span;

typedef struct d9d_timeline {
    int ranks;
    d9d_timeline_span **spans; /* [ranks][actions of the lane] */
    double total;              /* end of the last action */
    double bubble;             /* share of ranks x total in which a rank computes nothing */
    double *busy;              /* [ranks] */
    int *live;                 /* [ranks]: most forwards alive at once; B and W end one */
} d9d_timeline;

/* EINVAL for a program that deadlocks. */
D9D_API D9D_MUST_USE d9d_status d9d_timeline_make(const d9d_program *p,
                                                  const d9d_pipe_costs *prices, d9d_timeline *out);
D9D_API void d9d_timeline_release(d9d_timeline *t);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PIPE_TIMELINE_H */
