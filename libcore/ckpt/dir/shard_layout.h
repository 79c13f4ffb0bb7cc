/* shard_layout.h - every byte of an output directory, before the first is written.
 *
 * A file is a list of parts side by side: text that is known, another file's bytes, an output
 * of a plan.  Files are cut into chunks of D9D_MANIFEST_CHUNK, those of the manifest, and chunks
 * are numbered through all files in order:
 *
 *     model-00001-of-00002.safetensors  [header|q_proj     |k_proj|v_proj   ]
 *                                       [chunk 0    |chunk 1    |chunk 2]
 *     model-00002-of-00002.safetensors  [chunk 3 ...
 */
#ifndef D9DI_CKPT_DIR_SHARD_LAYOUT_H
#define D9DI_CKPT_DIR_SHARD_LAYOUT_H

#include "d9d/ckpt/dir/manifest.h"
#include "d9d/ckpt/safetensors/safetensors.h"

typedef struct d9di_shard_layout_extent {
    uint64_t offset, bytes;  /* in its file */
    const char *text, *path; /* what is there; neither: output `output` */
    size_t output;
} d9di_shard_layout_extent;

typedef struct d9di_shard_layout_file {
    const char *name;
    uint64_t bytes;
    size_t first_chunk, n_chunks;
    d9di_shard_layout_extent *extents;
    size_t n_extents;
} d9di_shard_layout_file;

typedef struct d9di_shard_layout {
    d9d_arena arena;
    D9D_VEC(d9di_shard_layout_file) files;
    size_t n_chunks;
    uint64_t bytes;
} d9di_shard_layout; /* zero-initialised is ready to use */

/* A file of this text, which is copied; a file with the bytes of another: EINVAL unless that
 * is a regular one. */
d9d_status d9di_shard_layout_add_text(d9di_shard_layout *l, const char *name, const char *text,
                                      size_t n);
d9d_status d9di_shard_layout_add_copy(d9di_shard_layout *l, const char *name, const char *path);
/* Outputs in shards of at most `shard_bytes` (one that is larger has a shard of its own), and
 * their index where there are several.  `dir` is for sentences. */
d9d_status d9di_shard_layout_add_shards(d9di_shard_layout *l, const char *dir, uint64_t shard_bytes,
                                        const d9d_safetensors_tensor *outputs, size_t n);
void d9di_shard_layout_release(d9di_shard_layout *l);

/* The file of a chunk, and which bytes of it are the chunk's. */
size_t d9di_shard_layout_find_chunk(const d9di_shard_layout *l, size_t chunk, uint64_t *at,
                                    uint64_t *n);
/* The first part of a file that reaches beyond `at`. */
size_t d9di_shard_layout_find_extent(const d9di_shard_layout_file *f, uint64_t at);
/* All of it, and which files are to be copied as they are now: EIO when one is gone. */
d9d_status d9di_shard_layout_hash(const d9di_shard_layout *l, d9d_hasher *h);

#endif /* D9DI_CKPT_DIR_SHARD_LAYOUT_H */
