/* map_graph.h - the graph of a mapper, shared by declaring, planning and running.
 *
 * A mapper is an array of steps and an array of values.  A value is a named tensor, produced by one
 * step or read from the source, and consumed by one step or written to the sink.  Steps are in
 * topological order.
 *
 * Planning gives every value a view: its shape and the boxes of source tensors that tile it.  In a
 * box, the element at index start + i * step of the value (0 <= i < size in each dimension) is
 * element base + sum i * stride of the source tensor, cast as listed:
 *
 *     stack(0) of 2 tensors [3,4], then transpose(1,2), gives [2,4,3]:
 *       box 0: source 0, start 0 0 0, size 1 4 3, stride 0 1 4
 *       box 1: source 1, start 1 0 0, size 1 4 3, stride 0 1 4
 *
 * Steps are 1, except in tensors that interleave others.  concat(-1) of 2 tensors [5,1], then
 * flatten(0, 1), gives [10]:
 *       box 0: source 0, start 0, size 5, step 2, stride 1
 *       box 1: source 1, start 1, size 5, step 2, stride 1
 */
#ifndef D9DI_CKPT_MAPPER_MAP_GRAPH_H
#define D9DI_CKPT_MAPPER_MAP_GRAPH_H

#include "d9d/ckpt/mapper/mapper.h"

enum {
    D9DI_MAX_CASTS = 4,
    D9DI_NONE = -1,
    D9DI_MAX_BOXES = 1 << 19, /* boxes of one view */
    D9DI_ALL_BOXES = 1 << 21  /* boxes of all views of a plan */
};

typedef struct d9di_mapper_box {
    uint32_t source;
    int n_casts;
    d9d_dtype casts[D9DI_MAX_CASTS];
    int64_t start[D9D_MAX_DIMS], size[D9D_MAX_DIMS]; /* size: number of indices, 1 at least */
    int64_t step[D9D_MAX_DIMS];                      /* between indices; 1 where size is 1 */
    int64_t stride[D9D_MAX_DIMS];                    /* of the source, for one index */
    int64_t base;
} d9di_mapper_box;

typedef struct d9di_mapper_view {
    d9d_dtype dtype;
    int ndim;
    int64_t shape[D9D_MAX_DIMS];
    size_t n; /* boxes; 0 in a view without elements or one that could not be inferred */
    d9di_mapper_box *boxes;
    bool known;
} d9di_mapper_view;

typedef struct d9di_mapper_op d9di_mapper_op;

/* Parameters of an operation. */
typedef struct d9di_mapper_args {
    int a, b;            /* dimensions, or the dtype of a cast */
    const int64_t *list; /* sizes, or d9di_mapper_axis of each dimension of a mesh */
    size_t n;
} d9di_mapper_args;

/* Layout of one mesh dimension in the list: size, dim or D9DI_REPLICATED, coordinate. */
enum { D9DI_AXIS_SIZE, D9DI_AXIS_DIM, D9DI_AXIS_COORD, D9DI_AXIS_LEN };
#define D9DI_REPLICATED INT64_MIN

typedef struct d9di_mapper_step {
    const d9di_mapper_op *op;
    d9di_mapper_args args;
    uint32_t n_in, n_out;
    uint32_t *in, *out; /* indices of values */
} d9di_mapper_step;

typedef struct d9di_mapper_value {
    const char *name;
    int32_t producer, consumer;           /* indices of steps, or D9DI_NONE */
    const d9d_safetensors_tensor *expect; /* required shape, or NULL */
} d9di_mapper_value;

struct d9d_mapper {
    d9d_arena arena;
    D9D_VEC(d9di_mapper_value) values;
    D9D_VEC(d9di_mapper_step) steps;
    d9d_map inputs, outputs; /* name to index of the value, plus 1, as a pointer */
};

/* Shape inference: computes the views of a step's outputs from those of its inputs.  EMISMATCH if
 * they do not fit. */
typedef struct d9di_mapper_infer {
    const d9d_mapper *m;
    const d9di_mapper_step *step;
    const d9di_mapper_view *views; /* of all values */
    d9di_mapper_view *out;         /* [n_out] */
    d9d_arena *arena;
} d9di_mapper_infer;

struct d9di_mapper_op {
    const char *name;
    d9d_status (*print)(const d9di_mapper_args *args, d9d_buf *b); /* "(0, 1)"; NULL: nothing */
    d9d_status (*infer)(const d9di_mapper_infer *x);
};

