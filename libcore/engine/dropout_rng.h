/* dropout_rng.h - the numbers of a batch's tokens, by which dropout is drawn. */
#ifndef D9DI_ENGINE_DROPOUT_RNG_H
#define D9DI_ENGINE_DROPOUT_RNG_H

#include "d9d/data/loader/loader.h"
#include "d9d/model/model.h"

/* Is anything dropped in this model? */
bool d9di_engine_needs_dropout_rng(const d9d_params *adapters);

/* The tokens that this rank has of a batch, where rows are cut over context-parallel ranks: token
 * of position i of sample k of the stream is k L + i, L the model's most positions. */
d9d_status d9di_engine_make_dropout_rng(const d9d_model *m, d9d_device *dev, const d9d_batch *b,
                                        uint64_t seed, d9d_dropout_rng *out);

#endif /* D9DI_ENGINE_DROPOUT_RNG_H */
