/* provider.h - a family of models, as a table of functions.
 *
 * A provider reads its section of the configuration, builds the model or a pipeline stage of it,
 * places it on ranks, and maps its weights from and to HuggingFace's files.  Some are built in
 * (d9d/models/models.h); others come from plugins (d9d/tasks/plugin.h).
 *
 *     typedef struct section {
 *         d9d_model_section head;
 *         int64_t hidden_size;
 *     } section;
 *     static const d9d_key keys[] = {
 *         D9D_MODEL_SECTION_KEYS,
 *         D9D_KEY_INT(section, hidden_size, D9D_REQUIRED, 1, 1 << 20, "width"),
 *         D9D_KEY_END,
 *     };
 *
 *     "model_provider": {"name": "mine", "dtype": "bfloat16", "hidden_size": 512}
 *
 * Order of use: read, check, create, compare the names and shapes of its weights with a source,
 * place.  Only then memory is allocated, weights are read or initialised, and forward is called
 * (d9d/model/model.h).
 */
#ifndef D9D_MODEL_PROVIDER_H
#define D9D_MODEL_PROVIDER_H

#include "d9d/ckpt/mapper/mapper.h"
#include "d9d/comm/mesh.h"
#include "d9d/config/config.h"
#include "d9d/model/hf/hf_fields.h"
#include "d9d/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The base of every provider's section. */
typedef struct d9d_model_section {
    const char *hf_config; /* a config.json, or NULL: the section has the dimensions */
    int dtype;             /* of parameters and activations: d9d_dtype, F32 or BF16 */
    int checkpointing;     /* d9d_model_recompute_mode; true is full, false is off */
    int attention_mask;    /* d9d_model_attention_mask */
} d9d_model_section;

/* Which keys a query of a decoder sees. */
typedef enum d9d_model_attention_mask {
    D9D_ATTENTION_MASK_AUTO, /* as config.json says: prefix if it was trained so, else causal */
    D9D_ATTENTION_MASK_CAUSAL,
    D9D_ATTENTION_MASK_PREFIX
} d9d_model_attention_mask;

/* The keys of d9d_model_section. */
#define D9D_MODEL_SECTION_KEYS                                                                     \
    D9D_KEY_STR(d9d_model_section, hf_config, "null",                                              \
                "a HuggingFace config.json, or its folder; left out: that of source_checkpoint",   \
                .flags = D9D_NULLABLE, .min = 1),                                                  \
        D9D_KEY_ENUM(d9d_model_section, dtype, "\"float32\"", d9d_model_dtype_names,               \
                     "type of parameters and activations"),                                        \
        D9D_KEY_CUSTOM(d9d_model_section, checkpointing, "false", &d9d_model_recompute_key,        \
                       "activation checkpointing: off, full (each layer is computed again in "     \
                       "backward) or selective (its feed-forward half)"),                          \
        D9D_KEY_ENUM(d9d_model_section, attention_mask, "\"auto\"",                                \
                     d9d_model_attention_mask_words,                                               \
                     "causal, prefix (the tokens of a prompt, before a document's first target, "  \
                     "see each other both ways) or auto (as hf_config says, else causal)")
D9D_API extern const char *const d9d_model_dtype_names[]; /* {"float32", "bfloat16", NULL} */
D9D_API extern const d9d_key_custom d9d_model_recompute_key;
D9D_API extern const char *const d9d_model_recompute_words[];      /* {"off", "full", ..., NULL} */
D9D_API extern const char *const d9d_model_attention_mask_words[]; /* {"auto", "causal", ...} */

/* Names and shapes of a checkpoint's tensors. */
typedef enum d9d_weights_layout {
    D9D_LAYOUT_D9D, /* those of the model's parameters */
    D9D_LAYOUT_HF,
    D9D_LAYOUT_HF_FUSED /* HuggingFace's newer layout, with all experts in one tensor */
} d9d_weights_layout;

typedef struct d9d_hf_name_pair {
    const char *own, *hf; /* "head.norm.", "model.norm." */
} d9d_hf_name_pair;

/* Where a matrix, or a stack of one for each expert, is in a tensor of HuggingFace's.  Its output
 * features are some of the tensor's: feature i is (i / group) * stride + offset + i % group. */
typedef struct d9d_model_matrix_place {
    const char *tensor; /* its name; with "{expert}" one for each expert; NULL: nowhere */
    int64_t features;   /* output features of the tensor, or of each expert in it */
    int64_t group, stride, offset;
    bool in_first; /* input features come first: [in, features]; else [features, in] */
    int unit_dim;  /* it has one more dimension there, of size 1; 0: none */
    size_t order;  /* among the tensors of a module */
} d9d_model_matrix_place;

/* A matrix that can have an adapter (d9d/nn/adapter.h), and its places in HuggingFace's files of
 * either layout and in the model that transformers makes of them, which is what peft adapts. */
