/* loss_attribution.c - see engine/loss_attribution.h.
 *
 * A document is WIDTH numbers in the reduction: its number in the stream and index in its row,
 * sample and dataset, targets, and sum of losses.  Each group fills its own slot, zero targets
 * ending the list; the sum over ranks concatenates the slots.
 */
#include "engine/loss_attribution.h"

#include <stdlib.h>
#include <string.h>

enum { RECORD_WIDTH = 6 };

static int64_t buffer_size(const d9di_loss_attribution *d)
{
    return d->n_groups * d->max_n * RECORD_WIDTH;
}

d9d_status d9di_loss_attribution_open(d9di_loss_attribution *d, d9d_arena *a)
{
    if (d->max_n == 0)
        return D9D_OK;
    d->records = d9d_arena_alloc(a, (size_t)buffer_size(d) * sizeof(double));
    d->worst = d9d_arena_alloc(a, (size_t)d->max_n * sizeof(*d->worst));
    if (d->records == NULL || d->worst == NULL)
        return D9D_FAIL(D9D_ENOMEM, "trainer.logging.documents: %lld of them",
                        (long long)(d->n_groups * d->max_n));
    return D9D_OK;
}

void d9di_loss_attribution_release(d9di_loss_attribution *d)
{
    for (size_t i = 0; i < d->watched.len; i++) {
        d9di_loss_attribution_documents_release(&d->watched.data[i].list);
        d9d_readback_free(d->watched.data[i].loss);
    }
    D9D_VEC_RELEASE(&d->watched);
    d9d_async_host_reduce_release(&d->reduce);
    *d = (d9di_loss_attribution){0};
}

void d9di_loss_attribution_documents_release(d9di_loss_attribution_documents *l)
{
    D9D_VEC_RELEASE(&l->items);
    l->losses = 0;
}

/* --- of a micro-batch -------------------------------------------------------------------- */

static d9d_track_document_loss document_info(const d9d_batch *b, const d9d_batch_document *d)
{
    return (d9d_track_document_loss){.stream = b->first + d->seq,
                                     .sample = b->refs[d->seq].sample,
                                     .dataset = b->refs[d->seq].source,
                                     .document = d->index,
                                     .targets = d9d_batch_count_targets(b, d)};
}

static d9d_status list_positions(const d9d_batch *b, d9di_loss_attribution_documents *out)
{
    d9d_batch_document d = D9D_BATCH_DOCUMENT_NONE;

    out->losses = b->seqs * b->length;
    while (d9d_batch_next_document(b, &d)) {
        const d9di_loss_attribution_document x = {document_info(b, &d), d.seq * b->length + d.first,
                                                  d.end - d.first};

        if (x.info.targets > 0)
            D9D_TRY(D9D_VEC_PUSH(&out->items, x));
    }
    return D9D_OK;
}

/* A target is a document's class, or the partner in its pair. */
static d9d_status list_texts(const d9d_batch *b, bool paired, d9di_loss_attribution_documents *out)
{
    d9d_batch_document first, d = D9D_BATCH_DOCUMENT_NONE;

    for (out->losses = 0; d9d_batch_next_document(b, &d); out->losses++) {
        d9di_loss_attribution_document x = {document_info(b, &d), out->losses, 1};

        x.info.targets = x.info.targets > 0;
        first = d;
        if (paired && !d9d_batch_next_document(b, &d))
            return D9D_OK;
        if (paired)
            x.info.targets = first.end > first.first && d.end > d.first;
        if (x.info.targets > 0)
            D9D_TRY(D9D_VEC_PUSH(&out->items, x));
    }
    return D9D_OK;
}

/* A record counts as a pair does, or, of four documents, if one of its answers has targets. */
static d9d_status list_records(const d9d_batch *b, int64_t width,
                               d9di_loss_attribution_documents *out)
{
    d9d_batch_document d = D9D_BATCH_DOCUMENT_NONE;
    d9di_loss_attribution_document x = {.info = {.sample = 0}};
    int64_t present = 0;

    for (int64_t i = 0; d9d_batch_next_document(b, &d); i++) {
        if (i % width == 0)
            present = 0;
        if (i % width < 2 && d9d_batch_count_targets(b, &d) > 0 && present++ == 0)
            x = (d9di_loss_attribution_document){document_info(b, &d), out->losses, 1};
        if (i % width < width - 1)
            continue;
        x.info.targets = 1;
        if (present == 2 || (present == 1 && width > 2))
            D9D_TRY(D9D_VEC_PUSH(&out->items, x));
        out->losses++;
    }
    out->losses = out->losses > 0 ? out->losses : 1; /* the empty record of an empty batch */
    return D9D_OK;
}

d9d_status d9di_loss_attribution_records_list(const d9d_batch *b, int64_t width,
                                              d9di_loss_attribution_documents *out)
{
    d9di_loss_attribution_documents_release(out);
    return list_records(b, width, out);
}

d9d_status d9di_loss_attribution_documents_list(const d9d_batch *b, bool pooled, bool paired,
                                                d9di_loss_attribution_documents *out)
{
    d9di_loss_attribution_documents_release(out);
    return pooled ? list_texts(b, paired, out) : list_positions(b, out);
}

