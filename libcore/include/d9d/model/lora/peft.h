/* peft.h - parameter-efficient fine-tuning (PEFT): which parameters of a model are trained.
 *
 *     "peft": {"kind": "lora", "module_name_pattern": ".*\\.(q|v)_proj",
 *              "params": {"r": 8, "alpha": 16}}
 *     "peft": {"kind": "dora", "module_name_pattern": "all-linear", "params": {"r": 8, "alpha":
 * 16}} "peft": {"kind": "ia3", "module_name_pattern": ".*\\.(k_proj|v_proj|down_proj)",
 *              "feedforward_name_pattern": ".*\\.down_proj"}
 *     "peft": {"kind": "full_tune", "module_name_pattern": "model\\.norm|lm_head"}
 *     "peft": {"kind": "stack", "methods": [..., ...]}     one after another
 *     "peft": {"kind": "prompt_tuning", "num_virtual_tokens": 20, "init": "text", "init_text": ...}
 *
 * A pattern is a regular expression (PCRE2, which agrees with Python's for common patterns) that
 * must match the whole dotted name of a module; the root's name is "".  "all-linear" is every
 * linear layer of the model's layers, but no router and no experts.
 *
 * A method is a table (d9d_peft_method), which a plugin can bring, with the forward, the merge and
 * the files of its adapters if no built-in kind has them.  It adds an adapter (d9d/nn/adapter.h) to
 * every matching module that is a linear layer, a stack of experts, or an embedding or a head of
 * one table. "full_tune" trains all parameters of matching modules and of their children, and
 * parameters whose own name matches: "model.norm.weight", or one table of the vocabulary,
 * "model.embed_tokens.token_embedding.special".  Every other parameter is frozen: it has no
 * gradient and no optimizer state.
 *
 *     D9D_TRY(provider->create(config, stage, &opts, &model));
 *     D9D_TRY(d9d_peft_apply(&config->peft, model, false));
 *     D9D_TRY(d9d_module_bind(model->module));
 *
 * "prompt_tuning" freezes all and trains the rows of virtual tokens that begin each sequence; it
 * stands alone (Lester et al., "The power of scale for parameter-efficient prompt tuning", 2021).
 *
 * Frozen parameters keep their names, and so their random numbers and their place in files.
 */
#ifndef D9D_MODEL_LORA_PEFT_H
#define D9D_MODEL_LORA_PEFT_H

#include "d9d/config/config.h"
#include "d9d/model/model.h"
#include "d9d/nn/adapter.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- methods ------------------------------------------------------------------------------ */

/* Where a method applies: the first member of every section. */
typedef struct d9d_peft_target {
    const char *module_name_pattern;
    d9d_list layers_to_transform; /* of int64_t; empty: all */
} d9d_peft_target;

/* Its keys, for a section S whose first member is `target`. */
D9D_API extern const d9d_key d9d_peft_layer_elem;
#define D9D_PEFT_TARGET_KEYS(S)                                                                    \
    {.name = "module_name_pattern",                                                                \
     .kind = D9D_KIND_STR,                                                                         \
     .offset = offsetof(S, target.module_name_pattern),                                            \
     .def = D9D_REQUIRED,                                                                          \
     .min = 1,                                                                                     \
     .doc = "regular expression that the whole dotted name of a module matches; \"all-linear\": "  \
            "the linear layers of all layers"},                                                    \
    {                                                                                              \
        .name = "layers_to_transform", .kind = D9D_KIND_LIST,                                      \
        .offset = offsetof(S, target.layers_to_transform), .def = "[]",                            \
        .elem = &d9d_peft_layer_elem, .flags = D9D_NULLABLE,                                       \
        .doc = "numbers of the layers whose modules are meant; []: all"                            \
    }

typedef struct d9d_peft_method {
    size_t size; /* sizeof(d9d_peft_method) */
    const d9d_table *table;
    /* The adapter that a matching module `name` gets, whose matrix is w. */
    d9d_status (*adapt)(const void *section, const char *name, const d9d_param *w,
                        const d9d_adapter_kind **kind, d9d_adapter_opts *opts);
    /* The kind that it gives, if that has `files` of its own, which then are read; else NULL. */
    const d9d_adapter_kind *kind;
} d9d_peft_method;

/* --- configuration: a nullable union of a key table ------------------------------------- */

D9D_API extern const char *const d9d_peft_tag[];
D9D_API extern const d9d_table *const d9d_peft_choices[];

/* Rank and scale of A and B, for methods that have them.  The first pattern that matches a module,
 * or the end of its name, has its rank or alpha, as in peft. */
typedef struct d9d_peft_params {
    int64_t r;
    double alpha;
    double dropout;
    bool use_rslora; /* the scale is alpha / sqrt(r) */
    d9d_str_int_map rank_pattern;
    json_t *alpha_pattern; /* numbers above 0 by pattern, or NULL */
} d9d_peft_params;
D9D_API extern const d9d_table d9d_peft_params_table;
D9D_API extern const d9d_table d9d_peft_rank_table; /* the same without dropout */
D9D_API D9D_MUST_USE d9d_status d9d_peft_params_opts(const d9d_peft_params *p, const char *name,
                                                     d9d_adapter_opts *out);

/* How the virtual tokens of prompt_tuning begin: as random rows of the vocabulary, as normal random
 * numbers, or as the rows of a text's tokens, repeated or cut to their number. */
typedef enum d9d_peft_prompt_init {
    D9D_PEFT_PROMPT_SAMPLE_VOCAB,
    D9D_PEFT_PROMPT_RANDOM,
    D9D_PEFT_PROMPT_TEXT
} d9d_peft_prompt_init;
typedef struct d9d_peft_prompt {
    int64_t num_virtual_tokens;
    int init;              /* d9d_peft_prompt_init */
    const char *init_text; /* NULL unless init is of a text */
} d9d_peft_prompt;
/* The section; NULL: another method, or none. */
D9D_API const d9d_peft_prompt *d9d_peft_prompt_of(const d9d_union *peft);

/* --- a model ------------------------------------------------------------------------------ */

/* Freeze all parameters, then apply the section (`which` -1: do nothing at all).  Once, before
 * names are bound.  ECONFIG for a pattern that is not an expression, that matches no module
 * (similar names are listed) or no matrix, for one of a rank or alpha that matches none that got an
 * adapter, for a layer without one, and for a matrix that would get
 * two adapters; ENOTSUP for a model that takes no virtual tokens.  `part`: the model has only some
 * layers of one that was checked as a whole, so a pattern may match nothing. */
D9D_API D9D_MUST_USE d9d_status d9d_peft_apply(const d9d_union *peft, d9d_model *m, bool part);

/* Select parameters, in the arena: those of adapters, or the model's own. */
D9D_API D9D_MUST_USE d9d_status d9d_peft_params_of(const d9d_params *all, bool adapters,
                                                   d9d_arena *a, d9d_params *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_LORA_PEFT_H */
