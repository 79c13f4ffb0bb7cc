/* provider.h - a family of models, as a table of functions.
 *
 * A provider reads its section of the configuration, builds the model or a pipeline stage of it,
 * says how it lies on ranks, and maps its weights from and to HuggingFace's files.  Some are built
 * in (d9d/models/models.h); others come from plugins (d9d/tasks/plugin.h).
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
 * What the loops do with one, in this order: read, check, create, the names and shapes of its
 * weights against a source, place; then memory is taken, weights are read or made, and forward is
 * called (d9d/model/model.h).
 */
#ifndef D9D_MODEL_PROVIDER_H
#define D9D_MODEL_PROVIDER_H

#include "d9d/ckpt/mapper/mapper.h"
#include "d9d/comm/mesh.h"
#include "d9d/config/config.h"
#include "d9d/model/family.h"
#include "d9d/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What every provider's section begins with. */
typedef struct d9d_model_section {
    const char *hf_config; /* a config.json, or NULL: the section has the dimensions itself */
    int dtype;             /* of parameters and activations: d9d_dtype, F32 or BF16 */
    int checkpointing;     /* d9d_model_recompute_mode; true is full, false is off */
} d9d_model_section;

/* Their keys. */
#define D9D_MODEL_SECTION_KEYS                                                                     \
    D9D_KEY_STR(d9d_model_section, hf_config, "null", "a HuggingFace config.json",                 \
                .flags = D9D_NULLABLE, .min = 1),                                                  \
        D9D_KEY_ENUM(d9d_model_section, dtype, "\"float32\"", d9d_model_dtype_names,               \
                     "type of parameters and activations"),                                        \
        D9D_KEY_CUSTOM(d9d_model_section, checkpointing, "false", &d9d_model_recompute_key,        \
                       "activation checkpointing: off, full (each layer is computed again in "     \
                       "backward) or selective (its feed-forward half)")
D9D_API extern const char *const d9d_model_dtype_names[]; /* {"float32", "bfloat16", NULL} */
D9D_API extern const d9d_key_custom d9d_model_recompute_key;

/* How the tensors of a checkpoint are called and shaped. */
typedef enum d9d_weights_layout {
    D9D_LAYOUT_D9D, /* as the model's own parameters */
    D9D_LAYOUT_HF,
    D9D_LAYOUT_HF_FUSED /* HuggingFace's newer one, where experts are one tensor */
} d9d_weights_layout;

typedef struct d9d_hf_name_pair {
    const char *own, *hf; /* "head.norm.", "model.norm." */
} d9d_hf_name_pair;

/* A matrix to which an adapter can be added (d9d/nn/lora.h), and where HuggingFace's files have it.
 */
typedef struct d9d_model_matrix {
    const char *name; /* of its module here */
    int64_t in, out;
    int64_t experts; /* a stack [experts, in, out]; 0: one matrix [out, in] */
    const char *hf;  /* of the module there; of a stack with "{e}", one an expert */
    /* Of a stack in the layout HF_FUSED: its tensor, in which an expert has fused_rows rows of
     * [in], and these are [fused_row, fused_row + out). */
    const char *fused;
    int64_t fused_row, fused_rows;
} d9d_model_matrix;
typedef struct d9d_model_matrices {
    d9d_model_matrix *items;
    size_t n;
} d9d_model_matrices;

