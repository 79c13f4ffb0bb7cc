/* map_print.h - printing a plan: state and functions that the formats share. */
#ifndef D9DI_CKPT_MAPPER_MAP_PRINT_H
#define D9DI_CKPT_MAPPER_MAP_PRINT_H

#include "ckpt/mapper/map_plan.h"

/* One group: indices of its steps, and of its inputs and outputs in order of declaration. */
typedef struct d9di_map_print_group {
    uint32_t number;
    const uint32_t *steps, *inputs, *outputs;
    size_t n_steps, n_inputs, n_outputs;
    uint64_t read, written; /* bytes */
} d9di_map_print_group;

/* State of a format between its calls. */
typedef struct d9di_map_print {
    const d9d_map_plan *p;
    unsigned flags;
    d9d_buf *out;
    d9d_arena arena;
    uint64_t read;                    /* source bytes of all groups */
    struct d9di_map_summary *summary; /* of the summary format */
} d9di_map_print;

typedef struct d9di_map_print_format {
    const char *name;
    d9d_status (*begin)(d9di_map_print *x);
    d9d_status (*group)(d9di_map_print *x, const d9di_map_print_group *g);
    d9d_status (*end)(d9di_map_print *x);
} d9di_map_print_format;

/* The summary format: groups whose names differ only by numbers are one entry (map_summary.c). */
extern const d9di_map_print_format d9di_map_print_summary;
void d9di_map_summary_free(struct d9di_map_summary *b);

static inline const d9d_safetensors_tensor *d9di_map_print_input(const d9d_map_plan *p, uint32_t i)
{
    return p->src.at(p->src.self, p->sources[i]);
}
static inline const char *d9di_map_print_path(const d9d_map_plan *p, uint32_t i)
{
    return p->src.path(p->src.self, p->sources[i]);
}
/* Prints the kinds of steps in the order of execution. */
d9d_status d9di_map_print_operations(const d9d_map_plan *p, const d9di_map_print_group *g,
                                     d9d_buf *b);
/* Prints the last line: counts and bytes. */
d9d_status d9di_map_print_totals(d9di_map_print *x);

#endif /* D9DI_CKPT_MAPPER_MAP_PRINT_H */
