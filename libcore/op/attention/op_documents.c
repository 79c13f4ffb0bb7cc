/* op_documents.c - see op/attention/op_documents.h. */
#include "op/attention/op_documents.h"

d9d_status d9di_op_documents_check_segments(const char *op, const d9d_tensor *x,
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

d9d_status d9di_op_documents_check_state(const char *op, const d9d_tensor *segments,
                                         const d9d_op_state_cache *cache, d9d_dtype t,
                                         d9d_shape slot, bool recorded)
{
    const d9d_shape *s = cache != NULL ? &cache->slots->shape : NULL;
    bool fits = s != NULL && s->ndim == slot.ndim + 1;

    if (cache == NULL)
        return D9D_OK;
    if (segments == NULL)
        return D9D_FAIL(D9D_EINVAL, "%s: a state cache needs segments, and none are given", op);
    if (recorded)
        return D9D_FAIL(D9D_EINVAL, "%s: has no backward through a state cache", op);
    D9D_TRY(d9di_op_check(op, "slots", cache->slots, t));
    D9D_TRY(d9di_op_check(op, "slot_index", cache->slot_index, D9D_I32));
    for (int i = 0; fits && i < slot.ndim; i++)
        fits = s->dim[i + 1] == slot.dim[i];
    if (!fits)
        return d9di_op_misfit(op, "slots", s, "a slot", &slot, "slots are [R, ...]");
    if (d9d_tensor_numel(cache->slot_index) != segments->shape.dim[0])
        return d9di_op_misfit(op, "slot_index", &cache->slot_index->shape, "segments",
                              &segments->shape, "one slot for each segment");
    return D9D_OK;
}

d9d_varlen d9di_op_documents(const d9d_tensor *x, const d9d_tensor *segments)
{
    return (d9d_varlen){x->shape.dim[0], x->shape.dim[1],
                        segments != NULL ? segments->shape.dim[0] : 0,
                        segments != NULL ? d9d_tensor_data(segments) : NULL};
}
