/* sample_order.h - the order of a loader's stream: which sample is number k. */
#ifndef D9DI_DATA_LOADER_SAMPLE_ORDER_H
#define D9DI_DATA_LOADER_SAMPLE_ORDER_H

#include "d9d/base/rng.h"
#include "d9d/data/loader/blend.h"
#include "d9d/data/loader/sampler.h"

/* One random number stream per purpose. */
typedef enum d9di_sample_order_rng_purpose {
    D9DI_RNG_PERMUTATION,
    D9DI_RNG_TIES,
    D9DI_RNG_PACKS,
    D9DI_RNG_WITHIN
} d9di_sample_order_rng_purpose;
d9d_rng d9di_sample_order_rng(uint64_t seed, d9di_sample_order_rng_purpose purpose, int64_t epoch,
                              int64_t number);

/* The sample of draw `number` of a source, before bucketing. */
int64_t d9di_sampler_sample(const d9d_sampler_source *s, int64_t number);
d9d_sampler_source d9di_sample_order_source(const d9d_loader_source *s);

typedef struct d9di_sample_order_buffer d9di_sample_order_buffer;

typedef struct d9di_sample_order {
    d9d_loader_source *sources; /* [n] */
    size_t n;
    d9d_blend *blend;    /* NULL for one source */
    int64_t total;       /* samples of the stream */
    int32_t last_source; /* the source that ends the stream; -1: none */
    bool bucketed;
    int64_t pack;
    d9di_sample_order_buffer *buffer; /* [2], a cache; NULL unless bucketed */
} d9di_sample_order;

d9d_status d9di_sample_order_init(d9di_sample_order *o, const d9d_loader_source *sources, size_t n,
                                  int64_t pack);
void d9di_sample_order_release(d9di_sample_order *o);

/* Sample k of the stream, 0 <= k < total.  One thread at a time. */
d9d_status d9di_sample_order_at(d9di_sample_order *o, int64_t k, d9d_sample_ref *out);

#endif /* D9DI_DATA_LOADER_SAMPLE_ORDER_H */
