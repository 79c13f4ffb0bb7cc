/* event_list.h - the events of a stream in the order in which they were recorded.
 *
 *     d9d_event_list marks = {0};
 *     D9D_TRY(d9d_event_list_record(&marks, dev));
 *     ...
 *     D9D_TRY(d9d_event_list_elapsed_ms(&marks, i, &ms));   // from the event i to the next
 *     marks.n = 0;                                          // the next events reuse these
 *     d9d_event_list_release(&marks);
 */
#ifndef D9D_DEVICE_EVENT_LIST_H
#define D9D_DEVICE_EVENT_LIST_H

#include <stdbool.h>

#include "d9d/base/mem.h"
#include "d9d/device/device.h"
#include "d9d/device/readback.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_event_list {
    D9D_VEC(d9d_device_event *) made; /* as many as were ever recorded before n was 0 again */
    size_t n;                         /* recorded */
} d9d_event_list;

D9D_API void d9d_event_list_release(d9d_event_list *l);

/* Record one more on the device's stream; a failure leaves n as it was. */
D9D_API D9D_MUST_USE d9d_status d9d_event_list_record(d9d_event_list *l, d9d_device *dev);
/* Has the device passed the last event?  False if there is none. */
D9D_API bool d9d_event_list_is_done(const d9d_event_list *l);
/* The milliseconds between the events i and i + 1 < n, which the device has passed. */
D9D_API D9D_MUST_USE d9d_status d9d_event_list_elapsed_ms(const d9d_event_list *l, size_t i,
                                                          double *ms);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DEVICE_EVENT_LIST_H */
