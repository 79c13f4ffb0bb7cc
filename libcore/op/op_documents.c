/* op_documents.c - see op/op_documents.h. */
#include "op/op_documents.h"

d9d_status d9di_documents_check_list(const char *op, const d9d_tensor *x,
                                     const d9d_tensor *segments)
{
    if (segments == NULL)
        return D9D_OK;
    D9D_TRY(d9di_op_check(op, "segments", segments, D9D_I32));
    if (segments->shape.ndim != 2 || segments->shape.dim[1] != 4)
        return d9di_op_misfit(op, "segments", &segments->shape, "x", &x->shape,
                              "segments are [N, 4]");
    return D9D_OK;
}

d9d_documents d9di_documents_of(const d9d_tensor *x, const d9d_tensor *segments)
{
    return (d9d_documents){x->shape.dim[0], x->shape.dim[1],
                           segments != NULL ? segments->shape.dim[0] : 0,
                           segments != NULL ? d9d_tensor_data(segments) : NULL};
}
