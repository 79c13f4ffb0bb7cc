/* hf_config.h - config.json of a HuggingFace checkpoint: where it lies, its dtype, and how it is
 * rewritten from one layout of the weights to another.  What a family reads of it:
 * d9d/model/family.h.
 *
 * A directory in the suite's own layout has the same config.json with one more member:
 *
 *     "d9d": {"layout": "d9d", "head": "causal_lm", "experts": "per-expert"}
 *
 * where `experts` remembers how the HuggingFace checkpoint that it came from kept them.
 */
#ifndef D9D_MODEL_HF_HF_CONFIG_H
#define D9D_MODEL_HF_HF_CONFIG_H

#include "d9d/base/dtype.h"
#include "d9d/base/json.h"
#include "d9d/model/family.h"

#ifdef __cplusplus
extern "C" {
#endif

#define D9D_HF_CONFIG_NAME "config.json"
#define D9D_HF_CONFIG_MAX  (4u << 20) /* bytes; a larger config.json is EFORMAT */

/* Where the configuration lies that `path` names, as a file or as a directory: the file, which need
 * not be there, and the directory with the model's other files, NULL beside a file of another name
 * than config.json.  Both in the arena. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_locate(const char *path, d9d_arena *a,
                                                     const char **file, const char **beside);

/* The document itself, checked to be an object; a new reference. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_load(const char *path, json_t **out);
/* The dtype that it names; `otherwise` when it names none.  ECONFIG for an unknown one. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_dtype(const json_t *doc, const char *where,
                                                    d9d_dtype otherwise, d9d_dtype *out);

/* Put `dtype` where the document has its own, or under "torch_dtype". */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_set_dtype(json_t *doc, d9d_dtype dtype);
/* Its text.  Of a document that was made from the file `from` (else NULL) all else keeps its
 * bytes where nothing but the member "d9d" comes, goes or changes. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_text(const json_t *doc, const char *from,
                                                   d9d_buf *out);
/* The same into config.json of `dir`. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_write(const char *dir, const json_t *doc,
                                                    const char *from);

/* --- from layout to layout ---------------------------------------------------------- */

/* Put the member "d9d" there, with the head's name and what else the family says of itself in
 * `more` (stolen; NULL: nothing); or take it away.  `fused`: the checkpoint behind it fused
 * experts. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_config_mark(json_t *doc, const char *head, bool fused,
                                                   json_t *more);
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
