/* backend.h - what a backend gives to make a device: raw memory, copies, an opener.
 *
 * A new kind of processor is one file with such a table and one row in the table of
 * backends in device.c.
 */
#ifndef D9DI_DEVICE_BACKEND_H
#define D9DI_DEVICE_BACKEND_H

#include <stdbool.h>

#include "d9d/device/device.h"

typedef struct d9d_device_ops {
    /* n > 0 bytes of the system's memory, aligned to 256; NULL when there are none. */
    void *(*alloc)(d9d_device *dev, uint64_t n);
    void (*free)(d9d_device *dev, void *p, uint64_t n);
    /* NULL where nobody can tell: bytes that the processor has, and that are free. */
    void (*mem_info)(d9d_device *dev, uint64_t *has, uint64_t *left);
    /* NULL, or: of the block's bytes the first n are handed out now, the rest is nobody's. */
    void (*mark_block)(void *p, uint64_t n, uint64_t block);
    bool host_accessible; /* the host reads and writes the device's memory itself */
    uint64_t slack;       /* bytes that may lie in the cache though never so many were in use */
    d9d_status (*upload)(d9d_device *dev, void *dst, const void *host, uint64_t n);
    d9d_status (*download)(d9d_device *dev, void *host, const void *src, uint64_t n);
    d9d_status (*copy)(d9d_device *dev, void *dst, const void *src, uint64_t n);
    d9d_status (*sync)(d9d_device *dev);
    /* Memory of the host that `fetch` copies to in the order of the queue, without waiting. */
    d9d_status (*pin)(d9d_device *dev, uint64_t n, void **out);
    void (*unpin)(d9d_device *dev, void *host);
    d9d_status (*fetch)(d9d_device *dev, void *pinned, const void *src, uint64_t n,
                        d9d_stream stream); /* NULL: its own */
    /* To pinned memory at once, beside the queue, from any thread. */
    d9d_status (*d2h)(d9d_device *dev, void *pinned, const void *src, uint64_t n);
    /* The other way, from any thread: the memory may be used again when a mark that was set
     * afterwards has been passed. */
    d9d_status (*h2d_async)(d9d_device *dev, void *dst, const void *pinned, uint64_t n);
    /* Points in the queue; one that was never set has been passed. */
    d9d_status (*event_create)(d9d_device *dev, void **out);
    void (*event_free)(d9d_device *dev, void *event);
    d9d_status (*event_record)(d9d_device *dev, void *event, d9d_stream stream); /* NULL: its own */
    bool (*event_query)(d9d_device *dev, void *event);
    d9d_status (*event_wait)(d9d_device *dev, void *event);
    d9d_status (*event_elapsed_ms)(d9d_device *dev, void *from, void *to, double *ms);
    /* NULL, or: ranges of the host's thread, for the maker's own tools. */
    void (*range_push)(d9d_device *dev, const char *name);
    void (*range_pop)(d9d_device *dev);
    void (*close)(d9d_device *dev); /* what the opener made; NULL: nothing */
} d9d_device_ops;

/* The host stood still until the device had come somewhere. */
static inline void d9di_device_count_wait(d9d_device *dev)
{
    (void)__atomic_fetch_add(&dev->host_waits, 1, __ATOMIC_RELAXED);
}

/* Openers fill name, kernels, stream, ops and self of a zeroed device.  ENOTFOUND when the machine
 * has no such processor. */
d9d_status d9di_device_open_cpu(int index, d9d_device *dev);
/* Builds that have its file are compiled with -DD9D_CUDA. */
#ifdef D9D_CUDA
d9d_status d9di_device_open_cuda(int index, d9d_device *dev);
#else
#define d9di_device_open_cuda NULL
#endif

/* Release the readbacks that it keeps idle, before it closes. */
void d9di_readback_free_idle(d9d_device *dev);

#endif /* D9DI_DEVICE_BACKEND_H */
