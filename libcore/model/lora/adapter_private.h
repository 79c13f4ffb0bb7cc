/* adapter_private.h - adapters in memory and their names in files, shared by the files of lora.
 */
#ifndef D9DI_MODEL_LORA_ADAPTER_PRIVATE_H
#define D9DI_MODEL_LORA_ADAPTER_PRIVATE_H

#include "d9d/model/lora/adapters.h"
#include "d9d/model/tensors/hf_tensors.h"

/* The adapter of one matrix, or of a stack of E of them, as peft has each: A [E, r, in],
 * B [E, out, r], a magnitude and factors of outputs [out], factors of inputs [in]; or the
 * parameters of a kind of its own (d9d_adapter_kind.forward), by their numbers. */
typedef struct d9di_adapters_factors {
    const char *name; /* of the matrix in the suite's layout, without ".weight" */
    bool stack;       /* the matrix is a stack [E, in, out] */
    int64_t experts, in, out, r;
    double alpha; /* the scale is alpha / r */
    double dropout;
    d9d_dtype dtype;
    uint64_t seed;                /* of the arrays that its kind draws */
    const d9d_adapter_kind *own;  /* a kind with a forward; NULL: its parameters have roles */
    unsigned params;              /* bit i: it has parameter i */
    float *v[D9D_ADAPTER_PARAMS]; /* their numbers; of one shape of a shared array the same */
    const char
        *param[D9D_ADAPTER_PARAMS]; /* their names in the model that they come from, or NULL */
} d9di_adapters_factors;

static inline bool d9di_adapters_has_param(const d9di_adapters_factors *f, int i)
{
    return (f->params >> i & 1) != 0;
}
/* False of a kind of its own, whatever it has. */
static inline bool d9di_adapters_has(const d9di_adapters_factors *f, d9d_param_adapter_role role)
{
    return f->own == NULL && d9di_adapters_has_param(f, role);
}
/* Shape of a parameter, of one expert, and how many numbers it has. */
static inline d9d_shape d9di_adapters_shape(const d9di_adapters_factors *f, int i)
{
    return d9d_adapter_shape(f->own, i, &D9D_SHAPE(f->out, f->in), f->r);
}
/* Is parameter i a part of an array that matrices share? */
static inline bool d9di_adapters_is_shared(const d9di_adapters_factors *f, int i)
{
    return f->own != NULL && d9di_adapters_has_param(f, i) && f->own->params[i].shared;
}
static inline int64_t d9di_adapters_numel(const d9di_adapters_factors *f, int i)
{
    const d9d_shape s = d9di_adapters_shape(f, i);

    return d9d_shape_numel(&s);
}

/* A parameter that is trained whole beside adapters. */
typedef struct d9di_adapters_saved {
    const char *name; /* of the parameter */
    d9d_shape shape;
    d9d_dtype dtype;
    bool adapted; /* it has an adapter too */
    bool
        is_base; /* it was not trained: peft saves the weights of embeddings that have an adapter */
    float *v;    /* as the suite's layout has them; NULL: described alone */
} d9di_adapters_saved;

struct d9d_adapters {
    D9D_VEC(d9di_adapters_factors) list;
    D9D_VEC(d9di_adapters_saved) saved;
    d9d_arena arena; /* owns names and numbers */
};

d9d_status d9di_adapters_create(d9d_adapters **out);
/* Append an adapter with zeroed numbers, or with those of an array that is there already; the name
 * is copied. */
d9d_status d9di_adapters_add(d9d_adapters *ad, const d9di_adapters_factors *like,
                             d9di_adapters_factors **out);
/* The numbers of an earlier adapter that has the same part of shared array i as f; NULL: it has
 * none, or i is not shared. */
float *d9di_adapters_shared_numbers(const d9d_adapters *ad, const d9di_adapters_factors *f, int i);

/* Read tensor i of a source, n numbers, as float32. */
d9d_status d9di_adapters_read_f32(const d9d_tensor_source *src, size_t i, int64_t n, float *out);

