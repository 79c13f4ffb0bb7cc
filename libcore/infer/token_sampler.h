/* token_sampler.h - chooses the next tokens on the device, from the logits of sequences, and reads
 * them back.
 *
 *     D9D_TRY(d9di_token_sampler_open(dev, &opts, &sizes, &sampler));
 *     D9D_TRY(d9di_token_sampler_enqueue(sampler, &call));         // may be recorded (graph.h)
 *     D9D_TRY(d9di_token_sampler_enqueue_readback(sampler, 0));
 *     ... the next call may take the tokens from d9di_token_sampler_chosen() ...
 *     D9D_TRY(d9di_token_sampler_wait(sampler, 0, &tokens));
 *
 * A repetition penalty divides positive logits of tokens that the sequence has, and multiplies
 * negative ones.  Temperature 0 takes the argmax; else top_k, top_p and min_p leave some tokens, of
 * which one is drawn, as d9d/kernels/elementwise.h says of `sample_tokens`.  The random number is a
 * function of (seed, stream, position) only.  So a token is the same in any batch, and on any
 * processor that computes the same logits.
 */
#ifndef D9DI_INFER_TOKEN_SAMPLER_H
#define D9DI_INFER_TOKEN_SAMPLER_H

#include "d9d/tensor/tensor.h"

enum { D9DI_SAMPLER_READBACKS = 2 };

typedef struct d9di_token_sampler_opts {
    double temperature;
    int64_t top_k;             /* 0: no limit */
    double top_p;              /* 1: no limit */
    double min_p;              /* 0: no limit */
    double repetition_penalty; /* 0 or 1: none */
    uint64_t seed;
    bool wants_stats;
} d9di_token_sampler_opts;

/* What a sampler allocates for. */
typedef struct d9di_token_sampler_sizes {
    int64_t vocab;
    int64_t tokens; /* of a call, and of the chosen ones that a call takes */
    int64_t slots;  /* of all sequences: where the KV cache has their tokens */
    bool keeps;     /* keeps the logits of a row */
} d9di_token_sampler_sizes;

/* A call's sequences; arrays on the device. */
typedef struct d9di_token_sampler_call {
    const float *logits; /* [n, V] */
    int64_t n;
    const int64_t *draws; /* [n, 2]: stream and position */
    bool keeps;           /* n is 1: the logits stay for d9di_token_sampler_draw_kept() */
    /* For the penalty: tokens that the call adds, their slots, and the keys of each sequence. */
    const int32_t *ids, *slots; /* [tokens] */
    int64_t tokens;
    const d9d_segment *segments; /* [n] */
} d9di_token_sampler_call;

/* Of the softmax of penalised logits / temperature over the whole vocabulary, whatever top_k, top_p
 * and min_p leave; with temperature 0, of temperature 1. */
typedef struct d9di_token_sampler_stats {
    double log_prob; /* of the token */
    double entropy;
} d9di_token_sampler_stats;

/* Host memory. */
typedef struct d9di_token_sampler_tokens {
    const int32_t *token;                  /* [n] */
    const float *largest;                  /* [n]: the largest logit; check_logit() */
    const d9di_token_sampler_stats *stats; /* [n]; NULL unless they are wanted */
} d9di_token_sampler_tokens;

typedef struct d9di_token_sampler d9di_token_sampler;

/* ENOTSUP: a vocabulary that is too large to draw from. */
d9d_status d9di_token_sampler_check(const d9di_token_sampler_opts *o, int64_t vocab);
/* EOOM. */
d9d_status d9di_token_sampler_open(d9d_device *dev, const d9di_token_sampler_opts *o,
                                   const d9di_token_sampler_sizes *n, d9di_token_sampler **out);
void d9di_token_sampler_close(d9di_token_sampler *s); /* NULL is fine */

/* I32: the tokens of the last call, in the order of its sequences, on the device. */
const d9d_tensor *d9di_token_sampler_chosen(const d9di_token_sampler *s);
/* The n tokens in slots from `from` on are those in slots from `to` on, too. */
d9d_status d9di_token_sampler_copy(d9di_token_sampler *s, int64_t from, int64_t to, int64_t n);
/* Without sequences, nothing. */
d9d_status d9di_token_sampler_enqueue(d9di_token_sampler *s, const d9di_token_sampler_call *c);
/* A call of n sequences that all have the logits that were kept; `draws` [n, 2] in host memory. */
d9d_status d9di_token_sampler_draw_kept(d9di_token_sampler *s, const int64_t *draws, int64_t n);
/* Readback k, below D9DI_SAMPLER_READBACKS, of the last call's tokens.  They are valid until the
 * next readback k is enqueued. */
d9d_status d9di_token_sampler_enqueue_readback(d9di_token_sampler *s, int k);
d9d_status d9di_token_sampler_wait(d9di_token_sampler *s, int k, d9di_token_sampler_tokens *out);

/* ENUMERIC unless the largest logit of a sequence is finite; if not, `token` has it. */
d9d_status d9di_token_sampler_check_logit(uint32_t token, float largest);

#endif /* D9DI_INFER_TOKEN_SAMPLER_H */
