/* graph.h - a sequence of kernel launches that is recorded once and replayed (CUDA graphs).
 *
 *     D9D_TRY(d9d_graph_begin(dev));
 *     st = forward(...);                          // enqueues kernels, which do not run
 *     D9D_TRY(d9d_graph_end(dev, st, &graph));
 *     D9D_TRY(d9d_graph_launch(graph));           // runs them
 *
 * Every replay reads and writes the same arrays.  Those that were allocated and freed in between
 * belong to the graph.  In between uploads, downloads and waits are refused: enqueue the same work
 * once before, so that nothing is left to prepare.
 */
#ifndef D9D_DEVICE_GRAPH_H
#define D9D_DEVICE_GRAPH_H

#include "d9d/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_graph d9d_graph;

/* False for processors without graphs, and while a trace is open, which times each launch. */
D9D_API bool d9d_graph_is_supported(const d9d_device *dev);
D9D_API D9D_MUST_USE d9d_status d9d_graph_begin(d9d_device *dev);
/* Always after begin, with the status of what was enqueued; fails with it. */
D9D_API D9D_MUST_USE d9d_status d9d_graph_end(d9d_device *dev, d9d_status enqueued,
                                              d9d_graph **out);
D9D_API D9D_MUST_USE d9d_status d9d_graph_launch(d9d_graph *g);
D9D_API void d9d_graph_free(d9d_graph *g); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif /* D9D_DEVICE_GRAPH_H */
