/* expert_placement.h - which experts have copies, and on which ranks: a function of their loads.
 *
 * Of n ranks each owns E / n neighbouring experts and has slots for copies of others'
 * (d9d/nn/expert_copies.h).  Hot experts are copied to ranks with little load:
 *
 *     load of experts       9 1 |  2 1 |  1 1      of ranks   10    3    2
 *     copies of experts     2   |  0   |  0        of ranks  5.1  5.1  4.8
 *
 * The same loads give the same placement on every rank.
 */
#ifndef D9D_PARALLEL_EXPERT_PLACEMENT_H
#define D9D_PARALLEL_EXPERT_PLACEMENT_H

#include <stdint.h>

#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_expert_placement {
    int ranks;
    int64_t experts; /* a multiple of ranks */
    int64_t slots;   /* of a rank, at most experts / ranks */
    int32_t *expert; /* [ranks, slots]: of a rank ascending; -1 behind the last */
} d9d_expert_placement;

/* Fills p->expert by the loads [E] of experts, none negative.
 *
 * The expert with the largest load per holder gets the next copy, of equals the lowest.  It goes to
 * the rank with the least load that has a free slot and does not hold the expert, of equals the
 * lowest.  So all slots are filled; then the copies after the moment with the least largest load of
 * a rank are taken back, of equals after the earliest.  That largest load never rises.  ENOMEM. */
D9D_API D9D_MUST_USE d9d_status d9d_expert_placement_choose(d9d_expert_placement *p,
                                                            const double *load);
/* The load of each rank [ranks]; an expert's holders share its load as lanes do
 * (d9d_op_route_copies()). */
D9D_API void d9d_expert_placement_loads(const d9d_expert_placement *p, const double *load,
                                        double *rank);
/* The largest load of a rank over the mean; 1 where there is no load, NaN where no memory is left.
 */
D9D_API double d9d_expert_placement_imbalance(const d9d_expert_placement *p, const double *load);
D9D_API int64_t d9d_expert_placement_copies(const d9d_expert_placement *p);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PARALLEL_EXPERT_PLACEMENT_H */
