/* copy_stream.c - see d9d/device/copy_stream.h. */
#include "d9d/device/copy_stream.h"

#include <stdlib.h>

#include "device/backend.h"
#include "device/event.h"

struct d9d_copy_stream {
    d9d_device *dev;
    void *stream;               /* of the backend */
    d9d_device_event *computed; /* what copies follow */
};

d9d_status d9d_copy_stream_create(d9d_device *dev, const char *name, const char *direction,
                                  d9d_copy_stream **out)
{
    d9d_copy_stream *s = calloc(1, sizeof(*s));
    d9d_status st;

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a stream", dev->name);
    st = dev->ops->copy_stream_open(dev, name, direction, &s->stream);
    if (st != D9D_OK) {
        free(s);
        return st;
    }
    s->dev = dev;
    st = d9d_device_event_create(dev, &s->computed);
    if (st == D9D_OK)
        *out = s;
    else
        d9d_copy_stream_free(s);
    return st;
}

void d9d_copy_stream_free(d9d_copy_stream *s)
{
    if (s == NULL)
        return;
    d9d_device_event_free(s->computed);
    s->dev->ops->copy_stream_close(s->dev, s->stream);
    free(s);
}

d9d_status d9d_copy_stream_follow(d9d_copy_stream *s)
{
    D9D_TRY(d9d_device_event_record(s->computed));
    return s->dev->ops->copy_stream_wait(s->dev, s->stream, s->computed->event);
}

d9d_status d9d_copy_stream_copy(d9d_copy_stream *s, void *dst, const void *src, uint64_t n)
{
    return n == 0 ? D9D_OK : s->dev->ops->copy_stream_copy(s->dev, s->stream, dst, src, n);
}

d9d_status d9d_copy_stream_record(d9d_copy_stream *s, d9d_device_event *e)
{
    return s->dev->ops->copy_stream_record(s->dev, s->stream, e->event);
}

d9d_status d9d_copy_stream_join(d9d_device_event *e)
{
    return e->dev->ops->compute_wait(e->dev, e->event);
}
