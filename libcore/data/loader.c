/* loader.c - orders of samples, and batches.  S is the padded length of a batch. */
#include "d9d/data/loader.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/rng.h"

enum { BUFFER_SAMPLES = 4096 }; /* bucketed: at least so many, in whole packs */

/* A buffer of the bucketed order: a cache, as it is a function of (seed, epoch, number). */
struct buffer {
    int64_t epoch, number; /* epoch -1: none */
    int64_t *order;        /* [capacity] samples of the split */
    struct keyed {
        int64_t length, sample;
        uint64_t key;
    } * keyed;
    int64_t capacity;
};

struct d9d_loader {
    d9d_dataset *ds;
    d9d_loader_how how;
    int64_t n, total;
    struct buffer *buffer; /* NULL unless bucketed */
    D9D_VEC(int32_t) cells;
    D9D_VEC(int64_t) lengths;
    D9D_VEC(int32_t) bounds;
};

/* --- order ------------------------------------------------------------------------------ */

enum purpose { PERMUTATION, TIES, PACKS, WITHIN };

/* A stream of random numbers for one purpose in one place. */
static d9d_rng rng_of(const d9d_loader *l, enum purpose purpose, int64_t epoch, int64_t number)
{
    const uint64_t name[3] = {(uint64_t)purpose, (uint64_t)epoch, (uint64_t)number};

    return (d9d_rng){l->how.seed, d9d_hash64(name, sizeof(name))};
}

static int64_t shuffled(const d9d_loader *l, int64_t epoch, int64_t i)
{
    return (int64_t)d9d_rng_permute(rng_of(l, PERMUTATION, epoch, 0), (uint64_t)i, (uint64_t)l->n);
}

static int by_length(const void *pa, const void *pb)
{
    const struct keyed *a = pa, *b = pb;

    if (a->length != b->length)
        return a->length < b->length ? -1 : 1;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->sample < b->sample ? -1 : a->sample > b->sample;
}

/* Put the samples of sorted keys into packs: the whole ones in a random order, what is left
 * over behind them, and each in a random order of its own. */
static void deal_packs(const d9d_loader *l, int64_t epoch, int64_t number, int64_t count)
{
    const int64_t pack = l->how.pack, whole = count / pack;
    struct buffer *b = l->buffer;
    int64_t p, i;

    for (p = 0; p * pack < count; p++) {
        const d9d_rng within = rng_of(l, WITHIN, epoch, number * (b->capacity / pack) + p);
        const int64_t size = p < whole ? pack : count - whole * pack;
        const int64_t from = p < whole ? (int64_t)d9d_rng_permute(rng_of(l, PACKS, epoch, number),
                                                                  (uint64_t)p, (uint64_t)whole)
                                       : whole;

        for (i = 0; i < size; i++)
            b->order[p * pack + i] =
                b->keyed[from * pack +
                         (int64_t)d9d_rng_permute(within, (uint64_t)i, (uint64_t)size)]
                    .sample;
    }
}

static d9d_status fill_buffer(const d9d_loader *l, int64_t epoch, int64_t number)
{
    const d9d_rng ties = rng_of(l, TIES, epoch, number);
    struct buffer *b = l->buffer;
    const int64_t from = number * b->capacity;
    const int64_t count = l->n - from < b->capacity ? l->n - from : b->capacity;
    int64_t i;

    if (b->epoch == epoch && b->number == number)
        return D9D_OK;
    b->epoch = -1;
    for (i = 0; i < count; i++) {
        const int64_t sample = shuffled(l, epoch, from + i);
        d9d_sample s;

        D9D_TRY(d9d_dataset_sample(l->ds, sample, &s));
        b->keyed[i] = (struct keyed){s.length, sample, d9d_rng_u64(ties, (uint64_t)i)};
    }
    qsort(b->keyed, (size_t)count, sizeof(*b->keyed), by_length);
    deal_packs(l, epoch, number, count);
    b->epoch = epoch;
    b->number = number;
    return D9D_OK;
}

