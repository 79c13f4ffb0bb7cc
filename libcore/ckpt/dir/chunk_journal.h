/* chunk_journal.h - which chunks of an interrupted run are written, and what they hash to.
 *
 *     d9d.chunks.v1 <key>
 *     17 <32 hex digits>
 *
 * One line a chunk, appended when it is in its file.  The key is a hash of everything that
 * decides what the chunks are.  A line that is not whole, or not a line, is nothing: so what
 * a killed process leaves is read up to where it got.  A line is a claim, not a proof: whoever
 * goes on checks the chunk against its hash. */
#ifndef D9DI_CKPT_DIR_CHUNK_JOURNAL_H
#define D9DI_CKPT_DIR_CHUNK_JOURNAL_H

#include "d9d/base/fs.h"
#include "d9d/base/hash.h"

#define D9DI_CHUNK_JOURNAL_MAGIC "d9d.chunks.v1"

/* ".d9d-chunks.3" of rank 3 in `dir`; in the arena, NULL when memory is out. */
const char *d9di_chunk_journal_path(d9d_arena *a, const char *dir, int rank);
bool d9di_chunk_journal_is(const char *name);

/* Call `found` for every line of a chunk below n.  *mine: the key agrees; without it nothing is
 * called. */
typedef void (*d9di_chunk_journal_fn)(void *arg, size_t chunk, d9d_hash hash);
d9d_status d9di_chunk_journal_read(const char *path, d9d_hash key, size_t n, bool *mine,
                                   d9di_chunk_journal_fn found, void *arg);
/* Open it to append to, begun with the key where it is new. */
d9d_status d9di_chunk_journal_open(const char *path, d9d_hash key, d9d_file *out);
/* From any thread. */
d9d_status d9di_chunk_journal_put(const d9d_file *f, size_t chunk, d9d_hash hash);

#endif /* D9DI_CKPT_DIR_CHUNK_JOURNAL_H */
