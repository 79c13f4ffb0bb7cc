/* staging.c - see d9d/device/staging.h.
 *
 * Threads take parts in turn, each under the part's own lock from take to send: there are more
 * parts than threads, so that nobody waits for another thread, and no lock is common to all.  What
 * all would share, with some microseconds of the driver under it, costs more than the copies.
 */
#include "d9d/device/staging.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "d9d/device/readback.h"
#include "device/backend.h"

typedef struct part {
    pthread_mutex_t lock;   /* held from take to send or drop */
    void *data;             /* pinned when the part is first taken */
    d9d_device_event *read; /* the device has come behind its last copy */
} part;

struct d9d_staging {
    d9d_device *dev;
    part *parts; /* NULL where the host writes to the device's memory */
    unsigned n, next;
    uint64_t bytes;
};

d9d_status d9d_staging_open(d9d_device *dev, int parts, uint64_t bytes, d9d_staging **out)
{
    d9d_staging *s = calloc(1, sizeof(*s));

    assert(parts > 0 && bytes > 0);
    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %d parts", dev->name, parts);
    *s = (d9d_staging){.dev = dev, .n = (unsigned)parts, .bytes = bytes};
    if (!dev->ops->shared) {
        s->parts = calloc(s->n, sizeof(*s->parts));
        if (s->parts == NULL) {
            free(s);
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %d parts", dev->name, parts);
        }
        for (unsigned i = 0; i < s->n; i++)
            (void)pthread_mutex_init(&s->parts[i].lock, NULL);
    }
    *out = s;
    return D9D_OK;
}

void d9d_staging_close(d9d_staging *s)
{
    if (s == NULL)
        return;
    for (unsigned i = 0; i < s->n && s->parts != NULL; i++) {
        part *p = &s->parts[i];

        if (p->read != NULL)
            (void)!d9d_device_event_wait(p->read);
        d9d_device_event_free(p->read);
        d9d_device_unpin(s->dev, p->data);
        (void)pthread_mutex_destroy(&p->lock);
    }
    free(s->parts);
    free(s);
}

/* Memory that the device has read. */
static d9d_status part_ready(d9d_staging *s, part *p)
{
    if (p->data == NULL) {
        void *data;

        D9D_TRY(d9d_device_pin(s->dev, s->bytes, &data));
        __atomic_store_n(&p->data, data, __ATOMIC_RELAXED); /* others look for theirs */
    }
    if (p->read == NULL)
        D9D_TRY(d9d_device_event_create(s->dev, &p->read));
    return d9d_device_event_wait(p->read);
}

static part *part_of(d9d_staging *s, const void *room)
{
    unsigned i = 0;

    while (__atomic_load_n(&s->parts[i].data, __ATOMIC_RELAXED) != room)
        i++;
    return &s->parts[i];
}

d9d_status d9d_staging_take(d9d_staging *s, void *dst, uint64_t n, void **room)
{
    part *p;
    d9d_status st;

    assert(n <= s->bytes);
    if (s->parts == NULL) {
        *room = dst;
        return D9D_OK;
    }
    p = &s->parts[__atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED) % s->n];
    (void)pthread_mutex_lock(&p->lock);
    st = part_ready(s, p);
    if (st == D9D_OK)
        *room = p->data;
    else
        (void)pthread_mutex_unlock(&p->lock);
    return st;
}

d9d_status d9d_staging_send(d9d_staging *s, void *dst, uint64_t n, void *room)
{
    part *p;
    d9d_status st;

    if (s->parts == NULL)
        return D9D_OK;
    p = part_of(s, room);
    st = d9d_device_send(s->dev, dst, room, n);
    if (st == D9D_OK)
        st = d9d_device_event_record(p->read);
    (void)pthread_mutex_unlock(&p->lock);
    return st;
}

void d9d_staging_drop(d9d_staging *s, void *room)
{
    if (s->parts != NULL)
        (void)pthread_mutex_unlock(&part_of(s, room)->lock);
}
