/* cp_slice.c - a context-parallel rank's slice of a batch.  See d9d/data/loader/cp_slice.h. */
#include "d9d/data/loader/cp_slice.h"
#include "d9d/base/num_format.h"

#include <string.h>

#define IGNORED (-100) /* label without a target */

/* What a rank holds of each sequence: `count` chunks of `size` positions. */
typedef struct rank_chunks {
    int64_t first[2], count, size;
} rank_chunks;

static rank_chunks chunks_of_rank(int64_t length, int rank, int n)
{
    const int64_t size = length / (2 * n);

    if (n == 1)
        return (rank_chunks){{0}, 1, length};
    return (rank_chunks){{rank * size, (2 * n - 1 - rank) * size}, 2, size};
}

/* Copies this rank's positions, of `bytes` bytes each. */
static void copy_positions(const d9d_batch *b, const rank_chunks *d, const void *from, size_t bytes,
                           void *to)
{
    char *at = to;

    for (int64_t row = 0; row < b->seqs; row++)
        for (int64_t p = 0; p < d->count; p++, at += (size_t)d->size * bytes)
            memcpy(at, (const char *)from + (size_t)(row * b->length + d->first[p]) * bytes,
                   (size_t)d->size * bytes);
}

static d9d_status copy_fields(const d9d_batch *b, const rank_chunks *d, d9d_cp_slice_buffer *buffer,
                              d9d_cp_slice *out)
{
    buffer->fields.len = 0;
    for (size_t i = 0; i < b->n_fields; i++) {
        d9d_batch_field x = b->fields[i];

        if (x.is_sequence) {
            const size_t bytes = d9d_batch_field_row_bytes(&x, 2);

            buffer->values[i].len = 0;
            D9D_TRY(
                d9d_buf_reserve(&buffer->values[i], (size_t)(out->seqs * out->length) * bytes + 1));
            copy_positions(b, d, x.data, bytes, buffer->values[i].data);
            x.data = buffer->values[i].data;
            x.shape[1] = out->length;
        }
        D9D_TRY(D9D_VEC_PUSH(&buffer->fields, x));
    }
    out->fields = buffer->fields.data;
    return D9D_OK;
}

static d9d_status copy_tokens(const d9d_batch *b, const rank_chunks *d, d9d_cp_slice_buffer *buffer,
                              d9d_cp_slice *out)
{
    const int32_t *const from[] = {b->ids, b->labels, b->positions};
    const int32_t **const to[] = {&out->ids, &out->labels, &out->positions};
    const int64_t n_tokens = out->seqs * out->length;

    buffer->ints.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&buffer->ints, (size_t)(3 * n_tokens)));
    for (int i = 0; i < 3; i++) {
        int32_t *at = buffer->ints.data + i * n_tokens;

        *to[i] = at;
        copy_positions(b, d, from[i], sizeof(*at), at);
    }
    return copy_fields(b, d, buffer, out);
}

/* Adds the segments of documents in positions [first, first + n) of the batch, whose queries begin
 * at *q.  *doc is the first document that may reach into the range, and is advanced. */
static d9d_status add_segments(const d9d_batch *b, int64_t first, int64_t n, int64_t *doc,
                               int64_t *q, d9d_cp_slice_buffer *buffer)
{
    const int64_t end = first + n;

    while (b->cu_seqlens[*doc + 1] <= first)
        ++*doc;
    for (int64_t at = first, next; at < end; at = next) {
        const int64_t k = b->cu_seqlens[*doc];

        next = b->cu_seqlens[*doc + 1] < end ? b->cu_seqlens[*doc + 1] : end;
        if (next > at)
            D9D_TRY(
                D9D_VEC_PUSH(&buffer->segments, ((d9d_segment){(int32_t)*q, (int32_t)(next - at),
                                                               (int32_t)k, (int32_t)(next - k)})));
        *q += next - at;
        if (next < end)
            ++*doc;
    }
    return D9D_OK;
}

static d9d_status find_segments(const d9d_batch *b, const rank_chunks *d,
                                d9d_cp_slice_buffer *buffer, d9d_cp_slice *out)
{
    int64_t doc = 0, q = 0;

    buffer->segments.len = 0;
    for (int64_t row = 0; row < b->seqs; row++)
        for (int64_t p = 0; p < d->count; p++)
            D9D_TRY(add_segments(b, row * b->length + d->first[p], d->size, &doc, &q, buffer));
    out->segments = (int64_t)buffer->segments.len;
    out->segment = buffer->segments.data;
    return D9D_OK;
}

d9d_status d9d_cp_slice_make(const d9d_batch *b, int rank, int n, d9d_cp_slice_buffer *buffer,
                             d9d_cp_slice *out)
{
    d9d_cp_slice part = {.seqs = b->seqs,
                         .length = b->length / n,
                         .ids = b->ids,
                         .labels = b->labels,
                         .positions = b->positions,
                         .fields = b->fields,
                         .n_fields = b->n_fields};
    const rank_chunks d = chunks_of_rank(b->length, rank, n);

    if (n > 1 && b->length % (2 * n) != 0)
        return D9D_FAIL(
            D9D_EINVAL,
            "a batch of sequences of %lld positions cannot be cut into %d chunks for %d rank%s",
            (long long)b->length, 2 * n, n, D9D_PLURAL(n));
    if (n > 1)
        D9D_TRY(copy_tokens(b, &d, buffer, &part));
    if (b->cu_seqlens != NULL)
        D9D_TRY(find_segments(b, &d, buffer, &part));
    *out = part;
    return D9D_OK;
}

