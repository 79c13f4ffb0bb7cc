/* op_cp_ring.h - ring attention: the queries of one of n ranks over the keys of all, block by
 * block.
 *
 * A rank's block is its two zigzag chunks of keys and values.  At step i rank r computes with the
 * block of rank r - i, while that of rank r - i - 1 arrives:
 *
 *     n = 4, rank 0     step 0    1    2    3
 *     computes          block 0    3    2    1
 *     receives              3    2    1    -
 *     sends own to rank     1    2    3    -
 *
 * A block comes from its owner, not from the neighbour, so chunks that no query of a rank sees are
 * not sent to it: under a causal mask a quarter of all, under a window most.  Backward sends blocks
 * again, and their gradients back to the owners, one step later.
 *
 * Outputs of blocks are joined by their log-sum-exp, gradients are summed, in float32 and in the
 * order of steps.  Beside its own block a rank has two that come or are computed with; in backward
 * also two with gradients for owners, and one of the own.
 */
#ifndef D9DI_OP_ATTENTION_OP_CP_RING_H
#define D9DI_OP_ATTENTION_OP_CP_RING_H

#include "op/attention/op_cp_gather.h"

/* Inputs of a call; the dims count the keys of all ranks.  Backward reads all, forward q, k and v.
 */
typedef struct d9di_op_ring_in {
    const d9d_attention_dims *dims;
    const d9d_tensor *q, *k, *v, *o, *dout, *lse;
} d9di_op_ring_in;

/* Writes o and lse.  Collective. */
d9d_status d9di_op_ring_attention(d9d_tape *t, const d9di_op_cp *p, const d9di_op_ring_in *in,
                                  const d9d_tensor *o, const d9d_tensor *lse);
/* Writes dq, dk and dv, of the shapes of q, k and v.  Deferred wgrads overlap with the last
 * messages.  Collective. */
d9d_status d9di_op_ring_attention_bwd(d9d_tape *t, const d9di_op_cp *p, const d9di_op_ring_in *in,
                                      const d9d_tensor d[3]);

#endif /* D9DI_OP_ATTENTION_OP_CP_RING_H */
