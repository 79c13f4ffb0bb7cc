/* qwen3_config.h - config.json of the Qwen3 family.
 *
 * Both generations of names are read, whichever is present:
 *
 *     num_experts              num_local_experts
 *     rope_theta               rope_parameters.rope_theta
 *     rope_scaling             rope_parameters (linear, yarn and llama3: d9d/nn/rope.h)
 *     torch_dtype              dtype
 *
 * Absent fields have the defaults of transformers (head_dim: 128 in a dense model, hidden_size /
 * num_attention_heads in a mixture).  A field that would change the computation in a way that is
 * not implemented (attention_bias, hidden_act, ...) is ENOTSUP and named.  attention_dropout is
 * read, and refused in training.
 *
 * A sliding window applies to the layers of its type in `layer_types`, or after the first
 * `max_window_layers`; in a mixture it applies to every layer, as in transformers 5.  Fields that
 * do not affect the computation are listed (d9d/model/hf/hf_fields.h), ignored and kept in rewriting; any
 * other field is ENOTSUP.
 *
 * The suffix of the class in `architectures` determines the head: ...ForCausalLM,
 * ...ForSequenceClassification (num_labels, or as many as id2label has, or 2), ...Qwen3Model and
 * ...Qwen3MoeModel.  Another class is ENOTSUP.  Without a class the head is unknown; it counts as a
 * language model's until d9d_qwen3_infer_config() has read the tensors' names.
 *
 * In the suite's own layout (d9d/model/hf/hf_config.h) the member "d9d" with the head "embedding"
 * may also have "prefixed": true (its names began with "model.") and "embedding_dim": the features
 * of a projection, which HuggingFace's format does not have.
 */
#ifndef D9D_MODELS_QWEN3_QWEN3_CONFIG_H
#define D9D_MODELS_QWEN3_QWEN3_CONFIG_H

#include "d9d/model/hf/hf_config.h"
#include "d9d/models/qwen3/qwen3.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The tables of this family, for its providers. */
D9D_API extern const char *const d9d_qwen3_model_types[];
D9D_API extern const d9d_hf_field d9d_qwen3_fields[];

/* Read the dimensions from `path`, a config.json or a directory that has one.  Strings and arrays
 * are in the arena; the vocabulary is one split, "regular".  ENOTFOUND, EFORMAT, ECONFIG, ENOTSUP;
 * the result has passed d9d_qwen3_check(). */
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_config_read(const char *path, d9d_arena *a,
                                                      d9d_qwen3_config *out);
/* The same from a document; `where` is the prefix of messages. */
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_config_parse(const json_t *doc, const char *where,
                                                       d9d_arena *a, d9d_qwen3_config *out);
/* Make a document for a model that has none, with names that every version of transformers reads; a
 * new reference.  ENOTSUP for what Qwen3 there cannot express (a shared expert, several vocabulary
 * splits, interleaved RoPE). */
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_config_make(const d9d_qwen3_config *c, d9d_dtype dtype,
                                                      json_t **out);
/* Set the document's class for this head, and its labels, if the document has another.  ENOTSUP for
 * a projection, which only the member "d9d" of the suite's own layout can express. */
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_config_set_head(json_t *doc, const d9d_qwen3_config *c);
/* Set the member "d9d" (d9d/model/hf/hf_config.h). */
D9D_API D9D_MUST_USE d9d_status d9d_qwen3_config_mark(json_t *doc, const d9d_qwen3_config *c,
                                                      bool fused);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODELS_QWEN3_QWEN3_CONFIG_H */
