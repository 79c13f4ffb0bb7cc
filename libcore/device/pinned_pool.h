/* pinned_pool.h - a caching allocator of pinned host memory.
 *
 * Pinning takes a second for a few GiB, so a block that is freed serves the next request of its
 * size class (device/pool.h): what repeats in every step pins in the first alone.  A block may be
 * freed as soon as the compute stream waits for the copies from and to it.
 */
#ifndef D9DI_DEVICE_PINNED_POOL_H
#define D9DI_DEVICE_PINNED_POOL_H

#include "d9d/device/device.h"

typedef struct d9di_pinned_pool d9di_pinned_pool;

d9d_status d9di_pinned_pool_create(d9d_device *dev, d9di_pinned_pool **out);
/* Every block must have been freed.  NULL is fine. */
void d9di_pinned_pool_free(d9di_pinned_pool *p);

/* EOOM if the host has less available: it would kill a job that asks for more. */
d9d_status d9di_pinned_pool_take(d9di_pinned_pool *p, uint64_t n, void **out);
/* n as it was taken; NULL is fine. */
void d9di_pinned_pool_give(d9di_pinned_pool *p, void *block, uint64_t n);

d9d_device_stats d9di_pinned_pool_memory(const d9di_pinned_pool *p);

#endif /* D9DI_DEVICE_PINNED_POOL_H */
