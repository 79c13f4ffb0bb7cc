/* staging.c - see d9d/device/staging.h.
 *
 * Threads use the buffers round robin, each under the buffer's own lock from acquire to submit.
 * With more buffers than threads no thread waits for another, and no lock is common to all.  A
 * common lock, held for some microseconds of the driver, costs more than the copies.
 */
#include "d9d/device/staging.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "d9d/device/readback.h"
#include "device/backend.h"

typedef struct staging_buffer {
    pthread_mutex_t lock;         /* held from acquire to submit or cancel */
    void *data;                   /* pinned when first acquired */
    d9d_device_event *read_event; /* recorded after the buffer's last copy */
} staging_buffer;

struct d9d_staging {
    d9d_device *dev;
    staging_buffer *buffers; /* NULL if the host can write device memory */
    unsigned n, next;
    uint64_t bytes;
};

d9d_status d9d_staging_open(d9d_device *dev, int buffers, uint64_t bytes, d9d_staging **out)
{
    d9d_staging *s = calloc(1, sizeof(*s));

    assert(buffers > 0 && bytes > 0);
    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %d staging buffers", dev->name, buffers);
    *s = (d9d_staging){.dev = dev, .n = (unsigned)buffers, .bytes = bytes};
    if (!dev->ops->host_accessible) {
        s->buffers = calloc(s->n, sizeof(*s->buffers));
        if (s->buffers == NULL) {
            free(s);
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %d staging buffers", dev->name, buffers);
        }
        for (unsigned i = 0; i < s->n; i++)
            (void)pthread_mutex_init(&s->buffers[i].lock, NULL);
    }
    *out = s;
    return D9D_OK;
}

void d9d_staging_close(d9d_staging *s)
{
    if (s == NULL)
        return;
    for (unsigned i = 0; i < s->n && s->buffers != NULL; i++) {
        staging_buffer *p = &s->buffers[i];

        if (p->read_event != NULL)
            (void)!d9d_device_event_wait(p->read_event);
        d9d_device_event_free(p->read_event);
        d9d_device_unpin(s->dev, p->data);
        (void)pthread_mutex_destroy(&p->lock);
    }
    free(s->buffers);
    free(s);
}

/* Wait until the device has read the buffer; pin it at its first use. */
static d9d_status buffer_ready(d9d_staging *s, staging_buffer *p)
{
    if (p->data == NULL) {
        void *data;

        D9D_TRY(d9d_device_pin(s->dev, s->bytes, &data));
        __atomic_store_n(&p->data, data,
                         __ATOMIC_RELAXED); /* buffer_of() of other threads reads it */
    }
    if (p->read_event == NULL)
        D9D_TRY(d9d_device_event_create(s->dev, &p->read_event));
    return d9d_device_event_wait(p->read_event);
}

static staging_buffer *buffer_of(d9d_staging *s, const void *buffer)
{
    unsigned i = 0;

    while (__atomic_load_n(&s->buffers[i].data, __ATOMIC_RELAXED) != buffer)
        i++;
    return &s->buffers[i];
}

d9d_status d9d_staging_acquire(d9d_staging *s, void *dst, uint64_t n, void **buffer)
{
    staging_buffer *p;
    d9d_status st;

    assert(n <= s->bytes);
    if (s->buffers == NULL) {
        *buffer = dst;
        return D9D_OK;
    }
    p = &s->buffers[__atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED) % s->n];
    (void)pthread_mutex_lock(&p->lock);
    st = buffer_ready(s, p);
    if (st == D9D_OK)
        *buffer = p->data;
    else
        (void)pthread_mutex_unlock(&p->lock);
    return st;
}

d9d_status d9d_staging_submit(d9d_staging *s, void *dst, uint64_t n, void *buffer)
{
    staging_buffer *p;
    d9d_status st;

    if (s->buffers == NULL)
        return D9D_OK;
    p = buffer_of(s, buffer);
    st = d9d_device_h2d_async(s->dev, dst, buffer, n);
    if (st == D9D_OK)
        st = d9d_device_event_record(p->read_event);
    (void)pthread_mutex_unlock(&p->lock);
    return st;
}

void d9d_staging_cancel(d9d_staging *s, void *buffer)
{
    if (s->buffers != NULL)
        (void)pthread_mutex_unlock(&buffer_of(s, buffer)->lock);
}
