/* op_routing.c - the arrays of a routing: allocation, references, trimming, numbers of tokens,
 * release.
 */
#include "d9d/device/readback.h"
#include "op/op_common.h"

void d9d_routing_release(d9d_routing *r)
{
    d9d_tensor_release(&r->expert);
    d9d_tensor_release(&r->offset);
    d9d_tensor_release(&r->row);
    d9d_tensor_release(&r->source);
    d9d_tensor_release(&r->number);
}

d9d_routing d9di_routing_ref(const d9d_routing *r)
{
    return (d9d_routing){d9d_tensor_ref(&r->expert),
                         d9d_tensor_ref(&r->offset),
                         d9d_tensor_ref(&r->row),
                         d9d_tensor_ref(&r->source),
                         d9d_tensor_ref(&r->number),
                         r->partial,
                         r->limited,
                         r->lower};
}

d9d_status d9di_routing_alloc(d9d_device *dev, int64_t tokens, int64_t experts, int64_t k,
                              d9d_routing *r)
{
    r->partial = r->limited = false;
    r->lower = 0;
    r->number = (d9d_tensor){0};
    D9D_TRY(d9d_tensor_alloc(dev, D9D_I32, D9D_SHAPE(tokens, k), &r->expert));
    D9D_TRY(d9d_tensor_alloc(dev, D9D_I32, D9D_SHAPE(experts + 1), &r->offset));
    D9D_TRY(d9d_tensor_alloc(dev, D9D_I32, D9D_SHAPE(tokens, k), &r->row));
    return d9d_tensor_alloc(dev, D9D_I32, D9D_SHAPE(tokens * k), &r->source);
}

/* Number of rows, the last offset, on the host. */
static d9d_status rows_read(d9d_device *dev, const d9d_tensor *offset, int64_t *out)
{
    const int32_t *last = (const int32_t *)d9d_tensor_data(offset) + d9d_tensor_numel(offset) - 1;
    const void *host;
    d9d_readback *back;
    d9d_status st;

    D9D_TRY(d9d_readback_create(dev, sizeof(*last), &back));
    D9D_TRY_OR(st, d9d_readback_enqueue(back, last), out);
    D9D_TRY_OR(st, d9d_readback_wait(back, &host), out);
    *out = *(const int32_t *)host;
out:
    d9d_readback_free(back);
    return st;
}

d9d_status d9d_op_routing_trim(d9d_tape *t, d9d_routing *r)
{
    d9d_tensor all = r->source;
    int64_t rows = 0;

    if (!r->limited)
        return D9D_OK;
    D9D_TRY(rows_read(d9d_tape_device(t), &r->offset, &rows));
    r->source = d9d_tensor_rows(&all, 0, rows);
    r->limited = false;
    d9d_tensor_release(&all);
    return D9D_OK;
}

d9d_status d9d_op_routing_number(d9d_tape *t, d9d_routing *r)
{
    const d9d_dropout_rng *rng = d9d_tape_dropout_rng(t);

    if (rng == NULL)
        return D9D_OK;
    d9d_tensor_release(&r->number);
    return d9di_op_dropout_tokens("routing", rng, r->expert.shape.dim[0], &r->number);
}
