/* token_sampler.h - the next token, from its logits.
 *
 * Temperature 0 takes the largest logit, of equal ones the lowest token.  Else one token is drawn
 * with weights exp((logit - largest) / temperature), of those that are left when first all but the
 * top_k likeliest are put aside, and then, likeliest first, those that come behind top_p of the
 * sum.  (Of equal ones the lower token counts as likelier.)
 *
 * The draw is a number of (seed, stream, position) alone, and tokens are gone through in their
 * order: the same on any machine, in any batch, unless two weights differ there.
 */
#ifndef D9DI_INFER_TOKEN_SAMPLER_H
#define D9DI_INFER_TOKEN_SAMPLER_H

#include "d9d/base/mem.h"
#include "d9d/base/rng.h"

typedef struct d9di_token_sampler {
    double temperature;
    int64_t top_k;           /* 0: all */
    double top_p;            /* 1: all */
    D9D_VEC(uint32_t) order; /* these two are room */
    D9D_VEC(double) cumulative;
} d9di_token_sampler;

/* ENUMERIC unless the largest logit, that of token `best`, is a finite number. */
d9d_status d9di_token_sampler_check_logit(uint32_t best, float logit);

/* logits [n] of position `position`, counted over prompt and all; n is at least 1.  ENUMERIC as
 * above. */
d9d_status d9di_token_sampler_sample(d9di_token_sampler *c, d9d_rng r, int64_t position,
                                     const float *logits, int64_t n, uint32_t *out);
void d9di_token_sampler_release(d9di_token_sampler *c);

#endif /* D9DI_INFER_TOKEN_SAMPLER_H */
