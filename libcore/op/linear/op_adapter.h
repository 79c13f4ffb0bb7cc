/* op_adapter.h - what linear operations need beside products, to add what an adapter adds. */
#ifndef D9DI_OP_LINEAR_OP_ADAPTER_H
#define D9DI_OP_LINEAR_OP_ADAPTER_H

#include "op/op_common.h"

/* y = factor x; x itself where that is 1. */
d9d_status d9di_op_scale(d9d_tape *t, d9d_var *x, float factor, d9d_var **y);

/* What goes into an adapter: x / (1 - dropout), or 0, by the tape's draws; x itself where there are
 * none, or nothing is dropped.  Each adapter has a stream of its own; the element of a token is
 * that of the whole of its features.  EINVAL for rows that are not those of the draws. */
d9d_status d9di_op_adapter_input(d9d_tape *t, d9d_var *x, const d9d_adapter *adapter, d9d_var **y);

#endif /* D9DI_OP_LINEAR_OP_ADAPTER_H */
