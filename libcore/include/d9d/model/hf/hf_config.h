/* hf_config.h - config.json of a HuggingFace checkpoint: its place, its dtype, and rewriting it
 * from one layout of the weights to another.  d9d/model/hf/hf_fields.h has what a family reads from
 * it.
 *
 * A directory in the suite's own layout has the same config.json with one more member:
 *
 *     "d9d": {"layout": "d9d", "head": "causal_lm", "experts": "per-expert"}
 *
 * `experts` records the expert layout of the HuggingFace checkpoint that it was converted from.
 */
#ifndef D9D_MODEL_HF_HF_CONFIG_H
#define D9D_MODEL_HF_HF_CONFIG_H

#include "d9d/base/dtype.h"
#include "d9d/base/json.h"
#include "d9d/ckpt/dir/checkpoint.h"
#include "d9d/model/hf/hf_fields.h"

#ifdef __cplusplus
extern "C" {
#endif

#define D9D_HF_CONFIG_NAME "config.json"
#define D9D_HF_CONFIG_MAX  (4u << 20) /* bytes; a larger config.json is EFORMAT */

/* Find the configuration that `path` names as a file or as a directory.  *file need not exist.
 * *beside is the directory with the model's other files; NULL if the file's name is not
 * config.json. Both are in the arena. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_locate(const char *path, d9d_arena *a,
                                                     const char **file, const char **beside);

/* Load the document, checked to be an object; a new reference.  Of a multimodal model whose text
 * model a family computes, the text model's.  Without a quantization_config it gets the one that
 * hf_quant_config.json beside it says, as NVIDIA's Model Optimizer writes it. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_load(const char *path, json_t **out);
/* The floating-point dtype that it names, as "dtype" or "torch_dtype"; `otherwise` if it names
 * none.  An error names any other, and two that differ. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_dtype(const json_t *doc, const char *where,
                                                    d9d_dtype otherwise, d9d_dtype *out);

/* Set the document's dtype, in the fields that it has, or in "torch_dtype". */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_set_dtype(json_t *doc, d9d_dtype dtype);
/* The field "attention_mask" of this suite, "causal" or "prefix": was the model trained with a
 * prefix mask?  Set writes it for true and removes it for false. */
D9D_API bool d9d_hf_config_has_prefix_mask(const json_t *doc);
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_set_prefix_mask(json_t *doc, bool prefix);
/* Append its text.  If the document was made from the file `from` (else NULL) and only the member
 * "d9d" was added, removed or changed, all other bytes of the file are kept. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_text(const json_t *doc, const char *from,
                                                   d9d_buf *out);
/* Write that text to config.json in `dir`. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_write(const char *dir, const json_t *doc,
                                                    const char *from);

/* --- quantised weights ---------------------------------------------------------------- */

/* Decode what config.json `doc` says is quantised (d9d/ckpt/quant/dequant.h), to bfloat16 if that
 * is asked for, otherwise to float32.  ENOTSUP for a method that is not decoded; EMISMATCH for
 * names of quantised tensors that the document does not announce. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_decode(const json_t *doc, const char *where,
                                                     d9d_dtype to, d9d_checkpoint *c);
/* The same by the config.json beside the weights, or by the file `otherwise` (NULL: none). */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_decode_dir(const char *otherwise, d9d_dtype to,
                                                         d9d_checkpoint *c);
/* Remove quantization_config, for weights that were decoded; true if it was there. */
D9D_API bool d9d_hf_config_unquantize(json_t *doc);

/* --- between layouts ------------------------------------------------------------------ */

/* Set the member "d9d", with the head's name and the family's own members in `more` (stolen; NULL:
 * none).  `fused`: the original checkpoint has fused experts.  Unmark removes the member. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_mark(json_t *doc, const char *head, bool fused,
                                                   json_t *more);
D9D_API void d9d_hf_config_unmark(json_t *doc);
/* Did the original checkpoint have fused experts?  Without the mark, the generation of its names
 * decides. */
D9D_API bool d9d_hf_config_was_fused(const json_t *doc);

/* Rename fields to those that transformers writes in `generation` 4 or 5; each field keeps its
 * place.  Generation 5 reads both.  Generation 4 takes its defaults for fields with names of 5, and
 * cannot read fused experts. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_set_generation(json_t *doc, int generation);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_HF_HF_CONFIG_H */
