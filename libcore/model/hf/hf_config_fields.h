/* hf_config_fields.h - reading config.json member by member, shared by its readers and writers.  A
 * member that is null counts as absent.  Messages begin with the file's name and name the member.
 */
#ifndef D9DI_MODEL_HF_HF_CONFIG_FIELDS_H
#define D9DI_MODEL_HF_HF_CONFIG_FIELDS_H

#include "d9d/model/hf/hf_config.h"
#include "d9d/nn/rope.h"

typedef struct d9di_hf_reader {
    const json_t *doc; /* the object whose members are read */
    const char *where; /* prefix of messages */
    bool moe;          /* the model is a mixture of experts */
} d9di_hf_reader;

/* A member that is present and not null; NULL: absent, or no name. */
const json_t *d9di_hf_member(const json_t *doc, const char *name);

/* A non-negative integer; `otherwise` if absent.  ECONFIG. */
enum { D9DI_HF_REQUIRED = -2 };
d9d_status d9di_hf_i64(const d9di_hf_reader *r, const char *name, int64_t otherwise, int64_t *out);
/* A finite number in the object `from`; `otherwise` if absent. */
d9d_status d9di_hf_f64(const d9di_hf_reader *r, const json_t *from, const char *name,
                       double otherwise, double *out);
/* false if absent. */
d9d_status d9di_hf_bool(const d9di_hf_reader *r, const char *name, bool *out);

/* "model_type", a text.  ECONFIG. */
d9d_status d9di_hf_model_type(const json_t *doc, const char *where, const char **out);

/* Is it one of a NULL-ended list? */
bool d9di_hf_is_among(const char *const *names, const char *name);

/* ENOTSUP: `field` has a value that is not supported. */
d9d_status d9di_hf_refuse(const d9di_hf_reader *r, const char *field, const json_t *v);

/* --- parts ---------------------------------------------------------------------------------- */

/* The object with a scaling, and its name: rope_scaling, or if that is absent or empty
 * rope_parameters, as in transformers.  NULL: neither is there. */
const json_t *d9di_hf_rope_object(const json_t *doc, const char **field);
/* What a file that does not say it has. */
typedef struct d9di_hf_rope_defaults {
    int64_t positions;
    double base;
} d9di_hf_rope_defaults;
/* Read base and scaling of RoPE; the caller zeroes the scaling before.  A file may have both
 * objects if they mean the same. */
d9d_status d9di_hf_rope(const d9di_hf_reader *r, const d9di_hf_rope_defaults *d,
                        d9d_rope_scaling *s, double *base);
/* The JSON object of a scaling, which reads back equal; JSON null for a plain one. */
json_t *d9di_hf_rope_to_json(const d9d_rope_scaling *s);
/* The members that the object `from`, at `field`, may have for its type, NULL-ended.  ENOTSUP for a
 * type that is not supported. */
d9d_status d9di_hf_rope_members(const d9di_hf_reader *r, const char *field, const json_t *from,
                                const char *const **out);
/* Are the frequencies unscaled? */
bool d9di_hf_rope_is_plain(const json_t *from);

/* --- multimodal models ---------------------------------------------------------------------- */

/* Replace the document of a multimodal model by that of its text model, where a family computes
 * that; any other is left as it is.  ENOTSUP for a field that may change what it computes. */
d9d_status d9di_hf_config_text_part(json_t **doc, const char *where);

/* Give a document without a quantization_config the one that NVIDIA's Model Optimizer wrote into
 * hf_quant_config.json of the directory `beside`.  EFORMAT: that file is malformed. */
d9d_status d9di_hf_config_quantization_beside(json_t *doc, const char *beside);

#endif /* D9DI_MODEL_HF_HF_CONFIG_FIELDS_H */
