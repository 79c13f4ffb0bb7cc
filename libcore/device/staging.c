/* staging.c - see d9d/device/staging.h.
 *
 * Free parts wait in a queue.  They come back in the order in which the device will read them, so
 * the front is the one that is readable first.
 */
#include "d9d/device/staging.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "d9d/device/readback.h"
#include "device/ops.h"

struct d9d_staging {
    d9d_device *dev;
    char *data;       /* parts * bytes; NULL where the host writes to the device's memory */
    d9d_event **read; /* of each part */
    int *free;        /* a ring of parts */
    int parts, first, n_free;
    uint64_t bytes;
    pthread_mutex_t lock; /* of the ring */
    pthread_cond_t more;
};

static d9d_status parts_make(d9d_staging *s)
{
    s->read = calloc((size_t)s->parts, sizeof(*s->read));
    s->free = calloc((size_t)s->parts, sizeof(*s->free));
    if (s->read == NULL || s->free == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %d parts", s->dev->name, s->parts);
    D9D_TRY(s->dev->ops->pin(s->dev, (uint64_t)s->parts * s->bytes, (void **)&s->data));
    for (int i = 0; i < s->parts; i++) {
        D9D_TRY(d9d_event_create(s->dev, &s->read[i]));
        s->free[s->n_free++] = i;
    }
    return D9D_OK;
}

d9d_status d9d_staging_open(d9d_device *dev, int parts, uint64_t bytes, d9d_staging **out)
{
    d9d_staging *s = calloc(1, sizeof(*s));
    d9d_status st;

    assert(parts > 0 && bytes > 0);
    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %d parts", dev->name, parts);
    s->dev = dev;
    s->parts = parts;
    s->bytes = bytes;
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->more, NULL);
    st = dev->ops->shared ? D9D_OK : parts_make(s);
    if (st == D9D_OK)
        *out = s;
    else
        d9d_staging_close(s);
    return st;
}

void d9d_staging_close(d9d_staging *s)
{
    if (s == NULL)
        return;
    for (int i = 0; i < s->parts && s->read != NULL && s->read[i] != NULL; i++) {
        (void)!d9d_event_wait(s->read[i]);
        d9d_event_free(s->read[i]);
    }
    if (s->data != NULL)
        s->dev->ops->unpin(s->dev, s->data);
    (void)pthread_cond_destroy(&s->more);
    (void)pthread_mutex_destroy(&s->lock);
    free(s->read);
    free(s->free);
    free(s);
}

static int pop(d9d_staging *s)
{
    int i;

    (void)pthread_mutex_lock(&s->lock);
    while (s->n_free == 0)
        (void)pthread_cond_wait(&s->more, &s->lock);
    i = s->free[s->first];
    s->first = (s->first + 1) % s->parts;
    s->n_free--;
    (void)pthread_mutex_unlock(&s->lock);
    return i;
}

static void push(d9d_staging *s, int i)
{
    s->free[(s->first + s->n_free++) % s->parts] = i;
    (void)pthread_cond_signal(&s->more);
}

static int part_of(const d9d_staging *s, const void *room)
{
    return (int)((uint64_t)((const char *)room - s->data) / s->bytes);
}

d9d_status d9d_staging_take(d9d_staging *s, void *dst, uint64_t n, void **room)
{
    d9d_status st;
    int i;

    assert(n <= s->bytes);
    if (s->data == NULL) {
        *room = dst;
        return D9D_OK;
    }
    i = pop(s);
    st = d9d_event_wait(s->read[i]);
    *room = s->data + (uint64_t)i * s->bytes;
    if (st != D9D_OK)
        d9d_staging_drop(s, *room);
    return st;
}

/* The event and the part's place in the queue are set under one lock, so that both orders agree. */
d9d_status d9d_staging_send(d9d_staging *s, void *dst, uint64_t n, void *room)
{
    d9d_status st;
    int i;

    if (s->data == NULL)
        return D9D_OK;
    i = part_of(s, room);
    (void)pthread_mutex_lock(&s->lock);
    st = s->dev->ops->send(s->dev, dst, room, n);
    if (st == D9D_OK)
        st = d9d_event_record(s->read[i]);
    push(s, i);
    (void)pthread_mutex_unlock(&s->lock);
    return st;
}

void d9d_staging_drop(d9d_staging *s, void *room)
{
    if (s->data == NULL)
        return;
    (void)pthread_mutex_lock(&s->lock);
    push(s, part_of(s, room));
    (void)pthread_mutex_unlock(&s->lock);
}
