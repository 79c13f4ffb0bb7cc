/* kv_cache.h - what a model keeps of the tokens that it has seen.
 *
 * Every layer names the cells that it wants (d9d/nn/block.h): one of each token, such as keys and
 * values or the features that they are made of, of which there are Z; or one of each row of the
 * batch, such as a state, of which there are R.  What a cell stands for is the caller's: rows have
 * each a run of those of tokens, and a list of segments (d9d/kernels/table.h) says which ones each
 * query sees, and how many tokens of its row were before this call.
 *
 *     of tokens  | row 0: p p p g g . . . | row 1: p p p p p g . . |      p prompt, g generated
 *     of rows    | row 0 | row 1 |
 *     segments   {0, 1, 0, 5} {1, 1, 8, 6}      rows {0, 1}               one query a row
 *
 *     D9D_TRY(d9d_kv_cache_create(model, dev, tokens, rows, &cache));
 *     const d9d_model_in in = {.ids = &ids, .positions = &positions, .segments = &segments,
 *                              .cache = &cache, .at = &at, .rows = &rows, .pick = &last};
 *     D9D_TRY(model->ops->forward(model, tape, &in, &out));      // out.logits [N, V]
 *     d9d_kv_cache_release(&cache);
 *
 * A row of which nothing was before begins anew in any cell.  What comes out for a token does not
 * depend, on the CPU to the bit, on how its row was cut into calls; where attention is all that
 * looks back it has the bits of a forward over the whole row, else it is equal to rounding.
 */
#ifndef D9D_MODEL_KV_CACHE_H
#define D9D_MODEL_KV_CACHE_H

#include "d9d/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ENOTSUP for a model that takes no cache. */
D9D_API D9D_MUST_USE d9d_status d9d_kv_cache_check(const d9d_model *m);
/* Bytes that cells of so many tokens and rows take here, before there is memory: a model on its
 * mesh. */
D9D_API uint64_t d9d_kv_cache_bytes(const d9d_model *m, int64_t tokens, int64_t rows);
/* EOOM, ENOTSUP. */
D9D_API D9D_MUST_USE d9d_status d9d_kv_cache_create(const d9d_model *m, d9d_device *dev,
                                                    int64_t tokens, int64_t rows,
                                                    d9d_kv_cache *out);
D9D_API void d9d_kv_cache_release(d9d_kv_cache *c); /* a zeroed one is fine */

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_KV_CACHE_H */
