/* trace.h - a timeline of what a device spends its time on, in Chrome's trace format.
 *
 *     d9d_trace *t;
 *     D9D_TRY(d9d_trace_open(dev, &t));              // from here on dev->trace is t
 *     d9d_trace_begin(dev, "step 12");
 *     ... enqueue a GEMM ...
 *     d9d_trace_mark(dev, "linear", "");             // names the work since the last mark
 *     d9d_trace_end(dev);
 *     D9D_TRY(d9d_trace_close(t, "trace.json", 0, &top));
 *
 * Ranges nest; marks divide the innermost one.  Each is shown twice: when the device executed it,
 * and when the host enqueued it.  Each other stream of the device has a lane of its own:
 *
 *     d9d_trace_stream_range_begin(dev, stream, "unshard", "layers.3");
 *     ... enqueue it there ...
 *     d9d_trace_stream_range_end(dev, stream);
 *
 * Perfetto and chrome://tracing read the file; each rank is one process in it.  Ranges are also
 * given to NVIDIA's tools (NVTX), with or without a trace.
 *
 * Without an open trace begin, end and mark cost next to nothing.  They belong to the device's
 * thread and never fail: close reports what could not be recorded.
 */
#ifndef D9D_DEVICE_TRACE_H
#define D9D_DEVICE_TRACE_H

#include "d9d/base/mem.h"
#include "d9d/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_trace d9d_trace;

D9D_API D9D_MUST_USE d9d_status d9d_trace_open(d9d_device *dev, d9d_trace **out);
/* Wait for the device, write the file and free the trace, also if writing fails.  `top` (may be
 * NULL) gets the marks that took longest as text: "linear wgrad 31 %, attention 22 %, ...". */
D9D_API D9D_MUST_USE d9d_status d9d_trace_close(d9d_trace *t, const char *path, int rank,
                                                d9d_buf *top);
/* The same into memory: appends the content of the file to `text`. */
D9D_API D9D_MUST_USE d9d_status d9d_trace_text(d9d_trace *t, int rank, d9d_buf *text, d9d_buf *top);
/* Free the trace without writing a file; NULL is fine. */
D9D_API void d9d_trace_discard(d9d_trace *t);

/* begin copies its name; mark borrows its names until the trace is freed. */
D9D_API void d9d_trace_begin(d9d_device *dev, const char *fmt, ...) D9D_PRINTF(2, 3);
D9D_API void d9d_trace_end(d9d_device *dev);
/* "linear" and "wgrad" are shown as "linear wgrad"; `what` may be "". */
D9D_API void d9d_trace_mark(d9d_device *dev, const char *name, const char *what);
/* Names are borrowed as mark's are.  Ranges of one stream do not nest. */
D9D_API void d9d_trace_stream_range_begin(d9d_device *dev, d9d_stream stream, const char *name,
                                          const char *what);
D9D_API void d9d_trace_stream_range_end(d9d_device *dev, d9d_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DEVICE_TRACE_H */
