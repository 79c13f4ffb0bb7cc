/* op_documents.h - packed documents (varlen) and state slots, for ops whose state restarts at each
 * document.
 */
#ifndef D9DI_OP_ATTENTION_OP_DOCUMENTS_H
#define D9DI_OP_ATTENTION_OP_DOCUMENTS_H

#include "op/op_common.h"

/* EINVAL unless the segments are NULL or [N, 4] int32. */
d9d_status d9di_op_documents_check_segments(const char *op, const d9d_tensor *x,
                                            const d9d_tensor *segments);
/* EINVAL unless kept is NULL, or fits the segments of x, has slots of shape `slot` and type t, and
 * nothing is recorded. */
d9d_status d9di_op_documents_check_state(const char *op, const d9d_tensor *segments,
                                         const d9d_op_state_cache *cache, d9d_dtype t,
                                         d9d_shape slot, bool recorded);
static inline d9d_state_slots d9di_op_state_slots(const d9d_op_state_cache *cache)
{
    return (d9d_state_slots){d9d_tensor_data(cache->slots), d9d_tensor_data(cache->slot_index)};
}
/* The documents of x [B, S, ...] for kernels. */
d9d_varlen d9di_op_documents(const d9d_tensor *x, const d9d_tensor *segments);

#endif /* D9DI_OP_ATTENTION_OP_DOCUMENTS_H */
