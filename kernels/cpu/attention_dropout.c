/* attention_dropout.c - dropout of attention's probabilities, by counter-based random numbers. */
#include "cpu/attention.h"

void d9di_attention_dropout(const d9d_attention_dims *n, const d9di_attention_tile *t, int64_t h,
                            int64_t query, float *x)
{
    const d9d_attention_dropout *d = &n->dropout;
    const d9d_rng rng = {d->rng.seed, d->rng.stream + (uint64_t)h};
    const float factor = 1.0f / (1.0f - d->p);
    uint32_t bits[D9DI_K_BLOCK];

    if (d->p == 0.0f)
        return;
    d9di_cpu_random_bits(bits, rng, (uint64_t)d->token[query] * (uint64_t)d->width + (uint64_t)t->k,
                         t->nk);
    for (int64_t j = 0; j < t->nk; j++)
        x[j] *= (float)(bits[j] >> 8) * 0x1p-24f < d->p ? 0.0f : factor;
}
