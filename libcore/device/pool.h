/* pool.h - the caching allocator of a device.
 *
 * Sizes are rounded up to a size class: eight classes between two powers of two, none below 256
 * bytes.  Freed blocks go to the free list of their class, last in first out.
 *
 * If the list is empty, the system is asked.  The system may have nothing left, or the limit may be
 * reached, as in steps whose sizes change and fill the device.  Then a block of a slightly larger
 * class serves, for a loose request one of up to twice the size.  Else the least recently used
 * cached blocks are freed, no more of them than needed: freeing waits for the device.
 */
#ifndef D9D_DEVICE_POOL_H
#define D9D_DEVICE_POOL_H

#include "d9d/base/mem.h"
#include "d9d/device/device.h"

/* create sets dev->pool; free returns the cached blocks to the system. */
d9d_status d9di_pool_create(d9d_device *dev);
void d9di_pool_free(d9d_device *dev);

/* The size class of n bytes: its number, or -1 if n is too large; *block is its block size. */
int d9di_pool_class(uint64_t n, uint64_t *block);

/* Between begin and end, blocks that are freed are held, and serve nobody until they are released.
 */
typedef struct d9di_pool_held {
    void *p;
    uint64_t n;
} d9di_pool_held;
typedef struct d9di_pool_hold {
    D9D_VEC(d9di_pool_held) blocks;
    bool failed; /* no memory to list one, which was not held */
} d9di_pool_hold;
void d9di_pool_hold_begin(d9d_device *dev);
void d9di_pool_hold_end(d9d_device *dev, d9di_pool_hold *out);
void d9di_pool_hold_release(d9d_device *dev, d9di_pool_hold *h);

#endif /* D9D_DEVICE_POOL_H */
