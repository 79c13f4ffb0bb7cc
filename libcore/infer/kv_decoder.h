/* kv_decoder.h - incremental decoding: each sequence has its slots in one KV cache.
 *
 *     D9D_TRY(d9di_kv_decoder_open(&engine, D9D_KV_CACHE_AUTO, rows, max_tokens, true, &decoder));
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

typedef struct d9di_kv_decoder d9di_kv_decoder;

/* n tokens of a sequence that already has `first` tokens. */
typedef struct d9di_kv_decoder_input {
    int64_t row, first, n;
    const uint32_t *ids; /* [n] */
    int64_t prefix;      /* of a prefix mask: all n tokens see the sequence's first `prefix` tokens,
                            which are in the cache or among them; 0: a causal mask */
} d9di_kv_decoder_input;

/* The output for the last token of each input; host memory. */
typedef struct d9di_kv_decoder_output {
    const int32_t *token; /* [n]: argmax of the logits, as the kernel argmax finds it */
    const float *largest; /* [n]: its logit */
    const float *logits;  /* [n, V] instead of both, if the decoder does not choose tokens */
} d9di_kv_decoder_output;

/* Bytes of the KV cache for `rows` sequences of at most `max_tokens` tokens; of a model that is
 * placed on its mesh. */
uint64_t d9di_kv_decoder_bytes(const d9di_engine *e, d9d_kv_cache_dtype t, int64_t rows,
                               int64_t max_tokens);

/* `chooses`: the argmax is computed on the device, and logits stay there.  EOOM. */
d9d_status d9di_kv_decoder_open(d9di_engine *e, d9d_kv_cache_dtype t, int64_t rows,
                                int64_t max_tokens, bool chooses, d9di_kv_decoder **out);
void d9di_kv_decoder_close(d9di_kv_decoder *d); /* NULL is fine */

/* Row `to` has the first n tokens of row `from` from now on, which are all that `from` has: no call
 * computes them again. */
d9d_status d9di_kv_decoder_copy(d9di_kv_decoder *d, int64_t from, int64_t to, int64_t n);

/* Enqueues a call.  Rows ascend, each at most once.  A decoder that chooses tokens accepts a second
 * call while one is in flight: with the same rows, one token each and no ids, it takes the tokens
 * that the first call chooses.  Collective over the ranks that share the model's parameters, stages
 * or experts; a rank with nothing to do calls with n = 0. */
d9d_status d9di_kv_decoder_enqueue(d9di_kv_decoder *d, const d9di_kv_decoder_input *inputs,
                                   size_t n);
/* Waits for the oldest call in flight.  The output is valid until the next enqueue.  It is the same
 * on all tensor-parallel ranks and all pipeline stages, which get it one after the other. */
d9d_status d9di_kv_decoder_wait(d9di_kv_decoder *d, d9di_kv_decoder_output *out);

#endif /* D9DI_INFER_KV_DECODER_H */
