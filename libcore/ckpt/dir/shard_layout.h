/* shard_layout.h - the layout of every byte of an output directory, before the first is written.
 *
 * A file is a list of contiguous extents: known text, another file's bytes, or an output of a plan.
 * Files are divided into chunks of D9D_MANIFEST_CHUNK bytes, the chunks of the manifest.  Chunks
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
    const char *text, *path; /* the extent's content; both NULL: output number `output` */
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

/* Adds a file with this text, which is copied, or with the bytes of the file `path`.  EINVAL unless
 * that is a regular file. */
d9d_status d9di_shard_layout_add_text(d9di_shard_layout *l, const char *name, const char *text,
                                      size_t n);
d9d_status d9di_shard_layout_add_copy(d9di_shard_layout *l, const char *name, const char *path);
/* Adds the outputs in shards of at most `shard_bytes` (a larger output gets its own shard) and, if
 * there are several shards, their index.  `dir` is for messages. */
d9d_status d9di_shard_layout_add_shards(d9di_shard_layout *l, const char *dir, uint64_t shard_bytes,
                                        const d9d_safetensors_tensor *outputs, size_t n);
void d9di_shard_layout_release(d9di_shard_layout *l);

/* The file of a chunk, and the byte range of the chunk in it. */
size_t d9di_shard_layout_find_chunk(const d9di_shard_layout *l, size_t chunk, uint64_t *at,
                                    uint64_t *n);
/* The first extent of a file that ends after `at`. */
size_t d9di_shard_layout_find_extent(const d9di_shard_layout_file *f, uint64_t at);
/* Hashes the layout and the identity of the files to be copied.  EIO if one is gone. */
d9d_status d9di_shard_layout_hash(const d9di_shard_layout *l, d9d_hasher *h);

#endif /* D9DI_CKPT_DIR_SHARD_LAYOUT_H */
