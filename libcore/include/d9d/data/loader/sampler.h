/* sampler.h - which sample is number k of a loader's stream, computed from numbers alone, without
 * opening the datasets.
 *
 *     const d9d_sampler_source one = {.order = D9D_LOADER_SHUFFLED, .seed = 7, .samples = 1000};
 *     D9D_TRY(d9d_sampler_create(&one, 1, &s));
 *     draw = d9d_sampler_at(s, k);              // draw.source is 0, draw.sample below 1000
 *
 * It does not support the bucketed order, which depends on every sample's length.
 */
#ifndef D9D_DATA_LOADER_SAMPLER_H
#define D9D_DATA_LOADER_SAMPLER_H

#include "d9d/data/loader/loader.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_sampler_source {
    d9d_loader_order order;
    uint64_t seed;
    int64_t samples; /* samples of the split, at least 1 */
    double weight;   /* may be 0 if there is only one source */
} d9d_sampler_source;

typedef struct d9d_sampler d9d_sampler;

/* EINVAL: bucketed order, or a source without samples.  ECONFIG: see d9d_blend_create(). */
D9D_API D9D_MUST_USE d9d_status d9d_sampler_create(const d9d_sampler_source *sources, size_t n,
                                                   d9d_sampler **out);
D9D_API void d9d_sampler_free(d9d_sampler *s);
/* Sample k >= 0; `skipped` is false. */
D9D_API d9d_sample_ref d9d_sampler_at(const d9d_sampler *s, int64_t k);

/* Writes the sources of a loader to out[D9D_BLEND_SOURCES] and returns their number; 0 if it is
 * bucketed. */
D9D_API size_t d9d_loader_sampler_sources(const d9d_loader *l, d9d_sampler_source *out);
/* True if the loader skips samples. */
D9D_API bool d9d_loader_has_skips(const d9d_loader *l);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_LOADER_SAMPLER_H */
