/* cache.h - the keys and values of positions that a model has seen.
 *
 * Every layer keeps Z cells of keys and as many of values.  What a cell stands for is the caller's:
 * rows of a batch have each a run of them, and a list of segments (d9d/kernels/table.h) says which
 * cells each query sees.
 *
 *     cells      | row 0: p p p g g . . . | row 1: p p p p p g . . |      p prompt, g generated
 *     segments   {0, 1, 0, 5} {1, 1, 8, 6}                                one query a row
 *
 *     D9D_TRY(d9d_cache_create(model, dev, cells, &cache));
 *     const d9d_model_in in = {.ids = &ids, .positions = &positions, .segments = &segments,
 *                              .cache = &cache, .at = &at, .pick = &last};
 *     D9D_TRY(model->ops->forward(model, tape, &in, &out));      // out.logits [N, V]
 *     d9d_cache_release(&cache);
 *
 * What comes out for a token is, on the CPU, to the bit what a forward over its whole row gives.
 */
#ifndef D9D_MODEL_CACHE_H
#define D9D_MODEL_CACHE_H

#include "d9d/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ENOTSUP for a model that takes no cache. */
D9D_API D9D_MUST_USE d9d_status d9d_cache_check(const d9d_model *m);
/* Bytes that so many cells take here, before there is memory: a model on its mesh. */
D9D_API uint64_t d9d_cache_bytes(const d9d_model *m, int64_t cells);
/* EOOM, ENOTSUP. */
D9D_API D9D_MUST_USE d9d_status d9d_cache_create(const d9d_model *m, d9d_device *dev, int64_t cells,
                                                 d9d_cache *out);
D9D_API void d9d_cache_release(d9d_cache *c); /* a zeroed one is fine */

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_CACHE_H */
