/* trace.h - what a device spends its time on, as a timeline that browsers show.
 *
 *     d9d_trace *t;
 *     D9D_TRY(d9d_trace_open(dev, &t));              // from here on dev->trace is t
 *     d9d_trace_begin(dev, "step 12");
 *     ... queue a product ...
 *     d9d_trace_mark(dev, "linear", "");              // what was queued since the last mark
 *     d9d_trace_end(dev);
 *     D9D_TRY(d9d_trace_close(t, "trace.json", 0, &top));
 *
 * Ranges nest; laps fill the innermost one.  Each is shown twice: when the device did it, and
 * when the host queued it.  What other queues of the device do beside has a lane a queue:
 *
 *     d9d_trace_stream_range_begin(dev, queue, "unshard", "layers.3");
 *     ... queue it there ...
 *     d9d_trace_stream_range_end(dev, queue);
 *
  The file is Chrome's trace format (chrome://tracing, Perfetto), one
 * process a rank.  Ranges are also given to NVIDIA's tools (NVTX), trace or not.
 *
 * Without an open trace begin, end and lap cost next to nothing.  They belong to the device's
 * thread and never fail: what could not be kept is said by close.
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
/* Wait for the device, write the file and end the trace, also where writing fails.  `top` (may be
 * NULL) gets the laps that took longest, in words: "linear wgrad 31 %, attention 22 %, ...". */
D9D_API D9D_MUST_USE d9d_status d9d_trace_close(d9d_trace *t, const char *path, int rank,
                                                d9d_buf *top);
/* The same into memory: what the file would have is appended to `text`. */
D9D_API D9D_MUST_USE d9d_status d9d_trace_text(d9d_trace *t, int rank, d9d_buf *text, d9d_buf *top);
/* End the trace without a file; NULL is fine. */
D9D_API void d9d_trace_discard(d9d_trace *t);

/* Names are copied by begin and borrowed, for as long as the trace, by lap. */
D9D_API void d9d_trace_begin(d9d_device *dev, const char *fmt, ...) D9D_PRINTF(2, 3);
D9D_API void d9d_trace_end(d9d_device *dev);
/* "linear" and "wgrad" are shown as "linear wgrad"; the second may be "". */
D9D_API void d9d_trace_mark(d9d_device *dev, const char *name, const char *what);
/* Names as of laps.  Of one queue they do not nest. */
D9D_API void d9d_trace_stream_range_begin(d9d_device *dev, d9d_stream queue, const char *name,
                                          const char *what);
D9D_API void d9d_trace_stream_range_end(d9d_device *dev, d9d_stream queue);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DEVICE_TRACE_H */