static d9d_status sample_at(const d9d_loader *l, int64_t k, int64_t *out)
{
    const int64_t epoch = k / l->n, i = k % l->n;

    switch (l->how.order) {
    case D9D_ORDER_SEQUENTIAL: *out = i; return D9D_OK;
    case D9D_ORDER_SHUFFLED: *out = shuffled(l, epoch, i); return D9D_OK;
    case D9D_ORDER_BUCKETED:
        D9D_TRY(fill_buffer(l, epoch, i / l->buffer->capacity));
        *out = l->buffer->order[i % l->buffer->capacity];
        return D9D_OK;
    }
    return D9D_FAIL(D9D_EINVAL, "%d is no order of samples", (int)l->how.order);
}

/* --- opening ---------------------------------------------------------------------------- */

static d9d_status make_buffer(d9d_loader *l)
{
    const int64_t pack = l->how.pack, packs = (BUFFER_SAMPLES + pack - 1) / pack;
    struct buffer *b = calloc(1, sizeof(*b));

    l->buffer = b;
    if (b) {
        b->epoch = -1;
        b->capacity = pack * packs;
        b->order = calloc((size_t)b->capacity, sizeof(*b->order));
        b->keyed = calloc((size_t)b->capacity, sizeof(*b->keyed));
    }
    return b && b->order && b->keyed
               ? D9D_OK
               : D9D_FAIL(D9D_ENOMEM, "%s: no memory to sort samples in packs of %lld",
                          d9d_dataset_dir(l->ds), (long long)pack);
}

static d9d_status check_how(const d9d_dataset *ds, const d9d_loader_how *how)
{
    const char *dir = d9d_dataset_dir(ds);
    const struct {
        const char *name;
        int64_t v;
        bool matters;
    } limits[] = {{"epochs", how->epochs, true},
                  {"pack", how->pack, how->order == D9D_ORDER_BUCKETED},
                  {"multiple", how->multiple, true}};
    size_t i;

    for (i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
        if (limits[i].matters && (limits[i].v < 1 || limits[i].v > INT64_C(1) << 30))
            return D9D_FAIL(D9D_ECONFIG, "%s: %s is %lld; it must be from 1 to %lld", dir,
                            limits[i].name, (long long)limits[i].v, (long long)(INT64_C(1) << 30));
    if (d9d_dataset_count(ds) == 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: the split has no samples", dir);
    if (d9d_dataset_count(ds) > (INT64_C(1) << 62) / how->epochs)
        return D9D_FAIL(D9D_ECONFIG, "%s: %lld samples cannot be read %lld times", dir,
                        (long long)d9d_dataset_count(ds), (long long)how->epochs);
    return D9D_OK;
}

d9d_status d9d_loader_open(const d9d_dataset *ds, const d9d_loader_how *how, d9d_loader **out)
{
    d9d_loader *l;
    d9d_status st;

    D9D_TRY(check_how(ds, how));
    l = calloc(1, sizeof(*l));
    if (!l)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", d9d_dataset_dir(ds));
    /* Reading moves nothing but the handle's own buffers. */
    l->ds = (d9d_dataset *)(uintptr_t)ds;
    l->how = *how;
    l->n = d9d_dataset_count(ds);
    l->total = l->n * how->epochs;
    st = how->order == D9D_ORDER_BUCKETED ? make_buffer(l) : D9D_OK;
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
    if (l->buffer) {
        free(l->buffer->order);
        free(l->buffer->keyed);
        free(l->buffer);
    }
    D9D_VEC_RELEASE(&l->cells);
    D9D_VEC_RELEASE(&l->lengths);
    D9D_VEC_RELEASE(&l->bounds);
    free(l);
}

int64_t d9d_loader_samples(const d9d_loader *l)
{
    return l->total;
}

int64_t d9d_loader_sample(const d9d_loader *l, int64_t k)
{
    int64_t sample = -1;

    if (k < 0 || k >= l->total || sample_at(l, k, &sample) != D9D_OK)
        return -1;
    return sample;
}

/* --- batches ---------------------------------------------------------------------------- */

/* The arrays of a batch, one behind the other. */
enum part { IDS, LABELS, POSITIONS, SEGMENTS, PARTS };

static const int32_t padding[PARTS] = {[IDS] = 0, [LABELS] = -100, [POSITIONS] = 0, [SEGMENTS] = 0};

/* Lengths of the rows; S in *length. */
static d9d_status measure(d9d_loader *l, int64_t first, int64_t rows, int64_t *length)
{
    int64_t r;

    *length = 0;
    l->lengths.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&l->lengths, (size_t)rows));
    for (r = 0; r < rows; r++) {
        d9d_sample s;
        int64_t k;

        D9D_TRY(sample_at(l, first + r, &k));
        D9D_TRY(d9d_dataset_sample(l->ds, k, &s));
        l->lengths.data[r] = s.length;
        *length = s.length > *length ? s.length : *length;
    }
    *length = (*length + l->how.multiple - 1) / l->how.multiple * l->how.multiple;
    return D9D_OK;
}

