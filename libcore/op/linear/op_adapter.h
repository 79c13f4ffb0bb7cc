/* op_adapter.h - helpers of linear ops to add a LoRA adapter's product.
 */
#ifndef D9DI_OP_LINEAR_OP_ADAPTER_H
#define D9DI_OP_LINEAR_OP_ADAPTER_H

#include "op/op_common.h"

/* The input of an adapter with dropout: each element is 0 or x / (1 - dropout), by the tape's
 * dropout RNG.  y is x itself if the tape has none, or the dropout is 0.  Each adapter has an RNG
 * stream of its own; an element's offset in it is its index over all tokens.  EINVAL if the rows of
 * x are not those of the RNG. */
d9d_status d9di_op_adapter_input(d9d_tape *t, d9d_var *x, const d9d_adapter *adapter, d9d_var **y);

#endif /* D9DI_OP_LINEAR_OP_ADAPTER_H */
