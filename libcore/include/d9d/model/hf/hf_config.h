/* hf_config.h - config.json of a HuggingFace checkpoint of the Qwen3 family.
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
 * model's until d9d_qwen3_fit() has seen the tensors' names.
 *
 * A directory in the suite's own layout has the same config.json with one more member:
 *
 *     "d9d": {"layout": "d9d", "head": "causal_lm", "experts": "per-expert"}
 *
 * where `experts` remembers how the HuggingFace checkpoint that it came from kept them, and with
 * the head "embedding" there may be "prefixed": true (its names began with "model.") and
 * "embedding_dim": the features of a projection, which HuggingFace's format does not have.
 */
#ifndef D9D_MODEL_HF_HF_CONFIG_H
#define D9D_MODEL_HF_HF_CONFIG_H

#include "d9d/base/json.h"
#include "d9d/model/family.h"
#include "d9d/models/qwen3/qwen3.h"

#ifdef __cplusplus
extern "C" {
#endif

#define D9D_HF_CONFIG_NAME "config.json"
#define D9D_HF_CONFIG_MAX  (4u << 20) /* bytes; a larger config.json is EFORMAT */

/* What this family declares of it, for its providers. */
D9D_API extern const char *const d9d_qwen3_model_types[];
D9D_API extern const d9d_hf_field d9d_qwen3_fields[];

/* Where the configuration lies that `path` names, as a file or as a directory: the file, which need
 * not be there, and the directory with the model's other files, NULL beside a file of another name
 * than config.json.  Both in the arena. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_place(const char *path, d9d_arena *a,
                                                    const char **file, const char **beside);

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
/* The class of this head, and its labels, where it has another.  ENOTSUP for a projection; the
 * member "d9d" then says it, for a directory in the suite's own layout. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_set_head(json_t *doc, const d9d_qwen3_config *c);
/* Its text.  Of a document that was made from the file `from` (else NULL) all else keeps its
 * bytes where nothing but the member "d9d" comes, goes or changes. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_text(const json_t *doc, const char *from,
                                                   d9d_buf *out);
/* The same into config.json of `dir`. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_write(const char *dir, const json_t *doc,
                                                    const char *from);

/* --- from layout to layout ---------------------------------------------------------- */

/* Put the member "d9d" there, or take it away.  Did the checkpoint behind it fuse experts? */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_mark(json_t *doc, const d9d_qwen3_config *c,
                                                   bool fused);
D9D_API void d9d_hf_config_unmark(json_t *doc);
/* Had the checkpoint that this document comes from fused experts?  Without the mark, its generation
 * says so. */
D9D_API bool d9d_hf_config_was_fused(const json_t *doc);

/* The names of fields that transformers writes in `generation` 4 or 5; each field keeps its
 * place.  Generation 5 reads both; 4 takes its defaults for what has names of 5, and cannot
 * read fused experts. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_set_generation(json_t *doc, int generation);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_HF_HF_CONFIG_H */