typedef struct d9d_model_matrix {
    const char *name; /* name of its module in the suite's layout */
    int64_t in, out;
    int64_t experts; /* a stack [experts, in, out]; 0: one matrix [out, in] */
    bool vector;     /* [out], where all parameters are listed; in is 1, and first in its places */
    d9d_model_matrix_place hf, fused, module;
} d9d_model_matrix;
typedef struct d9d_model_matrices {
    d9d_model_matrix *items;
    size_t n;
    /* All parameters with a place, by their whole names: what peft can save that was trained whole.
     */
    d9d_model_matrix *params;
    size_t n_params;
    const struct d9d_hf_parts
        *parts; /* names above begin as these (d9d/model/tensors/hf_tensors.h) */
    bool base;  /* the files are those of a base model, which has no head and no prefix of names */
    bool tied;  /* the head is the embedding, and has no parameter */
    /* Names of the family's tensors in files, also of those that no layer of this model has; NULL:
     * not said. */
    const struct d9d_hf_tensor *rows;
} d9d_model_matrices;

/* A parameter of the whole model, and how it is initialised. */
typedef struct d9d_model_tensor {
    const char *name;
    d9d_shape shape;
    d9d_init_kind init;
    float init_scale;
} d9d_model_tensor;
typedef struct d9d_model_tensors {
    d9d_model_tensor *items;
    size_t n;
} d9d_model_tensors;

/* `config` is always the result of read().  Members that may be NULL say so. */
typedef struct d9d_model_provider {
    size_t size;            /* sizeof(d9d_model_provider) */
    const d9d_table *table; /* its section: "name" and the other keys of "model_provider" */

    /* Read the dimensions of a bound section, checked, into the arena.  ECONFIG, ENOTSUP.  NULL:
     * they are the struct of `dims`, all from hf_config, which is then required. */
    d9d_status (*read)(const void *section, d9d_arena *a, const void **config);
    /* Fields read from a config.json; see d9d/model/hf/hf_fields.h.  NULL with read(). */
    const d9d_table *dims;
    /* Can this mesh divide the model?  NULL: d9d_parallel_plan_check_dp(), by `stages`. */
    d9d_status (*check)(const void *config, const d9d_parallel_degrees *mesh);
    /* Create one stage's layers: structure only, no memory for parameters. */
    d9d_status (*create)(const void *config, d9d_stage stage, const d9d_model_opts *options,
                         d9d_model **out);
    /* Place the bound parameters on the mesh; see d9d/parallel/parallel_plan.h.  Collective: over
     * the world.  NULL: d9d_parallel_plan_apply_dp(). */
    d9d_status (*place)(const void *config, d9d_mesh *mesh, d9d_model *m);

    /* For models whose HuggingFace tensors differ in name only: pairs of prefixes.  The first pair
     * whose prefix matches a name renames it; other names stay.  Ends with NULL. */
    const d9d_hf_name_pair *hf_names;
    /* For mappings that renaming cannot express; NULL with hf_names.  layout() finds a source's
     * layout by its tensors' names.  mapper() maps a source in any layout to `to`, for the tensors
     * of one stage, as d9d_model_mapper().  ENOTSUP for what HuggingFace's format cannot express.
     */
    d9d_weights_layout (*layout)(const d9d_tensor_source *src);
    d9d_status (*mapper)(const void *config, d9d_stage stage, const d9d_tensor_source *src,
                         d9d_weights_layout to, d9d_mapper **out);
    /* Make a config.json for a model that was not read from one; a new reference.  ENOTSUP if
     * HuggingFace's format cannot express it.  NULL: never. */
    d9d_status (*hf_config)(const void *config, d9d_dtype dtype, json_t **doc);
    /* Its event handlers (d9d/job/events.h); self is the bound section.  NULL: none. */
    const struct d9d_job_event_handler *events;

    /* All matrices with a place in HuggingFace's files, in the arena: their adapters can be read
     * and written as peft does.  NULL: none. */
    d9d_status (*matrices)(const void *config, d9d_arena *a, d9d_model_matrices *out);

    /* Make, in the arena, the configuration of the same model with the task's head instead of its
     * own; sets head->size if it was 0.  The source's weights may then have another head, which is
     * ignored, or none.  ECONFIG if no size is known, ENOTSUP for a head that it does not have.
     * NULL: the model has a language-model head only, and a task adds its own. */
    d9d_status (*set_head)(const void *config, d9d_arena *a, d9d_head *head, const void **out);
    /* Change the config.json of a model with another head to this model's head.  ENOTSUP if
     * HuggingFace's format has no such head; the suite's own layout then records it.  NULL:
     * config.json does not name the head. */
    d9d_status (*hf_head)(const void *config, json_t *doc);

    /* create() can build any pipeline stage; if false and `check` is NULL, pipelines are refused.
     */
    bool stages;

    /* Can it be trained as configured?  ENOTSUP for features of training that are not implemented;
     * maps and inference do not ask.  NULL: yes. */
    d9d_status (*trainable)(const void *config);

    /* Accepted "model_type" values (NULL-ended) and the fields beyond `dims`:
     * d9d/model/hf/hf_fields.h. The file is checked before read(), and one with any other field is
     * refused.  No model_types: it takes no config.json.  A plugin's provider without model_types
     * is not loaded. */
    const char *const *model_types;
    const d9d_hf_field *fields; /* NULL: only dims and d9d_hf_common */

    /* Its layers compute with blocks only (d9d/nn/block.h), which declare how they are divided:
     * without check() and place() every axis of a mesh is possible, as far as it divides them. */
    bool blocks;
    /* A family that is one table; the other members are then those of D9D_FAMILY
     * (d9d/model/family/family.h).  NULL: none. */
    const struct d9d_family *family;
    /* Complete a configuration from the names of a source's tensors, for conversions, which take a
     * checkpoint as it is: its head, names of a base model.  NULL: nothing. */
    void (*infer)(void *config, const d9d_tensor_source *src);
    /* Set the member "d9d" of a config.json that goes with weights in the layout D9D
     * (d9d/model/hf/hf_config.h).  `fused`: the original checkpoint has fused experts.  NULL: the
     * head alone is recorded. */
    d9d_status (*mark)(const void *config, json_t *doc, bool fused);
    /* List the parameters of the whole model with their initialisation, its head's too, in the
     * arena.  NULL: no random weights are made by d9d-map. */
    d9d_status (*tensors)(const void *config, d9d_arena *a, d9d_model_tensors *out);
} d9d_model_provider;

