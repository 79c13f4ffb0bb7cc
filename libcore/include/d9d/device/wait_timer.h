/* wait_timer.h - how long the work of a device's compute stream stands still, because the ranks
 * wait for each other.
 *
 *     D9D_TRY(d9d_wait_timer_create(dev, &t));
 *     d9d_mesh_observe_waits(mesh, dev->stream, d9d_wait_timer_mark, t);
 *     ... enqueue a step ...
 *     D9D_TRY(d9d_wait_timer_read(t, &ms));       // when the device has passed the step's end
 *
 *     stream    | compute | wait | compute | wait |
 *     marks               ^      ^         ^      ^
 *
 * Marks are events of the stream, so measuring never blocks.  On the CPU they are the host's clock.
 * What is left of a step's time is what this rank itself took for it.
 */
#ifndef D9D_DEVICE_WAIT_TIMER_H
#define D9D_DEVICE_WAIT_TIMER_H

#include <stdbool.h>

#include "d9d/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_wait_timer d9d_wait_timer;

D9D_API D9D_MUST_USE d9d_status d9d_wait_timer_create(d9d_device *dev, d9d_wait_timer **out);
D9D_API void d9d_wait_timer_free(d9d_wait_timer *t); /* NULL is fine */

/* Forget all marks. */
D9D_API void d9d_wait_timer_reset(d9d_wait_timer *t);
/* A wait begins or ends; for d9d_mesh_observe_waits().  A failure is reported by the next read. */
D9D_API void d9d_wait_timer_mark(void *t, bool begins);
/* The milliseconds of all waits since the reset, NaN if they were more than 32,000.  The device has
 * passed the last mark. */
D9D_API D9D_MUST_USE d9d_status d9d_wait_timer_read(const d9d_wait_timer *t, double *ms);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DEVICE_WAIT_TIMER_H */
