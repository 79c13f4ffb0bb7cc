/* layer_blocks.h - what follows from the blocks of a layer: its KV cache and its FLOP.
 */
#ifndef D9DI_MODEL_LAYER_BLOCKS_H
#define D9DI_MODEL_LAYER_BLOCKS_H

#include "d9d/model/decoder_model.h"

/* The cache entries of the block that looks back; none without one. */
void d9di_layer_cache_spec(const d9d_layer_blocks *b, d9d_block_cache_spec *out);

/* FLOP of forward and backward for one token of a sequence of s tokens: 6 for each element of a
 * matrix, of which experts count top_k / E, and the products of attention. */
double d9di_layer_flops(d9d_decoder_layer *l, int64_t s);

#endif /* D9DI_MODEL_LAYER_BLOCKS_H */