/* `config` is what read() has made, everywhere.  A member that may be NULL says so. */
typedef struct d9d_model_provider {
    size_t size;            /* sizeof(d9d_model_provider) */
    const d9d_table *table; /* its section: "name" and what else "model_provider" has */

    /* The dimensions of a bound section, in the arena, checked.  ECONFIG, ENOTSUP.  NULL: they are
     * the struct of `dims`, all from hf_config, which is required then. */
    d9d_status (*read)(const void *section, d9d_arena *a, const void **config);
    /* What is taken of a config.json; see d9d/model/family.h.  NULL with read(). */
    const d9d_table *dims;
    /* Can ranks share it so?  NULL: d9d_parallel_plan_check_dp(), by `stages`. */
    d9d_status (*check)(const void *config, const d9d_parallel_degrees *mesh);
    /* One stage's layers: structure alone, no memory for parameters. */
    d9d_status (*create)(const void *config, d9d_stage stage, const d9d_model_opts *options,
                         d9d_model **out);
    /* Collective: over the world.  How its parameters lie, once they are bound; see
     * d9d/parallel/parallel_plan.h.  NULL: d9d_parallel_plan_apply_dp(). */
    d9d_status (*place)(const void *config, d9d_mesh *mesh, d9d_model *m);

    /* Where HuggingFace's tensors are the same under other names: how these begin, and how those
     * here do; a name is that of the first row that fits, else the same.  Ends with NULL. */
    const d9d_hf_name_pair *hf_names;
    /* What no change of names can say; NULL where hf_names does.  The layout of a source, told by
     * its tensors' names; and from a source in any layout to `to`, for the tensors of one stage,
     * as d9d_model_mapper().  ENOTSUP for what HuggingFace's format cannot say. */
    d9d_weights_layout (*layout)(const d9d_tensor_source *src);
    d9d_status (*mapper)(const void *config, d9d_stage stage, const d9d_tensor_source *src,
                         d9d_weights_layout to, d9d_mapper **out);
    /* A config.json for a model that was not read from one; a new reference.  ENOTSUP where there
     * can be none.  NULL: never. */
    d9d_status (*hf_config)(const void *config, d9d_dtype dtype, json_t **doc);
    /* What it wants to hear of (d9d/job/events.h); self is the bound section.  NULL: nothing. */
    const struct d9d_job_event_handler *events;

    /* All matrices that have a place in HuggingFace's files, in the arena: those whose adapters can
     * be read and written as peft does.  NULL: there are none. */
    d9d_status (*matrices)(const void *config, d9d_arena *a, d9d_model_matrices *out);

    /* The same model, in the arena, with the head that a task wants in place of its own; head->size
     * is set where it was 0.  A source may then have another head, which is left, or none.  ECONFIG
     * where no size is known, ENOTSUP for a head that it has not.  NULL: it has the head of a
     * language model, beside which a task's stands. */
    d9d_status (*set_head)(const void *config, d9d_arena *a, d9d_head *head, const void **out);
    /* A config.json of a model with another head, made to say this one's.  ENOTSUP where
     * HuggingFace's format has none such: it then goes with the suite's own layout.  NULL: it does
     * not say. */
    d9d_status (*hf_head)(const void *config, json_t *doc);

    /* create() makes the layers of any stage alone; false: without `check` pipelines are refused.
     */
    bool stages;

    /* Can it be trained as it says?  ENOTSUP for what is of training alone and not built; maps and
     * inference do not ask.  NULL: it can. */
    d9d_status (*trainable)(const void *config);

    /* What a config.json may say beside `dims`: d9d/model/family.h.  It is checked before read(),
     * and a file with anything else is refused.  The values of "model_type" end with NULL; none:
     * it takes no config.json.  A plugin's provider without model_types is not loaded. */
    const char *const *model_types;
    const d9d_hf_field *fields; /* NULL: no more than dims and what every family has */
} d9d_model_provider;

/* A model that is described and not built: a bound section and its provider. */
typedef struct d9d_model_spec {
    const d9d_model_provider *provider;
    const void *config;
    d9d_model_opts opts;
    const char *hf_config;    /* which it was read from, or NULL */
    const d9d_params *params; /* of the model or stage that was built: those that were added keep
                                 their names in every layout; NULL: none were */
} d9d_model_spec;

/* `section` is a bound union whose choices are providers' sections. */
D9D_API D9D_MUST_USE d9d_status d9d_model_spec_read(const d9d_union *section, d9d_arena *a,
                                                    d9d_model_spec *out);
/* With this head: options.head, with its size.  ENOTSUP where a provider has no other head than its
 * own and the size is not given. */
D9D_API D9D_MUST_USE d9d_status d9d_model_spec_set_head(d9d_model_spec *m, d9d_arena *a,
                                                        const d9d_head *head);
/* Likewise ENOTSUP for a model that is not to be trained. */
D9D_API D9D_MUST_USE d9d_status d9d_model_spec_trainable(const d9d_model_spec *m);
/* The provider's, or none. */
D9D_API D9D_MUST_USE d9d_status d9d_model_spec_matrices(const d9d_model_spec *m, d9d_arena *a,
                                                        d9d_model_matrices *out);

/* Its weights' layout and mapping, by what the provider has.  By names, a stage that is one of
 * several gets what `params` has. */
D9D_API d9d_weights_layout d9d_model_layout(const d9d_model_spec *m, const d9d_tensor_source *src);
D9D_API D9D_MUST_USE d9d_status d9d_model_mapper(const d9d_model_spec *m, d9d_stage stage,
                                                 const d9d_tensor_source *src,
                                                 d9d_weights_layout to, d9d_mapper **out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_PROVIDER_H */
