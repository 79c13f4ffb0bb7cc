/* staging.h - staging buffers through which many threads fill device memory at the speed of the
 * link.
 *
 * A few buffers of pinned host memory that the device copies from.  A thread acquires a free one,
 * fills it and submits it.  The buffer is free again when the device has read it; a thread blocks
 * only while all buffers are in use:
 *
 *     thread 1   acquire, read file into it, submit          acquire ...
 *     thread 2        acquire, read file into it, submit          acquire ...
 *     device                                  copy     copy ...
 *
 *     D9D_TRY(d9d_staging_open(dev, 24, 4 << 20, &s));
 *     D9D_TRY(d9d_staging_acquire(s, dst, n, &buffer));     // n <= 4 << 20
 *     D9D_TRY_OR(st, read(file, buffer, n), ...);
 *     D9D_TRY(d9d_staging_submit(s, dst, n, buffer));       // or d9d_staging_cancel(s, buffer)
 *     ...
 *     d9d_staging_close(s);
 *
 * Where the host can write device memory, the buffer is `dst` itself and nothing is allocated.  The
 * copy that a thread submits precedes work which that thread enqueues afterwards.
 */
#ifndef D9D_DEVICE_STAGING_H
#define D9D_DEVICE_STAGING_H

#include "d9d/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_staging d9d_staging;

/* `buffers` > 0 of `bytes` > 0 each, pinned at their first use.  A thread holds one at a time; with
 * fewer buffers than threads, threads wait for each other. */
D9D_API D9D_MUST_USE d9d_status d9d_staging_open(d9d_device *dev, int buffers, uint64_t bytes,
                                                 d9d_staging **out);
/* Waits for pending copies; every buffer must have been submitted or cancelled.  NULL is fine. */
D9D_API void d9d_staging_close(d9d_staging *s);

/* A buffer for n <= bytes that will be copied to `dst`; blocks until one is free.  Thread-safe.
 * EOOM if host memory cannot be pinned. */
D9D_API D9D_MUST_USE d9d_status d9d_staging_acquire(d9d_staging *s, void *dst, uint64_t n,
                                                    void **buffer);
/* Copy the buffer to `dst`, or give it up.  Both release it, in the thread that acquired it; submit
 * also if it fails. */
D9D_API D9D_MUST_USE d9d_status d9d_staging_submit(d9d_staging *s, void *dst, uint64_t n,
                                                   void *buffer);
D9D_API void d9d_staging_cancel(d9d_staging *s, void *buffer);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DEVICE_STAGING_H */
