/* async_host_reduce.c - see d9d/device/async_host_reduce.h. */
#include "d9d/device/async_host_reduce.h"

#include <string.h>

static d9d_status room_take(d9d_crossing *c, d9d_device *dev, uint64_t bytes)
{
    if (c->dev != NULL)
        return bytes == c->bytes
                   ? D9D_OK
                   : D9D_FAIL(D9D_EINVAL, "crossing: %llu bytes, it is for %llu",
                              (unsigned long long)bytes, (unsigned long long)c->bytes);
    c->dev = dev;
    c->bytes = bytes;
    D9D_TRY(d9d_device_pin(dev, bytes, &c->pinned));
    D9D_TRY(d9d_device_alloc(dev, bytes, &c->device));
    return d9d_readback_create(dev, bytes, &c->back);
}

d9d_status d9d_crossing_begin(d9d_crossing *c, d9d_device *dev, d9d_comm *world, const char *what,
                              d9d_dtype t, const void *mine, int64_t n, d9d_comm_op op)
{
    D9D_TRY(room_take(c, dev, (uint64_t)n * d9d_dtype_size(t)));
    memcpy(c->pinned, mine, c->bytes);
    D9D_TRY(d9d_device_send(dev, c->device, c->pinned, c->bytes));
    D9D_TRY(d9d_comm_all_reduce(world, dev->stream, what, t, c->device, n, op));
    return d9d_readback_begin(c->back, c->device);
}

d9d_status d9d_crossing_end(d9d_crossing *c, void *all)
{
    const void *back;

    D9D_TRY(d9d_readback_end(c->back, &back));
    memcpy(all, back, c->bytes);
    return D9D_OK;
}

void d9d_crossing_release(d9d_crossing *c)
{
    if (c->dev != NULL) {
        d9d_readback_free(c->back);
        d9d_device_unpin(c->dev, c->pinned);
        if (c->device != NULL)
            d9d_device_free(c->dev, c->device, c->bytes);
    }
    *c = (d9d_crossing){0};
}
