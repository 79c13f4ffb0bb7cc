/* loss_attribution.c - see engine/loss_attribution.h.
 *
 * What crosses is WIDTH numbers a document: its place in the stream and in its row, its sample and
 * dataset, its targets and the sum of its losses.  A group of ranks fills its own slot, where no
 * targets end the list; sums over ranks put them side by side.
 */
#include "engine/loss_attribution.h"

#include <stdlib.h>
#include <string.h>

enum { WIDTH = 6 };

static int64_t cells_of(const d9di_culprits *d)
{
    return d->all * d->most * WIDTH;
}

d9d_status d9di_culprits_open(d9di_culprits *d, d9d_arena *a)
{
    if (d->most == 0)
        return D9D_OK;
    d->cells = d9d_arena_alloc(a, (size_t)cells_of(d) * sizeof(double));
    d->worst = d9d_arena_alloc(a, (size_t)d->most * sizeof(*d->worst));
    if (d->cells == NULL || d->worst == NULL)
        return D9D_FAIL(D9D_ENOMEM, "trainer.logging.documents: %lld of them",
                        (long long)(d->all * d->most));
    return D9D_OK;
}

void d9di_culprits_release(d9di_culprits *d)
{
    for (size_t i = 0; i < d->watched.len; i++) {
        d9di_culprits_list_release(&d->watched.data[i].list);
        d9d_readback_free(d->watched.data[i].loss);
    }
    D9D_VEC_RELEASE(&d->watched);
    d9d_crossing_release(&d->way);
    *d = (d9di_culprits){0};
}

void d9di_culprits_list_release(d9di_culprits_list *l)
{
    D9D_VEC_RELEASE(&l->of);
    l->losses = 0;
}

/* --- of a micro-batch -------------------------------------------------------------------- */

static d9d_document_loss about(const d9d_batch *b, const d9d_document *d)
{
    return (d9d_document_loss){.stream = b->first + d->row,
                               .sample = b->draws[d->row].sample,
                               .dataset = b->draws[d->row].source,
                               .place = d->place,
                               .targets = d9d_batch_targets_of(b, d)};
}

static d9d_status list_positions(const d9d_batch *b, d9di_culprits_list *out)
{
    d9d_document d = D9D_DOCUMENT_NONE;

    out->losses = b->rows * b->length;
    while (d9d_batch_next_document(b, &d)) {
        const d9di_listed x = {about(b, &d), d.row * b->length + d.first, d.end - d.first};

        if (x.about.targets > 0)
            D9D_TRY(D9D_VEC_PUSH(&out->of, x));
    }
    return D9D_OK;
}

/* A target is the class of a document, or the other one of its pair. */
static d9d_status list_wholes(const d9d_batch *b, bool paired, d9di_culprits_list *out)
{
    d9d_document first, d = D9D_DOCUMENT_NONE;

    for (out->losses = 0; d9d_batch_next_document(b, &d); out->losses++) {
        d9di_listed x = {about(b, &d), out->losses, 1};

        x.about.targets = x.about.targets > 0;
        first = d;
        if (paired && !d9d_batch_next_document(b, &d))
            return D9D_OK;
        if (paired)
            x.about.targets = first.end > first.first && d.end > d.first;
        if (x.about.targets > 0)
            D9D_TRY(D9D_VEC_PUSH(&out->of, x));
    }
    return D9D_OK;
}

d9d_status d9di_culprits_of(const d9d_batch *b, bool pooled, bool paired, d9di_culprits_list *out)
{
    d9di_culprits_list_release(out);
    return pooled ? list_wholes(b, paired, out) : list_positions(b, out);
}

d9d_status d9di_culprits_watch(d9di_culprits *d, d9di_culprits_list *list, const d9d_tensor *loss)
{
    d9di_heard h = {.list = *list};

    if (d9d_tensor_numel(loss) != list->losses)
        return D9D_FAIL(D9D_EINVAL,
                        "trainer.logging.documents: %lld losses of a task, for %lld positions or "
                        "documents",
                        (long long)d9d_tensor_numel(loss), (long long)list->losses);
    D9D_TRY(D9D_VEC_RESERVE(&d->watched, 1));
    D9D_TRY(d9d_readback_create(d->dev, d9d_tensor_bytes(loss), &h.loss));
    d->watched.data[d->watched.len++] = h;
    *list = (d9di_culprits_list){0};
    return d9d_readback_begin(h.loss, d9d_tensor_data(loss));
}

