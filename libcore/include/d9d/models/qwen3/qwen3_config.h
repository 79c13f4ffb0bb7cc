/* qwen3_config.h - config.json of the Qwen3 family.
 *
 * Both generations of names are read, whichever is there:
 *
 *     num_experts              num_local_experts
 *     rope_theta               rope_parameters.rope_theta
 *     rope_scaling             rope_parameters (linear, yarn and llama3: d9d/nn/rope.h)
 *     torch_dtype              dtype
 *
 * Absent fields have the defaults of transformers (head_dim: 128 in a dense model,
 * hidden_size / num_attention_heads in a mixture).  A field that changes what the model
 * computes in a way that is not built (attention_bias, hidden_act, ...) is ENOTSUP and named;
 * attention_dropout is read, and refused where the model is trained.  A sliding window in use is
 * that of the layers of their type in `layer_types`, or behind the first `max_window_layers`; of a
 * mixture it is in every layer, as in transformers 5.  Fields that do not bear on the computation
 * are listed (d9d/model/family.h), are ignored and survive rewriting; any other field is ENOTSUP.
 *
 * The head is that of the class in `architectures`, which is known by its end: ...ForCausalLM,
 * ...ForSequenceClassification (num_labels, or as many as id2label has, or 2), ...Qwen3Model and
 * ...Qwen3MoeModel.  Another class is ENOTSUP.  Without a class it is open, and a language
 * model's until d9d_qwen3_infer_config() has seen the tensors' names.
 *
 * In the suite's own layout (d9d/model/hf/hf_config.h) the member "d9d" may say with the head
 * "embedding" also "prefixed": true (its names began with "model.") and "embedding_dim": the
 * features of a projection, which HuggingFace's format does not have.
 */
#ifndef D9D_MODELS_QWEN3_QWEN3_CONFIG_H
#define D9D_MODELS_QWEN3_QWEN3_CONFIG_H

#include "d9d/model/hf/hf_config.h"
#include "d9d/models/qwen3/qwen3.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What this family declares of it, for its providers. */
D9D_API extern const char *const d9d_qwen3_model_types[];
D9D_API extern const d9d_hf_field d9d_qwen3_fields[];

/* The dimensions in the file at `path` (a config.json, or a directory that has one).
 * Strings and arrays are in the arena; the vocabulary is one split, "regular".  ENOTFOUND,
 * EFORMAT, ECONFIG, ENOTSUP; the numbers are checked with d9d_qwen3_check(). */
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_config_read(const char *path, d9d_arena *a,
                                                      d9d_qwen3_config *out);
/* The same from a document; `where` begins sentences. */
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_config_parse(const json_t *doc, const char *where,
                                                       d9d_arena *a, d9d_qwen3_config *out);
/* A new document for a model that has none, in names that every version of transformers
 * reads; a new reference.  ENOTSUP for what Qwen3 there cannot say (a shared expert,
 * several vocabulary splits, interleaved RoPE). */
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_config_make(const d9d_qwen3_config *c, d9d_dtype dtype,
                                                      json_t **out);
/* The class of this head, and its labels, where it has another.  ENOTSUP for a projection; the
 * member "d9d" then says it, for a directory in the suite's own layout. */
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_config_set_head(json_t *doc, const d9d_qwen3_config *c);
/* Put the member "d9d" there (d9d/model/hf/hf_config.h). */
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_config_mark(json_t *doc, const d9d_qwen3_config *c,
                                                      bool fused);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODELS_QWEN3_QWEN3_CONFIG_H */
