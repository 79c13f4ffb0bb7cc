/* describe.h - what a model folder is, and whether it can be read: d9d-map describe.
 *
 *     family       llama: LlamaForCausalLM, causal_lm
 *     parameters   8.03 B
 *     ...
 *     refused      hf/config.json: logit_softcap: 30.0: llama does not know this field, ...
 *
 * Headers, config.json and the tokenizer's files are read, no weights.  Weights and tokenizer may
 * be absent.  Every reason to refuse the folder is listed that can be found beside the others.
 */
#ifndef D9D_CONVERT_DESCRIBE_H
#define D9D_CONVERT_DESCRIBE_H

#include "d9d/base/json.h"
#include "d9d/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Describe the folder, or config.json, `path` by the providers' sections `choices` (NULL:
 * d9d_model_choices) as a d9d.model.v1 document, a new reference.  D9D_OK also for what would be
 * refused: its member "refused" lists the reasons. */
D9D_API D9D_MUST_USE d9d_status d9d_describe_model(const char *path,
                                                   const d9d_table *const *choices, json_t **out);
/* The same as text or JSON.  EVERIFY if there is a reason to refuse it; `out` is filled then too.
 */
D9D_API D9D_MUST_USE d9d_status d9d_describe_print(const char *path,
                                                   const d9d_table *const *choices, bool json,
                                                   d9d_buf *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CONVERT_DESCRIBE_H */
