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
 * `chunks` holds the XXH3-128 of each 16 MiB of the file; the last chunk may be shorter.  The final
 * member is the hash of all bytes of the manifest before its own line, so a change of any byte of
 * the directory is found.  A checkpoint is complete if its manifest can be read and all sizes and
 * hashes agree; nothing else decides.
 *
 * A checkpoint of many ranks has parts: directories with a manifest each.  The root's schema is
 * then d9d.checkpoint.v2; its files are the manifests of the parts, and the caller's members have
 *
 *     "parts": [{"dir": "ranks-00000", "bytes": 4096}, ...]       bytes: of all files in its
 * manifest
 *
 * so that whoever needs a few of the files reads the root and a few manifests:
 *
 *     root manifest --hash--> ranks-00000/manifest.json --hashes--> ranks-00000/model-r00000...
 *                   --hash--> ranks-00064/manifest.json --hashes--> ...
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
/* A larger manifest.json is EFORMAT. */
#define D9D_MANIFEST_MAX (512ull << 20)

typedef struct d9d_manifest_file {
    const char *name; /* plain path components with "/" between them */
    uint64_t bytes;
    size_t n_chunks;
    d9d_hash *chunks;
} d9d_manifest_file;

typedef struct d9d_manifest d9d_manifest;

/* Hashes every file of `dir` and of its subdirectories and writes the manifest, replacing an
 * existing one.  Names that begin with a dot and links to directories are left out.  The members of
 * the object `extra` (may be NULL) follow in their order; "schema", "chunk_bytes", "files" and
 * "xxh3" in it are EINVAL.  `jobs` threads; 0: one per processor. */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_write(const char *dir, const json_t *extra, int jobs,
                                                   const d9d_log *log);
/* The same for files that were hashed while they were written.  `extra` may have "parts". */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_write_hashed(const char *dir, const json_t *extra,
                                                          const d9d_manifest_file *files, size_t n);

/* Appends the manifest's text to `out` without writing a file. */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_text(const json_t *extra,
                                                  const d9d_manifest_file *files, size_t n,
                                                  d9d_buf *out);

/* The size and the hashes of a text, as the entry of file `name`, which is borrowed; the hashes are
 * in the arena. */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_file_of_text(const char *name, const char *text,
                                                          size_t n, d9d_arena *a,
                                                          d9d_manifest_file *out);

/* Opens and checks the manifest itself and those of its parts, not the files.  ENOTFOUND if there
 * is none, EFORMAT if it is damaged, EVERIFY if that of a part is not the one that the root names.
 * The files of parts follow those of the root, with the directory in their names. */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_open(const char *dir, d9d_manifest **out);
/* Opens the root alone; parts are read when one of their files is checked. */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_open_root(const char *dir, d9d_manifest **out);
/* The same from memory.  `dir` is the directory for error messages and d9d_manifest_check_*(). */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_parse(const char *dir, const char *text, size_t n,
                                                   d9d_manifest **out);
D9D_API void d9d_manifest_close(d9d_manifest *m);
D9D_API const json_t *d9d_manifest_root(const d9d_manifest *m); /* borrowed: extra members */
D9D_API size_t d9d_manifest_count(const d9d_manifest *m);
D9D_API const d9d_manifest_file *d9d_manifest_at(const d9d_manifest *m, size_t i);
D9D_API const d9d_manifest_file *d9d_manifest_find(const d9d_manifest *m, const char *name);

/* Checks that every file exists with its size.  EVERIFY names the first that does not.  Fast: reads
 * no content. */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_check_sizes(const d9d_manifest *m);
/* The same for one file, which may be in a part that is not read yet.  EFORMAT if it is not
 * listed. */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_check_size(d9d_manifest *m, const char *name);
/* Checks sizes and hashes.  Calls `found` (may be NULL) with one sentence for each file or chunk
 * that differs, in order.  EVERIFY if there was any. */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_check(const d9d_manifest *m, int jobs,
                                                   const d9d_log *log,
                                                   void (*found)(void *arg, const char *sentence),
                                                   void *arg);
/* Checks share `share` of `n_shares`, with the root alone or all parts open.  The shares are of
 * about equal size, to a chunk, and together cover all files.  Of a manifest with parts, a share
 * opens those that it checks.  A file that is missing or has a wrong size is reported by every
 * share of its manifest.  *bytes: how many bytes were read. */
D9D_API D9D_MUST_USE d9d_status d9d_manifest_check_share(
    const d9d_manifest *m, size_t share, size_t n_shares, int jobs, const d9d_log *log,
    void (*found)(void *arg, const char *sentence), void *arg, uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CKPT_DIR_MANIFEST_H */
