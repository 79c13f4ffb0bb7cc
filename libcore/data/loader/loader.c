/* loader.c - batches.  S is the padded length of a batch.  See d9d/data/loader/loader.h. */
#include "d9d/data/loader/loader.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "data/dataset/dataset_private.h"
#include "data/loader/sample_order.h"

struct d9d_loader {
    d9di_order order;
    d9d_loader_how how;
    bool packed;          /* some dataset is */
    pthread_mutex_t lock; /* of the order and the datasets' handles */
    d9d_batch_room *room; /* for d9d_loader_batch() */
};

/* A sample whose segments are [at, at + n) of the room's. */
struct drawn {
    d9d_sample sample;
    size_t at;
};

struct d9d_batch_room {
    D9D_VEC(struct drawn) drawn;
    D9D_VEC(d9d_draw) draws;
    D9D_VEC(uint32_t) segments;
    D9D_VEC(int64_t) lengths;
    D9D_VEC(int32_t) cells;
    D9D_VEC(int32_t) bounds;
};

/* --- opening ---------------------------------------------------------------------------- */

static d9d_status check_how(const char *dir, const d9d_loader_how *how, bool bucketed)
{
    const struct {
        const char *name;
        int64_t v;
        bool matters;
    } limits[] = {{"pack", how->pack, bucketed}, {"multiple", how->multiple, true}};
    size_t i;

    for (i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
        if (limits[i].matters && (limits[i].v < 1 || limits[i].v > INT64_C(1) << 30))
            return D9D_FAIL(D9D_ECONFIG, "%s: %s is %lld; it must be from 1 to %lld", dir,
                            limits[i].name, (long long)limits[i].v, (long long)(INT64_C(1) << 30));
    return D9D_OK;
}

static d9d_status check_source(const d9d_data_source *s, const d9d_data_source *first)
{
    const char *dir = d9d_dataset_dir(s->dataset);
    const d9di_manifest *a = &first->dataset->manifest, *b = &s->dataset->manifest;
    const int64_t n = d9d_dataset_count(s->dataset);

    if (n == 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: the split has no samples", dir);
    if (s->epochs < 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: %lld epochs", dir, (long long)s->epochs);
    if (s->skip != NULL && d9d_numbers_last(s->skip) >= n)
        return D9D_FAIL(D9D_ECONFIG, "%s: sample %lld is to be skipped, the split has %lld", dir,
                        (long long)d9d_numbers_last(s->skip), (long long)n);
    if ((s->order == D9D_ORDER_BUCKETED) != (first->order == D9D_ORDER_BUCKETED))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s and %s: of datasets that are blended all are bucketed "
                        "or none",
                        d9d_dataset_dir(first->dataset), dir);
    if (a->has_tokenizer && b->has_tokenizer &&
        !d9d_hash_equal(a->tokenizer_hash, b->tokenizer_hash))
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s and %s were made with different tokenizers, and cannot "
                        "be blended",
                        d9d_dataset_dir(first->dataset), dir);
    return D9D_OK;
}

d9d_status d9d_loader_open(const d9d_data_source *sources, size_t n, const d9d_loader_how *how,
                           d9d_loader **out)
{
    d9d_loader *l;
    d9d_status st;

    if (n < 1)
        return D9D_FAIL(D9D_EINVAL, "a loader needs a dataset");
    for (size_t i = 0; i < n; i++)
        D9D_TRY(check_source(&sources[i], &sources[0]));
    D9D_TRY(check_how(d9d_dataset_dir(sources[0].dataset), how,
                      sources[0].order == D9D_ORDER_BUCKETED));
    l = calloc(1, sizeof(*l));
    if (!l)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", d9d_dataset_dir(sources[0].dataset));
    (void)pthread_mutex_init(&l->lock, NULL);
    l->how = *how;
    for (size_t i = 0; i < n; i++)
        l->packed = l->packed || d9d_dataset_is_packed(sources[i].dataset);
    st = d9di_order_init(&l->order, sources, n, how->pack);
    if (st == D9D_OK)
        st = d9d_batch_room_create(&l->room);
    if (st != D9D_OK) {
        d9d_loader_close(l);
        return d9d_err_pass(st, __FILE__, __LINE__);
    }
    *out = l;
    return D9D_OK;
}

void d9d_loader_close(d9d_loader *l)
{
    if (!l)
        return;
    d9di_order_release(&l->order);
    d9d_batch_room_free(l->room);
    (void)pthread_mutex_destroy(&l->lock);
    free(l);
}

/* --- facts ---------------------------------------------------------------------------------- */

int64_t d9d_loader_samples(const d9d_loader *l)
{
    return l->order.total;
}

int32_t d9d_loader_last_source(const d9d_loader *l)
{
    return l->order.last_source;
}

size_t d9d_loader_sampler(const d9d_loader *l, d9d_sampler_source *out)
{
    const d9di_order *o = &l->order;

    for (size_t i = 0; i < o->n && !o->bucketed; i++)
        out[i] = d9di_order_source(&o->sources[i]);
    return o->bucketed ? 0 : o->n;
}

bool d9d_loader_skips(const d9d_loader *l)
{
    for (size_t i = 0; i < l->order.n; i++)
        if (l->order.sources[i].skip != NULL)
            return true;
    return false;
}

d9d_hash d9d_loader_data_hash(const d9d_loader *l)
{
    d9d_hash all[D9D_BLEND_SOURCES];
    const size_t n = l->order.n;

    for (size_t i = 0; i < n; i++)
        all[i] = d9d_dataset_hash(l->order.sources[i].dataset);
    return n == 1 ? all[0] : d9d_hash_bytes(all, n * sizeof(all[0]));
}

d9d_status d9d_loader_order_hash(const d9d_loader *l, d9d_hash *out)
{
    const d9di_order *o = &l->order;
    d9d_buf text = {0};
    d9d_status st;

    for (size_t i = 0; i < o->n; i++) {
        const d9d_data_source *s = &o->sources[i];

        D9D_TRY_OR(st,
                   d9d_buf_printf(&text, "split=%s order=%d seed=%lld pack=%lld until=%lld",
                                  s->dataset->split->name, (int)s->order, (long long)s->seed,
                                  o->bucketed ? (long long)o->pack : 0LL,
                                  o->bucketed ? (long long)o->total : 0LL),
                   out);
        if (o->n > 1)
            D9D_TRY_OR(st, d9d_buf_printf(&text, " weight=%.17g\n", s->weight), out);
    }
    *out = d9d_hash_bytes(text.data, text.len);
    st = D9D_OK;
out:
    d9d_buf_release(&text);
    return st;
}

static d9d_status check_range(const d9d_loader *l, int64_t first, int64_t n)
{
    if (first >= 0 && n >= 1 && first <= l->order.total && n <= l->order.total - first)
        return D9D_OK;
    return D9D_FAIL(D9D_EINVAL, "%s: %lld samples from %lld on; the stream has %lld",
                    d9d_dataset_dir(l->order.sources[0].dataset), (long long)n, (long long)first,
                    (long long)l->order.total);
}

d9d_status d9d_loader_draw(d9d_loader *l, int64_t k, d9d_draw *out)
{
    d9d_status st;

    D9D_TRY(check_range(l, k, 1));
    (void)pthread_mutex_lock(&l->lock);
    st = d9di_order_at(&l->order, k, out);
    (void)pthread_mutex_unlock(&l->lock);
    return st;
}

/* Sample k and its record; under the lock. */
static d9d_status look_up(d9d_loader *l, int64_t k, d9d_draw *draw, d9d_sample *out)
{
    D9D_TRY(d9di_order_at(&l->order, k, draw));
    if (!draw->skipped)
        return d9d_dataset_sample(l->order.sources[draw->source].dataset, draw->sample, out);
    *out = (d9d_sample){0};
    return D9D_OK;
}

/* S of rows whose longest has that many positions. */
static int64_t padded(const d9d_loader *l, int64_t longest)
{
    const int64_t multiple = l->how.multiple, n = longest > 1 ? longest : 1;

    return (n + multiple - 1) / multiple * multiple;
}

d9d_status d9d_loader_measure(d9d_loader *l, int64_t first, int64_t n, int64_t rows, int64_t *cells,
                              int64_t *positions)
{
    d9d_status st = D9D_OK;
    int64_t longest = 0;

    D9D_TRY(check_range(l, first, n));
    *cells = *positions = 0;
    (void)pthread_mutex_lock(&l->lock);
    for (int64_t i = 0; i < n / rows * rows && st == D9D_OK; i++) {
        d9d_sample s;
        d9d_draw draw;

        st = look_up(l, first + i, &draw, &s);
        if (st != D9D_OK)
            break;
        longest = i % rows == 0 || s.length > longest ? s.length : longest;
        *positions += s.length;
        *cells += (i + 1) % rows == 0 ? padded(l, longest) * rows : 0;
    }
    (void)pthread_mutex_unlock(&l->lock);
    return st;
}

/* --- batches ---------------------------------------------------------------------------- */

/* The arrays of a batch, one behind the other. */
enum part { IDS, LABELS, POSITIONS, SEGMENTS, PARTS };

static const int32_t padding[PARTS] = {[IDS] = 0, [LABELS] = -100, [POSITIONS] = 0, [SEGMENTS] = 0};

d9d_status d9d_batch_room_create(d9d_batch_room **out)
{
    *out = calloc(1, sizeof(**out));
    return *out != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "no memory for a batch");
}

