/* pool.h - the caching allocator of a device.
 *
 * Sizes are rounded up to a size class: eight classes between two powers of two, none below 256
 * bytes.  Freed blocks go to the free list of their class, last in first out.
 *
 * If the list is empty, the system is asked.  The system may have nothing left, or the limit may be
 * reached, as in steps whose sizes change and fill the device.  Then a block of a slightly larger
 * class serves.  Else the least recently used cached blocks are freed, no more of them than needed:
 * freeing waits for the device.
 */
#ifndef D9D_DEVICE_POOL_H
#define D9D_DEVICE_POOL_H

#include "d9d/device/device.h"

/* create sets dev->pool; free returns the cached blocks to the system. */
d9d_status d9di_pool_create(d9d_device *dev);
void d9di_pool_free(d9d_device *dev);

/* The size class of n bytes: its number, or -1 if n is too large; *block is its block size. */
int d9di_pool_class(uint64_t n, uint64_t *block);

#endif /* D9D_DEVICE_POOL_H */