/* --- of a step --------------------------------------------------------------------------- */

/* How much a document raises the mean of a step. */
static double weight(const d9d_document_loss *x, double mean)
{
    return x->sum - mean * (double)x->targets;
}

static bool is_worse(const d9d_document_loss *x, const d9d_document_loss *y, double mean)
{
    const double a = weight(x, mean), b = weight(y, mean);

    if (a != b)
        return a > b;
    return x->stream != y->stream ? x->stream < y->stream : x->place < y->place;
}

/* Into the n worst so far, of which there are at most `most`. */
static void put(d9d_document_loss *worst, int64_t *n, int64_t most, const d9d_document_loss *x,
                double mean)
{
    int64_t at = *n;

    while (at > 0 && is_worse(x, &worst[at - 1], mean))
        at--;
    if (at == most)
        return;
    *n += *n < most;
    memmove(worst + at + 1, worst + at, (size_t)(*n - 1 - at) * sizeof(*worst));
    worst[at] = *x;
}

static d9d_status judge_one(d9di_culprits *d, d9di_heard *h, double mean)
{
    const void *back;
    const float *loss;

    D9D_TRY(d9d_readback_end(h->loss, &back));
    loss = back;
    for (size_t i = 0; i < h->list.of.len; i++) {
        d9di_listed *x = &h->list.of.data[i];

        for (int64_t k = 0; k < x->n; k++)
            x->about.sum += (double)loss[x->first + k];
        put(d->worst, &d->n_worst, d->most, &x->about, mean);
    }
    return D9D_OK;
}

d9d_status d9di_culprits_judge(d9di_culprits *d, size_t n, double mean)
{
    d->n_worst = 0;
    for (size_t i = 0; i < n; i++) {
        d9di_heard *h = &d->watched.data[i];

        D9D_TRY(judge_one(d, h, mean));
        d9di_culprits_list_release(&h->list);
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

/* --- over the ranks ------------------------------------------------------------------------ */

static void pack(double *c, const d9d_document_loss *x)
{
    const double v[WIDTH] = {(double)x->stream, (double)x->sample,  (double)x->dataset,
                             (double)x->place,  (double)x->targets, x->sum};

    memcpy(c, v, sizeof(v));
}

static d9d_document_loss unpack(const double *c)
{
    return (d9d_document_loss){.stream = (int64_t)c[0],
                               .sample = (int64_t)c[1],
                               .dataset = (int32_t)c[2],
                               .place = (int64_t)c[3],
                               .targets = (int64_t)c[4],
                               .sum = c[5]};
}

d9d_status d9di_culprits_begin(d9di_culprits *d)
{
    double *own = d->cells + d->slot * d->most * WIDTH;

    if (d->most == 0 || d->world == NULL)
        return D9D_OK;
    memset(d->cells, 0, (size_t)cells_of(d) * sizeof(double));
    for (int64_t i = 0; i < d->n_worst; i++)
        pack(own + i * WIDTH, &d->worst[i]);
    d->crosses = true;
    return d9d_crossing_begin(&d->way, d->dev, d->world, "documents", D9D_F64, d->cells,
                              cells_of(d), D9D_COMM_SUM);
}

d9d_status d9di_culprits_end(d9di_culprits *d)
{
    if (!d->crosses)
        return D9D_OK;
    d->crosses = false;
    D9D_TRY(d9d_crossing_end(&d->way, d->cells));
    d->n_worst = 0;
    for (int64_t i = 0; i < d->all * d->most; i++) {
        const d9d_document_loss x = unpack(d->cells + i * WIDTH);

        if (x.targets > 0)
            put(d->worst, &d->n_worst, d->most, &x, d->mean);
    }
    return D9D_OK;
}
