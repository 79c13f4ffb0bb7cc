/* dequant.h - quantised checkpoints, read as if they were not: a tensor source over another one.
 *
 *     config.json          stored                                    presented
 *     quant_method "fp8"   X F8_E4M3 [..., R, C],                    X [..., R, C]
 *                          X_scale_inv F32 [..., ceil(R/128), ceil(C/128)]
 *     "mxfp4"              X_blocks U8 [E, R, G, 16], X_scales U8 [E, R, G]   X [E, 32 G, R]
 *     "compressed-tensors" X_packed I32 [R, C/8], X_scale [R, C/group]        X [R, C]
 *
 * A tensor with scales has its plain name, its decoded type and shape; the scales are hidden; every
 * other tensor is as it is stored.  Any span of a decoded tensor can be read by itself, at the cost
 * of the stored blocks that it touches.  So whatever takes a source (mapper, loader, adapters)
 * takes a quantised checkpoint.
 *
 *     D9D_TRY(d9d_quantization_read(config, "hf/config.json", &q));
 *     D9D_TRY(d9d_dequant_create(&q, D9D_BF16, &stored, &d));
 *     src = d9d_dequant_source(d);
 *
 * Decoding is exact but for one rounding to nearest even, to the type asked for.  FP8: the number
 * times the scale of its block, in float32.  MXFP4 (OCP Microscaling Formats, v1.0): two e2m1
 * numbers a byte, the low nibble first, times 2^(scale - 127); the last two dimensions are swapped,
 * as transformers does.  compressed-tensors: only its format "pack-quantized" of symmetric integers
 * of four bits, the lowest of an int32 first; each, less 8, times the scale of its group, rounded
 * to the type of the scales, as that library does.
 */
#ifndef D9D_CKPT_QUANT_DEQUANT_H
#define D9D_CKPT_QUANT_DEQUANT_H

#include "d9d/base/json.h"
#include "d9d/ckpt/mapper/mapper.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9d_quantization_method {
    D9D_QUANTIZATION_NONE,
    D9D_QUANTIZATION_FP8,
    D9D_QUANTIZATION_MXFP4,
    D9D_QUANTIZATION_PACKED /* compressed-tensors, integers of four bits */
} d9d_quantization_method;

typedef struct d9d_quantization {
    d9d_quantization_method method;
    int64_t block[2]; /* FP8, PACKED: rows and columns that share a scale; 0: the whole matrix's */
} d9d_quantization;

#define D9D_QUANTIZATION_FIELD "quantization_config" /* of config.json */

/* Read that field of a config.json: NONE if it is absent or null.  ENOTSUP for a method that is not
 * decoded, ECONFIG for a member of the wrong kind; `where` begins the message. */
D9D_API D9D_MUST_USE d9d_status d9d_quantization_read(const json_t *config, const char *where,
                                                      d9d_quantization *out);
/* "fp8" */
D9D_API const char *d9d_quantization_name(d9d_quantization_method method);
/* The method by whose names a source has both halves of a tensor, and the name of the scales; NONE:
 * no tensor is so.  For checkpoints whose config.json does not name a method. */
D9D_API d9d_quantization_method d9d_quantization_guess(const d9d_tensor_source *src,
                                                       const char **scales);

typedef struct d9d_dequant d9d_dequant;

/* `src` is copied; `to` is float32 or bfloat16.  Tensors whose headers are not read yet
 * (d9d_checkpoint_list()) have their plain names only.  EFORMAT names a tensor that lacks its other
 * half, or a pair whose types or shapes do not fit. */
D9D_API D9D_MUST_USE d9d_status d9d_dequant_create(const d9d_quantization *q, d9d_dtype to,
                                                   const d9d_tensor_source *src, d9d_dequant **out);
D9D_API void d9d_dequant_free(d9d_dequant *d);
D9D_API d9d_tensor_source d9d_dequant_source(d9d_dequant *d); /* borrows d */
D9D_API size_t d9d_dequant_count(const d9d_dequant *d);       /* tensors that are decoded */
/* The names of the two tensors that a decoded one is stored as; false if `name` is not decoded. */
D9D_API bool d9d_dequant_stored(const d9d_dequant *d, const char *name, const char *stored[2]);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CKPT_QUANT_DEQUANT_H */
