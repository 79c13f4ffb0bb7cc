/* prefetch.c - a ring of batches, filled by threads.  See d9d/data/loader/prefetch.h.
 *
 * Batch i of the feed is made in slot i mod n, by whichever thread takes number i next; a slot is
 * taken again when the batch in it has been used.
 */
#include "d9d/data/loader/prefetch.h"

#include <pthread.h>
#include <stdlib.h>

#include "d9d/base/thread.h"

typedef struct slot {
    d9d_batch_room *room;
    d9d_batch batch;
    bool ready;
    d9d_err_copy err; /* why there is no batch */
} slot;

struct d9d_feed {
    d9d_loader *loader;
    d9d_feed_how how;
    int64_t per_step; /* batches of a rank in a step */
    int64_t taken;    /* batches that threads have begun */
    int64_t given;    /* batches that the caller has had, the one in use counted */
    int64_t waited_ns;
    slot *slots;
    int64_t n_slots;
    pthread_t *threads;
    int n_threads;
    bool stop;
    pthread_mutex_t lock;
    pthread_cond_t ready, room;
};

/* Samples [*first, + *rows) of batch i; false behind the end. */
static bool batch_at(const d9d_feed *f, int64_t i, int64_t *first, int64_t *rows)
{
    const d9d_feed_how *h = &f->how;
    const int64_t part = h->global / h->ranks, at = i % f->per_step * h->rows;
    const int64_t rest = part - at < h->rows ? part - at : h->rows;

    *first = h->first + i / f->per_step * h->global + h->rank * part + at;
    *rows = h->end - *first < rest ? h->end - *first : rest;
    return *rows > 0;
}

static void make(d9d_feed *f, int64_t i)
{
    slot *s = &f->slots[i % f->n_slots];
    int64_t first, rows;
    d9d_status st;

    if (batch_at(f, i, &first, &rows))
        st = d9d_loader_fill(f->loader, first, rows, s->room, &s->batch);
    else
        st = D9D_FAIL(D9D_EINVAL, "batch %lld is sample %lld; the feed ends at %lld", (long long)i,
                      (long long)first, (long long)f->how.end);
    d9d_err_save(&s->err, st);
}

static void *work(void *arg)
{
    d9d_feed *f = arg;

    (void)pthread_mutex_lock(&f->lock);
    while (!f->stop) {
        /* The batch in use is number given - 1. */
        const int64_t i = f->taken;

        if (i >= (f->given > 0 ? f->given - 1 : 0) + f->n_slots) {
            (void)pthread_cond_wait(&f->room, &f->lock);
            continue;
        }
        f->taken++;
        (void)pthread_mutex_unlock(&f->lock);
        make(f, i);
        (void)pthread_mutex_lock(&f->lock);
        f->slots[i % f->n_slots].ready = true;
        (void)pthread_cond_broadcast(&f->ready);
    }
    (void)pthread_mutex_unlock(&f->lock);
    return NULL;
}

static d9d_status check(const d9d_feed_how *h)
{
    if (h->first >= 0 && h->global >= 1 && h->ranks >= 1 && h->rank >= 0 && h->rank < h->ranks &&
        h->global % h->ranks == 0 && h->rows >= 1 && h->threads >= 0 && h->ahead >= 1)
        return D9D_OK;
    return D9D_FAIL(D9D_EINVAL,
                    "a feed from sample %lld on, %lld a step, in batches of %lld, of rank %lld of "
                    "%lld, with %d threads, %d ahead",
                    (long long)h->first, (long long)h->global, (long long)h->rows,
                    (long long)h->rank, (long long)h->ranks, h->threads, h->ahead);
}

/* A thread fewer is slower, not wrong. */
static void start(d9d_feed *f)
{
    d9d_heard before;

    d9d_thread_deaf_begin(&before);
    while (f->n_threads < f->how.threads &&
           pthread_create(&f->threads[f->n_threads], NULL, work, f) == 0)
        f->n_threads++;
    d9d_thread_deaf_end(&before);
}

d9d_status d9d_feed_open(d9d_loader *l, const d9d_feed_how *how, d9d_feed **out)
{
    d9d_feed *f;
    d9d_status st = D9D_OK;

    D9D_TRY(check(how));
    f = calloc(1, sizeof(*f));
    if (f == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a feed of batches");
    f->loader = l;
    f->how = *how;
    f->per_step = (how->global / how->ranks + how->rows - 1) / how->rows;
    f->n_slots = how->threads > 0 ? 1 + how->ahead : 1;
    (void)pthread_mutex_init(&f->lock, NULL);
    (void)pthread_cond_init(&f->ready, NULL);
    (void)pthread_cond_init(&f->room, NULL);
    f->slots = calloc((size_t)f->n_slots, sizeof(*f->slots));
    f->threads = calloc((size_t)how->threads + 1, sizeof(*f->threads));
    if (f->slots == NULL || f->threads == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "no memory for %lld batches ahead", (long long)f->n_slots);
    for (int64_t i = 0; st == D9D_OK && i < f->n_slots; i++)
        st = d9d_batch_room_create(&f->slots[i].room);
    if (st != D9D_OK) {
        d9d_feed_close(f);
        return d9d_err_pass(st, __FILE__, __LINE__);
    }
    start(f);
    *out = f;
    return D9D_OK;
}

static void wait_for(d9d_feed *f, int64_t i)
{
    slot *s = &f->slots[i % f->n_slots];

    (void)pthread_mutex_lock(&f->lock);
    f->given++; /* the batch before is not used any more */
    (void)pthread_cond_broadcast(&f->room);
    while (!s->ready)
        (void)pthread_cond_wait(&f->ready, &f->lock);
    s->ready = false;
    (void)pthread_mutex_unlock(&f->lock);
}

d9d_status d9d_feed_next(d9d_feed *f, d9d_batch *out)
{
    const int64_t start_ns = d9d_clock_ns(), i = f->given;
    const slot *s = &f->slots[i % f->n_slots];

    if (f->n_threads > 0)
        wait_for(f, i);
    else
        make(f, f->given++);
    f->waited_ns += d9d_clock_ns() - start_ns;
    if (s->err.st != D9D_OK)
        return d9d_err_restore(&s->err);
    *out = s->batch;
    return D9D_OK;
}

int64_t d9d_feed_waited_ns(const d9d_feed *f)
{
    return f->waited_ns;
}

void d9d_feed_close(d9d_feed *f)
{
    if (f == NULL)
        return;
    (void)pthread_mutex_lock(&f->lock);
    f->stop = true;
    (void)pthread_cond_broadcast(&f->room);
    (void)pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < f->n_threads; i++)
        (void)pthread_join(f->threads[i], NULL);
    for (int64_t i = 0; f->slots != NULL && i < f->n_slots; i++)
        d9d_batch_room_free(f->slots[i].room);
    (void)pthread_cond_destroy(&f->ready);
    (void)pthread_cond_destroy(&f->room);
    (void)pthread_mutex_destroy(&f->lock);
    free(f->slots);
    free(f->threads);
    free(f);
}
