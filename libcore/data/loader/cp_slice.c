/* cp_slice.c - a rank's part of a batch.  See d9d/data/loader/cp_slice.h. */
#include "d9d/data/loader/cp_slice.h"

#include <string.h>

/* What a rank has of each row: `count` pieces of `size` positions. */
typedef struct deal {
    int64_t first[2], count, size;
} deal;

static deal deal_of(int64_t length, int rank, int n)
{
    const int64_t size = length / (2 * n);

    if (n == 1)
        return (deal){{0}, 1, length};
    return (deal){{rank * size, (2 * n - 1 - rank) * size}, 2, size};
}

static d9d_status copy_cells(const d9d_batch *b, const deal *d, d9d_part_room *room,
                             d9d_batch_part *out)
{
    const int32_t *const from[] = {b->ids, b->labels, b->positions};
    const int32_t **const to[] = {&out->ids, &out->labels, &out->positions};
    const int64_t cells = out->rows * out->length;

    room->cells.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&room->cells, (size_t)(3 * cells)));
    for (int i = 0; i < 3; i++) {
        int32_t *at = room->cells.data + i * cells;

        *to[i] = at;
        for (int64_t row = 0; row < b->rows; row++)
            for (int64_t p = 0; p < d->count; p++, at += d->size)
                memcpy(at, from[i] + row * b->length + d->first[p], (size_t)d->size * sizeof(*at));
    }
    return D9D_OK;
}

/* The parts of documents in positions [first, first + n) of the batch, which are queries from *q
 * on. *doc is one that does not begin behind, and goes on. */
static d9d_status add_segments(const d9d_batch *b, int64_t first, int64_t n, int64_t *doc,
                               int64_t *q, d9d_part_room *room)
{
    const int64_t end = first + n;

    while (b->bounds[*doc + 1] <= first)
        ++*doc;
    for (int64_t at = first, next; at < end; at = next) {
        const int64_t k = b->bounds[*doc];

        next = b->bounds[*doc + 1] < end ? b->bounds[*doc + 1] : end;
        if (next > at)
            D9D_TRY(
                D9D_VEC_PUSH(&room->segments, ((d9d_segment){(int32_t)*q, (int32_t)(next - at),
                                                             (int32_t)k, (int32_t)(next - k)})));
        *q += next - at;
        if (next < end)
            ++*doc;
    }
    return D9D_OK;
}

static d9d_status find_segments(const d9d_batch *b, const deal *d, d9d_part_room *room,
                                d9d_batch_part *out)
{
    int64_t doc = 0, q = 0;

    room->segments.len = 0;
    for (int64_t row = 0; row < b->rows; row++)
        for (int64_t p = 0; p < d->count; p++)
            D9D_TRY(add_segments(b, row * b->length + d->first[p], d->size, &doc, &q, room));
    out->segments = (int64_t)room->segments.len;
    out->segment = room->segments.data;
    return D9D_OK;
}

d9d_status d9d_batch_part_of(const d9d_batch *b, int rank, int n, d9d_part_room *room,
                             d9d_batch_part *out)
{
    d9d_batch_part part = {.rows = b->rows,
                           .length = b->length / n,
                           .ids = b->ids,
                           .labels = b->labels,
                           .positions = b->positions};
    const deal d = deal_of(b->length, rank, n);

    if (n > 1 && b->length % (2 * n) != 0)
        return D9D_FAIL(
            D9D_EINVAL,
            "a batch of rows of %lld positions cannot be cut into %d pieces for %d ranks",
            (long long)b->length, 2 * n, n);
    if (n > 1)
        D9D_TRY(copy_cells(b, &d, room, &part));
    if (b->bounds != NULL)
        D9D_TRY(find_segments(b, &d, room, &part));
    *out = part;
    return D9D_OK;
}

void d9d_part_room_release(d9d_part_room *room)
{
    D9D_VEC_RELEASE(&room->cells);
    D9D_VEC_RELEASE(&room->segments);
}
