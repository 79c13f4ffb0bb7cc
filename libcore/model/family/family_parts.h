/* family_parts.h - reading and writing a family's config.json, shared by family*.c.
 */
#ifndef D9DI_MODEL_FAMILY_PARTS_H
#define D9DI_MODEL_FAMILY_PARTS_H

#include "d9d/model/family/family.h"

/* Read the head and its labels from the class in `architectures` and the member "d9d". */
d9d_status d9di_family_head_read(const json_t *doc, const char *where, d9d_family_config *c);

/* The shape of a model of this configuration. */
d9d_decoder_shape d9di_family_shape(const d9d_family_config *c);

/* What its tensors are called in HuggingFace's files. */
d9d_hf_naming d9di_family_naming(const d9d_family_config *c);

/* Is a tensor of this name of the model's own head, in files or here?  Its bias is not. */
bool d9di_family_is_lm_head(const d9d_family_config *c, const char *name);
/* ECONFIG, with the fields that decide it, for a RoPE that cannot be computed: of an odd number of
 * features, or of none in a family that says how many; of a base without finite frequencies. */
d9d_status d9di_family_rope_check(const d9d_family_config *c, const char *where);

/* Can a model of this configuration have such a head? */
bool d9di_family_has_head(const d9d_family_config *c, d9d_head_kind head);

/* Read a router from the member "d9d"; unchanged if that has none. */
d9d_status d9di_family_router_read(const json_t *doc, const char *where, d9d_block_router *out);
/* The same as a new object; NULL: out of memory. */
json_t *d9di_family_router_to_json(const d9d_block_router *r);

/* Do they choose alike? */
bool d9di_family_routers_equal(const d9d_block_router *a, const d9d_block_router *b);

/* ENOTSUP for a model that HuggingFace's format cannot express. */
d9d_status d9di_family_check_hf(const d9d_family_config *c);
/* The same for its routers, of which only config.json tells. */
d9d_status d9di_family_check_router(const d9d_family_config *c);

/* What a job says of a model, whatever its family: keys of d9d_family_section. */
#define D9DI_FAMILY_JOB_KEYS                                                                       \
    D9D_KEY_TABLE(d9d_family_section, router, &d9di_family_router_table,                           \
                  "routers of mixtures of experts"),                                               \
        D9D_KEY_MAP(d9d_family_section, split_vocab_size, "null", 1, INT32_MAX,                    \
                    "ids in each split of the vocabulary, in their order; null: one split",        \
                    .flags = D9D_NULLABLE),                                                        \
        D9D_KEY_INT(d9d_family_section, pipeline_num_virtual_layers_pre, "0", 0, 1 << 16,          \
                    "layers that the embedding counts for when layers are dealt out"),             \
        D9D_KEY_INT(d9d_family_section, pipeline_num_virtual_layers_post, "0", 0, 1 << 16,         \
                    "layers that the head counts for"),                                            \
        D9D_KEY_INT(d9d_family_section, max_positions, "null", 1, INT32_MAX,                       \
                    "longest sequence of the job; null: max_position_embeddings.  LongRoPE takes " \
                    "its short factors where it is at most original_max_position_embeddings",      \
                    .flags = D9D_NULLABLE)
extern const d9d_table d9di_family_router_table;

/* A key of d9d_block_router; `unit` is what has a capacity. */
#define D9DI_ROUTER_CAPACITY_KEY(unit)                                                             \
    {                                                                                              \
        .name = "capacity_factor", .kind = D9D_KIND_REAL,                                          \
        .offset = offsetof(d9d_block_router, capacity), .def = "0", .min = 0, .max = 1e3,          \
        .doc = "in training an expert takes at most this many times its fair share of a " unit     \
               "'s choices, those of the first tokens, and drops the others; 0: it takes all"      \
    }

/* Heads by prefixes of their tensors' names; NULL-ended. */
typedef struct d9di_head_name {
    const char *prefix;
    d9d_head_kind head;
} d9di_head_name;
extern const d9di_head_name d9di_head_names[];

#endif /* D9DI_MODEL_FAMILY_PARTS_H */
