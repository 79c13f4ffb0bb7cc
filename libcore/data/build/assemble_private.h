/* assemble_private.h - what joining consists of: walking units, dealing documents, packing them. */
#ifndef D9DI_DATA_BUILD_ASSEMBLE_PRIVATE_H
#define D9DI_DATA_BUILD_ASSEMBLE_PRIVATE_H

#include "data/build/assemble.h"

/* --- walking units, in order ------------------------------------------------------------------ */

typedef d9d_status (*d9di_assemble_unit_fn)(void *arg, const char *dir,
                                            const d9di_shard_unit_state *unit);
d9d_status d9di_assemble_each_unit(const d9di_assemble_opts *how, d9di_assemble_unit_fn fn,
                                   void *arg);

/* n bytes of a file of the unit, one behind the other; `path` is for sentences. */
typedef d9d_status (*d9di_assemble_bytes_fn)(void *arg, const char *path,
                                             const d9di_shard_unit_state *unit, const void *p,
                                             size_t n);
/* Pass the unit's file `end` on, in pieces of whole records; it must have `bytes` bytes. */
d9d_status d9di_assemble_each_bytes(const char *dir, const d9di_shard_unit_state *unit,
                                    const char *end, uint64_t bytes, d9di_assemble_bytes_fn fn,
                                    void *arg);
/* The same of its ".records". */
typedef d9d_status (*d9di_assemble_record_fn)(void *arg, const char *path,
                                              const d9di_shard_unit_state *unit,
                                              const struct d9di_shard_unit_record *r);
d9d_status d9di_assemble_each_record(const char *dir, const d9di_shard_unit_state *unit,
                                     d9di_assemble_record_fn fn, void *arg);

/* Positions of a sample of the unit. */
int64_t d9di_assemble_sample_length(const d9di_shard_unit_state *unit,
                                    const struct d9di_shard_unit_record *r);

/* --- splits of given size --------------------------------------------------------------------- */

enum { D9DI_ASSEMBLE_KEY_BITS = 32 };

/* Documents with keys in [from, upto) go to the split. */
typedef struct d9di_assemble_split {
    size_t split;
    uint64_t from, upto;
} d9di_assemble_split;
typedef struct d9di_assemble_splits {
    d9di_assemble_split list[D9DI_MAX_SPLITS]; /* without gaps, from key 0 on */
    size_t n;
} d9di_assemble_splits;

/* Where the splits of given size end: each takes the documents of the least keys that those before
 * it leave, so many that its samples come as close to its number as whole keys allow, and at least
 * one key.  EFORMAT when all documents make fewer samples. */
d9d_status d9di_assemble_choose_splits(const d9di_assemble_opts *how,
                                       const d9di_dataset_manifest *m, d9di_assemble_splits *out);
/* The cut that a key is in; NULL for the others. */
const d9di_assemble_split *d9di_assemble_splits_find(const d9di_assemble_splits *cuts,
                                                     uint32_t key);

/* --- records that were skipped ---------------------------------------------------------------- */

/* Write skipped.jsonl of the units, if the manifest, which has counts, says that there are any. */
d9d_status d9di_assemble_skipped(const d9di_assemble_opts *how, const d9di_dataset_manifest *m);

/* --- packing what was dealt ------------------------------------------------------------------- */

/* Make packs of documents that units have as they are, in units of a folder below how->unit.dir:
 * those of a cut together, the others unit by unit.  *out, which borrows from `how`, is how these
 * are joined; its arrays are the arena's. */
d9d_status d9di_assemble_pack(const d9di_assemble_opts *how, const d9di_assemble_splits *cuts,
                              d9d_arena *arena, d9di_assemble_opts *out);

#endif
