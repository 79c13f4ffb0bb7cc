/* prefetch.c - a ring buffer of batches that threads fill.  See d9d/data/loader/prefetch.h.
 *
 * Batch i is made in slot i mod n by the thread that takes number i.  A slot is reused once its
 * batch has been consumed.
 */
#include "d9d/data/loader/prefetch.h"

#include <pthread.h>
#include <stdlib.h>

#include "d9d/base/thread.h"

typedef struct slot {
    d9d_batch_buffer *buffer;
    d9d_batch batch;
    bool ready;
    d9d_err_copy err; /* the error, if the batch failed */
} slot;

struct d9d_prefetcher {
    d9d_loader *loader;
    d9d_prefetcher_opts opts;
    int64_t per_step;  /* batches of this rank per step */
    int64_t started;   /* batches that threads have begun */
    int64_t delivered; /* batches returned to the caller, including the one in use */
    int64_t waited_ns;
    slot *slots;
    int64_t n_slots, held;
    pthread_t *threads;
    int n_threads;
    bool stop;
    pthread_mutex_t lock;
    pthread_cond_t ready, slot_free;
};

/* The samples [*first, *first + *rows) of batch i; false past the end. */
static bool batch_at(const d9d_prefetcher *f, int64_t i, int64_t *first, int64_t *rows)
{
    const d9d_prefetcher_opts *h = &f->opts;
    const int64_t part = h->global / h->ranks, at = i % f->per_step * h->micro_batch_size;
    const int64_t rest = part - at < h->micro_batch_size ? part - at : h->micro_batch_size;

    *first = h->first + i / f->per_step * h->global + h->rank * part + at;
    *rows = h->end - *first < rest ? h->end - *first : rest;
    return *rows > 0;
}

static void make_batch(d9d_prefetcher *f, int64_t i)
{
    slot *s = &f->slots[i % f->n_slots];
    int64_t first, rows;
    d9d_status st;

    if (batch_at(f, i, &first, &rows))
        st = d9d_loader_fill(f->loader, first, rows, s->buffer, &s->batch);
    else
        st = D9D_FAIL(D9D_EINVAL, "batch %lld is sample %lld; prefetching ends at %lld",
                      (long long)i, (long long)first, (long long)f->opts.end);
    d9d_err_save(&s->err, st);
}

static void *prefetch_thread(void *arg)
{
    d9d_prefetcher *f = arg;

    (void)pthread_mutex_lock(&f->lock);
    while (!f->stop) {
        const int64_t i = f->started;

        if (i >= (f->delivered > f->held ? f->delivered - f->held : 0) + f->n_slots) {
            (void)pthread_cond_wait(&f->slot_free, &f->lock);
            continue;
        }
        f->started++;
        (void)pthread_mutex_unlock(&f->lock);
        make_batch(f, i);
        (void)pthread_mutex_lock(&f->lock);
        f->slots[i % f->n_slots].ready = true;
        (void)pthread_cond_broadcast(&f->ready);
    }
    (void)pthread_mutex_unlock(&f->lock);
    return NULL;
}

static d9d_status check_opts(const d9d_prefetcher_opts *h)
{
    if (h->first >= 0 && h->global >= 1 && h->ranks >= 1 && h->rank >= 0 && h->rank < h->ranks &&
        h->global % h->ranks == 0 && h->micro_batch_size >= 1 && h->threads >= 0 && h->ahead >= 1)
        return D9D_OK;
    return D9D_FAIL(D9D_EINVAL,
                    "prefetch from sample %lld on, %lld a step, in batches of %lld, of rank %lld "
                    "of %lld, with %d threads, %d ahead",
                    (long long)h->first, (long long)h->global, (long long)h->micro_batch_size,
                    (long long)h->rank, (long long)h->ranks, h->threads, h->ahead);
}

