/* pooling.c - see d9d/data/loader/pooling.h. */
#include "d9d/data/loader/pooling.h"

#include <string.h>

#define IGNORE (-100) /* a label that does not count */

const char *const d9d_pooling_words[] = {"last", "mean", "cls", NULL};

/* --- documents ------------------------------------------------------------------------ */

/* Packed documents come with the padding of each row as one more, which is none. */
static bool next_packed(const d9d_batch *b, int64_t next, d9d_document *d)
{
    for (; next < b->documents; next++) {
        const int64_t at = b->bounds[next], row = at / b->length;
        int64_t end = b->bounds[next + 1] - row * b->length;

        if (end > b->lengths[row])
            end = b->lengths[row];
        if (at % b->length >= end)
            continue;
        *d = (d9d_document){.row = row,
                            .first = at % b->length,
                            .end = end,
                            .place = row == d->row ? d->place + 1 : 0,
                            .next = next + 1};
        return true;
    }
    return false;
}

bool d9d_batch_next_document(const d9d_batch *b, d9d_document *d)
{
    const int64_t next = d->next;

    if (b->bounds != NULL)
        return next_packed(b, next, d);
    if (next == b->rows)
        return false;
    *d = (d9d_document){.row = next, .end = b->lengths[next], .next = next + 1};
    return true;
}

int64_t d9d_batch_targets_of(const d9d_batch *b, const d9d_document *d)
{
    const int32_t *labels = b->labels + d->row * b->length;
    int64_t n = 0;

    for (int64_t i = d->first; i < d->end; i++)
        n += labels[i] != IGNORE;
    return n;
}

static int32_t class_of(const d9d_batch *b, const d9d_document *d)
{
    const int32_t *labels = b->labels + d->row * b->length;

    for (int64_t i = d->end; i-- > d->first;)
        if (labels[i] != IGNORE)
            return labels[i];
    return IGNORE;
}

int64_t d9d_batch_classes(const d9d_batch *b)
{
    d9d_document d = D9D_DOCUMENT_NONE;
    int64_t n = 0;

    while (d9d_batch_next_document(b, &d))
        n += class_of(b, &d) != IGNORE;
    return n;
}

int64_t d9d_batch_pairs(const d9d_batch *b)
{
    d9d_document first, d = D9D_DOCUMENT_NONE;
    int64_t n = 0;

    while (d9d_batch_next_document(b, &d) && (first = d, d9d_batch_next_document(b, &d)))
        n += first.end > first.first && d.end > d.first;
    return n;
}

d9d_status d9d_batch_check_pairs(const d9d_batch *b)
{
    for (int64_t i = 0; b->draws != NULL && i + 1 < b->rows; i += 2) {
        const d9d_draw *d = b->draws + i;

        if (d[0].sample % 2 != 0 || d[1].sample != d[0].sample + 1 || d[1].source != d[0].source)
            return D9D_FAIL(D9D_ECONFIG,
                            "samples %lld and %lld stand side by side and are no pair, 2k and "
                            "2k + 1; data.order must be sequential, and the batches even",
                            (long long)d[0].sample, (long long)d[1].sample);
    }
    return D9D_OK;
}

d9d_status d9d_batch_check_classes(const d9d_batch *b, int64_t n)
{
    d9d_document d = D9D_DOCUMENT_NONE;

    while (d9d_batch_next_document(b, &d)) {
        const int32_t c = class_of(b, &d);

        if (c != IGNORE && (c < 0 || c >= n))
            return D9D_FAIL(D9D_EMISMATCH, "sample %lld: its class is %d, and there are %lld",
                            (long long)(b->draws != NULL ? b->draws[d.row].sample : d.row), (int)c,
                            (long long)n);
    }
    return D9D_OK;
}

/* --- where positions are ----------------------------------------------------------------- */

typedef struct place {
    int64_t length, pieces, size; /* of a row; it is cut into `pieces` */
    int64_t mine;                 /* positions of a row that this rank has */
    int64_t first, tokens;        /* of its tensor ranks' tokens, this one's */
    const d9d_pool_how *how;
} place;

static d9d_status place_open(const d9d_batch *b, const d9d_pool_how *how, place *out)
{
    place p = {.length = b->length, .mine = b->length / how->cp_ranks, .how = how};

    p.pieces = how->cp_ranks > 1 ? 2 * how->cp_ranks : 1;
    p.size = b->length / p.pieces;
    p.tokens = b->rows * p.mine / how->tp_ranks;
    p.first = how->tp * p.tokens;
    if (b->length % p.pieces != 0 || b->rows * p.mine % how->tp_ranks != 0)
        return D9D_FAIL(D9D_EINVAL,
                        "pool: %lld rows of %lld positions do not divide over %d x %d ranks",
                        (long long)b->rows, (long long)b->length, how->cp_ranks, how->tp_ranks);
    *out = p;
    return D9D_OK;
}

