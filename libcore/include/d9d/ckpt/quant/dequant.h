/* dequant.h - quantised checkpoints, read as if they were not: a tensor source over another one.
 *
 *     quant_method         stored                                                presented
 *     "fp8"                X F8_E4M3 [..., R, C],                                X [..., R, C]
 *                          X_scale_inv [..., ceil(R/128), ceil(C/128)],
 *                          or X_scale [] of a matrix
 *     "fbgemm_fp8"         X F8_E4M3 [R, C], X_scale [R, 1]                      X [R, C]
 *     "modelopt"           X F8_E4M3 [R, C], X_scale []                          X [R, C]
 *                          X U8 [R, C/2], X_scale F8_E4M3 [R, C/16],
 *                          X_scale_2 F32 []
 *     "mxfp4"              X_blocks U8 [E, R, G, 16], X_scales U8 [E, R, G]      X [E, 32 G, R]
 *     "compressed-tensors" X_packed I32 [R, C/8], X_scale [R, C/group],          X [R, C]
 *                          X_zero_point I32 [R/8, C/group] if asymmetric
 *                          X_packed U8 [R, C/2], X_scale F8_E4M3 [R, C/16],
 *                          X_global_scale F32 [1]
 *                          X_packed U8 [R, C/2], X_scale U8 [R, C/32]
 *                          X F8_E4M3 or I8 [R, C], X_scale
 *     "bitsandbytes"       X U8 [R C/2, 1], X.absmax, X.quant_map,               X [R, C]
 *                          X.quant_state.bitsandbytes__nf4, ...
 *                          M.weight I8 [R, C], M.SCB [R]                         M.weight [R, C]
 *     "gptq"               M.qweight I32 [C/8, R], M.qzeros I32 [G, R/8],        M.weight [R, C]
 *                          M.scales [G, R], M.g_idx I32 [C]
 *     "awq"                M.qweight I32 [C, R/8], M.qzeros I32 [G, R/8],        M.weight [R, C]
 *                          M.scales [G, R]
 *
 * A tensor with scales has its plain name, its decoded type and shape; what belongs to it is
 * hidden; every other tensor is as it is stored.  Any span of a decoded tensor can be read by
 * itself, at the cost of the stored blocks that it touches.  So whatever takes a source (mapper,
 * loader, adapters) takes a quantised checkpoint.
 *
 *     D9D_TRY(d9d_quantization_read(config, "hf/config.json", &q));
 *     D9D_TRY(d9d_dequant_create(&q, D9D_BF16, &stored, &d));
 *     src = d9d_dequant_source(d);
 *
 * Numbers are those of the library that wrote them, then rounded to nearest even, to the type asked
 * for:
 *
 *     fp8, fbgemm_fp8     number x scale of its block, matrix or row, in float32
 *     modelopt            FP8: the same.  NVFP4: e2m1 number x (scale of its group x that of the
 *                         matrix), in float32
 *     mxfp4               two e2m1 numbers a byte, the low nibble first, x 2^(scale - 127); the
 *                         last two dimensions are swapped, as by transformers
 *     compressed-tensors  number x scale of its group, row, block or matrix, rounded to the type of
 *                         the scale.  Integers in int32 have the lowest bits first, less half of
 *                         their range or less the zero of their group.  FP4: e2m1 number x (scale
 *                         of its group / that of the matrix), or x 2^(scale - 127), rounded to
 *                         bfloat16
 *     bitsandbytes, 4     quant_map[code] x absmax of its block, rounded to the quantised matrix's
 *                         type; the high nibble first.  absmax may be quantised itself (double
 *                         quantisation)
 *     bitsandbytes, 8     number x SCB of its row / 127
 *     gptq, awq           (number - zero) x scale of its group, rounded to the type of the scale
 *
 * Micikevicius et al., "FP8 Formats for Deep Learning", 2022.  OCP Microscaling Formats, v1.0.
 * Dettmers et al., "QLoRA", 2023, and "LLM.int8()", 2022.  Frantar et al., "GPTQ", 2022.  Lin et
 * al., "AWQ", 2023.
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
    D9D_QUANTIZATION_PACKED,       /* compressed-tensors, symmetric integers in int32 */
    D9D_QUANTIZATION_PACKED_ZEROS, /* compressed-tensors, integers with zeros in int32 */
    D9D_QUANTIZATION_BYTES,        /* compressed-tensors, e4m3 or integers of eight bits */
    D9D_QUANTIZATION_NVFP4,        /* compressed-tensors */
    D9D_QUANTIZATION_MXFP4_PACKED, /* compressed-tensors */
    D9D_QUANTIZATION_BNB4,         /* bitsandbytes, NF4 or FP4 */
    D9D_QUANTIZATION_BNB8,         /* bitsandbytes, LLM.int8() */
    D9D_QUANTIZATION_GPTQ,
    D9D_QUANTIZATION_AWQ,
    D9D_QUANTIZATION_FBGEMM_FP8,
    D9D_QUANTIZATION_MODELOPT_FP8,
    D9D_QUANTIZATION_MODELOPT_NVFP4,
    D9D_QUANTIZATION_MODELOPT_MIXED /* each matrix FP8 or NVFP4 */
} d9d_quantization_method;

