/* map_plan.h - a mapper bound to a source: what map_plan.c makes, and map_read.c,
 * map_run.c and map_print.c use. */
#ifndef D9DI_CKPT_MAPPER_MAP_PLAN_H
#define D9DI_CKPT_MAPPER_MAP_PLAN_H

#include "ckpt/mapper/dtype_convert.h"
#include "ckpt/mapper/map_graph.h"

struct d9d_map_plan {
    const d9d_mapper *m;
    d9d_tensor_source src;
    const char *source, *mapper; /* for sentences */
    d9d_arena arena;
    d9di_mapper_view *views; /* of every value */
    uint32_t *sources;       /* of every input, in order of declaration */
    uint64_t n_boxes;
    size_t n_outputs;
    d9d_safetensors_tensor *outputs;    /* in order of declaration */
    const d9di_mapper_view **out_views; /* with the cast of the options */
    uint64_t bytes;                     /* of all outputs */
    uint32_t *group;                    /* of every step, in order of first steps */
    uint32_t n_groups;
    uint64_t peak; /* bytes that one worker allocates at most */
    d9d_cast_overflow overflow;
};

/* Page-aligned memory that grows. */
typedef struct d9di_map_read_buf {
    void *data;
    uint64_t size;
} d9di_map_read_buf;

struct d9d_map_reader {
    const d9d_map_plan *p;
    struct d9di_map_plan_job *run; /* NULL: nobody counts */
    d9di_map_read_buf scratch, raw,
        band;            /* for the sink; what is to be cast; what is to be spread */
    bool maybe_overflow; /* a cast since it was false made something not finite */
};

d9d_status d9di_map_read_buf_grow(d9di_map_read_buf *r, uint64_t size);
void d9di_map_reader_release(d9d_map_reader *m);
/* n elements of an output from `first` on; the same before any cast. */
d9d_status d9di_map_read_span(d9d_map_reader *m, size_t i, uint64_t first, uint64_t n, void *dst);
d9d_status d9di_map_read_f64(d9d_map_reader *m, size_t i, uint64_t first, uint64_t n, double *dst);
/* Where a cast is suspect: do as the plan says with the elements of a span that overflowed
 * (map_overflow.c); of a box it is only found out whether there are any in its tensor. */
d9d_status d9di_map_read_handle_overflow(d9d_map_reader *m, size_t i, uint64_t first, uint64_t n,
                                         void *made);
d9d_status d9di_map_read_check_overflow(d9d_map_reader *m, size_t i);
/* Overflows of an output that the plan accepts, from any thread. */
void d9di_map_plan_job_add_overflow(struct d9di_map_plan_job *r, size_t i,
                                    const d9di_cast_overflow *o);
/* The most that a worker needs for any span (map_read.c). */
uint64_t d9di_map_read_peak_bytes(const d9d_map_plan *p);

#endif /* D9DI_CKPT_MAPPER_MAP_PLAN_H */
