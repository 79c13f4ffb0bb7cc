/* op_cp_heads.h - all-to-all of context parallelism (DeepSpeed-Ulysses): heads are exchanged for
 * positions before attention, and back after it.
 *
 *     positions   x [B, S, A, D]        the zigzag chunks of one of n ranks, all heads
 *     heads       y [B, n S, A/n, D]    sequences in order, this rank's heads
 *
 *     n = 2, A = 2      rank 0:  positions 0 3 of heads a b   ->  positions 0 1 2 3 of head a
 *                       rank 1:  positions 1 2 of heads a b   ->  positions 0 1 2 3 of head b
 *
 * Ranks beyond the key-value heads share them: with K below n, which K divides, each of n / K
 * neighbours gets the same head, and its gradient is their sum in rank order.
 */
#ifndef D9DI_OP_ATTENTION_OP_CP_HEADS_H
#define D9DI_OP_ATTENTION_OP_CP_HEADS_H

#include "op/attention/op_cp_gather.h"

/* EINVAL unless x is [B, S, heads, D] with two chunks in S, and the ranks divide the heads or, if
 * `shared`, are a multiple of them. */
d9d_status d9di_op_cp_heads_check(const char *op, const char *name, const d9di_op_cp *p,
                                  const d9d_tensor *x, bool shared);
/* x of positions to y of heads, and back; n arrays in one transfer.  Backward of one is the other;
 * deferred wgrads overlap with it.  The arrays fit, and the group has several ranks.  Collective.
 */
d9d_status d9di_op_cp_heads_scatter(d9d_tape *t, const d9di_op_cp *p, d9d_var *const *x, size_t n,
                                    d9d_var **y);
d9d_status d9di_op_cp_heads_gather(d9d_tape *t, const d9di_op_cp *p, d9d_var *x, int64_t heads,
                                   d9d_var **y);

#endif /* D9DI_OP_ATTENTION_OP_CP_HEADS_H */
