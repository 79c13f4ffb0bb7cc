/* dequant_compressed.h - quantization_config of compressed-tensors, whose formats are several
 * methods: integers in int32 (dequant_packed.c), FP4 (dequant_fp4.c), bytes (dequant_compressed.c).
 */
#ifndef D9DI_CKPT_QUANT_DEQUANT_COMPRESSED_H
#define D9DI_CKPT_QUANT_DEQUANT_COMPRESSED_H

#include "ckpt/quant/dequant_method.h"

#define D9DI_DEQUANT_COMPRESSED "compressed-tensors"

extern const char *const d9di_dequant_compressed_members[];
/* Suffixes of tensors that weights do not need: of activations and caches; and zeros of symmetric
 * weights. */
extern const char *const d9di_dequant_compressed_activations[],
    *const d9di_dequant_compressed_hidden[];

/* Is the format one that this method decodes? */
bool d9di_dequant_compressed_is(const json_t *o, d9d_quantization_method method);

/* Set q->block and q->bits.  ENOTSUP: what is not decoded.  ECONFIG: there are no groups. */
d9d_status d9di_dequant_compressed_configure(const json_t *o, const char *where,
                                             d9d_quantization *q);

#endif /* D9DI_CKPT_QUANT_DEQUANT_COMPRESSED_H */
