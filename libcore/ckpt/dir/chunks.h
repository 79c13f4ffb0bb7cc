/* chunks.h - reads every byte of a directory's files once: hashes it and passes it to a visitor.
 *
 * Threads take chunks (d9d/ckpt/dir/manifest.h) in the order of the files and read them in blocks
 * that fit a processor's cache.  A file that is missing, has another size or cannot be read gets
 * one message and does not stop the others.
 */
#ifndef D9DI_CKPT_DIR_CHUNKS_H
#define D9DI_CKPT_DIR_CHUNKS_H

#include "d9d/ckpt/dir/manifest.h"

enum {
    D9DI_CHUNKS_LOOKAHEAD = 7
}; /* bytes passed beyond a block, so that each element is seen whole */

typedef struct d9di_chunks {
    const char *dir;
    const d9d_manifest_file *files; /* names and sizes */
    size_t n, n_hashed;             /* the first n_hashed files are hashed */
    size_t share,
        n_shares; /* read share `share` of n_shares of about equal bytes; n_shares 0: all */
    /* The files are part of `total` bytes that are shared, and begin at byte `base` of them; total
     * 0: they are all. */
    uint64_t base, total;
    /* Called for each block, on any thread: `own` bytes at offset `at` of file f, followed by up to
     * D9DI_CHUNKS_LOOKAHEAD more.  May be NULL. */
    void (*visit)(void *arg, size_t f, uint64_t at, const unsigned char *p, size_t own);
    void *arg;

    /* Results, in the arena. */
    d9d_arena arena;
    uint64_t bytes;         /* of all files */
    uint64_t read;          /* bytes of the share that were read */
    size_t *first_chunk;    /* [n + 1] number of each file's first chunk */
    uint64_t *bytes_before; /* [n + 1] bytes of the files before it */
    d9d_hash *hashes;       /* hash of each chunk of the hashed files that is in this share */
    char **messages;        /* [n] the problem of each file; NULL: it was read */
} d9di_chunks;

static inline uint64_t d9di_chunks_per_file(uint64_t bytes)
{
    return bytes / D9D_MANIFEST_CHUNK + (bytes % D9D_MANIFEST_CHUNK != 0);
}

/* Offset of the end of chunk c of a file of `bytes` bytes. */
static inline uint64_t d9di_chunks_end_offset(uint64_t bytes, uint64_t c)
{
    uint64_t at = c * D9D_MANIFEST_CHUNK;

    return bytes - at < D9D_MANIFEST_CHUNK ? bytes : at + D9D_MANIFEST_CHUNK;
}

/* True if chunk i of file f is in the share that is read.  A chunk belongs to the share in which it
 * begins. */
static inline bool d9di_chunks_in_share(const d9di_chunks *c, size_t f, size_t i)
{
    const unsigned __int128 at = c->base + c->bytes_before[f] + i * D9D_MANIFEST_CHUNK;
    const uint64_t total = c->total > 0 ? c->total : c->bytes;

    return c->n_shares == 0 || (size_t)(at * c->n_shares / total) == c->share;
}

/* Fills `messages` of files that are missing or have another size. */
d9d_status d9di_chunks_check(d9di_chunks *c);
/* The same, then reads the other files. */
d9d_status d9di_chunks_read(d9di_chunks *c, const char *what, int jobs, const d9d_log *log);
void d9di_chunks_release(d9di_chunks *c);

/* Reports what differs from the manifest, whose files are the first of `c`.  Returns the number of
 * findings. */
size_t d9di_manifest_report(const d9d_manifest *m, const d9di_chunks *c,
                            void (*found)(void *arg, const char *sentence), void *arg);

#endif /* D9DI_CKPT_DIR_CHUNKS_H */