/* The index of a tensor of a source; EMISMATCH. */
d9d_status d9di_adapters_source_find(const d9d_tensor_source *src, const char *name, size_t *out);
/* Copy n float32 tensors, which are called as the parameters, into these. */
d9d_status d9di_adapters_params_fill(d9d_safetensors_tensor *tensors, const float **values,
                                     size_t n, const d9d_params *params, const d9d_log *log);

/* Find the adapter of a matrix, or the matrix of an adapter; NULL: none. */
const d9di_adapters_factors *d9di_adapters_find(const d9d_adapters *ad, const d9d_model_matrix *m);
const d9d_model_matrix *d9di_adapters_matrix_of(const d9d_model_matrices *of,
                                                const d9di_adapters_factors *f);
const d9d_model_matrix *d9di_adapters_find_matrix(const d9d_model_matrices *of, const char *name);

/* Is it the name of a parameter of an adapter: a usual one, or one of these? */
bool d9di_adapters_is_param(const d9d_adapters *ad, const char *name);

/* --- parameters trained whole ---------------------------------------------------------------- */

/* Append one with zeroed numbers; the name is copied. */
d9d_status d9di_adapters_add_saved(d9d_adapters *ad, const d9di_adapters_saved *like,
                                   d9di_adapters_saved **out);
const d9di_adapters_saved *d9di_adapters_saved_find(const d9d_adapters *ad, const char *param);
/* List those of a model without their numbers; then read these by name. */
d9d_status d9di_adapters_saved_list(const d9d_params *params, d9d_adapters *ad);
d9d_status d9di_adapters_saved_read(const d9d_tensor_source *src, d9d_adapters *ad);
/* Can peft save all of them?  ENOTSUP. */
d9d_status d9di_adapters_saved_check(const d9d_adapters *ad, const d9d_model_matrices *of);
/* Copy one to or from the whole tensor of a place. */
void d9di_adapters_saved_pack(const d9di_adapters_saved *x, const d9d_model_matrix *m,
                              const d9d_model_matrix_place *p, float *to);
void d9di_adapters_saved_unpack(const d9d_model_matrix *m, const d9d_model_matrix_place *p,
                                float *from, const d9di_adapters_saved *x);
/* A parameter's places; NULL: none. */
const d9d_model_matrix *d9di_adapters_param_of(const d9d_model_matrices *of, const char *name);
bool d9di_adapters_is_embedding(const d9d_model_matrices *of, const d9d_model_matrix *m);
/* The shape of a parameter, and of the tensor of a place of it. */
d9d_shape d9di_peft_own_shape(const d9d_model_matrix *m);
d9d_shape d9di_peft_place_shape(const d9d_model_matrix *m, const d9d_model_matrix_place *p);

/* --- methods of peft ------------------------------------------------------------------------- */

/* A type of adapter_config.json, and the roles of parameters that its adapters have. */
typedef enum d9di_peft_type {
    D9DI_PEFT_LORA,
    D9DI_PEFT_DORA,
    D9DI_PEFT_IA3,
    D9DI_PEFT_OWN,   /* of a kind of its own, whose `files` say the rest */
    D9DI_PEFT_PROMPT /* no adapters, but the rows of virtual tokens, saved whole */
} d9di_peft_type;
/* The type for such parameters: ENOTSUP if peft has no such adapters. */
d9d_status d9di_peft_type_of(const d9di_adapters_factors *f, d9di_peft_type *out);

/* Write float32 numbers as tensor i of a file, and adapter_config.json into a directory. */
d9d_status d9di_adapters_values_write(d9d_safetensors_writer *to, size_t i, d9d_dtype dtype,
                                      const float *from, int64_t n);
d9d_status d9di_adapters_config_write(const json_t *doc, const char *dir);

/* The virtual tokens of prompt tuning; NULL: none. */
const d9di_adapters_saved *d9di_adapters_prompt(const d9d_adapters *ad);
/* Write their two files into a directory that exists. */
d9d_status d9di_adapters_prompt_write(const d9di_adapters_saved *x, const char *base,
                                      const char *dir);

/* --- files -------------------------------------------------------------------------------- */

