/* adapter_private.h - adapters in memory and their names in files, shared by the files of lora.
 */
#ifndef D9DI_MODEL_LORA_ADAPTER_PRIVATE_H
#define D9DI_MODEL_LORA_ADAPTER_PRIVATE_H

#include "d9d/model/lora/adapters.h"

/* The adapter of one matrix, or of a stack of E of them, as peft has each: A [E, r, in],
 * B [E, out, r]. */
typedef struct d9di_adapters_factors {
    const char *name; /* of the matrix in the suite's layout, without ".weight" */
    bool stack;       /* the matrix is a stack [E, in, out] */
    int64_t experts, in, out, r;
    double alpha; /* the scale is alpha / r */
    double dropout;
    d9d_dtype dtype;
    float *a, *b;
} d9di_adapters_factors;

/* A task's head, trained in full: [rows, columns]. */
typedef struct d9di_adapters_head {
    const char *name; /* as above */
    int64_t rows, columns;
    d9d_dtype dtype;
    float *v;
} d9di_adapters_head;

struct d9d_adapters {
    D9D_VEC(d9di_adapters_factors) list;
    D9D_VEC(d9di_adapters_head) heads;
    d9d_arena arena; /* owns names and numbers */
};

d9d_status d9di_adapters_create(d9d_adapters **out);
/* Append an adapter with zeroed numbers; the name is copied. */
d9d_status d9di_adapters_add(d9d_adapters *ad, const d9di_adapters_factors *like,
                             d9di_adapters_factors **out);

/* Append a head; likewise. */
d9d_status d9di_adapters_add_head(d9d_adapters *ad, const d9di_adapters_head *like,
                                  d9di_adapters_head **out);
/* Is it a head, whose module adapter files save in full? */
bool d9di_adapters_is_head(const d9d_model_matrix *m);

/* Read tensor i of a source, n numbers, as float32. */
d9d_status d9di_adapters_read_f32(const d9d_tensor_source *src, size_t i, int64_t n, float *out);

/* Find the adapter of a matrix, or the matrix of an adapter; NULL: none. */
const d9di_adapters_factors *d9di_adapters_find(const d9d_adapters *ad, const d9d_model_matrix *m);
const d9d_model_matrix *d9di_adapters_matrix_of(const d9d_model_matrices *of,
                                                const d9di_adapters_factors *f);
const d9d_model_matrix *d9di_adapters_find_matrix(const d9d_model_matrices *of, const char *name);

/* Is it the name of a LoRA factor? */
bool d9di_adapters_is_factor(const char *name);

/* --- files -------------------------------------------------------------------------------- */

#define D9DI_ADAPTER_CONFIG  "adapter_config.json"
#define D9DI_ADAPTER_TENSORS "adapter_model.safetensors"
#define D9DI_ADAPTER_PREFIX  "base_model.model."

enum { D9DI_HF_MODULE_MAX = 320 }; /* bytes of a module's name */

/* "model.layers.0.mlp.experts.3.up_proj": the HuggingFace module of a matrix, of expert e. */
void d9di_hf_module(const d9d_model_matrix *m, int64_t e, char out[D9DI_HF_MODULE_MAX]);

#endif /* D9DI_MODEL_LORA_ADAPTER_PRIVATE_H */
