/* op_adapter.h - helpers of linear ops to add a LoRA adapter's product.
 */
#ifndef D9DI_OP_LINEAR_OP_ADAPTER_H
#define D9DI_OP_LINEAR_OP_ADAPTER_H

#include "op/op_common.h"

/* The input of an adapter with its dropout, d9d_op_dropout() with A as the site. */
d9d_status d9di_op_adapter_input(d9d_tape *t, d9d_var *x, const d9d_adapter *adapter, d9d_var **y);

#endif /* D9DI_OP_LINEAR_OP_ADAPTER_H */
