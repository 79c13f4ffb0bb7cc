/* readback.c - see d9d/device/readback.h. */
#include "d9d/device/readback.h"

#include <stdlib.h>

#include "device/backend.h"

enum { IDLE = 64 }; /* kept for the next that asks for as many bytes: pinning takes long */

struct d9d_device_event {
    d9d_device *dev;
    void *mark; /* the backend's */
};

struct d9d_readback {
    d9d_device_event *copied;
    d9d_device *dev;
    void *host; /* memory that the device can write to on its own */
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
    st = dev->ops->mark_open(dev, &e->mark);
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
    e->dev->ops->mark_close(e->dev, e->mark);
    free(e);
}

d9d_status d9d_device_event_record(d9d_device_event *e)
{
    return e->dev->ops->mark_set(e->dev, e->mark, NULL);
}

d9d_status d9d_device_event_record_on(d9d_device_event *e, d9d_stream queue)
{
    return e->dev->ops->mark_set(e->dev, e->mark, queue);
}

bool d9d_device_event_passed(const d9d_device_event *e)
{
    return e->dev->ops->mark_passed(e->dev, e->mark);
}

d9d_status d9d_device_event_wait(d9d_device_event *e)
{
    if (d9d_device_event_passed(e))
        return D9D_OK;
    d9di_device_waited(e->dev);
    return e->dev->ops->mark_wait(e->dev, e->mark);
}

d9d_status d9d_device_event_ms(const d9d_device_event *from, const d9d_device_event *to,
                               double *out)
{
    return from->dev->ops->mark_ms(from->dev, from->mark, to->mark, out);
}

/* --- reading back --------------------------------------------------------------------- */

static void readback_close(d9d_readback *r)
{
    if (r->host != NULL)
        r->dev->ops->unpin(r->dev, r->host);
    d9d_device_event_free(r->copied);
    free(r);
}

/* Idle ones beyond the first n go. */
static void readback_trim(d9d_device *dev, int n)
{
    d9d_readback **at = &dev->idle, *r;

    while (n-- > 0 && *at != NULL)
        at = &(*at)->next;
    while ((r = *at) != NULL) {
        *at = r->next;
        readback_close(r);
    }
}

void d9di_readback_drop(d9d_device *dev)
{
    readback_trim(dev, 0);
}

static d9d_readback *readback_idle(d9d_device *dev, uint64_t bytes)
{
    for (d9d_readback **at = &dev->idle; *at != NULL; at = &(*at)->next) {
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
    d9d_readback *r = readback_idle(dev, bytes);
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
    (void)!d9d_device_event_wait(r->copied); /* a copy under way still writes there */
    r->next = r->dev->idle;
    r->dev->idle = r;
    readback_trim(r->dev, IDLE);
}

d9d_status d9d_readback_begin(d9d_readback *r, const void *src)
{
    return d9d_readback_begin_on(r, src, NULL);
}

d9d_status d9d_readback_begin_on(d9d_readback *r, const void *src, d9d_stream queue)
{
    D9D_TRY(r->dev->ops->fetch(r->dev, r->host, src, r->bytes, queue));
    return d9d_device_event_record_on(r->copied, queue);
}

bool d9d_readback_ready(const d9d_readback *r)
{
    return d9d_device_event_passed(r->copied);
}

d9d_status d9d_readback_end(d9d_readback *r, const void **out)
{
    D9D_TRY(d9d_device_event_wait(r->copied));
    *out = r->host;
    return D9D_OK;
}