void d9d_batch_room_free(d9d_batch_room *r)
{
    if (r == NULL)
        return;
    D9D_VEC_RELEASE(&r->drawn);
    D9D_VEC_RELEASE(&r->draws);
    D9D_VEC_RELEASE(&r->segments);
    D9D_VEC_RELEASE(&r->lengths);
    D9D_VEC_RELEASE(&r->cells);
    D9D_VEC_RELEASE(&r->bounds);
    free(r);
}

double d9d_loader_least_bytes(const d9d_loader *l, int64_t rows)
{
    const double cells = (double)padded(l, 1) * (l->packed ? PARTS : SEGMENTS);

    return (double)rows * (cells * sizeof(int32_t) + sizeof(struct drawn) + sizeof(d9d_draw) +
                           sizeof(int64_t) + sizeof(uint32_t));
}

/* Look up the rows, which is all that needs the lock. */
static d9d_status draw_rows(d9d_loader *l, int64_t first, int64_t rows, d9d_batch_room *room)
{
    room->drawn.len = room->draws.len = room->segments.len = room->lengths.len = 0;
    for (int64_t r = 0; r < rows; r++) {
        struct drawn d = {.at = room->segments.len};
        d9d_draw draw;

        D9D_TRY(look_up(l, first + r, &draw, &d.sample));
        D9D_TRY(D9D_VEC_RESERVE(&room->segments, d.sample.n_segments));
        if (d.sample.n_segments > 0)
            memcpy(room->segments.data + d.at, d.sample.segments,
                   d.sample.n_segments * sizeof(*d.sample.segments));
        room->segments.len += d.sample.n_segments;
        D9D_TRY(D9D_VEC_PUSH(&room->drawn, d));
        D9D_TRY(D9D_VEC_PUSH(&room->draws, draw));
        D9D_TRY(D9D_VEC_PUSH(&room->lengths, d.sample.length));
    }
    return D9D_OK;
}

