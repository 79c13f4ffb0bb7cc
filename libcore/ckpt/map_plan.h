/* map_plan.h - a mapper bound to a source: what map_plan.c makes and map_run.c, map_print.c use. */
#ifndef D9DI_CKPT_MAP_PLAN_H
#define D9DI_CKPT_MAP_PLAN_H

#include "ckpt/map_graph.h"

/* A contiguous span of one output that is made at once: the box [start, start + size). */
typedef struct d9di_map_unit {
    uint32_t output;
    int64_t start[D9D_MAX_DIMS], size[D9D_MAX_DIMS];
    uint64_t at, bytes; /* span in the output */
    /* Order of work: where its first box is read. */
    uint32_t source;
    uint64_t element;
} d9di_map_unit;

enum { D9DI_UNIT_BYTES = 8 << 20 }; /* larger only where an output cannot be cut */

struct d9d_map_plan {
    const d9d_mapper *m;
    d9d_source src;
    const char *source, *mapper; /* for sentences */
    d9d_arena arena;
    d9di_map_view *views; /* of every value */
    size_t n_outputs;
    d9d_st_tensor *outputs;          /* in order of declaration */
    const d9di_map_view **out_views; /* with the cast of the options */
    uint64_t bytes;                  /* of all outputs */
    uint32_t *group;                 /* of every step, in order of first steps */
    uint32_t n_groups;
    D9D_VEC(d9di_map_unit) units; /* in order of work */
    uint64_t peak;                /* bytes that one worker allocates at most */
};

/* The part of box `b` inside [start, start + size): false when there is none. */
bool d9di_map_box_cut(const d9di_map_box *b, int ndim, const int64_t *start, const int64_t *size,
                      d9di_map_box *out);
/* First element of its source that a box reads, and how many from there to the last. */
uint64_t d9di_map_box_first(const d9di_map_box *b);
uint64_t d9di_map_box_extent(const d9di_map_box *b, int ndim);
/* Elements in a box. */
uint64_t d9di_map_box_count(const d9di_map_box *b, int ndim);
/* Cut every output into units and sort them (map_units.c). */
d9d_status d9di_map_units(d9d_map_plan *p);

#endif /* D9DI_CKPT_MAP_PLAN_H */