d9d_status d9di_loss_attribution_enqueue(d9di_loss_attribution *d,
                                         d9di_loss_attribution_documents *list,
                                         const d9d_tensor *loss)
{
    d9di_loss_attribution_pending h = {.list = *list};

    if (d9d_tensor_numel(loss) != list->losses)
        return D9D_FAIL(D9D_EINVAL,
                        "trainer.logging.documents: %lld losses of a task, for %lld positions or "
                        "documents",
                        (long long)d9d_tensor_numel(loss), (long long)list->losses);
    D9D_TRY(D9D_VEC_RESERVE(&d->watched, 1));
    D9D_TRY(d9d_readback_create(d->dev, d9d_tensor_bytes(loss), &h.loss));
    d->watched.data[d->watched.len++] = h;
    *list = (d9di_loss_attribution_documents){0};
    return d9d_readback_enqueue(h.loss, d9d_tensor_data(loss));
}

/* --- of a step ------------------------------------------------------------------------ */

/* How much a document raises the step's mean loss, times the step's targets. */
static double excess_loss(const d9d_track_document_loss *x, double mean)
{
    return x->sum - mean * (double)x->targets;
}

static bool is_worse(const d9d_track_document_loss *x, const d9d_track_document_loss *y,
                     double mean)
{
    const double a = excess_loss(x, mean), b = excess_loss(y, mean);

    if (a != b)
        return a > b;
    return x->stream != y->stream ? x->stream < y->stream : x->document < y->document;
}

/* Inserts into the n worst so far, at most `max_n`. */
static void insert_worst(d9d_track_document_loss *worst, int64_t *n, int64_t max_n,
                         const d9d_track_document_loss *x, double mean)
{
    int64_t at = *n;

    while (at > 0 && is_worse(x, &worst[at - 1], mean))
        at--;
    if (at == max_n)
        return;
    *n += *n < max_n;
    memmove(worst + at + 1, worst + at, (size_t)(*n - 1 - at) * sizeof(*worst));
    worst[at] = *x;
}

static d9d_status update_one(d9di_loss_attribution *d, d9di_loss_attribution_pending *h,
                             double mean)
{
    const void *back;
    const float *loss;

    D9D_TRY(d9d_readback_wait(h->loss, &back));
    loss = back;
    for (size_t i = 0; i < h->list.items.len; i++) {
        d9di_loss_attribution_document *x = &h->list.items.data[i];

        for (int64_t k = 0; k < x->n; k++)
            x->info.sum += (double)loss[x->first + k];
        insert_worst(d->worst, &d->n_worst, d->max_n, &x->info, mean);
    }
    return D9D_OK;
}

d9d_status d9di_loss_attribution_update(d9di_loss_attribution *d, size_t n, double mean)
{
    d->n_worst = 0;
    for (size_t i = 0; i < n; i++) {
        d9di_loss_attribution_pending *h = &d->watched.data[i];

        D9D_TRY(update_one(d, h, mean));
        d9di_loss_attribution_documents_release(&h->list);
        d9d_readback_free(h->loss);
        h->loss = NULL;
    }
    d->mean = mean;
    if (n > 0) {
        d->watched.len -= n;
        memmove(d->watched.data, d->watched.data + n, d->watched.len * sizeof(*d->watched.data));
    }
    return D9D_OK;
}

/* --- reduction over ranks ------------------------------------------------------------- */

static void pack_record(double *c, const d9d_track_document_loss *x)
{
    const double v[RECORD_WIDTH] = {(double)x->stream,   (double)x->sample,  (double)x->dataset,
                                    (double)x->document, (double)x->targets, x->sum};

    memcpy(c, v, sizeof(v));
}

static d9d_track_document_loss unpack_record(const double *c)
{
    return (d9d_track_document_loss){.stream = (int64_t)c[0],
                                     .sample = (int64_t)c[1],
                                     .dataset = (int32_t)c[2],
                                     .document = (int64_t)c[3],
                                     .targets = (int64_t)c[4],
                                     .sum = c[5]};
}

d9d_status d9di_loss_attribution_sync_begin(d9di_loss_attribution *d)
{
    double *own = d->records + d->group * d->max_n * RECORD_WIDTH;

    if (d->max_n == 0 || d->world == NULL)
        return D9D_OK;
    memset(d->records, 0, (size_t)buffer_size(d) * sizeof(double));
    for (int64_t i = 0; i < d->n_worst; i++)
        pack_record(own + i * RECORD_WIDTH, &d->worst[i]);
    d->syncing = true;
    return d9d_async_host_reduce_start(&d->reduce, d->dev, d->world, "documents", D9D_F64,
                                       d->records, buffer_size(d), D9D_COMM_SUM);
}

d9d_status d9di_loss_attribution_sync_end(d9di_loss_attribution *d)
{
    if (!d->syncing)
        return D9D_OK;
    d->syncing = false;
    D9D_TRY(d9d_async_host_reduce_wait(&d->reduce, d->records));
    d->n_worst = 0;
    for (int64_t i = 0; i < d->n_groups * d->max_n; i++) {
        const d9d_track_document_loss x = unpack_record(d->records + i * RECORD_WIDTH);

        if (x.targets > 0)
            insert_worst(d->worst, &d->n_worst, d->max_n, &x, d->mean);
    }
    return D9D_OK;
}
