/* hf_config.h - config.json of a HuggingFace checkpoint of the Qwen3 family.
 *
 * Both generations of names are read, whichever is there:
 *
 *     num_experts              num_local_experts
 *     rope_theta               rope_parameters.rope_theta
 *     torch_dtype              dtype
 *
 * Absent fields have the defaults of transformers (head_dim: 128 in a dense model,
 * hidden_size / num_attention_heads in a mixture).  A field that changes what the model
 * computes in a way that is not built (attention_bias, a sliding window in use, scaled
 * RoPE, ...) is ENOTSUP and named.  Fields that do not bear on the computation are ignored
 * and survive rewriting.
 *
 * A directory in the suite's own layout has the same config.json with one more member:
 *
 *     "d9d": {"layout": "d9d", "experts": "per-expert"}
 *
 * where `experts` remembers how the HuggingFace checkpoint that it came from kept them.
 */
#ifndef D9D_MODEL_HF_CONFIG_H
#define D9D_MODEL_HF_CONFIG_H

#include "d9d/base/json.h"
#include "d9d/model/qwen3.h"

#ifdef __cplusplus
extern "C" {
#endif

#define D9D_HF_CONFIG_NAME "config.json"
#define D9D_HF_CONFIG_MAX  (4u << 20) /* bytes; a larger config.json is EFORMAT */

/* The dimensions in the file at `path` (a config.json, or a directory that has one).
 * Strings and arrays are in the arena; the vocabulary is one split, "regular".  ENOTFOUND,
 * EFORMAT, ECONFIG, ENOTSUP; the numbers are checked with d9d_qwen3_check(). */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_read(const char *path, d9d_arena *a,
                                                   d9d_qwen3_config *out);
/* The same from a document; `where` begins sentences. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_parse(const json_t *doc, const char *where,
                                                    d9d_arena *a, d9d_qwen3_config *out);
/* The document itself, checked to be an object; a new reference. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_load(const char *path, json_t **out);
/* The dtype that it names; `otherwise` when it names none.  ECONFIG for an unknown one. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_dtype(const json_t *doc, const char *where,
                                                    d9d_dtype otherwise, d9d_dtype *out);

/* A new document for a model that has none, in names that every version of transformers
 * reads; a new reference.  ENOTSUP for what Qwen3 there cannot say (a shared expert,
 * several vocabulary splits, interleaved RoPE). */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_make(const d9d_qwen3_config *c, d9d_dtype dtype,
                                                   json_t **out);
/* Put `dtype` where the document has its own, or under "torch_dtype". */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_set_dtype(json_t *doc, d9d_dtype dtype);
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_write(const char *dir, const json_t *doc);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_HF_CONFIG_H */
