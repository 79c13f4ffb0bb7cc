/* kv_cache.h - the KV cache of a model: memory for the tokens that it has seen.
 *
 * Every layer lists its cache entries (d9d/nn/block.h).  An entry has Z slots for tokens, such as
 * keys and values or MLA's latent features, or R slots for sequences, such as a recurrent state.
 * The caller decides which slot belongs to which sequence.  Each sequence has a run of token slots;
 * a list of segments (d9d/kernels/segment.h) says which slots each query sees, and how many tokens
 * of its sequence came in earlier calls.
 *
 *     token slots  | seq 0: p p p g g . . . | seq 1: p p p p p g . . |      p prompt, g generated
 *     seq slots    | seq 0 | seq 1 |
 *     segments     {0, 1, 0, 5} {1, 1, 8, 6}      seq_slots {0, 1}         one query a sequence
 *
 *     D9D_TRY(d9d_kv_cache_create(model, dev, D9D_KV_CACHE_AUTO, tokens, seqs, &cache));
 *     const d9d_model_in in = {.ids = &ids, .positions = &positions, .segments = &segments,
 *                              .cache = &cache, .token_slots = &slots, .seq_slots = &seqs,
 *                              .pick = &last};
 *     D9D_TRY(model->ops->forward(model, tape, &in, &out));      // out.logits [N, V]
 *     d9d_kv_cache_release(&cache);
 *
 * A sequence without earlier tokens starts from zero, whatever its slots hold.  On the CPU the
 * result for a token does not depend, to the bit, on how its sequence was divided into calls
 * (chunked prefill).  If attention is the only op that looks back, it has the bits of a forward
 * over the whole sequence; otherwise it is equal up to rounding.
 *
 * In 8 bits (D9D_KV_CACHE_FP8) a key or value of D elements is D codes of e4m3 and a scale of four
 * bytes, a power of two: (D + 4) / 2D of bfloat16's memory.  An element is off by at most 2^-4 of
 * itself, or 2^-10 of the scale, which is below 1/224 of the largest of the D.  Attention has
 * everything else in its own precision.  Recurrent states keep their type.
 */
#ifndef D9D_MODEL_KV_CACHE_H
#define D9D_MODEL_KV_CACHE_H

#include "d9d/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What keys and values are stored as: the model's type, or 8 bits.  Words as vLLM's
 * --kv-cache-dtype, in this order. */
typedef enum d9d_kv_cache_dtype { D9D_KV_CACHE_AUTO, D9D_KV_CACHE_FP8 } d9d_kv_cache_dtype;
D9D_API extern const char *const d9d_kv_cache_dtype_names[]; /* "auto", "fp8", NULL */

/* ENOTSUP for a model without a cache, and for one that stores other things of each token than keys
 * and values, such as MLA's latent features, in 8 bits. */
D9D_API D9D_MUST_USE d9d_status d9d_kv_cache_check(const d9d_model *m, d9d_kv_cache_dtype t);
/* Bytes of a cache with so many slots of tokens and of sequences on this rank.  Needs no memory:
 * only a model that is placed on its mesh. */
D9D_API uint64_t d9d_kv_cache_bytes(const d9d_model *m, d9d_kv_cache_dtype t, int64_t tokens,
                                    int64_t seqs);
/* Allocate the slots on the device.  EOOM, ENOTSUP. */
D9D_API D9D_MUST_USE d9d_status d9d_kv_cache_create(const d9d_model *m, d9d_device *dev,
                                                    d9d_kv_cache_dtype t, int64_t tokens,
                                                    int64_t seqs, d9d_kv_cache *out);
/* Copies a sequence: n token slots from from_token on to those from to_token on, and sequence slot
 * from_seq to to_seq, which do not overlap.  Enqueued on the device; `t` as it was created. */
typedef struct d9d_kv_cache_copy_opts {
    int64_t from_token, to_token, n, from_seq, to_seq;
} d9d_kv_cache_copy_opts;
D9D_API D9D_MUST_USE d9d_status d9d_kv_cache_copy(const d9d_model *m, d9d_device *dev,
                                                  d9d_kv_cache_dtype t, const d9d_kv_cache *c,
                                                  const d9d_kv_cache_copy_opts *o);
D9D_API void d9d_kv_cache_release(d9d_kv_cache *c); /* a zeroed cache is fine */

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_KV_CACHE_H */
