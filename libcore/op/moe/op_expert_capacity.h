/* op_expert_capacity.h - expert capacity: which choices of a token go beyond what their experts
 * take of a sequence.
 *
 * A sequence of L tokens, k choices each, gives each of E experts at most
 *
 *     capacity = ceil(L k / E * factor)
 *
 * choices, those of its first tokens.  Later ones are dropped: the expert id becomes -1, and the
 * choice adds nothing to its token.  What is dropped depends on the sequence alone, and of it only
 * on earlier tokens, so a causal model stays causal.  Ranks that have parts of a sequence gather
 * its choices, 4 bytes each.
 */
#ifndef D9DI_OP_MOE_OP_EXPERT_CAPACITY_H
#define D9DI_OP_MOE_OP_EXPERT_CAPACITY_H

#include "op/op_common.h"

/* Places in a sequence are computed in float32: a sequence has at most so many choices. */
enum { D9DI_EXPERT_CAPACITY_CHOICES_MAX = 1 << 24 };

/* kept [T, k] int32, allocated, becomes `expert` with -1 for dropped choices; dropped [T, k] int32,
 * which the caller releases, 1 for them, else 0.  Collective over opts->tp and opts->cp.  The tape
 * has token weights; T is all of their tokens, or this tp rank's. */
d9d_status d9di_op_expert_capacity(d9d_tape *t, const d9d_op_router_opts *opts,
                                   const d9d_router_dims *n, const d9d_tensor *expert,
                                   const d9d_tensor *kept, d9d_tensor *dropped);

#endif /* D9DI_OP_MOE_OP_EXPERT_CAPACITY_H */
