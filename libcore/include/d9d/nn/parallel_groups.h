/* parallel_groups.h - the process groups over which a layer's work is divided: tensor, context and
 * expert parallel.
 *
 * Blocks read from it where their tokens, heads, positions and experts are.  A plan (d9d/parallel/)
 * fills it once for the model; a NULL group means that this dimension is not divided.  Blocks are
 * straight-line code: ops between ranks do nothing in a group of one.
 *
 * With tp ranks the tokens between blocks are divided too (sequence parallel): of T = B S tokens
 * each rank has T / tp, in order.  Norms, the router and residual sums work on that part only.
 * Inside attention and the dense FFN every rank has all T tokens and a part of the heads or
 * columns:
 *
 *     x [T/tp, H] -norm- all-gather -> [T, H] - q k v (A/tp heads) - o_proj -> sums [T, H] -
 *     reduce-scatter -> [T/tp, H] + x
 *
 * With cp ranks each has S / cp positions of every sequence, as two zigzag chunks whose cost is
 * about equal under a causal mask (rank r of n: chunks r and 2n - 1 - r of 2n).  Attention gathers
 * keys and values over `cp`, or with `cp_ring` computes with one rank's after the other's.  Or it
 * exchanges heads for positions over `cp_heads`, neighbours in cp, and gathers, or goes round,
 * `cp_keys`, the ranks of cp with the same number among such neighbours (d9d/comm/cp_method.h).
 *
 * Experts are divided over `ep`, whose ranks all have different tokens.  With `ep_local` they are
 * divided over the nodes of `ep`, one rank of each, and in a node over `ep_local`: a token goes
 * once to each node that has an expert of it, and there to the ranks that have one.  What comes
 * back is summed over the ranks of a node first.
 *
 * Batches are padded so that T / tp and S / (2 cp) are integers.
 */
#ifndef D9D_NN_PARALLEL_GROUPS_H
#define D9D_NN_PARALLEL_GROUPS_H

#include "d9d/comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_groups {
    d9d_comm *tp, *cp, *ep, *ep_local;
    d9d_comm *cp_heads, *cp_keys;
    bool cp_ring;
} d9d_groups;

static inline d9d_comm *d9d_groups_tp(const d9d_groups *c)
{
    return c != NULL ? c->tp : NULL;
}
static inline d9d_comm *d9d_groups_cp(const d9d_groups *c)
{
    return c != NULL ? c->cp : NULL;
}
static inline d9d_comm *d9d_groups_cp_heads(const d9d_groups *c)
{
    return c != NULL ? c->cp_heads : NULL;
}
/* The ranks over which attention gathers keys and values, or goes round. */
static inline d9d_comm *d9d_groups_cp_keys(const d9d_groups *c)
{
    return d9d_groups_cp_heads(c) != NULL ? c->cp_keys : d9d_groups_cp(c);
}
static inline bool d9d_groups_cp_ring(const d9d_groups *c)
{
    return c != NULL && c->cp_ring;
}
static inline d9d_comm *d9d_groups_ep(const d9d_groups *c)
{
    return c != NULL ? c->ep : NULL;
}
static inline d9d_comm *d9d_groups_ep_local(const d9d_groups *c)
{
    return c != NULL ? c->ep_local : NULL;
}

#ifdef __cplusplus
}
#endif
#endif /* D9D_NN_PARALLEL_GROUPS_H */
