/* pooling.c - see d9d/data/loader/pooling.h. */
#include "d9d/data/loader/pooling.h"

#include <string.h>

#define IGNORE (-100) /* label of an ignored position */

const char *const d9d_pooling_names[] = {"last", "mean", "cls", NULL};

/* --- documents ------------------------------------------------------------------------ */

/* cu_seqlens lists each sequence's padding as one more document, which is skipped here. */
static bool next_packed_document(const d9d_batch *b, int64_t next, d9d_batch_document *d)
{
    for (; next < b->documents; next++) {
        const int64_t at = b->cu_seqlens[next], row = at / b->length;
        int64_t end = b->cu_seqlens[next + 1] - row * b->length;

        if (end > b->lengths[row])
            end = b->lengths[row];
        if (at % b->length >= end)
            continue;
        *d = (d9d_batch_document){.seq = row,
                                  .first = at % b->length,
                                  .end = end,
                                  .index = row == d->seq ? d->index + 1 : 0,
                                  .next = next + 1};
        return true;
    }
    return false;
}

bool d9d_batch_next_document(const d9d_batch *b, d9d_batch_document *d)
{
    const int64_t next = d->next;

    if (b->cu_seqlens != NULL)
        return next_packed_document(b, next, d);
    if (next == b->seqs)
        return false;
    *d = (d9d_batch_document){.seq = next, .end = b->lengths[next], .next = next + 1};
    return true;
}

int64_t d9d_batch_count_targets(const d9d_batch *b, const d9d_batch_document *d)
{
    const int32_t *labels = b->labels + d->seq * b->length;
    int64_t n = 0;

    for (int64_t i = d->first; i < d->end; i++)
        n += labels[i] != IGNORE;
    return n;
}

static int32_t document_class(const d9d_batch *b, const d9d_batch_document *d)
{
    const int32_t *labels = b->labels + d->seq * b->length;

    for (int64_t i = d->end; i-- > d->first;)
        if (labels[i] != IGNORE)
            return labels[i];
    return IGNORE;
}

int64_t d9d_batch_count_documents(const d9d_batch *b)
{
    d9d_batch_document d = D9D_BATCH_DOCUMENT_NONE;
    int64_t n = 0;

    while (d9d_batch_next_document(b, &d))
        n++;
    return n;
}

int64_t d9d_batch_count_classes(const d9d_batch *b)
{
    d9d_batch_document d = D9D_BATCH_DOCUMENT_NONE;
    int64_t n = 0;

    while (d9d_batch_next_document(b, &d))
        n += document_class(b, &d) != IGNORE;
    return n;
}

int64_t d9d_batch_count_pairs(const d9d_batch *b)
{
    d9d_batch_document first, d = D9D_BATCH_DOCUMENT_NONE;
    int64_t n = 0;

    while (d9d_batch_next_document(b, &d) && (first = d, d9d_batch_next_document(b, &d)))
        n += first.end > first.first && d.end > d.first;
    return n;
}

