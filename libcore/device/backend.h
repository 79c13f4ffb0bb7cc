/* backend.h - the interface of a device backend: raw memory, copies, events, and an opener.
 *
 * A new kind of processor is one file with such a table and one row in the table of backends in
 * device.c.
 */
#ifndef D9DI_DEVICE_BACKEND_H
#define D9DI_DEVICE_BACKEND_H

#include <stdbool.h>

#include "d9d/device/device.h"

typedef struct d9d_device_ops {
    /* n > 0 bytes from the system, aligned to 256; NULL if there are none. */
    void *(*alloc)(d9d_device *dev, uint64_t n);
    void (*free)(d9d_device *dev, void *p, uint64_t n);
    /* Bytes of memory that the processor has, and that are free; NULL if unknown. */
    void (*mem_info)(d9d_device *dev, uint64_t *has, uint64_t *left);
    /* For memory checkers; may be NULL: the first n bytes of the block are in use, the rest is
     * not. */
    void (*mark_block)(void *p, uint64_t n, uint64_t block);
    bool host_accessible; /* the host can access device memory */
    uint64_t slack;       /* bytes that may be cached beyond the most that was in use */
    d9d_status (*upload)(d9d_device *dev, void *dst, const void *host, uint64_t n);
    d9d_status (*download)(d9d_device *dev, void *host, const void *src, uint64_t n);
    d9d_status (*copy)(d9d_device *dev, void *dst, const void *src, uint64_t n);
    d9d_status (*sync)(d9d_device *dev);
    /* Pinned host memory; `fetch` copies device to host in stream order, without blocking. */
    d9d_status (*pin)(d9d_device *dev, uint64_t n, void **out);
    void (*unpin)(d9d_device *dev, void *host);
    d9d_status (*fetch)(d9d_device *dev, void *pinned, const void *src, uint64_t n,
                        d9d_stream stream); /* NULL: the compute stream */
    /* Device to pinned host memory at once, outside stream order; thread-safe. */
    d9d_status (*d2h)(d9d_device *dev, void *pinned, const void *src, uint64_t n);
    /* Host to device, thread-safe: `pinned` may be reused when an event recorded afterwards has
     * completed. */
    d9d_status (*h2d_async)(d9d_device *dev, void *dst, const void *pinned, uint64_t n);
    /* Events; one that was never recorded counts as complete. */
    d9d_status (*event_create)(d9d_device *dev, void **out);
    void (*event_free)(d9d_device *dev, void *event);
    d9d_status (*event_record)(d9d_device *dev, void *event,
                               d9d_stream stream); /* NULL: the compute stream */
    bool (*event_query)(d9d_device *dev, void *event);
    d9d_status (*event_wait)(d9d_device *dev, void *event);
    d9d_status (*event_elapsed_ms)(d9d_device *dev, void *from, void *to, double *ms);
    /* Streams for copies from and to pinned memory beside the compute stream, after whose work up
     * to an event they wait, as it waits for theirs (d9d/device/copy_stream.h). */
    d9d_status (*copy_stream_open)(d9d_device *dev, const char *name, const char *direction,
                                   void **out);
    void (*copy_stream_close)(d9d_device *dev, void *stream);
    d9d_status (*copy_stream_copy)(d9d_device *dev, void *stream, void *dst, const void *src,
                                   uint64_t n);
    d9d_status (*copy_stream_record)(d9d_device *dev, void *stream, void *event);
    d9d_status (*copy_stream_wait)(d9d_device *dev, void *stream, void *event);
    d9d_status (*compute_wait)(d9d_device *dev, void *event);
    /* Recording of what is enqueued on the compute stream (d9d/device/graph.h); NULL: none.  After
     * begin always end; it sets *graph only on success. */
    d9d_status (*graph_begin)(d9d_device *dev);
    d9d_status (*graph_end)(d9d_device *dev, void **graph);
    d9d_status (*graph_launch)(d9d_device *dev, void *graph);
    void (*graph_free)(d9d_device *dev, void *graph);
    /* Profiler ranges (NVTX) of the host thread; may be NULL. */
    void (*range_push)(d9d_device *dev, const char *name);
    void (*range_pop)(d9d_device *dev);
    void (*close)(d9d_device *dev); /* frees what the opener made; NULL: nothing */
} d9d_device_ops;

/* Count a time that the host blocked on the device. */
static inline void d9di_device_count_wait(d9d_device *dev)
{
    (void)__atomic_fetch_add(&dev->host_waits, 1, __ATOMIC_RELAXED);
}

/* Openers fill name, kernels, stream, ops and self of a zeroed device.  ENOTFOUND if the machine
 * has no such processor. */
d9d_status d9di_device_open_cpu(int index, d9d_device *dev);
/* device_cuda.c is compiled only with -DD9D_CUDA. */
#ifdef D9D_CUDA
d9d_status d9di_device_open_cuda(int index, d9d_device *dev);
#else
#define d9di_device_open_cuda NULL
#endif

/* Free the idle readbacks; before the device closes. */
void d9di_readback_free_idle(d9d_device *dev);

#endif /* D9DI_DEVICE_BACKEND_H */