/* The token of a position here, or -1. */
static int64_t token_of(const place *p, int64_t row, int64_t position)
{
    const int64_t piece = position / p->size, rank = p->how->cp;
    int64_t at = row * p->mine + position % p->size;

    if (p->pieces > 1 && piece == p->pieces - 1 - rank)
        at += p->size;
    else if (p->pieces > 1 && piece != rank)
        return -1;
    at -= p->first;
    return at >= 0 && at < p->tokens ? at : -1;
}

/* --- the arrays ----------------------------------------------------------------------------- */

static d9d_document chosen(const d9d_document *d, d9d_pooling pooling)
{
    d9d_document c = *d;

    if (pooling == D9D_POOL_LAST && d->end > d->first)
        c.first = d->end - 1;
    if (pooling == D9D_POOL_FIRST && d->end > d->first)
        c.end = d->first + 1;
    return c;
}

/* Tokens of a document here. */
static int64_t count_here(const place *p, const d9d_document *d)
{
    const d9d_document c = chosen(d, p->how->pooling);
    int64_t n = 0;

    for (int64_t i = c.first; i < c.end; i++)
        n += token_of(p, c.row, i) >= 0;
    return n;
}

typedef struct arrays {
    int32_t *token, *owner, *labels;
    float *share, *part;
} arrays;

static d9d_status room_take(d9d_pool_room *room, const d9d_pool_host *h, arrays *a)
{
    const size_t cells = (size_t)(h->n * h->k), tokens = (size_t)h->tokens;

    room->ints.len = room->floats.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&room->ints, cells + tokens + (size_t)h->n_labels));
    D9D_TRY(D9D_VEC_RESERVE(&room->floats, cells + tokens));
    *a = (arrays){.token = room->ints.data,
                  .owner = room->ints.data + cells,
                  .labels = room->ints.data + cells + tokens,
                  .share = room->floats.data,
                  .part = room->floats.data + cells};
    memset(a->token, -1, (cells + tokens) * sizeof(int32_t));
    memset(a->share, 0, (cells + tokens) * sizeof(float));
    return D9D_OK;
}

static void put_document(const place *p, const d9d_document *d, int64_t n, int64_t k, arrays *a)
{
    const d9d_document c = chosen(d, p->how->pooling);
    int64_t at = n * k;

    for (int64_t i = c.first; i < c.end; i++) {
        const int64_t token = token_of(p, c.row, i);

        if (token < 0)
            continue;
        a->owner[token] = (int32_t)n;
        a->token[at] = (int32_t)token;
        a->part[token] = a->share[at++] = 1.0f / (float)(c.end - c.first);
    }
}

static int64_t row_of_pair(int64_t n, int64_t pairs)
{
    return n == 2 * pairs ? n : n % 2 * pairs + n / 2;
}

void d9d_pool_room_release(d9d_pool_room *room)
{
    D9D_VEC_RELEASE(&room->ints);
    D9D_VEC_RELEASE(&room->floats);
}

d9d_status d9d_batch_pool(const d9d_batch *b, const d9d_pool_how *how, d9d_pool_room *room,
                          d9d_pool_host *out)
{
    const bool counts = how->cp == 0 && how->tp == 0;
    d9d_pool_host h = {.k = 1};
    d9d_document d = D9D_DOCUMENT_NONE;
    arrays a = {0};
    place p;

    D9D_TRY(place_open(b, how, &p));
    for (int64_t n; d9d_batch_next_document(b, &d); h.documents++)
        if ((n = count_here(&p, &d)) > h.k)
            h.k = n;
    h.n = h.documents * how->cp_ranks * how->tp_ranks;
    h.tokens = p.tokens;
    h.n_labels = how->paired ? h.documents / 2 : h.documents;
    D9D_TRY(room_take(room, &h, &a));
    for (int64_t n = 0; n < h.n_labels; n++)
        a.labels[n] = how->paired && counts ? (int32_t)n : IGNORE;
    d = D9D_DOCUMENT_NONE;
    for (int64_t n = 0; d9d_batch_next_document(b, &d); n++) {
        put_document(&p, &d, how->paired ? row_of_pair(n, h.n_labels) : n, h.k, &a);
        if (how->paired && d.end == d.first && n / 2 < h.n_labels)
            a.labels[n / 2] = IGNORE;
        else if (!how->paired && counts)
            a.labels[n] = class_of(b, &d);
    }
    h.token = a.token;
    h.share = a.share;
    h.owner = a.owner;
    h.part = a.part;
    h.labels = a.labels;
    *out = h;
    return D9D_OK;
}
