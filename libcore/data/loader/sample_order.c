/* sample_order.c - see data/loader/sample_order.h and d9d/data/loader/loader.h. */
#include "data/loader/sample_order.h"
#include "d9d/base/num_format.h"

#include <stdlib.h>

enum { BUFFER_SAMPLES = 4096 }; /* bucketed: least buffer size, rounded up to whole packs */
#define ENDLESS (INT64_C(1) << 62)

/* A buffer of the bucketed order, a function of (seed, number).  Two are cached, since prefetch
 * threads are often in the next one. */
struct d9di_sample_order_buffer {
    int64_t number;        /* -1: none */
    d9d_sample_ref *order; /* [capacity] */
    struct keyed {
        int64_t length;
        d9d_sample_ref ref;
        uint64_t key;
    } * keyed;
    int64_t capacity;
};

d9d_rng d9di_sample_order_rng(uint64_t seed, d9di_sample_order_rng_purpose purpose, int64_t epoch,
                              int64_t number)
{
    const uint64_t name[3] = {(uint64_t)purpose, (uint64_t)epoch, (uint64_t)number};

    return (d9d_rng){seed, d9d_hash_u64(name, sizeof(name))};
}

/* --- before bucketing --------------------------------------------------------------------- */

/* The sample of draw `number` of a source. */
static int64_t source_sample(const d9d_loader_source *s, int64_t number)
{
    const d9d_sampler_source as = d9di_sample_order_source(s);

    return d9di_sampler_sample(&as, number);
}

d9d_sampler_source d9di_sample_order_source(const d9d_loader_source *s)
{
    return (d9d_sampler_source){.order = s->order,
                                .seed = s->seed,
                                .samples = d9d_dataset_count(s->dataset),
                                .weight = s->weight};
}

static d9d_sample_ref unbucketed_at(const d9di_sample_order *o, int64_t k)
{
    const d9d_blend_ref from = o->blend != NULL ? d9d_blend_at(o->blend, k) : (d9d_blend_ref){0, k};
    const d9d_loader_source *s = &o->sources[from.source];
    const int64_t sample = source_sample(s, from.number);

    return (d9d_sample_ref){.source = from.source,
                            .skipped = s->skip != NULL && d9d_index_set_has(s->skip, sample),
                            .sample = sample};
}

/* --- bucketed ------------------------------------------------------------------------------- */

static int compare_length(const void *pa, const void *pb)
{
    const struct keyed *a = pa, *b = pb;

    if (a->length != b->length)
        return a->length < b->length ? -1 : 1;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    if (a->ref.sample != b->ref.sample)
        return a->ref.sample < b->ref.sample ? -1 : 1;
    return a->ref.source < b->ref.source ? -1 : a->ref.source > b->ref.source;
}

/* Puts sorted samples into packs.  Full packs are in random order, the remainder follows; samples
 * of each pack are shuffled. */
static void shuffle_packs(const d9di_sample_order *o, d9di_sample_order_buffer *b, int64_t number,
                          int64_t count)
{
    const int64_t pack = o->pack, whole = count / pack;
    const uint64_t seed = o->sources[0].seed;
    int64_t p, i;

    for (p = 0; p * pack < count; p++) {
        const d9d_rng within =
            d9di_sample_order_rng(seed, D9DI_RNG_WITHIN, 0, number * (b->capacity / pack) + p);
        const int64_t size = p < whole ? pack : count - whole * pack;
        const int64_t from =
            p < whole
                ? (int64_t)d9d_rng_permute(d9di_sample_order_rng(seed, D9DI_RNG_PACKS, 0, number),
                                           (uint64_t)p, (uint64_t)whole)
                : whole;

        for (i = 0; i < size; i++)
            b->order[p * pack + i] =
                b->keyed[from * pack +
                         (int64_t)d9d_rng_permute(within, (uint64_t)i, (uint64_t)size)]
                    .ref;
    }
}

static d9d_status fill_buffer(d9di_sample_order *o, d9di_sample_order_buffer *b, int64_t number)
{
    const d9d_rng ties = d9di_sample_order_rng(o->sources[0].seed, D9DI_RNG_TIES, 0, number);
    const int64_t from = number * b->capacity;
    const int64_t count = o->total - from < b->capacity ? o->total - from : b->capacity;
    int64_t i;

    if (b->number == number)
        return D9D_OK;
    b->number = -1;
    for (i = 0; i < count; i++) {
        const d9d_sample_ref draw = unbucketed_at(o, from + i);
        d9d_sample s;

        D9D_TRY(d9d_dataset_sample(o->sources[draw.source].dataset, draw.sample, &s));
        b->keyed[i] = (struct keyed){s.length, draw, d9d_rng_u64(ties, (uint64_t)i)};
    }
    qsort(b->keyed, (size_t)count, sizeof(*b->keyed), compare_length);
    shuffle_packs(o, b, number, count);
    b->number = number;
    return D9D_OK;
}

