/* spec_step.h - expands one step of a description into leaf steps of a mapper. */
#ifndef D9DI_CKPT_MAPPER_SPEC_STEP_H
#define D9DI_CKPT_MAPPER_SPEC_STEP_H

#include "ckpt/mapper/spec_match.h"
#include "ckpt/mapper/spec_tables.h"

enum { D9DI_SPEC_TENSORS = 1 << 22 }; /* most tensors that a description may make */

typedef struct d9di_mapper_spec_builder {
    d9d_arena arena;
    uint64_t n_tensors;
} d9di_mapper_spec_builder;

/* Context in which a step is expanded. */
typedef struct d9di_mapper_spec_context {
    d9di_mapper_spec_builder *b;
    const d9di_mapper_spec_step *s;
    const d9di_mapper_spec_op *op;
    const char *where; /* "qkv.json: stages[0][2] (concat)" */
    const d9d_map *live;
    d9d_mapper *m;
    d9di_mapper_args args;
} d9di_mapper_spec_context;

/* Declares leaves for each match of a pattern (arity EACH and SPREAD), or for groups of matches
 * (JOIN). */
d9d_status d9di_mapper_spec_declare_each(d9di_mapper_spec_context *x);
d9d_status d9di_mapper_spec_declare_joined(d9di_mapper_spec_context *x);

/* Checks that every capture of a template is one of `from`, or `over`. */
d9d_status d9di_mapper_spec_check_templates(const d9di_mapper_spec_context *x,
                                            const d9di_glob *from, const d9di_glob *to, size_t n);
d9d_status d9di_mapper_spec_no_memory(const char *where);
/* Prefixes a failure of the mapper with the place in the description. */
d9d_status d9di_mapper_spec_locate_failure(const char *where, d9d_status st);

#endif /* D9DI_CKPT_MAPPER_SPEC_STEP_H */
