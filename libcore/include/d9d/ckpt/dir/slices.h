/* slices.h - tensors stored as slices in the files that the ranks of a job wrote (distributed
 * checkpoint).
 *
 * A manifest (manifest.h) with a member "tensors" gives for each tensor its dtype, its global
 * shape, and its slices.  A slice is a box of the global tensor, stored in a file under the
 * tensor's name:
 *
 *     {"name": "model.norm.weight", "dtype": "F32", "shape": [64], "slices":
 *      [{"file": "model-r00000.safetensors", "start": [0], "shape": [32]},
 *       {"file": "model-r00001.safetensors", "start": [32], "shape": [32]}]}
 *
 * Slices of a tensor never overlap.  The reader must check whether they cover the tensor.
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

typedef struct d9d_slice {
    const char *file; /* name in the directory */
    d9d_box box;
} d9d_slice;

typedef struct d9d_sliced_tensor {
    const char *name;
    d9d_dtype dtype;
    d9d_shape whole;
    d9d_slice *slices; /* disjoint, in order of their first index */
    size_t n_slices;
} d9d_sliced_tensor;

typedef struct d9d_slices {
    d9d_sliced_tensor *tensors;
    size_t n;
    d9d_map by_name;
    d9d_arena arena;
} d9d_slices;

/* Parses the slices of a manifest, which is borrowed; `path` is its name in error messages.
 * EFORMAT unless every slice fits its tensor, overlaps no other slice, and is in a file that the
 * manifest lists. */
D9D_API D9D_MUST_USE d9d_status d9d_slices_parse(const d9d_manifest *m, const char *path,
                                                 d9d_slices *out);
D9D_API void d9d_slices_release(d9d_slices *s);
D9D_API const d9d_sliced_tensor *d9d_slices_find(const d9d_slices *s,
                                                 const char *name); /* or NULL */

#ifdef __cplusplus
}
#endif
#endif /* D9D_CKPT_DIR_SLICES_H */
