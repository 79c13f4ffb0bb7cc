/* content_hash.h - a 128-bit hash of an input's content.  Keys of resumable work are made from it,
 * not from a path or a modification time.
 *
 * Equal content has an equal hash at every path, on every host, after copies and renames.
 *
 *     file         the size and all bytes
 *     checkpoint   of every tensor, in the order of their names: name, dtype, shape, and samples
 *                  of its bytes: 4 KiB at its start, at every 4 MiB behind, and at its end; a
 *                  tensor of at most 64 KiB whole.  The number of files does not
 *                  count.  Beside a sound manifest.json: the sizes and all hashes that it has for
 *                  the .safetensors files
 *     adapter      a directory of peft's: adapter_config.json whole, and adapter_model.safetensors
 *                  as the tensors of a checkpoint
 *
 * Limits.  A matrix that was trained, merged, converted or rounded differs in every sample.  Not
 * found are a change of single elements between samples where no manifest says so, and one that was
 * made on purpose.  A sampled checkpoint of 60 GB is some 16 000 reads of one page, from as many
 * threads as there are processors: well below a second from the page cache.
 *
 * What many ranks compare is less, since each of them reads it: d9d_content_hash_quick().
 */
#ifndef D9D_CKPT_DIR_CONTENT_HASH_H
#define D9D_CKPT_DIR_CONTENT_HASH_H

#include "d9d/base/hash.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Errors are those of reading: ENOTFOUND, EPATH, EIO, EFORMAT. */
D9D_API D9D_MUST_USE d9d_status d9d_content_hash_file(const char *path, d9d_hash *out);
/* By `jobs` threads; 0: one a processor.  The hash is the same. */
D9D_API D9D_MUST_USE d9d_status d9d_content_hash_checkpoint(const char *dir, int jobs,
                                                            d9d_hash *out);
D9D_API D9D_MUST_USE d9d_status d9d_content_hash_adapter(const char *dir, d9d_hash *out);

/* Of a directory: names and sizes of its .safetensors and .json files, and the last 64 KiB of each.
 * Enough to see that two hosts do not have the same; too little for a key, since a merged adapter
 * may leave the last tensor of each file as it was. */
D9D_API D9D_MUST_USE d9d_status d9d_content_hash_quick(const char *dir, d9d_hash *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CKPT_DIR_CONTENT_HASH_H */