static int64_t longest_of(const d9d_batch_room *room)
{
    int64_t longest = 0;

    for (size_t r = 0; r < room->lengths.len; r++)
        longest = room->lengths.data[r] > longest ? room->lengths.data[r] : longest;
    return longest;
}

static d9d_status fill_row(const d9d_loader *l, d9d_batch_room *room, int64_t r,
                           int32_t *row[PARTS], int64_t length)
{
    struct drawn *d = &room->drawn.data[r];
    const d9d_draw *draw = &room->draws.data[r];

    d->sample.segments = room->segments.data + d->at;
    if (!draw->skipped)
        D9D_TRY(d9d_sample_expand(l->order.sources[draw->source].dataset, &d->sample, row[IDS],
                                  row[LABELS], row[POSITIONS], row[SEGMENTS]));
    for (int p = 0; p < PARTS; p++)
        for (int64_t i = d->sample.length; i < length; i++)
            row[p][i] = padding[p];
    return D9D_OK;
}

/* Where the numbers of segments change, and rows begin. */
static d9d_status find_documents(d9d_batch_room *room, const int32_t *segments, d9d_batch *b)
{
    room->bounds.len = 0;
    for (int64_t i = 0; i < b->rows * b->length; i++)
        if (i % b->length == 0 || segments[i] != segments[i - 1])
            D9D_TRY(D9D_VEC_PUSH(&room->bounds, (int32_t)i));
    b->documents = (int64_t)room->bounds.len;
    D9D_TRY(D9D_VEC_PUSH(&room->bounds, (int32_t)(b->rows * b->length)));
    b->bounds = room->bounds.data;
    return D9D_OK;
}

static d9d_status fill_cells(const d9d_loader *l, d9d_batch_room *room, d9d_batch *b)
{
    const size_t cells = (size_t)(b->rows * b->length);

    for (int64_t r = 0; r < b->rows; r++) {
        int32_t *row[PARTS];

        for (int p = 0; p < PARTS; p++)
            row[p] = room->cells.data + (size_t)p * cells + r * b->length;
        D9D_TRY(fill_row(l, room, r, row, b->length));
        b->tokens += room->lengths.data[r];
        for (int64_t i = 0; i < b->length; i++)
            b->targets += row[LABELS][i] != -100;
    }
    b->ids = room->cells.data + IDS * cells;
    b->labels = room->cells.data + LABELS * cells;
    b->positions = room->cells.data + POSITIONS * cells;
    return l->packed ? find_documents(room, room->cells.data + SEGMENTS * cells, b) : D9D_OK;
}

d9d_status d9d_loader_fill(d9d_loader *l, int64_t first, int64_t rows, d9d_batch_room *room,
                           d9d_batch *out)
{
    d9d_batch b = {.first = first, .rows = rows};
    uint64_t cells;
    d9d_status st;

    D9D_TRY(check_range(l, first, rows));
    (void)pthread_mutex_lock(&l->lock);
    st = draw_rows(l, first, rows, room);
    (void)pthread_mutex_unlock(&l->lock);
    D9D_TRY(st);
    b.length = padded(l, longest_of(room));
    if (!d9d_mul_u64((uint64_t)rows, (uint64_t)b.length, &cells) || cells > INT32_MAX)
        return D9D_FAIL(D9D_ENOMEM, "%s: a batch of %lld samples of %lld positions",
                        d9d_dataset_dir(l->order.sources[0].dataset), (long long)rows,
                        (long long)b.length);
    room->cells.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&room->cells, (size_t)cells * PARTS));
    D9D_TRY(fill_cells(l, room, &b));
    b.lengths = room->lengths.data;
    b.draws = room->draws.data;
    *out = b;
    return D9D_OK;
}

d9d_status d9d_loader_batch(d9d_loader *l, int64_t first, int64_t rows, d9d_batch *out)
{
    return d9d_loader_fill(l, first, rows, l->room, out);
}
