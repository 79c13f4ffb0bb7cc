/* dequant_modelopt.h - quantization_config of NVIDIA's Model Optimizer, whose algorithms are
 * methods: FP8 with a scale a matrix, and a mixture (dequant_modelopt.c), NVFP4 (dequant_fp4.c).
 */
#ifndef D9DI_CKPT_QUANT_DEQUANT_MODELOPT_H
#define D9DI_CKPT_QUANT_DEQUANT_MODELOPT_H

#include "ckpt/quant/dequant_method.h"

#define D9DI_DEQUANT_MODELOPT "modelopt"

extern const char *const d9di_dequant_modelopt_members[];
/* Suffixes of tensors that weights do not need. */
extern const char *const d9di_dequant_modelopt_hidden[];

/* Is quant_algo one that this method decodes? */
bool d9di_dequant_modelopt_is(const json_t *o, d9d_quantization_method method);

/* Must a tensor of this type have scales? */
bool d9di_dequant_modelopt_is_values(d9d_dtype type);

/* Set q->block and q->bits.  ENOTSUP: what is not decoded. */
d9d_status d9di_dequant_modelopt_configure(const json_t *o, const char *where, d9d_quantization *q);

#endif /* D9DI_CKPT_QUANT_DEQUANT_MODELOPT_H */
