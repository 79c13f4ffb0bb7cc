/* token_sampler.h - samples the next token from its logits: greedy, or temperature with top-k and
 * top-p.
 *
 * Temperature 0 takes the argmax, the lowest of equal tokens.  Otherwise one token is drawn with
 * weights exp((logit - max) / temperature).  First only the top_k most likely tokens remain; then,
 * in descending order, those within top_p of the sum of weights.  (Of equal tokens the lower one
 * counts as more likely.)
 *
 * The random number is a function of (seed, stream, position) only, and the cumulative sum runs in
 * token order.  So the result is the same on any machine and in any batch, unless the logits
 * differ.
 */
#ifndef D9DI_INFER_TOKEN_SAMPLER_H
#define D9DI_INFER_TOKEN_SAMPLER_H

#include "d9d/base/mem.h"
#include "d9d/base/rng.h"

typedef struct d9di_token_sampler {
    double temperature;
    int64_t top_k;           /* 0: no limit */
    double top_p;            /* 1: no limit */
    D9D_VEC(uint32_t) order; /* scratch, as the next member */
    D9D_VEC(double) cumulative;
} d9di_token_sampler;

/* ENUMERIC unless the maximum logit, that of token `best`, is finite. */
d9d_status d9di_token_sampler_check_logit(uint32_t best, float logit);

/* Samples from logits [n], n at least 1, at `position`, which counts prompt and generated tokens.
 * ENUMERIC as above. */
d9d_status d9di_token_sampler_sample(d9di_token_sampler *c, d9d_rng r, int64_t position,
                                     const float *logits, int64_t n, uint32_t *out);
void d9di_token_sampler_release(d9di_token_sampler *c);

#endif /* D9DI_INFER_TOKEN_SAMPLER_H */
