/* layer_blocks.h - what follows from the blocks of a layer: its KV cache and its FLOP.
 */
#ifndef D9DI_MODEL_LAYER_BLOCKS_H
#define D9DI_MODEL_LAYER_BLOCKS_H

#include "d9d/model/decoder_model.h"

/* The cache entries of the block that looks back; none without one. */
void d9di_layer_cache_spec(const d9d_layer_blocks *b, d9d_block_cache_spec *out);

/* FLOP of forward and backward for one token of a sequence of s tokens: those of its matrices
 * (d9d_model_matrix_flops()), of which experts count top_k / E, and the products of attention.
 * *before: something before the layer is trained, and then before what follows it. */
double d9di_layer_flops(d9d_decoder_layer *l, int64_t s, bool *before);

#endif /* D9DI_MODEL_LAYER_BLOCKS_H */
