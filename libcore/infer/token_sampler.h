/* token_sampler.h - samples the next token from its logits: greedy, or temperature with top-k,
 * top-p and min-p; with a repetition penalty before either.
 *
 * The penalty divides positive logits of tokens that the sequence has, and multiplies negative
 * ones.  Temperature 0 takes the argmax, the lowest of equal tokens.  Otherwise one token is drawn
 * with weights exp((logit - max) / temperature).  First only the top_k most likely tokens remain;
 * then, in descending order, those within top_p of the sum of weights, the first always; then those
 * with at least min_p times the largest weight.  (Of equal tokens the lower one counts as more
 * likely.)  It is the order of transformers.
 *
 * The random number is a function of (seed, stream, position) only, and the cumulative sum runs in
 * token order.  So the result is the same on any machine and in any batch, unless the logits
 * differ.
 */
#ifndef D9DI_INFER_TOKEN_SAMPLER_H
#define D9DI_INFER_TOKEN_SAMPLER_H

#include "d9d/base/mem.h"
#include "d9d/base/rng.h"

typedef struct d9di_token_sampler_opts {
    double temperature;
    int64_t top_k;             /* 0: no limit */
    double top_p;              /* 1: no limit */
    double min_p;              /* 0: no limit */
    double repetition_penalty; /* 0 or 1: none */
} d9di_token_sampler_opts;

/* True if the token is the argmax of the logits as they are. */
bool d9di_token_sampler_is_argmax(const d9di_token_sampler_opts *o);

/* Scratch memory, of one thread at a time. */
typedef struct d9di_token_sampler {
    D9D_VEC(uint32_t) order;
    D9D_VEC(double) weights;
    D9D_VEC(float) penalised;
} d9di_token_sampler;

/* Of the softmax of penalised logits / temperature over the whole vocabulary, whatever top_k, top_p
 * and min_p leave; with temperature 0, of temperature 1. */
typedef struct d9di_token_sampler_stats {
    double log_prob; /* of the token */
    double entropy;
} d9di_token_sampler_stats;

/* ENUMERIC unless the maximum logit, that of token `best`, is finite. */
d9d_status d9di_token_sampler_check_logit(uint32_t best, float logit);

/* Samples from logits [n], n at least 1, at `position`, which counts prompt and generated tokens;
 * ids [position] are these; those from n on are virtual and have no logit.  NULL without a penalty.
 * ENUMERIC as above. stats may be NULL. */
d9d_status d9di_token_sampler_sample(d9di_token_sampler *s, const d9di_token_sampler_opts *o,
                                     d9d_rng r, const uint32_t *ids, int64_t position,
                                     const float *logits, int64_t n, uint32_t *out,
                                     d9di_token_sampler_stats *stats);
void d9di_token_sampler_release(d9di_token_sampler *c);

#endif /* D9DI_INFER_TOKEN_SAMPLER_H */
