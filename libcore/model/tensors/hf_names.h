/* hf_names.h - one parameter and its row: names in files, shared by mappings and lists of
 * matrices.
 */
#ifndef D9DI_MODEL_TENSORS_HF_NAMES_H
#define D9DI_MODEL_TENSORS_HF_NAMES_H

#include "d9d/model/tensors/hf_tensors.h"

/* Whose tensors rows are asked for. */
typedef enum d9di_hf_view {
    D9DI_HF_SEPARATE, /* of files with a tensor for each expert */
    D9DI_HF_FUSED,    /* of files with all experts in one */
    D9DI_HF_MODEL     /* of the model that transformers makes of either */
} d9di_hf_view;
d9di_hf_view d9di_hf_view_of(d9d_weights_layout layout);

/* A parameter's place in the files. */
typedef struct d9di_hf_place {
    const d9d_hf_tensor *row; /* NULL: the same name and shape, or a part of the decoder */
    int part;                 /* index into row->own */
    const char *own_prefix;   /* "model.layers.3.", "" outside layers; in the arena */
    const char *hf_prefix;    /* the same in the files */
    const char *hf;           /* the tensor's name there; of experts with {expert} */
    bool has_experts;         /* one tensor there for each expert */
} d9di_hf_place;

/* Find the place of parameter `name`.  ENOTSUP for one that files cannot have. */
d9d_status d9di_hf_place_find(const d9d_hf_naming *n, const char *name, d9di_hf_view view,
                              const d9d_hf_prefixes *as, d9d_arena *a, d9di_hf_place *out);
/* The name of expert e's tensor, in the arena; NULL: out of memory. */
const char *d9di_hf_expert_name(const char *pattern, int64_t e, d9d_arena *a);

/* Parameters by name, for finding those of a row. */
typedef struct d9di_hf_index {
    const d9d_hf_naming *naming;
    const d9d_hf_params *params;
    d9d_arena *arena; /* of the names that are found */
    d9d_map by_name;  /* index + 1 */
} d9di_hf_index;
d9d_status d9di_hf_index_init(d9di_hf_index *x, const d9d_hf_naming *n, const d9d_hf_params *params,
                              d9d_arena *a);
void d9di_hf_index_release(d9di_hf_index *x);

/* A tensor of the files, or one for each expert, and the parameters that it has. */
typedef struct d9di_hf_row {
    d9di_hf_place place;
    int n;
    const char *own[D9D_HF_PARTS];
    const d9d_shape *shape[D9D_HF_PARTS];
    /* Of each parameter along dim; of a group, where there are several. */
    int64_t rows[D9D_HF_PARTS];
    int64_t groups; /* 1: not interleaved */
    int dim;
    bool transposed;
} d9di_hf_row;

/* Find the row of a parameter.  ENOTSUP for one that files cannot have. */
d9d_status d9di_hf_row_find(const d9di_hf_index *x, const d9d_hf_param *p, d9di_hf_view view,
                            const d9d_hf_prefixes *as, d9di_hf_row *r);

#endif /* D9DI_MODEL_TENSORS_HF_NAMES_H */