typedef struct d9d_quantization {
    d9d_quantization_method method;
    int64_t block[2]; /* rows and columns that share a scale; 0: the whole matrix's.  Not of MXFP4
                         and bitsandbytes */
    int bits;         /* of a number, 2, 4 or 8; MXFP4 and FP8 by block or row: unused */
    bool zeros_less;  /* GPTQ: stored zeros are one less than they mean */
} d9d_quantization;

#define D9D_QUANTIZATION_FIELD  "quantization_config"  /* of config.json */
#define D9D_QUANTIZATION_BESIDE "hf_quant_config.json" /* of Model Optimizer, beside it */

/* Read that field of a config.json: NONE if it is absent or null.  A member "quantization" of it is
 * that of the file beside config.json.  ENOTSUP for a method that is not decoded, ECONFIG for a
 * member of the wrong kind; `where`, the file's path, begins the message. */
D9D_API D9D_MUST_USE d9d_status d9d_quantization_read(const json_t *config, const char *where,
                                                      d9d_quantization *out);
/* "fp8" */
D9D_API const char *d9d_quantization_name(d9d_quantization_method method);
/* For checkpoints whose config.json does not name a method: the name of a tensor that is the scales
 * of another, and the methods with such names, "gptq or awq".  NULL: no tensor is so. */
D9D_API D9D_MUST_USE d9d_status d9d_quantization_guess(const d9d_tensor_source *src,
                                                       const char **scales, d9d_buf *names);

typedef struct d9d_dequant d9d_dequant;

/* `src` is copied; `to` is float32 or bfloat16.  Tensors whose headers are not read yet
 * (d9d_checkpoint_list()) have their plain names only.  EFORMAT names a tensor that lacks another
 * of those that belong together, or one whose type or shape does not fit. */
D9D_API D9D_MUST_USE d9d_status d9d_dequant_create(const d9d_quantization *q, d9d_dtype to,
                                                   const d9d_tensor_source *src, d9d_dequant **out);
D9D_API void d9d_dequant_free(d9d_dequant *d);
D9D_API d9d_tensor_source d9d_dequant_source(d9d_dequant *d); /* borrows d */
D9D_API size_t d9d_dequant_count(const d9d_dequant *d);       /* tensors that are decoded */

enum { D9D_DEQUANT_MAX_STORED = 8 };
/* The names of the tensors that a decoded one is stored as, and how many; 0: `name` is not decoded.
 */
D9D_API size_t d9d_dequant_stored(const d9d_dequant *d, const char *name,
                                  const char *stored[D9D_DEQUANT_MAX_STORED]);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CKPT_QUANT_DEQUANT_H */
