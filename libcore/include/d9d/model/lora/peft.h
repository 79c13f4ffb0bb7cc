/* peft.h - parameter-efficient fine-tuning (PEFT): which parameters of a model are trained.
 *
 *     "peft": {"kind": "lora", "module_name_pattern": ".*\\.(q|v)_proj",
 *              "params": {"r": 8, "alpha": 16}}
 *     "peft": {"kind": "full_tune", "module_name_pattern": "model\\.norm|lm_head"}
 *     "peft": {"kind": "stack", "methods": [..., ...]}     one after another
 *
 * A pattern is a regular expression (PCRE2, which agrees with Python's for common patterns) that
 * must match the whole dotted name of a module; the root's name is "".
 *
 * "lora" adds an adapter (d9d/nn/lora.h) to every matching module that is a linear layer or a stack
 * of experts.  "full_tune" trains all parameters of matching modules and of their children, and
 * parameters whose own name matches: "model.norm.weight", or one table of the vocabulary,
 * "model.embed_tokens.token_embedding.special".  Every other parameter is frozen: it has no
 * gradient and no optimizer state.
 *
 *     D9D_TRY(provider->create(config, stage, &opts, &model));
 *     D9D_TRY(d9d_peft_apply(&config->peft, model->module, false));
 *     D9D_TRY(d9d_module_bind(model->module));
 *
 * Frozen parameters keep their names, and so their random numbers and their place in files.
 */
#ifndef D9D_MODEL_LORA_PEFT_H
#define D9D_MODEL_LORA_PEFT_H

#include "d9d/config/config.h"
#include "d9d/nn/lora.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- configuration: a nullable union of a key table ------------------------------------- */

D9D_API extern const char *const d9d_peft_tag[];
D9D_API extern const d9d_table *const d9d_peft_choices[];

typedef struct d9d_peft_params {
    int64_t r;
    double alpha;
    double dropout;
    bool use_rslora; /* the scale is alpha / sqrt(r) */
} d9d_peft_params;
typedef struct d9d_peft_section {
    const char *module_name_pattern;
    d9d_peft_params params; /* for "lora" */
    d9d_list methods;       /* for "stack", of d9d_union */
} d9d_peft_section;

/* --- a model ------------------------------------------------------------------------------ */

/* Freeze all parameters, then apply the section (`which` -1: do nothing at all).  Once, before
 * names are bound.  ECONFIG for a pattern that is not an expression, that matches no module
 * (similar names are listed) or no matrix, and for a matrix that would get two adapters.  `part`:
 * the root has only some layers of a model that was checked as a whole, so a pattern may match
 * nothing. */
D9D_API D9D_MUST_USE d9d_status d9d_peft_apply(const d9d_union *peft, d9d_module *root, bool part);

/* Select parameters, in the arena: those of adapters, or the model's own. */
D9D_API D9D_MUST_USE d9d_status d9d_peft_params_of(const d9d_params *all, bool adapters,
                                                   d9d_arena *a, d9d_params *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_LORA_PEFT_H */
