/* hf_fields.h - which fields of config.json a family of models accepts, and what each means.
 *
 * A field of config.json that nobody reads can make a model compute other numbers than its
 * author's, silently.  So a family declares every field, and a file with any other field is refused
 * with the field's name and value before any work is done.  A field
 *
 *     is read           a key of the provider's `dims`, or D9D_HF_READ in one with a read()
 *     has one meaning   D9D_HF_ONLY: these values are what the model computes, others are refused
 *     changes nothing   D9D_HF_IGNORED: no result depends on it
 *     is of a loss      D9D_HF_ROUTER_LOSS: of the balancing loss that transformers adds in
 *                       training; a job's key adds one here (d9d_family_router_loss())
 *     is another name   D9D_HF_ALIAS, of a key of `dims`; if a file has both, they must be equal
 *     is ours alone     D9D_HF_OWN: a key of `dims` that no file has, only a job's "model"; a
 *                       second row of the name says what files may have nevertheless
 *
 *     static const char *const types[] = {"mine", NULL};   // "model_type"
 *     static const d9d_hf_field fields[] = {
 *         D9D_HF_ONLY("attention_bias", "[false]"),
 *         D9D_HF_ONLY("hidden_act", "[\"silu\"]"),
 *         D9D_HF_IGNORED("pretraining_tp"),
 *         D9D_HF_END,
 *     };
 *     static const d9d_model_provider provider = {..., .model_types = types, .fields = fields};
 *
 * Fields that all files of transformers may have (torch_dtype, token ids, settings of generation)
 * are in one table of the library, d9d_hf_common.  The first of dims, fields and d9d_hf_common that
 * has a field decides.  A field that is null is accepted and means nothing.
 *
 * rope_theta, rope_scaling and rope_parameters express one thing in two generations of names.  A
 * family whose `dims` have rope_theta gets it from whichever is present.  A family that also has
 * rope_scaling,
 *
 *     D9D_KEY_CUSTOM(dims, rope_scaling, "null", &d9d_hf_rope_scaling, "...")   // d9d_rope_scaling
 *
 * reads linear, yarn, llama3, longrope and dynamic (d9d/nn/rope.h).  Any other family refuses a
 * scaling by name.  The object is rope_scaling, or if that is absent or empty rope_parameters; if a
 * file has neither, it is the default of the key rope_scaling.  A rope_theta inside the object and
 * one beside it must be equal.
 *
 * rope_parameters may be an object for each kind of layer, full_attention and sliding_attention,
 * where the family's `dims` have rope_local_base_freq: the base of the latter, which have no
 * scaling.  rope_theta and rope_scaling are then those of full_attention.
 */
#ifndef D9D_MODEL_HF_HF_FIELDS_H
#define D9D_MODEL_HF_HF_FIELDS_H

#include "d9d/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9d_hf_rule {
    D9D_HF_RULE_READ,
    D9D_HF_RULE_ONLY,
    D9D_HF_RULE_IGNORED,
    D9D_HF_RULE_ALIAS,
    D9D_HF_RULE_OWN,
    D9D_HF_RULE_ROUTER_LOSS
} d9d_hf_rule;

typedef struct d9d_hf_field {
    const char *name; /* NULL ends the table */
    d9d_hf_rule rule;
    const char *only; /* for D9D_HF_RULE_ONLY: a JSON list of the accepted values; null is always
                         accepted; for ALIAS: the key's name */
} d9d_hf_field;

#define D9D_HF_READ(field)                                                                         \
    {                                                                                              \
        .name = (field), .rule = D9D_HF_RULE_READ                                                  \
    }
#define D9D_HF_ONLY(field, values)                                                                 \
    {                                                                                              \
        .name = (field), .rule = D9D_HF_RULE_ONLY, .only = (values)                                \
    }
#define D9D_HF_IGNORED(field)                                                                      \
    {                                                                                              \
        .name = (field), .rule = D9D_HF_RULE_IGNORED                                               \
    }
#define D9D_HF_ROUTER_LOSS(field)                                                                  \
    {                                                                                              \
        .name = (field), .rule = D9D_HF_RULE_ROUTER_LOSS                                           \
    }
#define D9D_HF_ALIAS(field, of)                                                                    \
    {                                                                                              \
        .name = (field), .rule = D9D_HF_RULE_ALIAS, .only = (of)                                   \
    }
#define D9D_HF_OWN(field)                                                                          \
    {                                                                                              \
        .name = (field), .rule = D9D_HF_RULE_OWN                                                   \
    }
#define D9D_HF_END                                                                                 \
    {                                                                                              \
        .name = NULL                                                                               \
    }

/* Fields of all families. */
D9D_API extern const d9d_hf_field d9d_hf_common[];

/* For a key of `dims`: a d9d_rope_scaling, zeroed if the file has none. */
D9D_API extern const d9d_key_custom d9d_hf_rope_scaling;

/* A family's config.json: the tables above. */
typedef struct d9d_hf_family {
    const char *name;               /* for messages */
    const char *const *model_types; /* accepted values of "model_type"; NULL-ended */
    const d9d_table *dims;          /* NULL: none */
    const d9d_hf_field *fields;     /* NULL: none */
    bool inlined; /* the document is a job's "model": fields of D9D_HF_OWN are accepted */
} d9d_hf_family;

/* ENOTSUP for another model_type, a field that is not declared, or a value that is not accepted;
 * ECONFIG without a model_type.  `where` is the prefix of messages. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_family_check(const d9d_hf_family *f, const json_t *doc,
                                                    const char *where);

/* Check every field of a document, not only up to the first that is refused.  `rule` decides about
 * it (NULL: not declared); `st` is its status, and while `fn` runs d9d_err_message() its sentence.
 */
typedef void (*d9d_hf_field_fn)(void *arg, const char *name, const d9d_hf_field *rule,
                                d9d_status st);
D9D_API void d9d_hf_family_each_field(const d9d_hf_family *f, const json_t *doc, const char *where,
                                      d9d_hf_field_fn fn, void *arg);

/* Select the fields of a checked document that are read, and no others; a new reference. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_family_select(const d9d_hf_family *f, const json_t *doc,
                                                     const char *where, json_t **out);

/* Read `dims` from a checked document, into the arena (d9d_hf_family.dims is not NULL). */
D9D_API D9D_MUST_USE d9d_status d9d_hf_family_bind(const d9d_hf_family *f, const json_t *doc,
                                                   const char *where, d9d_arena *a, void *out);
/* The same as a document: the keys of `dims` with every default filled in; a new reference. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_family_resolve(const d9d_hf_family *f, const json_t *doc,
                                                      const char *where, json_t **out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_HF_HF_FIELDS_H */
