/* family_parts.h - reading and writing a family's config.json, shared by family*.c.
 */
#ifndef D9DI_MODEL_FAMILY_PARTS_H
#define D9DI_MODEL_FAMILY_PARTS_H

#include "d9d/model/family.h"

/* Read the head and its labels from the class in `architectures` and the member "d9d". */
d9d_status d9di_family_head_read(const json_t *doc, const char *where, d9d_family_config *c);

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

/* Heads by prefixes of their tensors' names; NULL-ended. */
typedef struct d9di_head_name {
    const char *prefix;
    d9d_head_kind head;
} d9di_head_name;
extern const d9di_head_name d9di_head_names[];

#endif /* D9DI_MODEL_FAMILY_PARTS_H */
