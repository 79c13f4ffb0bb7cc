/* pinned_pool.h - a caching allocator of pinned host memory.
 *
 * Pinning takes a second for a GiB, so a block that is freed serves the next request of its size
 * class, as in the device's own pool (d9d/device/device.h): what repeats in every step pins in the
 * first alone.  A block may be freed as soon as the compute stream waits for the copies from and to
 * it.
 */
#ifndef D9D_DEVICE_PINNED_POOL_H
#define D9D_DEVICE_PINNED_POOL_H

#include "d9d/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_pinned_pool d9d_pinned_pool;

D9D_API D9D_MUST_USE d9d_status d9d_pinned_pool_create(d9d_device *dev, d9d_pinned_pool **out);
/* Every block must have been freed.  NULL is fine. */
D9D_API void d9d_pinned_pool_free(d9d_pinned_pool *p);

/* EOOM if the host has less available: it would kill a job that asks for more. */
D9D_API D9D_MUST_USE d9d_status d9d_pinned_pool_take(d9d_pinned_pool *p, uint64_t n, void **out);
/* n as it was taken; NULL is fine. */
D9D_API void d9d_pinned_pool_give(d9d_pinned_pool *p, void *block, uint64_t n);

D9D_API d9d_device_stats d9d_pinned_pool_memory(const d9d_pinned_pool *p);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DEVICE_PINNED_POOL_H */
