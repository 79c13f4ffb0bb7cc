/* manifest.h - manifest.json of a checkpoint directory: what must be there, to the byte.
 *
 *     {
 *       "schema": "d9d.checkpoint.v1",
 *       "step": 1000,                          members that the caller gives
 *       "chunk_bytes": 16777216,
 *       "files": [
 *         {"name": "model.safetensors", "bytes": 4096, "chunks": ["<32 hex digits>", ...]}
 *       ],
 *       "xxh3": "<32 hex digits>"
 *     }
 *
 * `chunks` are the XXH3-128 of each 16 MiB of the file, the last one of what is left; the
 * final member is that of all bytes of the manifest before its line, so that a change of any
 * byte of the directory is found.  A checkpoint is complete when its manifest reads and all
 * sizes and hashes agree; nothing else decides.
 */
#ifndef D9D_CKPT_DIR_MANIFEST_H
#define D9D_CKPT_DIR_MANIFEST_H

#include "d9d/base/fs.h"
#include "d9d/base/hash.h"
#include "d9d/base/json.h"
#include "d9d/base/log.h"

#ifdef __cplusplus
extern "C" {
#endif

#define D9D_MANIFEST_NAME  "manifest.json"
#define D9D_MANIFEST_CHUNK (16ull << 20)
/* A larger manifest.json is EFORMAT.  That of a training checkpoint has some 80 bytes for each part
 * of each array: those of 1200 arrays over 512 ranks are 49 MB. */
#define D9D_MANIFEST_MAX (512ull << 20)

typedef struct d9d_manifest_file {
    const char *name; /* plain path components with "/" between */
    uint64_t bytes;
    size_t n_chunks;
    d9d_hash *chunks;
} d9d_manifest_file;

typedef struct d9d_manifest d9d_manifest;

/* Hash every file of `dir` and of the directories in it, but for those whose name begins with a
 * dot and links to directories (a manifest that is there is replaced), and write the manifest, with
 * the members of the object `extra` (may be NULL; "schema", "chunk_bytes", "files" and "xxh3" are
 * EINVAL) in their order. */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_write(const char *dir, const json_t *extra, int jobs,
                                                   const d9d_log *log);
/* The same for files that were hashed while they were written. */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_write_hashed(const char *dir, const json_t *extra,
                                                          const d9d_manifest_file *files, size_t n);

/* Its text alone, appended. */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_text(const json_t *extra,
                                                  const d9d_manifest_file *files, size_t n,
                                                  d9d_buf *out);

/* Parse and check the manifest itself.  ENOTFOUND when there is none, EFORMAT when it is
 * damaged. */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_open(const char *dir, d9d_manifest **out);
/* From memory; `dir` is what sentences and d9d_manifest_check_*() use. */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_parse(const char *dir, const char *text, size_t n,
                                                   d9d_manifest **out);
D9D_API void d9d_manifest_close(d9d_manifest *m);
D9D_API const json_t *d9d_manifest_root(const d9d_manifest *m); /* borrowed: extra members */
D9D_API size_t d9d_manifest_count(const d9d_manifest *m);
D9D_API const d9d_manifest_file *d9d_manifest_at(const d9d_manifest *m, size_t i);
D9D_API const d9d_manifest_file *d9d_manifest_find(const d9d_manifest *m, const char *name);

/* Every file is there and has its size: EVERIFY with the first that does not.  Quick. */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_check_sizes(const d9d_manifest *m);
/* Likewise one of its files. */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_check_size(const d9d_manifest *m,
                                                        const d9d_manifest_file *file);
/* Sizes and hashes.  One sentence to `found` (may be NULL) for each file or chunk that is
 * not as written, in order; EVERIFY when there was any. */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_check(const d9d_manifest *m, int jobs,
                                                   const d9d_log *log,
                                                   void (*found)(void *arg, const char *sentence),
                                                   void *arg);
/* Of `parts` that are alike in bytes, to a chunk, this one alone: together they are all of it.  A
 * file that is missing or has another size is found by each.  *bytes: how many were read. */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_check_share(
    const d9d_manifest *m, size_t part, size_t parts, int jobs, const d9d_log *log,
    void (*found)(void *arg, const char *sentence), void *arg, uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CKPT_DIR_MANIFEST_H */
