/* hf_names.h - one parameter and its row: names in files, shared by mappings and lists of
 * matrices.
 */
#ifndef D9DI_MODEL_HF_HF_NAMES_H
#define D9DI_MODEL_HF_HF_NAMES_H

#include "d9d/model/hf/hf_tensors.h"

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
d9d_status d9di_hf_place_find(const d9d_hf_naming *n, const char *name, d9d_weights_layout layout,
                              const d9d_hf_prefixes *as, d9d_arena *a, d9di_hf_place *out);
/* The name of expert e's tensor, in the arena; NULL: out of memory. */
const char *d9di_hf_expert_name(const char *pattern, int64_t e, d9d_arena *a);

/* Number of interleaved groups of a row; 1: not interleaved. */
int64_t d9di_hf_row_groups(const d9d_hf_naming *n, const d9d_hf_tensor *row,
                           const d9d_shape *of_part);
/* Number of parameters of a row. */
int d9di_hf_row_parts(const d9d_hf_tensor *row);

#endif /* D9DI_MODEL_HF_HF_NAMES_H */
