/* op_routing.c - the arrays of a routing: allocation, references, release.
 */
#include "op/op_common.h"

void d9d_routing_release(d9d_routing *r)
{
    d9d_tensor_release(&r->expert);
    d9d_tensor_release(&r->offset);
    d9d_tensor_release(&r->row);
    d9d_tensor_release(&r->source);
}

d9d_routing d9di_routing_ref(const d9d_routing *r)
{
    return (d9d_routing){d9d_tensor_ref(&r->expert), d9d_tensor_ref(&r->offset),
                         d9d_tensor_ref(&r->row), d9d_tensor_ref(&r->source), r->partial};
}

d9d_status d9di_routing_alloc(d9d_device *dev, int64_t tokens, int64_t experts, int64_t k,
                              d9d_routing *r)
{
    r->partial = false;
    D9D_TRY(d9d_tensor_alloc(dev, D9D_I32, D9D_SHAPE(tokens, k), &r->expert));
    D9D_TRY(d9d_tensor_alloc(dev, D9D_I32, D9D_SHAPE(experts + 1), &r->offset));
    D9D_TRY(d9d_tensor_alloc(dev, D9D_I32, D9D_SHAPE(tokens, k), &r->row));
    return d9d_tensor_alloc(dev, D9D_I32, D9D_SHAPE(tokens * k), &r->source);
}
