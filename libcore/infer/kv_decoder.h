/* kv_decoder.h - incremental decoding: each sequence has its slots in one KV cache.
 *
 *     opts = {.rows = rows, .max_tokens = max_tokens, .sampler = {.top_p = 1}};
 *     D9D_TRY(d9di_kv_decoder_open(&engine, &opts, &decoder));
 *     input = {.row = 0, .first = 0, .n = 5, .ids = prompt};      // prefill
 *     D9D_TRY(d9di_kv_decoder_enqueue(decoder, &input, 1));
 *     input = {.row = 0, .first = 5, .n = 1, .ids = NULL};        // decode: that call's token
 *     D9D_TRY(d9di_kv_decoder_enqueue(decoder, &input, 1));
 *     D9D_TRY(d9di_kv_decoder_wait(decoder, &output));            // of the first call
 *
 * A call goes through all stages of the pipeline, of which a rank may have several, each with a
 * cache.  Inputs of one call do not attend to each other.  On the CPU an output has the same bits
 * with any other inputs in the call, and, but for MLA, however its sequence was divided into calls.
 */
#ifndef D9DI_INFER_KV_DECODER_H
#define D9DI_INFER_KV_DECODER_H

#include "d9d/model/kv_cache.h"
#include "engine/engine.h"
#include "infer/token_sampler.h"

typedef struct d9di_kv_decoder d9di_kv_decoder;

typedef struct d9di_kv_decoder_opts {
    d9d_kv_cache_dtype cache;
    int64_t rows, max_tokens; /* sequences, and the most tokens of one */
    d9di_token_sampler_opts sampler;
    bool keeps; /* inputs may keep their logits */
} d9di_kv_decoder_opts;

/* n tokens of a sequence that already has `first` tokens. */
typedef struct d9di_kv_decoder_input {
    int64_t row, first, n;
    const uint32_t *ids; /* [n] */
    int64_t prefix;      /* of a prefix mask: all n tokens see the sequence's first `prefix` tokens,
                            which are in the cache or among them; 0: a causal mask */
    uint64_t stream;     /* of random numbers; the next token's position is first + n */
    bool keeps; /* the only input of its call: d9di_kv_decoder_draw_kept() has its logits */
} d9di_kv_decoder_input;

/* The token after the last one of each input. */
typedef d9di_token_sampler_tokens d9di_kv_decoder_output;

/* Bytes of the KV cache for `rows` sequences of at most `max_tokens` tokens; of a model that is
 * placed on its mesh. */
uint64_t d9di_kv_decoder_bytes(const d9di_engine *e, d9d_kv_cache_dtype t, int64_t rows,
                               int64_t max_tokens);

/* EOOM. */
d9d_status d9di_kv_decoder_open(d9di_engine *e, const d9di_kv_decoder_opts *opts,
                                d9di_kv_decoder **out);
void d9di_kv_decoder_close(d9di_kv_decoder *d); /* NULL is fine */

/* Row `to` has the first n tokens of row `from` from now on, which are all that `from` has: no call
 * computes them again. */
d9d_status d9di_kv_decoder_copy(d9di_kv_decoder *d, int64_t from, int64_t to, int64_t n);

/* Enqueues a call.  Rows ascend, each at most once.  A second call may be enqueued while one is in
 * flight: with the same rows, one token each and no ids, it takes the tokens that the first call
 * chooses.  Collective over the ranks that share the model's parameters, stages
 * or experts; a rank with nothing to do calls with n = 0. */
d9d_status d9di_kv_decoder_enqueue(d9di_kv_decoder *d, const d9di_kv_decoder_input *inputs,
                                   size_t n);
/* Waits for the oldest call in flight.  The output is valid until the next enqueue.  It is the same
 * on all tensor-parallel ranks and all pipeline stages, which get it one after the other. */
d9d_status d9di_kv_decoder_wait(d9di_kv_decoder *d, d9di_kv_decoder_output *out);
/* Tokens of n sequences, at most `rows`, at `position`, from the logits that an input kept last;
 * sequence i has random numbers of stream streams[i].  Waits for them; no call is in flight. */
d9d_status d9di_kv_decoder_draw_kept(d9di_kv_decoder *d, const uint64_t *streams, int64_t n,
                                     int64_t position, d9di_kv_decoder_output *out);

#endif /* D9DI_INFER_KV_DECODER_H */
