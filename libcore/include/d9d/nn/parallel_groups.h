/* parallel_groups.h - the groups of ranks over which a layer's work is cut.
 *
 * Blocks ask it where their tokens, heads, positions and experts lie; a plan (d9d/parallel/) fills
 * it once for the model, and everything that is NULL is not cut.  Blocks are straight-line code:
 * operations between ranks do nothing in a group of one.
 *
 * With tp ranks the tokens between blocks are cut too (sequence parallel): of T = B S tokens in a
 * row each rank has T / tp, in order, so that norms, the router and residual sums work on their
 * part alone.  Inside attention and the dense FFN every rank has all T tokens, of a part of the
 * heads or columns:
 *
 *     x [T/tp, H] -norm- gather -> [T, H] - q k v (A/tp heads) - o_proj -> sums [T, H] - reduce
 *     and scatter -> [T/tp, H] + x
 *
 * With cp ranks each has S / cp positions of every row, two pieces that cost about the same under
 * a causal mask (rank r of n: pieces r and 2n - 1 - r of 2n); attention gathers keys and values.
 *
 * Experts are dealt over `ep`, whose ranks all have different tokens.
 *
 * Batches are padded so that T / tp and S / (2 cp) are whole numbers.
 */
#ifndef D9D_NN_PARALLEL_GROUPS_H
#define D9D_NN_PARALLEL_GROUPS_H

#include "d9d/comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_groups {
    d9d_comm *tp, *cp, *ep;
} d9d_groups;

static inline d9d_comm *d9d_groups_tp(const d9d_groups *c)
{
    return c != NULL ? c->tp : NULL;
}
static inline d9d_comm *d9d_groups_cp(const d9d_groups *c)
{
    return c != NULL ? c->cp : NULL;
}
static inline d9d_comm *d9d_groups_ep(const d9d_groups *c)
{
    return c != NULL ? c->ep : NULL;
}

#ifdef __cplusplus
}
#endif
#endif /* D9D_NN_PARALLEL_GROUPS_H */
