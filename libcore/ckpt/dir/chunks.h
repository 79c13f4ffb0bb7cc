/* chunks.h - the files of a directory, each byte read once: hashed, and shown to who asks.
 *
 * Threads take chunks (d9d/ckpt/dir/manifest.h) in the order of the files and read them in pieces
 * that fit a processor's cache.  A file that is missing, has another size or cannot be read is
 * said once and does not stop the others.
 */
#ifndef D9DI_CKPT_DIR_CHUNKS_H
#define D9DI_CKPT_DIR_CHUNKS_H

#include "d9d/ckpt/dir/manifest.h"

enum {
    D9DI_CHUNKS_LOOKAHEAD = 7
}; /* bytes shown beyond a piece, so that any element is seen whole */

typedef struct d9di_chunks {
    const char *dir;
    const d9d_manifest_file *files; /* names and sizes */
    size_t n, n_hashed;             /* the first so many are hashed */
    size_t share, n_shares;         /* read this one of so many, alike in bytes; parts 0: all */
    /* `own` bytes at `at` of file `f`, and up to D9DI_CHUNKS_LOOKAHEAD that follow them; on any
     * thread. May be NULL. */
    void (*visit)(void *arg, size_t f, uint64_t at, const unsigned char *p, size_t own);
    void *arg;

    /* What came out, in the arena. */
    d9d_arena arena;
    uint64_t bytes;         /* of all files */
    uint64_t read;          /* of them, those of the part */
    size_t *first_chunk;    /* [n + 1] the number of every file's first chunk */
    uint64_t *bytes_before; /* [n + 1] bytes of the files before it */
    d9d_hash *hashes;       /* of every chunk of hashed files that is of the part */
    char **messages;        /* [n] what is wrong with a file; NULL: it was read */
} d9di_chunks;

static inline uint64_t d9di_chunks_per_file(uint64_t bytes)
{
    return bytes / D9D_MANIFEST_CHUNK + (bytes % D9D_MANIFEST_CHUNK != 0);
}

/* The end of chunk `c` of a file of so many bytes. */
static inline uint64_t d9di_chunks_end_offset(uint64_t bytes, uint64_t c)
{
    uint64_t at = c * D9D_MANIFEST_CHUNK;

    return bytes - at < D9D_MANIFEST_CHUNK ? bytes : at + D9D_MANIFEST_CHUNK;
}

/* Is chunk `i` of file `f` of the part that is read?  A chunk is of the part in which it begins. */
static inline bool d9di_chunks_in_share(const d9di_chunks *c, size_t f, size_t i)
{
    const unsigned __int128 at = c->bytes_before[f] + i * D9D_MANIFEST_CHUNK;

    return c->n_shares == 0 || (size_t)(at * c->n_shares / c->bytes) == c->share;
}

/* Fill `said` of files that are missing or have another size. */
d9d_status d9di_chunks_check(d9di_chunks *c);
/* The same, and read the others. */
d9d_status d9di_chunks_read(d9di_chunks *c, const char *what, int jobs, const d9d_log *log);
void d9di_chunks_release(d9di_chunks *c);

/* Say what differs from the manifest, whose files are the first of `c`; returns how much. */
size_t d9di_manifest_report(const d9d_manifest *m, const d9di_chunks *c,
                            void (*found)(void *arg, const char *sentence), void *arg);

#endif /* D9DI_CKPT_DIR_CHUNKS_H */
