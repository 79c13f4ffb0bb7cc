/* moe.c - see moe.h. */
#include "moe.h"

/* As many rows as the offsets say. */
static d9d_status trim(d9d_device *dev, d9d_routing *r, int64_t experts)
{
    const int32_t *offset = d9d_tensor_data(&r->offset);
    d9d_tensor all = r->source;
    int32_t rows;

    D9D_TRY(d9d_device_download(dev, &rows, offset + experts, sizeof(rows)));
    r->source = d9d_tensor_rows(&all, 0, rows);
    d9d_tensor_release(&all);
    return D9D_OK;
}

d9d_status moe_route(const d9d_tensor *expert, int64_t experts, d9d_routing *out)
{
    const int64_t tokens = expert->shape.dim[0], k = expert->shape.dim[1];
    d9d_device *dev = d9d_tensor_device(expert);
    d9d_routing r = {.expert = d9d_tensor_ref(expert)};
    d9d_status st;

    D9D_TRY_OR(st, d9d_tensor_alloc(dev, D9D_I32, D9D_SHAPE(experts + 1), &r.offset), out);
    D9D_TRY_OR(st, d9d_tensor_alloc(dev, D9D_I32, D9D_SHAPE(tokens, k), &r.row), out);
    D9D_TRY_OR(st, d9d_tensor_alloc(dev, D9D_I32, D9D_SHAPE(tokens * k), &r.source), out);
    D9D_TRY_OR(st,
               dev->kernels->moe->sort_by_expert(
                   dev->stream, d9d_tensor_data(&r.offset), d9d_tensor_data(&r.row),
                   d9d_tensor_data(&r.source), d9d_tensor_data(expert), tokens, experts, k),
               out);
    D9D_TRY_OR(st, trim(dev, &r, experts), out);
    *out = r;
    r = (d9d_routing){0};
out:
    d9d_routing_release(&r);
    return st;
}
