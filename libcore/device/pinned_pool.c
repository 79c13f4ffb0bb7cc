/* pinned_pool.c - see d9d/device/pinned_pool.h.  The pool is that of a device whose memory is the
 * host's. */
#include "d9d/device/pinned_pool.h"

#include <stdlib.h>

#include "d9d/base/mem.h"
#include "d9d/kernels/sim.h"
#include "device/backend.h"
#include "device/pool.h"

struct d9d_pinned_pool {
    d9d_device host; /* only its pool is used */
    d9d_device *dev; /* that pins */
};

static void *host_alloc(d9d_device *host, uint64_t n)
{
    d9d_device *dev = ((d9d_pinned_pool *)host->self)->dev;
    void *p = NULL;

    if (dev->kernels != d9d_kernels_sim() && n > d9d_mem_available())
        return NULL;
    return d9d_device_pin(dev, n, &p) == D9D_OK ? p : NULL;
}

static void host_free(d9d_device *host, void *p, uint64_t n)
{
    d9d_device *dev = ((d9d_pinned_pool *)host->self)->dev;

    (void)n;
    (void)!d9d_device_sync(dev); /* copies that the compute stream waits for */
    d9d_device_unpin(dev, p);
}

static void host_mem_info(d9d_device *host, uint64_t *has, uint64_t *left)
{
    *left = d9d_mem_available();
    *has = *left + d9d_device_memory(host).reserved;
}

d9d_status d9d_pinned_pool_create(d9d_device *dev, d9d_pinned_pool **out)
{
    static const d9d_device_ops ops = {
        .alloc = host_alloc, .free = host_free, .mem_info = host_mem_info};
    d9d_pinned_pool *p = calloc(1, sizeof(*p));
    d9d_status st;

    if (p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a pool of host memory", dev->name);
    p->dev = dev;
    p->host = (d9d_device){.name = "pinned memory", .ops = &ops, .self = p};
    st = d9di_pool_create(&p->host);
    if (st == D9D_OK)
        *out = p;
    else
        free(p);
    return st;
}

void d9d_pinned_pool_free(d9d_pinned_pool *p)
{
    if (p == NULL)
        return;
    d9di_pool_free(&p->host);
    free(p);
}

d9d_status d9d_pinned_pool_take(d9d_pinned_pool *p, uint64_t n, void **out)
{
    return d9d_device_alloc(&p->host, n, out);
}

void d9d_pinned_pool_give(d9d_pinned_pool *p, void *block, uint64_t n)
{
    d9d_device_free(&p->host, block, n);
}

d9d_device_stats d9d_pinned_pool_memory(const d9d_pinned_pool *p)
{
    return d9d_device_memory(&p->host);
}