/* A model that is described but not built: a bound section and its provider. */
typedef struct d9d_model_spec {
    const d9d_model_provider *provider;
    const void *config;
    d9d_model_opts opts;
    const char *hf_config;    /* the file that it was read from, or NULL */
    const char *source;       /* the folder of the weights that it begins with, or NULL */
    const d9d_params *params; /* parameters of the model or stage that was built: those that a task
                                 added keep their names in every layout; NULL: none were added */
} d9d_model_spec;

/* The folder whose auxiliary files (d9d_checkpoint_aux_files(): tokenizer, chat template, ...) go
 * along with the model: that of hf_config, if it has some, else that of the weights it began with.
 * *out is NULL if neither has any.  EPATH or ENOTFOUND for one that cannot be copied. */
D9D_API D9D_MUST_USE d9d_status d9d_model_spec_aux_dir(const d9d_model_spec *m, d9d_arena *a,
                                                       const char **out);

/* The section {"name": "auto", "hf_config": ...}: the family that reads the file's "model_type" is
 * found among all choices, those of plugins too.  It has the keys of a job
 * (d9d/model/family/family.h). */
D9D_API extern const d9d_table d9d_model_auto_section;
/* A bound section as that of its family: "auto" is replaced, any other copied.  ENOTSUP names the
 * model_types that are read; ECONFIG for a key that the family's section does not have. */
D9D_API D9D_MUST_USE d9d_status d9d_model_section_resolve(const d9d_union *section, d9d_arena *a,
                                                          d9d_union *out);
/* Read a spec from `section`, a bound union whose choices are providers' sections. */
D9D_API D9D_MUST_USE d9d_status d9d_model_spec_read(const d9d_union *section, d9d_arena *a,
                                                    d9d_model_spec *out);
/* Read the spec of a config.json, a file or a directory that has one, by the provider among
 * `choices` (NULL-ended sections) that reads its "model_type".  `doc` is the document.  ENOTSUP
 * names the model_types that are read. */
D9D_API D9D_MUST_USE d9d_status d9d_model_spec_of(const d9d_table *const *choices,
                                                  const json_t *doc, const char *path, d9d_arena *a,
                                                  d9d_model_spec *out);
/* What a provider declares about config.json. */
D9D_API d9d_hf_family d9d_model_hf_family(const d9d_model_provider *p);
/* Change the head: opts.head, with its size.  ENOTSUP if the provider has only its own head and the
 * size is not given. */
D9D_API D9D_MUST_USE d9d_status d9d_model_spec_set_head(d9d_model_spec *m, d9d_arena *a,
                                                        const d9d_head *head);
/* ENOTSUP for a model that cannot be trained. */
D9D_API D9D_MUST_USE d9d_status d9d_model_spec_trainable(const d9d_model_spec *m);
/* The provider's matrices, or none. */
D9D_API D9D_MUST_USE d9d_status d9d_model_spec_matrices(const d9d_model_spec *m, d9d_arena *a,
                                                        d9d_model_matrices *out);

/* Layout of its weights, and the mapping between layouts, from the provider's functions or
 * prefixes. With prefixes, one stage of several maps the tensors of `params`. */
/* The layout of the HuggingFace checkpoint that goes with this config.json: by its mark, or by the
 * generation of its names. */
D9D_API d9d_weights_layout d9d_model_hf_layout(const d9d_model_spec *m, const json_t *doc);
D9D_API d9d_weights_layout d9d_model_layout(const d9d_model_spec *m, const d9d_tensor_source *src);
D9D_API D9D_MUST_USE d9d_status d9d_model_mapper(const d9d_model_spec *m, d9d_stage stage,
                                                 const d9d_tensor_source *src,
                                                 d9d_weights_layout to, d9d_mapper **out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_PROVIDER_H */
