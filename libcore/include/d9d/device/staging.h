/* staging.h - many threads filling a device's memory at the speed of its link.
 *
 * A few parts of host memory that the device reads by itself.  A thread takes a free one, fills
 * it, and sends it; the part is free again when the device has read it, and nobody waits before
 * all parts are under way:
 *
 *     thread 1   take, read file into it, send          take ...
 *     thread 2        take, read file into it, send          take ...
 *     device                              copy     copy ...
 *
 *     D9D_TRY(d9d_staging_open(dev, 24, 4 << 20, &s));
 *     D9D_TRY(d9d_staging_acquire(s, dst, n, &room));      // n <= 4 << 20
 *     D9D_TRY_OR(st, read(file, room, n), ...);
 *     D9D_TRY(d9d_staging_submit(s, dst, n, room));       // or d9d_staging_cancel(s, room)
 *     ...
 *     d9d_staging_close(s);
 *
 * Where the host can write to the device's memory the room is `dst` itself, and no part is made.
 * What was sent lies in the device's queue before what its thread queues afterwards.
 */
#ifndef D9D_DEVICE_STAGING_H
#define D9D_DEVICE_STAGING_H

#include "d9d/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_staging d9d_staging;

/* `buffers` > 0 of `bytes` > 0 each, pinned when they are first taken.  A thread has one at a time;
 * with fewer parts than threads they wait for each other. */
D9D_API D9D_MUST_USE d9d_status d9d_staging_open(d9d_device *dev, int buffers, uint64_t bytes,
                                                 d9d_staging **out);
/* Waits for what is under way; every room was sent or dropped.  NULL is fine. */
D9D_API void d9d_staging_close(d9d_staging *s);

/* Thread-safe.  A room for n <= bytes, which are to go to `dst`; waits for a free part.  EOOM when
 * the host cannot lend it. */
D9D_API D9D_MUST_USE d9d_status d9d_staging_acquire(d9d_staging *s, void *dst, uint64_t n,
                                                    void **buffer);
/* Both give the room back, in the thread that took it, send also where it fails. */
D9D_API D9D_MUST_USE d9d_status d9d_staging_submit(d9d_staging *s, void *dst, uint64_t n,
                                                   void *buffer);
D9D_API void d9d_staging_cancel(d9d_staging *s, void *buffer);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DEVICE_STAGING_H */
