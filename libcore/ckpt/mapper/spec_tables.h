/* spec_tables.h - a description as parsed by its key tables.  See d9d/ckpt/mapper/mapper_spec.h.
 */
#ifndef D9DI_CKPT_MAPPER_SPEC_TABLES_H
#define D9DI_CKPT_MAPPER_SPEC_TABLES_H

#include "ckpt/mapper/map_graph.h"
#include "d9d/ckpt/mapper/mapper_spec.h"

typedef struct d9di_mapper_spec_names {
    const char **item;
    size_t n;
} d9di_mapper_spec_names;

typedef enum d9di_mapper_spec_rest {
    D9DI_REST_REFUSE,
    D9DI_REST_KEEP,
    D9DI_REST_DROP
} d9di_mapper_spec_rest;

typedef struct d9di_mapper_spec_body {
    d9d_list stages; /* d9d_list of d9d_union: index into d9di_mapper_spec_ops, value a step */
    int rest;        /* d9di_mapper_spec_rest */
} d9di_mapper_spec_body;

/* One struct for all ops; members that an op does not use are zero. */
typedef struct d9di_mapper_spec_step {
    d9di_mapper_spec_names from, to; /* to.n is 0 if names are unchanged */
    bool optional;
    const char *over; /* or NULL */
    int64_t count;    /* or D9D_INT_NULL */
    int64_t dim;      /* or D9D_INT_NULL */
    int64_t start_dim, end_dim;
    d9d_list dims, sizes, mesh, coordinate; /* of int64_t */
    d9d_list placements;                    /* d9d_mapper_placement, mesh_size not set */
    int dtype;                              /* d9d_dtype: the floating ones come first */
    const char *parent;
    const char *from_prefix, *to_prefix;
    int64_t total, current;
    d9di_mapper_spec_body body;
} d9di_mapper_spec_step;

/* A size of a shape: an integer, or factors between asterisks, "3*H". */
typedef struct d9di_mapper_spec_shape {
    const char *pattern;
    int ndim;
    const char *size[D9D_MAX_DIMS];
} d9di_mapper_spec_shape;

typedef struct d9di_mapper_spec_expect {
    d9di_mapper_spec_shape *shape;
    size_t n;
} d9di_mapper_spec_expect;

struct d9d_mapper_spec {
    int schema;
    const char *description;
    d9di_mapper_spec_body body;
    d9di_mapper_spec_expect expect;
    json_t *config;

    /* Not from the key table. */
    const char *name;
    json_t *doc;
    d9d_arena arena;
};

/* How a step expands: one tensor each; several to one; one to several. */
typedef enum d9di_mapper_spec_arity {
    D9DI_EACH,
    D9DI_JOIN,
    D9DI_SPREAD,
    D9DI_SCOPE,
    D9DI_SHARE
} d9di_mapper_spec_arity;

typedef struct d9di_mapper_spec_op {
    const char *name;
    d9di_mapper_spec_arity arity;
    d9di_mapper_op_kind kind; /* operation of the leaves */
} d9di_mapper_spec_op;

extern const d9di_mapper_spec_op d9di_mapper_spec_ops[]; /* in the order of the union's choices */

/* Checks that the tensors of `src` have the expected shapes (spec_expect.c). */
d9d_status d9di_mapper_spec_check_shapes(const d9d_mapper_spec *s, const d9d_tensor_source *src,
                                         const d9d_map *names);

#endif /* D9DI_CKPT_MAPPER_SPEC_TABLES_H */
