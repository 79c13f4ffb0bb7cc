/* readback.c - events and asynchronous readback.  See d9d/device/readback.h. */
#include "d9d/device/readback.h"

#include <stdlib.h>

#include "device/backend.h"
#include "device/event.h"

enum { MAX_IDLE = 64 }; /* the most idle readbacks: pinning memory is slow */

struct d9d_readback {
    d9d_device_event *copied;
    d9d_device *dev;
    void *host; /* pinned host memory */
    uint64_t bytes;
    struct d9d_readback *next; /* idle one */
};

d9d_status d9d_device_event_create(d9d_device *dev, d9d_device_event **out)
{
    d9d_device_event *e = calloc(1, sizeof(*e));
    d9d_status st;

    if (e == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for an event", dev->name);
    e->dev = dev;
    st = dev->ops->event_create(dev, &e->event);
    if (st == D9D_OK)
        *out = e;
    else
        free(e);
    return st;
}

void d9d_device_event_free(d9d_device_event *e)
{
    if (e == NULL)
        return;
    e->dev->ops->event_free(e->dev, e->event);
    free(e);
}

d9d_status d9d_device_event_record(d9d_device_event *e)
{
    return e->dev->ops->event_record(e->dev, e->event, NULL);
}

d9d_status d9d_device_event_record_on(d9d_device_event *e, d9d_stream stream)
{
    return e->dev->ops->event_record(e->dev, e->event, stream);
}

bool d9d_device_event_query(const d9d_device_event *e)
{
    return e->dev->ops->event_query(e->dev, e->event);
}

d9d_status d9d_device_event_wait(d9d_device_event *e)
{
    if (d9d_device_event_query(e))
        return D9D_OK;
    d9di_device_count_wait(e->dev);
    return e->dev->ops->event_wait(e->dev, e->event);
}

d9d_status d9d_device_event_elapsed_ms(const d9d_device_event *from, const d9d_device_event *to,
                                       double *out)
{
    return from->dev->ops->event_elapsed_ms(from->dev, from->event, to->event, out);
}

/* --- reading back --------------------------------------------------------------------- */

static void readback_close(d9d_readback *r)
{
    if (r->host != NULL)
        r->dev->ops->unpin(r->dev, r->host);
    d9d_device_event_free(r->copied);
    free(r);
}

/* Free idle readbacks beyond the first n. */
static void readback_trim_idle(d9d_device *dev, int n)
{
    d9d_readback **at = &dev->idle_readbacks, *r;

    while (n-- > 0 && *at != NULL)
        at = &(*at)->next;
    while ((r = *at) != NULL) {
        *at = r->next;
        readback_close(r);
    }
}

void d9di_readback_free_idle(d9d_device *dev)
{
    readback_trim_idle(dev, 0);
}

static d9d_readback *readback_find_idle(d9d_device *dev, uint64_t bytes)
{
    for (d9d_readback **at = &dev->idle_readbacks; *at != NULL; at = &(*at)->next) {
        d9d_readback *r = *at;

        if (r->bytes != bytes)
            continue;
        *at = r->next;
        return r;
    }
    return NULL;
}

d9d_status d9d_readback_create(d9d_device *dev, uint64_t bytes, d9d_readback **out)
{
    d9d_readback *r = readback_find_idle(dev, bytes);
    d9d_status st;

    if (r != NULL) {
        *out = r;
        return D9D_OK;
    }
    r = calloc(1, sizeof(*r));
    if (r == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory to read back %llu bytes", dev->name,
                        (unsigned long long)bytes);
    r->dev = dev;
    r->bytes = bytes;
    D9D_TRY_OR(st, d9d_device_event_create(dev, &r->copied), out);
    D9D_TRY_OR(st, dev->ops->pin(dev, bytes, &r->host), out);
    *out = r;
    return D9D_OK;
out:
    readback_close(r);
    return st;
}

void d9d_readback_free(d9d_readback *r)
{
    if (r == NULL)
        return;
    (void)!d9d_device_event_wait(r->copied); /* a pending copy still writes there */
    r->next = r->dev->idle_readbacks;
    r->dev->idle_readbacks = r;
    readback_trim_idle(r->dev, MAX_IDLE);
}

d9d_status d9d_readback_enqueue(d9d_readback *r, const void *src)
{
    return d9d_readback_enqueue_on(r, src, NULL);
}

d9d_status d9d_readback_enqueue_on(d9d_readback *r, const void *src, d9d_stream stream)
{
    D9D_TRY(r->dev->ops->fetch(r->dev, r->host, src, r->bytes, stream));
    return d9d_device_event_record_on(r->copied, stream);
}

bool d9d_readback_ready(const d9d_readback *r)
{
    return d9d_device_event_query(r->copied);
}

d9d_status d9d_readback_wait(d9d_readback *r, const void **out)
{
    D9D_TRY(d9d_device_event_wait(r->copied));
    *out = r->host;
    return D9D_OK;
}
