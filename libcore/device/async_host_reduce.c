/* async_host_reduce.c - see d9d/device/async_host_reduce.h. */
#include "d9d/device/async_host_reduce.h"

#include <string.h>

static d9d_status buffers_alloc(d9d_async_host_reduce *c, d9d_device *dev, uint64_t bytes)
{
    if (c->dev != NULL)
        return bytes == c->bytes
                   ? D9D_OK
                   : D9D_FAIL(D9D_EINVAL, "async_host_reduce: %llu bytes, it is for %llu",
                              (unsigned long long)bytes, (unsigned long long)c->bytes);
    c->dev = dev;
    c->bytes = bytes;
    D9D_TRY(d9d_device_pin(dev, bytes, &c->pinned));
    D9D_TRY(d9d_device_alloc(dev, bytes, &c->device_buf));
    return d9d_readback_create(dev, bytes, &c->readback);
}

d9d_status d9d_async_host_reduce_start(d9d_async_host_reduce *c, d9d_device *dev, d9d_comm *world,
                                       const char *label, d9d_dtype t, const void *local, int64_t n,
                                       d9d_comm_op op)
{
    D9D_TRY(buffers_alloc(c, dev, (uint64_t)n * d9d_dtype_size(t)));
    memcpy(c->pinned, local, c->bytes);
    D9D_TRY(d9d_device_h2d_async(dev, c->device_buf, c->pinned, c->bytes));
    D9D_TRY(d9d_comm_all_reduce(world, dev->stream, label, t, c->device_buf, n, op));
    return d9d_readback_enqueue(c->readback, c->device_buf);
}

d9d_status d9d_async_host_reduce_wait(d9d_async_host_reduce *c, void *all)
{
    const void *back;

    D9D_TRY(d9d_readback_wait(c->readback, &back));
    memcpy(all, back, c->bytes);
    return D9D_OK;
}

void d9d_async_host_reduce_release(d9d_async_host_reduce *c)
{
    if (c->dev != NULL) {
        d9d_readback_free(c->readback);
        d9d_device_unpin(c->dev, c->pinned);
        if (c->device_buf != NULL)
            d9d_device_free(c->dev, c->device_buf, c->bytes);
    }
    *c = (d9d_async_host_reduce){0};
}
