/* readback.h - points in the queue of a device, and reading back without waiting for what
 * comes later.
 *
 * A host that runs ahead of its device learns of a step's loss while the next step is
 * already queued:
 *
 *     D9D_TRY(d9d_readback_create(dev, sizeof(loss), &r));
 *     ... queue a step ...
 *     D9D_TRY(d9d_readback_enqueue(r, on_device));     // queued behind the step
 *     ... queue the next one ...
 *     D9D_TRY(d9d_readback_wait(r, &host));           // waits for the first alone
 *
 * On the CPU, where work is done when a call returns, all of it is immediate.
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
/* Mark the end of what is queued now; an event may be recorded again. */
D9D_API D9D_MUST_USE d9d_status d9d_device_event_record(d9d_device_event *e);
/* The same of another queue of the device. */
D9D_API D9D_MUST_USE d9d_status d9d_device_event_record_on(d9d_device_event *e, d9d_stream queue);
/* Has the device come there?  Also true of an event that was never recorded. */
D9D_API bool d9d_device_event_query(const d9d_device_event *e);
D9D_API D9D_MUST_USE d9d_status d9d_device_event_wait(d9d_device_event *e);
/* Milliseconds from one to the other, both passed. */
D9D_API D9D_MUST_USE d9d_status d9d_device_event_elapsed_ms(const d9d_device_event *from,
                                                            const d9d_device_event *to,
                                                            double *out);

typedef struct d9d_readback d9d_readback;

D9D_API D9D_MUST_USE d9d_status d9d_readback_create(d9d_device *dev, uint64_t bytes,
                                                    d9d_readback **out);
/* NULL is fine.  The device keeps it for the next that is created for as many bytes. */
D9D_API void d9d_readback_free(d9d_readback *r);
/* Queue the copy of all its bytes from `src` on the device. */
D9D_API D9D_MUST_USE d9d_status d9d_readback_enqueue(d9d_readback *r, const void *src);
/* The same behind what is on another queue of the device; NULL: its own. */
D9D_API D9D_MUST_USE d9d_status d9d_readback_enqueue_on(d9d_readback *r, const void *src,
                                                        d9d_stream queue);
/* Would d9d_readback_wait() return at once? */
D9D_API bool d9d_readback_ready(const d9d_readback *r);
/* The bytes, valid until the next begin. */
D9D_API D9D_MUST_USE d9d_status d9d_readback_wait(d9d_readback *r, const void **out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DEVICE_READBACK_H */
