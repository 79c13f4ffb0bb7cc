/* chunk_journal.h - journal of an interrupted run: the chunks that are written, and their hashes.
 *
 *     d9d.chunks.v1 <key>
 *     17 <32 hex digits>
 *
 * One line per chunk, appended when the chunk is in its file.  The key is a hash of everything that
 * decides the content of the chunks.  Incomplete and malformed lines are ignored, so the journal of
 * a killed process is read up to where it got.  A line is a claim, not a proof: whoever resumes
 * checks the chunk against its hash. */
#ifndef D9DI_CKPT_DIR_CHUNK_JOURNAL_H
#define D9DI_CKPT_DIR_CHUNK_JOURNAL_H

#include "d9d/base/fs.h"
#include "d9d/base/hash.h"

#define D9DI_CHUNK_JOURNAL_MAGIC "d9d.chunks.v1"

/* The journal's path: ".d9d-chunks.3" in `dir` for rank 3.  In the arena; NULL if out of memory. */
const char *d9di_chunk_journal_path(d9d_arena *a, const char *dir, int rank);
bool d9di_chunk_journal_is(const char *name);

/* Calls `found` for every line with a chunk below n.  *key_matches: the key agrees; otherwise
 * `found` is not called. */
typedef void (*d9di_chunk_journal_fn)(void *arg, size_t chunk, d9d_hash hash);
d9d_status d9di_chunk_journal_read(const char *path, d9d_hash key, size_t n, bool *key_matches,
                                   d9di_chunk_journal_fn found, void *arg);
/* Opens the journal for appending.  A new file starts with the key. */
d9d_status d9di_chunk_journal_open(const char *path, d9d_hash key, d9d_file *out);
/* Appends a line; thread-safe. */
d9d_status d9di_chunk_journal_put(const d9d_file *f, size_t chunk, d9d_hash hash);

#endif /* D9DI_CKPT_DIR_CHUNK_JOURNAL_H */