#define D9DI_ADAPTER_CONFIG  "adapter_config.json"
#define D9DI_ADAPTER_TENSORS "adapter_model.safetensors"
#define D9DI_ADAPTER_PREFIX  "base_model.model."

/* The metadata of adapter_model.safetensors has for a matrix that shares its tensor with others
 * "FIRST COUNT", the columns of the tensor's adapter that are its own; without, all are. */
#define D9DI_ADAPTER_COLUMNS "d9d.columns."

/* Feature i of a matrix in its tensor. */
static inline int64_t d9di_peft_place_feature(const d9d_model_matrix_place *p, int64_t i)
{
    return i / p->group * p->stride + p->offset + i % p->group;
}

/* One tensor for each expert? */
bool d9di_peft_place_is_each(const d9d_model_matrix_place *p);
/* The tensor's name, of expert e where there is one for each; in the arena.  NULL: out of memory.
 */
const char *d9di_peft_place_tensor(const d9d_model_matrix_place *p, int64_t e, d9d_arena *a);
/* Bytes of the name of the module that has a tensor. */
size_t d9di_peft_module_length(const char *tensor);
bool d9di_peft_is_same_module(const char *tensor, const char *other);

/* Does peft adapt the tensor by the name of the parameter (target_parameters), not of its module?
 * So it does stacks, routers, and, of LoRA, what it would take for the module of one expert. */
bool d9di_peft_is_target_parameter(const d9d_model_matrices *of, const d9d_adapter_kind *own,
                                   const d9d_model_matrix *m);

/* A part of a tensor that has an adapter. */
typedef struct d9di_peft_part {
    const d9d_model_matrix *matrix;
    const d9di_adapters_factors *factors;
    int64_t first; /* the first of its columns; parts with equal A have the same */
} d9di_peft_part;

/* The adapter of one tensor of transformers' model, as peft has it: of rank r the parts' A, one
 * below the other, and B with the parts' as blocks.  E experts lie in A [r E, in] and B [features,
 * r E]: row e r + k, and column k E + e. */
typedef struct d9di_peft_module {
    const char *tensor; /* its name in the model that peft adapts */
    const char *name;   /* of the module that has the factors */
    bool is_parameter;
    bool is_embedding; /* its factors are transposed and have names of their own */
    int64_t expert;    /* the one that it is of, where each has a tensor; else -1 */
    int64_t experts;   /* in it; 1: a matrix */
    d9di_peft_part parts[D9D_HF_PARTS];
    int n;
    int64_t r;
    double alpha;
} d9di_peft_module;
typedef struct d9di_peft_modules {
    d9di_peft_type type;         /* of all */
    const d9d_adapter_kind *own; /* the same */
    D9D_VEC(d9di_peft_module) list;
    d9d_map by_tensor; /* index + 1 */
    d9d_arena arena;
} d9di_peft_modules;

/* Collect adapters, whose numbers may be NULL, by tensor.  ENOTSUP for a matrix that is not in
 * `of`; ECONFIG for adapters of several types, for parts of one tensor that scale differently, and
 * for magnitudes of some of its parts. */
d9d_status d9di_peft_modules_make(const d9d_adapters *ad, const d9d_model_matrices *of,
                                  d9di_peft_modules *out);
void d9di_peft_modules_release(d9di_peft_modules *x);
/* What follows the module's name in the files, for a parameter of a kind of its own. */
const char *d9di_peft_own_name(const d9d_adapter_kind *kind, int i);
/* [out, in] of a matrix that has the most outputs and inputs of all of them. */
d9d_shape d9di_adapters_largest(const d9d_adapters *ad);
/* Can peft's files have a kind of its own for this matrix?  ENOTSUP. */
d9d_status d9di_peft_own_check(const d9d_adapter_kind *kind, const d9d_model_matrices *of,
                               const d9d_model_matrix *m);
/* The name that files of this model have; in the arena. */
const char *d9di_peft_name(const d9d_model_matrices *of, const char *name, d9d_arena *a);

#endif /* D9DI_MODEL_LORA_ADAPTER_PRIVATE_H */
