/* pool.h - the caching allocator of a device.
 *
 * Sizes are rounded up to a class: eight classes between two powers of two, none below
 * 256 bytes.  Freed blocks wait in the list of their class, last in first out.
 *
 * Where the list is empty the system is asked.  When that has nothing left, or the limit is
 * reached, as in steps whose sizes change and fill the device, a block of a class that is little
 * larger serves; else cached ones are given back, those that were not asked for the longest, and
 * no more of them than make room: giving back waits for the device.
 */
#ifndef D9D_DEVICE_POOL_H
#define D9D_DEVICE_POOL_H

#include "d9d/device/device.h"

/* On success dev->pool is set; released by free, which gives cached blocks back. */
d9d_status d9di_pool_create(d9d_device *dev);
void d9di_pool_free(d9d_device *dev);

/* The class that n bytes fall into: its number, or -1 when n is absurd, and its block size. */
int d9di_pool_class(uint64_t n, uint64_t *block);

#endif /* D9D_DEVICE_POOL_H */