/* --- lists of documents ----------------------------------------------------------------------- */

d9d_status d9d_cp_slice_set_segments(const d9d_batch *b, int rank, int n,
                                     d9d_cp_slice_buffer *buffer, d9d_cp_slice *slice)
{
    const rank_chunks chunks = chunks_of_rank(b->length, rank, n);

    return b->cu_seqlens != NULL ? find_segments(b, &chunks, buffer, slice) : D9D_OK;
}

/* Begins of the batch's sequences, and of their padding if it is to be apart, as documents. */
static d9d_status list_rows(const d9d_batch *b, bool padding_apart, d9d_cp_slice_buffer *buffer)
{
    buffer->row_bounds.len = 0;
    for (int64_t row = 0; row < b->seqs; row++) {
        const int64_t at = row * b->length;

        D9D_TRY(D9D_VEC_PUSH(&buffer->row_bounds, (int32_t)at));
        if (padding_apart && b->lengths[row] > 0 && b->lengths[row] < b->length)
            D9D_TRY(D9D_VEC_PUSH(&buffer->row_bounds, (int32_t)(at + b->lengths[row])));
    }
    return D9D_VEC_PUSH(&buffer->row_bounds, (int32_t)(b->seqs * b->length));
}

/* The batch with a list of documents, and the slice with their segments, also where they had none.
 */
static d9d_status list_documents(const d9d_batch *b, const rank_chunks *chunks, bool padding_apart,
                                 d9d_cp_slice_buffer *buffer, d9d_cp_slice *slice, d9d_batch *whole)
{
    *whole = *b;
    if (b->cu_seqlens != NULL)
        return D9D_OK;
    D9D_TRY(list_rows(b, padding_apart, buffer));
    whole->documents = (int64_t)buffer->row_bounds.len - 1;
    whole->cu_seqlens = buffer->row_bounds.data;
    return find_segments(whole, chunks, buffer, slice);
}

/* Keys that all queries of the document in positions [first, end) of the batch see. */
typedef int32_t (*prefix_fn)(const d9d_batch *b, int64_t first, int64_t end);

static d9d_status add_prefixes(const d9d_batch *whole, prefix_fn prefix_of,
                               d9d_cp_slice_buffer *buffer, d9d_cp_slice *slice)
{
    int64_t doc = 0;

    buffer->prefixes.len = 0;
    for (int64_t i = 0; i < slice->segments; i++) {
        while (whole->cu_seqlens[doc + 1] <= slice->segment[i].k)
            doc++;
        D9D_TRY(D9D_VEC_PUSH(&buffer->prefixes,
                             prefix_of(whole, whole->cu_seqlens[doc], whole->cu_seqlens[doc + 1])));
    }
    slice->prefix = buffer->prefixes.data;
    return D9D_OK;
}

/* Tokens of the prompt. */
static int32_t prompt_length(const d9d_batch *b, int64_t first, int64_t end)
{
    int64_t at = first;

    while (at < end && b->labels[at] == IGNORED)
        at++;
    return (int32_t)(at < end ? at + 1 - first : end - first);
}

d9d_status d9d_cp_slice_add_prefixes(const d9d_batch *b, int rank, int n,
                                     d9d_cp_slice_buffer *buffer, d9d_cp_slice *slice)
{
    const rank_chunks chunks = chunks_of_rank(b->length, rank, n);
    d9d_batch whole;

    D9D_TRY(list_documents(b, &chunks, false, buffer, slice, &whole));
    return add_prefixes(&whole, prompt_length, buffer, slice);
}

static int32_t document_length(const d9d_batch *b, int64_t first, int64_t end)
{
    (void)b;
    return (int32_t)(end - first);
}

/* A list also where no sequence has padding: no result depends on the others of a batch. */
d9d_status d9d_cp_slice_set_bidirectional(const d9d_batch *b, int rank, int n,
                                          d9d_cp_slice_buffer *buffer, d9d_cp_slice *slice)
{
    const rank_chunks chunks = chunks_of_rank(b->length, rank, n);
    d9d_batch whole;

    D9D_TRY(list_documents(b, &chunks, true, buffer, slice, &whole));
    return n > 1 ? add_prefixes(&whole, document_length, buffer, slice) : D9D_OK;
}

void d9d_cp_slice_buffer_release(d9d_cp_slice_buffer *buffer)
{
    D9D_VEC_RELEASE(&buffer->ints);
    D9D_VEC_RELEASE(&buffer->segments);
    D9D_VEC_RELEASE(&buffer->prefixes);
    D9D_VEC_RELEASE(&buffer->row_bounds);
    D9D_VEC_RELEASE(&buffer->fields);
    for (size_t i = 0; i < D9D_FIELDS_MAX; i++)
        d9d_buf_release(&buffer->values[i]);
}
