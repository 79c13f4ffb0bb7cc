/* readback.h - events in a device's streams, and asynchronous device-to-host copies that do not
 * wait for later work.
 *
 * A host that runs ahead of its device reads a step's loss while the next step is already enqueued:
 *
 *     D9D_TRY(d9d_readback_create(dev, sizeof(loss), &r));
 *     ... enqueue a step ...
 *     D9D_TRY(d9d_readback_enqueue(r, on_device));    // copied after the step
 *     ... enqueue the next one ...
 *     D9D_TRY(d9d_readback_wait(r, &host));           // waits for the first step only
 *
 * On the CPU, where work is complete when a call returns, all of it is immediate.
 */
#ifndef D9D_DEVICE_READBACK_H
#define D9D_DEVICE_READBACK_H

#include <stdbool.h>

#include "d9d/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_device_event d9d_device_event;

D9D_API D9D_MUST_USE d9d_status d9d_device_event_create(d9d_device *dev, d9d_device_event **out);
D9D_API void d9d_device_event_free(d9d_device_event *e); /* NULL is fine */
/* Record the event after the work enqueued so far; it may be recorded again. */
D9D_API D9D_MUST_USE d9d_status d9d_device_event_record(d9d_device_event *e);
/* The same on another stream of the device. */
D9D_API D9D_MUST_USE d9d_status d9d_device_event_record_on(d9d_device_event *e, d9d_stream stream);
/* True if the device has reached the event, or it was never recorded. */
D9D_API bool d9d_device_event_query(const d9d_device_event *e);
D9D_API D9D_MUST_USE d9d_status d9d_device_event_wait(d9d_device_event *e);
/* Milliseconds between two events that the device has reached. */
D9D_API D9D_MUST_USE d9d_status d9d_device_event_elapsed_ms(const d9d_device_event *from,
                                                            const d9d_device_event *to,
                                                            double *out);

typedef struct d9d_readback d9d_readback;

D9D_API D9D_MUST_USE d9d_status d9d_readback_create(d9d_device *dev, uint64_t bytes,
                                                    d9d_readback **out);
/* NULL is fine.  The device reuses it for the next create of the same size. */
D9D_API void d9d_readback_free(d9d_readback *r);
/* Enqueue the copy of all its bytes from `src` on the compute stream. */
D9D_API D9D_MUST_USE d9d_status d9d_readback_enqueue(d9d_readback *r, const void *src);
/* The same on another stream of the device; NULL: the compute stream. */
D9D_API D9D_MUST_USE d9d_status d9d_readback_enqueue_on(d9d_readback *r, const void *src,
                                                        d9d_stream stream);
/* True if d9d_readback_wait() would not block. */
D9D_API bool d9d_readback_ready(const d9d_readback *r);
/* Wait for the copy.  *out is valid until the next enqueue. */
D9D_API D9D_MUST_USE d9d_status d9d_readback_wait(d9d_readback *r, const void **out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DEVICE_READBACK_H */
