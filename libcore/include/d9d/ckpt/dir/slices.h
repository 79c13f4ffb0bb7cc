/* slices.h - tensors stored as slices in the files that the ranks of a job wrote (distributed
 * checkpoint).
 *
 * A manifest (manifest.h) with a member "tensors" gives for each tensor its dtype, its global
 * shape, and its slices.  A slice is a box of the global tensor, stored in a file of one rank under
 * the tensor's name.  Slices at regular distances are one run: a first slice, and steps.  A step
 * repeats the slices before it n times, each time `by` further along `dim`, `ranks` ranks on:
 *
 *     {"name": "w", "group": "model", "dtype": "F32", "shape": [64, 8], "slices":
 *      [{"rank": 0, "start": [0, 0], "shape": [16, 4],
 *        "steps": [{"n": 4, "dim": 0, "by": 16, "ranks": 2},
 *                  {"n": 2, "dim": 1, "by": 4, "ranks": 1}]}]}
 *
 *          columns 0..3   4..7
 *         .------------.--------.     A tensor that a mesh cuts is one or a few runs on any number
 *         |   rank 0   | rank 1 |     of ranks, so that a table of all tensors stays small.
 *         |   rank 2   | rank 3 |
 *         |   rank 4   | rank 5 |
 *         |   rank 6   | rank 7 |
 *         '------------'--------'
 *
 * Slices of a tensor never overlap.  The reader must check whether they cover the tensor.  Rank r
 * wrote "ranks-00064/model-r00070.safetensors" for r = 70 and 64 ranks a directory.  Checkpoints of
 * d9d.checkpoint.v1 have a slice at a time, with "file" in place of "rank".
 */
#ifndef D9D_CKPT_DIR_SLICES_H
#define D9D_CKPT_DIR_SLICES_H

#include "d9d/ckpt/dir/manifest.h"
#include "d9d/tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- boxes ---------------------------------------------------------------------- */

/* A region of a global tensor: the indices start[d] <= i < start[d] + size[d].  With ndim 0: one
 * element. */
typedef struct d9d_box {
    int ndim;
    int64_t start[D9D_MAX_DIMS], size[D9D_MAX_DIMS];
} d9d_box;

D9D_API int64_t d9d_box_volume(const d9d_box *b);
/* True if no start or size is negative and the box lies inside the global shape `whole`. */
D9D_API bool d9d_box_fits(const d9d_box *b, const d9d_shape *whole);
/* The intersection of two boxes of the same tensor; false if it is empty. */
D9D_API bool d9d_box_intersect(const d9d_box *a, const d9d_box *b, d9d_box *out);
/* Writes "[0:4, 8:16]" into buf, truncated to fit; returns buf. */
#define D9D_BOX_TEXT 280
D9D_API char *d9d_box_text(const d9d_box *b, char buf[D9D_BOX_TEXT]);

/* Walks the elements of box `part`, which both `from` and `to` contain, for a copy from a dense
 * array of box `from` to a dense array of box `to`.  Calls `fn` for each run that is contiguous in
 * both; `src` and `dst` are element offsets into the two arrays. */
typedef d9d_status (*d9d_box_fn)(void *arg, int64_t src, int64_t dst, int64_t n);
D9D_API D9D_MUST_USE d9d_status d9d_box_runs(const d9d_box *part, const d9d_box *from,
                                             const d9d_box *to, d9d_box_fn fn, void *arg);

/* --- tensors ----------------------------------------------------------------------- */

enum {
    D9D_SLICE_STEPS = 8,        /* of a run, at most */
    D9D_SLICES_RANKS = 1 << 20, /* of a checkpoint, at most */
    D9D_SLICES_FILE = 320       /* bytes of a file's name in the directory */
};

typedef struct d9d_slice_step {
    int64_t n; /* at least 2 */
    int dim;
    int64_t by; /* no less than what the steps before span along dim, so slices are disjoint */
    int64_t ranks;
} d9d_slice_step;

typedef struct d9d_slice_run {
    const char *file; /* d9d.checkpoint.v1: name in the directory, of the only slice; or NULL */
    int64_t rank;     /* of the first slice */
    d9d_box box;      /* the first slice */
    d9d_slice_step *steps;
    size_t n_steps;
} d9d_slice_run;

typedef struct d9d_sliced_tensor {
    const char *name, *group; /* group: "model" or "optimizer" */
    d9d_dtype dtype;
    d9d_shape whole;
    d9d_slice_run *runs; /* disjoint, in order of their first index */
    size_t n_runs;
} d9d_sliced_tensor;

typedef struct d9d_slices {
    d9d_sliced_tensor *tensors;
    size_t n;
    int64_t ranks, ranks_per_dir; /* of the checkpoint; 0: d9d.checkpoint.v1 */
    d9d_map by_name;              /* number of the tensor, plus 1, as a pointer */
    d9d_arena arena;
} d9d_slices;

/* Parses the slices of a manifest, which is borrowed; `path` is its name in error messages.
 * EFORMAT unless every slice fits its tensor and overlaps no other slice, and its rank is one of
 * the checkpoint, or its file one that the manifest lists. */
D9D_API D9D_MUST_USE d9d_status d9d_slices_parse(const d9d_manifest *m, const char *path,
                                                 d9d_slices *out);
D9D_API void d9d_slices_release(d9d_slices *s);
D9D_API const d9d_sliced_tensor *d9d_slices_find(const d9d_slices *s,
                                                 const char *name); /* or NULL */

/* One slice of a run. */
typedef struct d9d_slice {
    const char *file; /* as of the run */
    int64_t rank;
    d9d_box box;
} d9d_slice;

/* Calls fn for each slice of the tensor that intersects the box `within` (NULL: for each slice).
 * Takes time for the slices that it finds, not for all. */
typedef d9d_status (*d9d_slice_fn)(void *arg, const d9d_slice *slice);
D9D_API D9D_MUST_USE d9d_status d9d_sliced_tensor_visit(const d9d_sliced_tensor *t,
                                                        const d9d_box *within, d9d_slice_fn fn,
                                                        void *arg);
/* Elements in all slices; slices in all runs. */
D9D_API int64_t d9d_sliced_tensor_volume(const d9d_sliced_tensor *t);
D9D_API int64_t d9d_sliced_tensor_count(const d9d_sliced_tensor *t);
/* The file of a slice: its name in the directory. */
D9D_API const char *d9d_slices_file(const d9d_slices *s, const d9d_sliced_tensor *t,
                                    const d9d_slice *slice, char buf[D9D_SLICES_FILE]);

/* "ranks-00064", the directory of rank 70 with 64 ranks a directory; "model-r00070.safetensors",
 * its file there. */
D9D_API void d9d_slices_dir_name(int64_t rank, int64_t ranks_per_dir, char buf[D9D_SLICES_FILE]);
D9D_API void d9d_slices_file_name(const char *group, int64_t rank, char buf[D9D_SLICES_FILE]);

/* --- writing ----------------------------------------------------------------------- */

/* Adds the tensors of `from` to `into`, which begins as {0} and owns copies.  EFORMAT where both
 * have a tensor with another dtype, shape or group. */
D9D_API D9D_MUST_USE d9d_status d9d_slices_add(d9d_slices *into, const d9d_slices *from);
/* Joins slices at regular distances to runs, as few as it finds; the slices stay the same. */
D9D_API D9D_MUST_USE d9d_status d9d_slices_join_runs(d9d_slices *s);
/* The value of the member "tensors", a new reference; NULL if memory is out. */
D9D_API json_t *d9d_slices_json(const d9d_slices *s);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CKPT_DIR_SLICES_H */
