/* adapter_reader.h - an adapter directory that is being read, shared by the files that do it.
 *
 *     adapter_read.c            opens the directory, and holds all tensors to be used
 *     adapter_config_read.c     adapter_config.json: method, ranks, scales, targets
 *     adapter_factors_read.c    factors of matrices
 *     adapter_own_read.c        parameters of a kind of its own
 *     adapter_embedding_read.c  factors of an embedding
 *     adapter_saved_read.c      parameters that were trained whole
 *     adapter_prompt.c          virtual tokens
 */
#ifndef D9DI_MODEL_LORA_ADAPTER_READER_H
#define D9DI_MODEL_LORA_ADAPTER_READER_H

#include "model/lora/adapter_private.h"

typedef struct d9di_peft_reader {
    const d9d_model_matrices *matrices;
    const char *config_path;
    d9d_adapters *ad;
    json_t *doc;
    double alpha; /* for modules that no pattern matches */
    bool by_root; /* the scale is alpha / sqrt(r) */
    d9di_peft_type type;
    const d9d_adapter_kind *own;          /* of type D9DI_PEFT_OWN */
    uint64_t seed;                        /* of its shared arrays */
    bool draws;                           /* the file has none: they are drawn */
    const d9d_adapter_kind *const *kinds; /* those that there are, NULL-ended; or NULL */
    d9d_safetensors_file *file;
    bool *taken; /* which of its tensors were read */
    size_t used;
    const d9d_hf_prefixes *as; /* how it begins its names */
    d9d_arena arena;
} d9di_peft_reader;

static inline d9d_status d9di_peft_no_memory(const d9di_peft_reader *r)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", r->config_path);
}

/* --- adapter_config.json ------------------------------------------------------------------ */

/* Read the method; refuse what is not computed here. */
d9d_status d9di_peft_config_check(d9di_peft_reader *r);
/* Refuse a field that is not false, null, empty or absent: it changes weights in another way. */
d9d_status d9di_peft_require_unset(const d9di_peft_reader *r, const char *key);
/* alpha such that alpha / r is the scale of the module's adapter. */
d9d_status d9di_peft_alpha_of(d9di_peft_reader *r, const char *module, int64_t rank, double *out);
/* Does peft adapt this parameter by its name? */
bool d9di_peft_is_listed_parameter(const d9di_peft_reader *r, const char *name);
/* Warn of targets without an adapter, which peft treats as zero, and of another base model. */
void d9di_peft_warn_missing(d9di_peft_reader *r, const d9d_log *log);
void d9di_peft_warn_other_base(const d9di_peft_reader *r, const char *base, const d9d_log *log);

/* --- adapter_model.safetensors ------------------------------------------------------------ */

enum { D9DI_PEFT_PLACES = 3 };
const d9d_model_matrix_place *d9di_peft_place_of(const d9d_model_matrix *m, int i);
/* The name that the file has for a place's tensor, of expert e; in the arena.  NULL: no memory. */
const char *d9di_peft_tensor_name(d9di_peft_reader *r, const d9d_model_matrix_place *p, int64_t e);
/* Read a whole tensor and mark it as read. */
d9d_status d9di_peft_tensor_read_f32(d9di_peft_reader *r, const d9d_safetensors_tensor *t,
                                     float *out);
/* Has the file an adapter of the module, though perhaps not of each part? */
bool d9di_peft_module_is_adapted(const d9di_peft_reader *r, const char *module);
/* Find a tensor of a module by the end of its name; NULL: none. */
const d9d_safetensors_tensor *d9di_peft_tensor_find(const d9di_peft_reader *r, const char *module,
                                                    const char *end);
/* Read the adapter of a matrix, if there is one. */
d9d_status d9di_peft_matrix_read(d9di_peft_reader *r, const d9d_model_matrix *m);
/* The same of a kind of its own. */
d9d_status d9di_peft_own_read(d9di_peft_reader *r, const d9d_model_matrix *m);
/* Then the arrays that its matrices share. */
d9d_status d9di_peft_shared_read(d9di_peft_reader *r);
bool d9di_peft_own_is_adapted(const d9di_peft_reader *r, const char *module);
/* Read the adapter of an embedding, and of the head that shares its table. */
d9d_status d9di_peft_embedding_read(d9di_peft_reader *r, const d9d_model_matrix *m);
/* Read the virtual tokens of prompt tuning. */
d9d_status d9di_peft_prompt_read(d9di_peft_reader *r);
/* Read all parameters that were saved whole (modules_to_save). */
d9d_status d9di_peft_saved_read(d9di_peft_reader *r);

#endif /* D9DI_MODEL_LORA_ADAPTER_READER_H */
