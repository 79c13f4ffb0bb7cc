/* sampler.c - see d9d/data/loader/sampler.h. */
#include "d9d/data/loader/sampler.h"

#include <stdlib.h>

#include "d9d/base/num_format.h"
#include "d9d/data/loader/blend.h"
#include "data/loader/sample_order.h"

struct d9d_sampler {
    d9d_blend *blend; /* NULL for one source */
    size_t n;
    d9d_sampler_source source[];
};

int64_t d9di_sampler_sample(const d9d_sampler_source *s, int64_t number)
{
    const int64_t epoch = number / s->samples, i = number % s->samples;

    if (s->order == D9D_LOADER_SEQUENTIAL)
        return i;
    return (int64_t)d9d_rng_permute(d9di_sample_order_rng(s->seed, D9DI_RNG_PERMUTATION, epoch, 0),
                                    (uint64_t)i, (uint64_t)s->samples);
}

static d9d_status make_blend(d9d_sampler *s)
{
    double weights[D9D_BLEND_SOURCES];

    if (s->n > D9D_BLEND_SOURCES)
        return D9D_FAIL(D9D_ECONFIG, "a blend of %zu dataset%s; at most %d can be", s->n,
                        D9D_PLURAL(s->n), D9D_BLEND_SOURCES);
    for (size_t i = 0; i < s->n; i++)
        weights[i] = s->source[i].weight;
    return d9d_blend_create(weights, s->n, &s->blend);
}

d9d_status d9d_sampler_create(const d9d_sampler_source *sources, size_t n, d9d_sampler **out)
{
    d9d_sampler *s = calloc(1, sizeof(*s) + n * sizeof(*s->source));
    d9d_status st = D9D_OK;

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a stream of %zu datasets", n);
    s->n = n;
    for (size_t i = 0; i < n && st == D9D_OK; i++) {
        s->source[i] = sources[i];
        if (sources[i].samples < 1 || sources[i].order == D9D_LOADER_BUCKETED)
            st = D9D_FAIL(D9D_EINVAL, "dataset %zu of a stream: has %lld sample%s, order %d", i,
                          (long long)sources[i].samples, D9D_PLURAL(sources[i].samples),
                          (int)sources[i].order);
    }
    if (st == D9D_OK && n > 1)
        st = make_blend(s);
    if (st == D9D_OK)
        *out = s;
    else
        d9d_sampler_free(s);
    return st;
}

void d9d_sampler_free(d9d_sampler *s)
{
    if (s == NULL)
        return;
    d9d_blend_free(s->blend);
    free(s);
}

d9d_sample_ref d9d_sampler_at(const d9d_sampler *s, int64_t k)
{
    const d9d_blend_ref from = s->blend != NULL ? d9d_blend_at(s->blend, k) : (d9d_blend_ref){0, k};

    return (d9d_sample_ref){.source = from.source,
                            .sample = d9di_sampler_sample(&s->source[from.source], from.number)};
}