d9d_status d9d_batch_check_pairs(const d9d_batch *b)
{
    for (int64_t i = 0; b->refs != NULL && i + 1 < b->seqs; i += 2) {
        const d9d_sample_ref *d = b->refs + i;

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
    d9d_batch_document d = D9D_BATCH_DOCUMENT_NONE;

    while (d9d_batch_next_document(b, &d)) {
        const int32_t c = document_class(b, &d);

        if (c != IGNORE && (c < 0 || c >= n))
            return D9D_FAIL(
                D9D_EMISMATCH,
                "sample %lld: its class is %d, and there are %lld; classes are counted from 0, "
                "and d9d-shard --label-key makes samples that have one",
                (long long)(b->refs != NULL ? b->refs[d.seq].sample : d.seq), (int)c, (long long)n);
    }
    return D9D_OK;
}

/* --- layout of positions over ranks
 * -----------------------------------------------------------------
 */

typedef struct rank_layout {
    int64_t length, chunks, size; /* of a sequence, divided into `chunks` chunks of `size` */
    int64_t local;                /* positions of a sequence on this rank */
    int64_t first, tokens; /* this rank's range among the tokens of its tensor-parallel group */
    const d9d_pooling_opts *opts;
} rank_layout;

static d9d_status rank_layout_init(const d9d_batch *b, const d9d_pooling_opts *opts,
                                   rank_layout *out)
{
    rank_layout p = {.length = b->length, .local = b->length / opts->cp_ranks, .opts = opts};

    p.chunks = opts->cp_ranks > 1 ? 2 * opts->cp_ranks : 1;
    p.size = b->length / p.chunks;
    p.tokens = b->seqs * p.local / opts->tp_ranks;
    p.first = opts->tp * p.tokens;
    if (b->length % p.chunks != 0 || b->seqs * p.local % opts->tp_ranks != 0)
        return D9D_FAIL(D9D_EINVAL,
                        "pool: %lld rows of %lld positions do not divide over %d x %d ranks",
                        (long long)b->seqs, (long long)b->length, opts->cp_ranks, opts->tp_ranks);
    *out = p;
    return D9D_OK;
}

/* The local token of a position, or -1. */
static int64_t local_token(const rank_layout *p, int64_t row, int64_t position)
{
    const int64_t chunk = position / p->size, rank = p->opts->cp;
    int64_t at = row * p->local + position % p->size;

    if (p->chunks > 1 && chunk == p->chunks - 1 - rank)
        at += p->size;
    else if (p->chunks > 1 && chunk != rank)
        return -1;
    at -= p->first;
    return at >= 0 && at < p->tokens ? at : -1;
}

/* --- the arrays ----------------------------------------------------------------------------- */

static d9d_batch_document pooled_positions(const d9d_batch_document *d, d9d_pooling pooling)
{
    d9d_batch_document c = *d;

    if (pooling == D9D_POOLING_LAST && d->end > d->first)
        c.first = d->end - 1;
    if (pooling == D9D_POOLING_FIRST && d->end > d->first)
        c.end = d->first + 1;
    return c;
}

/* Counts the local tokens of a document. */
static int64_t count_local(const rank_layout *p, const d9d_batch_document *d)
{
    const d9d_batch_document c = pooled_positions(d, p->opts->pooling);
    int64_t n = 0;

    for (int64_t i = c.first; i < c.end; i++)
        n += local_token(p, c.seq, i) >= 0;
    return n;
}

typedef struct arrays {
    int32_t *token, *owner, *labels;
    float *share, *owner_share;
    int64_t *number;
} arrays;

static d9d_status carve_arrays(d9d_pooling_buffer *buffer, const d9d_pooling_index *h, arrays *a)
{
    const size_t n_shares = (size_t)(h->n * h->k), tokens = (size_t)h->tokens;

    buffer->ints.len = buffer->floats.len = buffer->numbers.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&buffer->ints, n_shares + tokens + (size_t)h->n_labels));
    D9D_TRY(D9D_VEC_RESERVE(&buffer->floats, n_shares + tokens));
    D9D_TRY(D9D_VEC_RESERVE(&buffer->numbers, (size_t)h->documents));
    *a = (arrays){.token = buffer->ints.data,
                  .owner = buffer->ints.data + n_shares,
                  .labels = buffer->ints.data + n_shares + tokens,
                  .share = buffer->floats.data,
                  .owner_share = buffer->floats.data + n_shares,
                  .number = buffer->numbers.data};
    memset(a->token, -1, (n_shares + tokens) * sizeof(int32_t));
    memset(a->share, 0, (n_shares + tokens) * sizeof(float));
    return D9D_OK;
}

static void write_document(const rank_layout *p, const d9d_batch_document *d, int64_t n, int64_t k,
                           arrays *a)
{
    const d9d_batch_document c = pooled_positions(d, p->opts->pooling);
    int64_t at = n * k;

    for (int64_t i = c.first; i < c.end; i++) {
        const int64_t token = local_token(p, c.seq, i);

        if (token < 0)
            continue;
        a->owner[token] = (int32_t)n;
        a->token[at] = (int32_t)token;
        a->owner_share[token] = a->share[at++] = 1.0f / (float)(c.end - c.first);
    }
}

static int64_t row_of_pair(int64_t n, int64_t pairs)
{
    return n == 2 * pairs ? n : n % 2 * pairs + n / 2;
}

void d9d_pooling_buffer_release(d9d_pooling_buffer *buffer)
{
    D9D_VEC_RELEASE(&buffer->ints);
    D9D_VEC_RELEASE(&buffer->floats);
    D9D_VEC_RELEASE(&buffer->numbers);
}

d9d_status d9d_batch_pooling_index(const d9d_batch *b, const d9d_pooling_opts *opts,
                                   d9d_pooling_buffer *buffer, d9d_pooling_index *out)
{
    const bool counts = opts->cp == 0 && opts->tp == 0;
    d9d_pooling_index h = {.k = 1};
    d9d_batch_document d = D9D_BATCH_DOCUMENT_NONE;
    arrays a = {0};
    rank_layout p;

    D9D_TRY(rank_layout_init(b, opts, &p));
    for (int64_t n; d9d_batch_next_document(b, &d); h.documents++)
        if ((n = count_local(&p, &d)) > h.k)
            h.k = n;
    h.n = h.documents * opts->cp_ranks * opts->tp_ranks;
    h.tokens = p.tokens;
    h.n_labels = opts->paired ? h.documents / 2 : h.documents;
    D9D_TRY(carve_arrays(buffer, &h, &a));
    for (int64_t n = 0; n < h.n_labels; n++)
        a.labels[n] = opts->paired && counts ? (int32_t)n : IGNORE;
    d = D9D_BATCH_DOCUMENT_NONE;
    for (int64_t n = 0; d9d_batch_next_document(b, &d); n++) {
        const int64_t row = opts->paired ? row_of_pair(n, h.n_labels) : n;

        write_document(&p, &d, row, h.k, &a);
        a.number[row] = (b->first + d.seq) * opts->max_positions + d.first;
        if (opts->paired && d.end == d.first && n / 2 < h.n_labels)
            a.labels[n / 2] = IGNORE;
        else if (!opts->paired && counts)
            a.labels[n] = document_class(b, &d);
    }
    h.token = a.token;
    h.share = a.share;
    h.owner = a.owner;
    h.owner_share = a.owner_share;
    h.labels = a.labels;
    h.number = a.number;
    *out = h;
    return D9D_OK;
}
