/* op_adapter.h - what linear operations need beside products, to add what an adapter adds. */
#ifndef D9D_OP_OP_ADAPTER_H
#define D9D_OP_OP_ADAPTER_H

#include "op/op_common.h"

/* y = factor x; x itself where that is 1. */
d9d_status d9di_op_scale(d9d_tape *t, d9d_var *x, float factor, d9d_var **y);

#endif /* D9D_OP_OP_ADAPTER_H */