typedef enum d9di_mapper_op_kind {
    D9DI_IDENTITY,
    D9DI_RENAME,
    D9DI_TRANSPOSE,
    D9DI_STACK,
    D9DI_UNSTACK,
    D9DI_CONCAT,
    D9DI_CHUNK,
    D9DI_SPLIT,
    D9DI_SQUEEZE,
    D9DI_UNSQUEEZE,
    D9DI_CAST,
    D9DI_DROP,
    D9DI_DUPLICATE,
    D9DI_DISTRIBUTE,
    D9DI_GATHER,
    D9DI_UNFLATTEN,
    D9DI_FLATTEN,
    D9DI_N_OPS
} d9di_mapper_op_kind;

extern const d9di_mapper_op d9di_mapper_ops[D9DI_N_OPS];

/* Adds a step.  The public functions of d9d/ckpt/mapper/mapper.h call it. */
d9d_status d9di_mapper_add(d9d_mapper *m, d9di_mapper_op_kind kind, const char *const *in,
                           size_t n_in, const char *const *out, size_t n_out,
                           const d9di_mapper_args *args);
/* Fills the args of a mesh operation; `at` may be NULL.  `list` must hold n * D9DI_AXIS_LEN
 * numbers. */
d9di_mapper_args d9di_mapper_mesh_args(const d9d_mapper_placement *mesh, const int64_t *at, int n,
                                       int64_t *list);
/* Connected components: steps that share a value are one group.  Writes the group of each step,
 * numbered in the order of their first steps; the array is in `a`. */
d9d_status d9di_mapper_groups(const d9d_mapper *m, d9d_arena *a, uint32_t **group,
                              uint32_t *n_groups);
/* Sorts outputs by name, numbers in names by value. */
d9d_status d9di_mapper_sort_outputs(d9d_mapper *m);
/* Returns -1, 0 or 1.  Compares bytes, but runs of digits by value: "x.9" before "x.10". */
int d9di_mapper_name_compare(const char *a, const char *b);

/* Views and their boxes (map_view.c).  Copies the shape of `in` to `out` and allocates n boxes. */
d9d_status d9di_mapper_view_begin(d9di_mapper_view *out, const d9di_mapper_view *in, size_t n,
                                  d9d_arena *a);
d9di_mapper_box *d9di_mapper_view_add_box(d9di_mapper_view *v, const d9di_mapper_box *from);
/* Insert an element before position `dim` of an array of ndim, or remove that at `dim`. */
void d9di_mapper_dims_insert(int64_t *array, int ndim, int dim, int64_t value);
void d9di_mapper_dims_remove(int64_t *array, int ndim, int dim);
/* Insert a dimension before `dim`, in which the box is at index `start`, or remove one. */
void d9di_mapper_box_insert_dim(d9di_mapper_box *b, int ndim, int dim, int64_t start);
void d9di_mapper_box_remove_dim(d9di_mapper_box *b, int ndim, int dim);
/* Narrows dimension d of a box to its indices in [lo, hi); false if there is none. */
bool d9di_mapper_box_clip(d9di_mapper_box *b, int d, int64_t lo, int64_t hi);
/* Makes the view of all of source tensor `source`. */
d9d_status d9di_mapper_view_tensor(const d9d_safetensors_tensor *t, uint32_t source, d9d_arena *a,
                                   d9di_mapper_view *out);
/* Makes the view of `in` cast to `to`; keeps the boxes if it already has that type. */
d9d_status d9di_mapper_view_cast(const d9di_mapper_view *in, d9d_dtype to, d9d_arena *a,
                                 d9di_mapper_view *out);
bool d9di_cast_is_float(d9d_dtype t);
bool d9di_cast_is_supported(d9d_dtype from, d9d_dtype to);
/* Makes the view of `in` with dimension dim as two of these sizes, or with dim and dim + 1 as
 * one.  ENOTSUP if there are too many boxes. */
d9d_status d9di_mapper_view_unflatten(const d9di_mapper_view *in, int dim, int64_t outer,
                                      int64_t inner, d9d_arena *a, d9di_mapper_view *out);
d9d_status d9di_mapper_view_flatten(const d9di_mapper_view *in, int dim, d9d_arena *a,
                                    d9di_mapper_view *out);
/* "stack(0)" */
d9d_status d9di_mapper_step_print(const d9di_mapper_step *s, d9d_buf *b);

static inline size_t d9di_mapper_entry_value(const d9d_map *m, size_t i)
{
    return (size_t)(uintptr_t)m->entries[i].value - 1;
}

#endif /* D9DI_CKPT_MAPPER_MAP_GRAPH_H */
