/* dropout_rng.h - the token numbers that select dropout's random numbers. */
#ifndef D9DI_ENGINE_DROPOUT_RNG_H
#define D9DI_ENGINE_DROPOUT_RNG_H

#include "d9d/data/loader/loader.h"
#include "d9d/model/model.h"

/* True if one of a rank's stages, or an adapter, has dropout. */
bool d9di_engine_needs_dropout_rng(d9d_model *const *stages, size_t n, const d9d_params *adapters);

/* The numbers of this rank's tokens of a batch; context-parallel ranks have slices of the rows.
 * The token at position i of stream sample k has number k L + i, where L is the model's maximum
 * length. */
d9d_status d9di_engine_make_dropout_rng(const d9d_model *m, d9d_device *dev, const d9d_batch *b,
                                        uint64_t seed, d9d_dropout_rng *out);

#endif /* D9DI_ENGINE_DROPOUT_RNG_H */
