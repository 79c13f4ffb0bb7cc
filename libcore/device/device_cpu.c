/* device_cpu.c - the CPU backend: host memory; work is complete when a call returns. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "d9d/base/thread.h"
#include "device/backend.h"

/* Large blocks start on a huge page and ask for them: fewer page faults and TLB misses. */
enum { ALIGN = 256, HUGE_PAGE = 2 << 20, HUGE_FROM = 8 << 20 };

static void *cpu_alloc(d9d_device *dev, uint64_t n)
{
    void *p = NULL;

    (void)dev;
    if (posix_memalign(&p, n >= HUGE_FROM ? HUGE_PAGE : ALIGN, n) != 0)
        return NULL;
    if (n >= HUGE_FROM)
        (void)madvise(p, n, MADV_HUGEPAGE); /* a hint; the kernel may lack huge pages */
    return p;
}

static void cpu_free(d9d_device *dev, void *p, uint64_t n)
{
    (void)dev, (void)n;
    free(p);
}

/* In a sanitizer build cached blocks and the slack of blocks in use are poisoned, and fresh memory
 * is all NaNs, so that nothing comes to rely on zeros. */
#ifdef __has_feature
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>

static void cpu_mark_block(void *p, uint64_t n, uint64_t block)
{
    ASAN_UNPOISON_MEMORY_REGION(p, block);
    memset(p, 0xff, n);
    ASAN_POISON_MEMORY_REGION((char *)p + n, block - n);
}
#else
#define cpu_mark_block NULL
#endif

static d9d_status cpu_copy(d9d_device *dev, void *dst, const void *src, uint64_t n)
{
    (void)dev;
    memcpy(dst, src, n);
    return D9D_OK;
}

static d9d_status cpu_d2h_async(d9d_device *dev, void *dst, const void *src, uint64_t n,
                                d9d_stream stream)
{
    (void)stream;
    return cpu_copy(dev, dst, src, n);
}

static d9d_status cpu_sync(d9d_device *dev)
{
    (void)dev;
    return D9D_OK;
}

/* --- events and readback: work is complete when a call returns ----------------------- */

static d9d_status cpu_pin(d9d_device *dev, uint64_t n, void **out)
{
    void *p = malloc(n > 0 ? n : 1);

    if (p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory: %llu bytes requested", dev->name,
                        (unsigned long long)n);
    *out = p;
    return D9D_OK;
}

static void cpu_unpin(d9d_device *dev, void *host)
{
    (void)dev;
    free(host);
}

/* An event is the time at which it was recorded. */
static d9d_status cpu_event_create(d9d_device *dev, void **out)
{
    int64_t *at = calloc(1, sizeof(*at));

    if (at == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory for an event", dev->name);
    *out = at;
    return D9D_OK;
}

static d9d_status cpu_event_record(d9d_device *dev, void *event, d9d_stream stream)
{
    (void)dev, (void)stream;
    *(int64_t *)event = d9d_clock_ns();
    return D9D_OK;
}

static bool cpu_event_query(d9d_device *dev, void *event)
{
    (void)dev, (void)event;
    return true;
}

static d9d_status cpu_event_wait(d9d_device *dev, void *event)
{
    (void)dev, (void)event;
    return D9D_OK;
}

static d9d_status cpu_event_elapsed_ms(d9d_device *dev, void *from, void *to, double *ms)
{
    (void)dev;
    *ms = (double)(*(int64_t *)to - *(int64_t *)from) * 1e-6;
    return D9D_OK;
}

/* --- streams of copies: there is nothing beside which they could run ------------------ */

static d9d_status cpu_copy_stream_open(d9d_device *dev, const char *name, const char *direction,
                                       void **out)
{
    (void)dev, (void)name, (void)direction;
    *out = NULL;
    return D9D_OK;
}

static void cpu_copy_stream_close(d9d_device *dev, void *stream)
{
    (void)dev, (void)stream;
}

static d9d_status cpu_copy_stream_copy(d9d_device *dev, void *stream, void *dst, const void *src,
                                       uint64_t n)
{
    (void)stream;
    return cpu_copy(dev, dst, src, n);
}

static d9d_status cpu_copy_stream_record(d9d_device *dev, void *stream, void *event)
{
    (void)stream;
    return cpu_event_record(dev, event, NULL);
}

static d9d_status cpu_copy_stream_wait(d9d_device *dev, void *stream, void *event)
{
    (void)stream;
    return cpu_event_wait(dev, event);
}

d9d_status d9di_device_open_cpu(int index, d9d_device *dev)
{
    static const d9d_device_ops ops = {
        .alloc = cpu_alloc,
        .free = cpu_free,
        .mark_block = cpu_mark_block,
        .host_accessible = true,
        .upload = cpu_copy,
        .download = cpu_copy,
        .copy = cpu_copy,
        .sync = cpu_sync,
        .pin = cpu_pin,
        .unpin = cpu_unpin,
        .fetch = cpu_d2h_async,
        .d2h = cpu_copy,
        .h2d_async = cpu_copy,
        .event_create = cpu_event_create,
        .event_free = cpu_unpin,
        .event_record = cpu_event_record,
        .event_query = cpu_event_query,
        .event_wait = cpu_event_wait,
        .event_elapsed_ms = cpu_event_elapsed_ms,
        .copy_stream_open = cpu_copy_stream_open,
        .copy_stream_close = cpu_copy_stream_close,
        .copy_stream_copy = cpu_copy_stream_copy,
        .copy_stream_record = cpu_copy_stream_record,
        .copy_stream_wait = cpu_copy_stream_wait,
        .compute_wait = cpu_event_wait,
    };

    (void)index;
    dev->name = "cpu";
    dev->kernels = d9d_kernels_cpu();
    dev->ops = &ops;
    dev->has_fp8 = true;
    dev->chip = "cpu";
    return D9D_OK;
}