/* Starts the threads.  If one cannot be started, the others do its work. */
static void start_threads(d9d_prefetcher *f)
{
    d9d_thread_sigmask before;

    d9d_thread_block_signals(&before);
    while (f->n_threads < f->opts.threads &&
           pthread_create(&f->threads[f->n_threads], NULL, prefetch_thread, f) == 0)
        f->n_threads++;
    d9d_thread_restore_signals(&before);
}

d9d_status d9d_prefetcher_open(d9d_loader *l, const d9d_prefetcher_opts *opts, d9d_prefetcher **out)
{
    d9d_prefetcher *f;
    d9d_status st = D9D_OK;

    D9D_TRY(check_opts(opts));
    f = calloc(1, sizeof(*f));
    if (f == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory to prefetch batches");
    f->loader = l;
    f->opts = *opts;
    f->per_step =
        (opts->global / opts->ranks + opts->micro_batch_size - 1) / opts->micro_batch_size;
    f->held = opts->held > 0 ? opts->held : 1;
    f->n_slots = f->held + (opts->threads > 0 ? opts->ahead : 0);
    (void)pthread_mutex_init(&f->lock, NULL);
    (void)pthread_cond_init(&f->ready, NULL);
    (void)pthread_cond_init(&f->slot_free, NULL);
    f->slots = calloc((size_t)f->n_slots, sizeof(*f->slots));
    f->threads = calloc((size_t)opts->threads + 1, sizeof(*f->threads));
    if (f->slots == NULL || f->threads == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "no memory for %lld batches ahead", (long long)f->n_slots);
    for (int64_t i = 0; st == D9D_OK && i < f->n_slots; i++)
        st = d9d_batch_buffer_create(&f->slots[i].buffer);
    if (st != D9D_OK) {
        d9d_prefetcher_close(f);
        return d9d_err_pass(st, __FILE__, __LINE__);
    }
    start_threads(f);
    *out = f;
    return D9D_OK;
}

static void wait_until_ready(d9d_prefetcher *f, int64_t i)
{
    slot *s = &f->slots[i % f->n_slots];

    (void)pthread_mutex_lock(&f->lock);
    f->delivered++; /* the previous batch is no longer in use */
    (void)pthread_cond_broadcast(&f->slot_free);
    while (!s->ready)
        (void)pthread_cond_wait(&f->ready, &f->lock);
    s->ready = false;
    (void)pthread_mutex_unlock(&f->lock);
}

d9d_status d9d_prefetcher_next(d9d_prefetcher *f, d9d_batch *out)
{
    const int64_t start_ns = d9d_clock_ns(), i = f->delivered;
    const slot *s = &f->slots[i % f->n_slots];

    if (f->n_threads > 0)
        wait_until_ready(f, i);
    else
        make_batch(f, f->delivered++);
    f->waited_ns += d9d_clock_ns() - start_ns;
    if (s->err.st != D9D_OK)
        return d9d_err_restore(&s->err);
    *out = s->batch;
    return D9D_OK;
}

int64_t d9d_prefetcher_wait_ns(const d9d_prefetcher *f)
{
    return f->waited_ns;
}

void d9d_prefetcher_close(d9d_prefetcher *f)
{
    d9d_dataset *stream;

    if (f == NULL)
        return;
    stream = d9d_loader_stream(f->loader);
    if (stream != NULL)
        d9d_dataset_interrupt(stream, true);
    (void)pthread_mutex_lock(&f->lock);
    f->stop = true;
    (void)pthread_cond_broadcast(&f->slot_free);
    (void)pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < f->n_threads; i++)
        (void)pthread_join(f->threads[i], NULL);
    if (stream != NULL)
        d9d_dataset_interrupt(stream, false);
    for (int64_t i = 0; f->slots != NULL && i < f->n_slots; i++)
        d9d_batch_buffer_free(f->slots[i].buffer);
    (void)pthread_cond_destroy(&f->ready);
    (void)pthread_cond_destroy(&f->slot_free);
    (void)pthread_mutex_destroy(&f->lock);
    free(f->slots);
    free(f->threads);
    free(f);
}