static d9d_status fill_row(d9d_loader *l, int64_t k, int32_t *row[PARTS], int64_t length)
{
    d9d_sample s;
    int64_t sample, i;
    int p;

    D9D_TRY(sample_at(l, k, &sample));
    D9D_TRY(d9d_dataset_sample(l->ds, sample, &s));
    D9D_TRY(d9d_sample_expand(l->ds, &s, row[IDS], row[LABELS], row[POSITIONS], row[SEGMENTS]));
    for (p = 0; p < PARTS; p++)
        for (i = s.length; i < length; i++)
            row[p][i] = padding[p];
    return D9D_OK;
}

/* Where the numbers of segments change, and rows begin. */
static d9d_status find_documents(d9d_loader *l, const int32_t *segments, d9d_batch *b)
{
    l->bounds.len = 0;
    for (int64_t i = 0; i < b->rows * b->length; i++)
        if (i % b->length == 0 || segments[i] != segments[i - 1])
            D9D_TRY(D9D_VEC_PUSH(&l->bounds, (int32_t)i));
    b->documents = (int64_t)l->bounds.len;
    D9D_TRY(D9D_VEC_PUSH(&l->bounds, (int32_t)(b->rows * b->length)));
    b->bounds = l->bounds.data;
    return D9D_OK;
}

d9d_status d9d_loader_batch(d9d_loader *l, int64_t first, int64_t rows, d9d_batch *out)
{
    int64_t length, r, i;
    uint64_t cells;
    d9d_batch b;

    if (first < 0 || rows < 1 || first > l->total || rows > l->total - first)
        return D9D_FAIL(D9D_EINVAL, "%s: %lld samples from %lld on; the stream has %lld",
                        d9d_dataset_dir(l->ds), (long long)rows, (long long)first,
                        (long long)l->total);
    D9D_TRY(measure(l, first, rows, &length));
    if (!d9d_mul_u64((uint64_t)rows, (uint64_t)length, &cells) || cells > INT32_MAX)
        return D9D_FAIL(D9D_ENOMEM, "%s: a batch of %lld samples of %lld positions",
                        d9d_dataset_dir(l->ds), (long long)rows, (long long)length);
    l->cells.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&l->cells, (size_t)cells * PARTS));
    b = (d9d_batch){.first = first,
                    .rows = rows,
                    .length = length,
                    .ids = l->cells.data + IDS * cells,
                    .labels = l->cells.data + LABELS * cells,
                    .positions = l->cells.data + POSITIONS * cells,
                    .lengths = l->lengths.data};
    for (r = 0; r < rows; r++) {
        int32_t *row[PARTS];
        int p;

        for (p = 0; p < PARTS; p++)
            row[p] = l->cells.data + (size_t)p * cells + r * length;
        D9D_TRY(fill_row(l, first + r, row, length));
        b.tokens += l->lengths.data[r];
        for (i = 0; i < length; i++)
            b.targets += row[LABELS][i] != -100;
    }
    if (d9d_dataset_is_packed(l->ds))
        D9D_TRY(find_documents(l, l->cells.data + SEGMENTS * cells, &b));
    *out = b;
    return D9D_OK;
}
