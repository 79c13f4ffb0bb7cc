/* map_plan.h - a mapper bound to a source. map_plan.c makes it; map_read.c, map_run.c and
 * map_print.c use it. */
#ifndef D9DI_CKPT_MAPPER_MAP_PLAN_H
#define D9DI_CKPT_MAPPER_MAP_PLAN_H

#include "ckpt/mapper/dtype_convert.h"
#include "ckpt/mapper/map_graph.h"

struct d9d_map_plan {
    const d9d_mapper *m;
    d9d_tensor_source src;
    const char *source, *mapper; /* names for messages */
    d9d_arena arena;
    d9di_mapper_view *views; /* [values] */
    uint32_t *sources;       /* [inputs] index in the source, in order of declaration */
    uint64_t n_boxes;
    size_t n_outputs;
    d9d_safetensors_tensor *outputs;    /* in order of declaration */
    const d9di_mapper_view **out_views; /* [outputs] views including the cast of the options */
    uint64_t bytes;                     /* of all outputs */
    uint32_t *group;                    /* [steps] group of each step */
    uint32_t n_groups;
    uint64_t peak; /* upper bound of one worker's memory, in bytes */
    d9d_cast_overflow overflow;
};

/* Page-aligned memory that grows. */
typedef struct d9di_map_read_buf {
    void *data;
    uint64_t size;
} d9di_map_read_buf;

struct d9d_map_reader {
    const d9d_map_plan *p;
    struct d9di_map_plan_job *run; /* NULL: no progress is counted */
    d9di_map_read_buf scratch, raw,
        band;            /* buffers: of the sink; before a cast; before the strided copy */
    bool maybe_overflow; /* a cast has produced a non-finite value since this was cleared */
};

d9d_status d9di_map_read_buf_grow(d9di_map_read_buf *r, uint64_t size);
void d9di_map_reader_release(d9d_map_reader *m);
/* Reads n elements of an output from `first` on; read_f64 reads them as doubles before any cast. */
d9d_status d9di_map_read_span(d9d_map_reader *m, size_t i, uint64_t first, uint64_t n, void *dst);
d9d_status d9di_map_read_f64(d9d_map_reader *m, size_t i, uint64_t first, uint64_t n, double *dst);
/* Applies the plan's overflow policy if a cast may have overflowed (map_overflow.c). handle treats
 * the elements of a span; check, for slices, only detects an overflow in the tensor. */
d9d_status d9di_map_read_handle_overflow(d9d_map_reader *m, size_t i, uint64_t first, uint64_t n,
                                         void *made);
d9d_status d9di_map_read_check_overflow(d9d_map_reader *m, size_t i);
/* Adds accepted overflows of an output; thread-safe. */
void d9di_map_plan_job_add_overflow(struct d9di_map_plan_job *r, size_t i,
                                    const d9di_cast_overflow *o);
/* Upper bound of a worker's memory for any span (map_read.c). */
uint64_t d9di_map_read_peak_bytes(const d9d_map_plan *p);

#endif /* D9DI_CKPT_MAPPER_MAP_PLAN_H */