d9d_status d9di_sample_order_at(d9di_sample_order *o, int64_t k, d9d_sample_ref *out)
{
    int64_t number;
    d9di_sample_order_buffer *b;

    if (!o->bucketed) {
        *out = unbucketed_at(o, k);
        return D9D_OK;
    }
    number = k / o->buffer->capacity;
    b = &o->buffer[number % 2];
    D9D_TRY(fill_buffer(o, b, number));
    *out = b->order[k % b->capacity];
    return D9D_OK;
}

/* --- opening ---------------------------------------------------------------------------------- */

static d9d_status make_buffer(d9di_sample_order *o)
{
    const int64_t packs = (BUFFER_SAMPLES + o->pack - 1) / o->pack;
    const int64_t capacity = o->pack * packs, n_slots = o->total < capacity ? o->total : capacity;
    bool good = (o->buffer = calloc(2, sizeof(*o->buffer))) != NULL;

    for (int i = 0; i < 2 && good; i++) {
        d9di_sample_order_buffer *b = &o->buffer[i];

        b->number = -1;
        b->capacity = capacity;
        b->order = calloc((size_t)n_slots, sizeof(*b->order));
        b->keyed = calloc((size_t)n_slots, sizeof(*b->keyed));
        good = b->order && b->keyed;
    }
    return good ? D9D_OK
                : D9D_FAIL(D9D_ENOMEM, "%s: no memory to sort samples in packs of %lld",
                           d9d_dataset_dir(o->sources[0].dataset), (long long)o->pack);
}

/* Computes the length of the stream. */
static d9d_status find_total(d9di_sample_order *o)
{
    o->total = ENDLESS;
    o->last_source = -1;
    for (size_t i = 0; i < o->n; i++) {
        const d9d_loader_source *s = &o->sources[i];
        const int64_t n = d9d_dataset_count(s->dataset);
        int64_t end;

        if (s->epochs == 0 || d9d_dataset_is_stream(s->dataset))
            continue;
        if (n > ENDLESS / s->epochs)
            return D9D_FAIL(D9D_ECONFIG, "%s: %lld sample%s cannot be read %lld times",
                            d9d_dataset_dir(s->dataset), (long long)n, D9D_PLURAL(n),
                            (long long)s->epochs);
        end =
            o->blend != NULL ? d9d_blend_find(o->blend, (int32_t)i, n * s->epochs) : n * s->epochs;
        if (end < o->total) {
            o->total = end;
            o->last_source = (int32_t)i;
        }
    }
    return D9D_OK;
}

static d9d_status make_blend(d9di_sample_order *o)
{
    double *weights = calloc(o->n, sizeof(*weights));
    d9d_status st;

    if (!weights)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a blend of %zu datasets", o->n);
    for (size_t i = 0; i < o->n; i++)
        weights[i] = o->sources[i].weight;
    st = d9d_blend_create(weights, o->n, &o->blend);
    free(weights);
    return st;
}

d9d_status d9di_sample_order_init(d9di_sample_order *o, const d9d_loader_source *sources, size_t n,
                                  int64_t pack)
{
    *o = (d9di_sample_order){
        .n = n, .pack = pack, .bucketed = sources[0].order == D9D_LOADER_BUCKETED};
    o->sources = calloc(n, sizeof(*o->sources));
    if (!o->sources)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a blend of %zu datasets", n);
    for (size_t i = 0; i < n; i++)
        o->sources[i] = sources[i];
    if (n > 1)
        D9D_TRY(make_blend(o));
    D9D_TRY(find_total(o));
    return o->bucketed ? make_buffer(o) : D9D_OK;
}

void d9di_sample_order_release(d9di_sample_order *o)
{
    for (int i = 0; o->buffer && i < 2; i++) {
        free(o->buffer[i].order);
        free(o->buffer[i].keyed);
    }
    free(o->buffer);
    d9d_blend_free(o->blend);
    free(o->sources);
}
