/* copy_stream.h - copies between device and host beside the compute stream.
 *
 *     D9D_TRY(d9d_copy_stream_create(dev, "activations", "to host", &out));
 *     ... enqueue what writes x ...
 *     D9D_TRY(d9d_copy_stream_follow(out));              // after what is enqueued so far,
 *     D9D_TRY(d9d_copy_stream_copy(out, pinned, x, n));  // beside what is enqueued from here on
 *     D9D_TRY(d9d_copy_stream_record(out, copied));
 *     ... enqueue work that does not need the copy ...
 *     D9D_TRY(d9d_copy_stream_join(copied));             // compute continues after the copy
 *
 * The host waits nowhere.  No SM moves the data.  On the CPU a copy is complete when
 * the call returns; on a simulated device it takes the bus to the host, one copy of a stream after
 * the other.
 */
#ifndef D9D_DEVICE_COPY_STREAM_H
#define D9D_DEVICE_COPY_STREAM_H

#include "d9d/device/readback.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_copy_stream d9d_copy_stream;

/* `name` and `direction` say in plans what is copied, and where to; borrowed. */
D9D_API D9D_MUST_USE d9d_status d9d_copy_stream_create(d9d_device *dev, const char *name,
                                                       const char *direction,
                                                       d9d_copy_stream **out);
/* Its copies must be complete.  NULL is fine. */
D9D_API void d9d_copy_stream_free(d9d_copy_stream *s);
/* Later copies start when the compute stream has done what is enqueued on it now. */
D9D_API D9D_MUST_USE d9d_status d9d_copy_stream_follow(d9d_copy_stream *s);
/* One of the two is device memory, the other pinned (d9d_device_pin()). */
D9D_API D9D_MUST_USE d9d_status d9d_copy_stream_copy(d9d_copy_stream *s, void *dst, const void *src,
                                                     uint64_t n);
/* Record the event after the copies enqueued so far. */
D9D_API D9D_MUST_USE d9d_status d9d_copy_stream_record(d9d_copy_stream *s, d9d_device_event *e);
/* What is enqueued on the compute stream from here on starts after the event. */
D9D_API D9D_MUST_USE d9d_status d9d_copy_stream_join(d9d_device_event *e);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DEVICE_COPY_STREAM_H */
