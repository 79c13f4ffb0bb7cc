/* op_adapter.c - dropout of the input of an adapter.  See op/linear/op_adapter.h. */
#include "op/linear/op_adapter.h"

d9d_status d9di_op_adapter_input(d9d_tape *t, d9d_var *x, const d9d_adapter *adapter, d9d_var **y)
{
    const d9d_param *a = adapter->a;

    return d9d_op_dropout(t, x,
                          &(d9d_op_dropout_opts){.p = adapter->dropout,
                                                 .site = a,
                                                 .first = a->local.offset[1],
                                                 .width = a->spec.shape.dim[1]},
                          y);
}
