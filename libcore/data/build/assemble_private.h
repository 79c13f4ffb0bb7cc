/* assemble_private.h - parts of assembling: iterating over units, assigning documents to splits,
 * packing. */
#ifndef D9DI_DATA_BUILD_ASSEMBLE_PRIVATE_H
#define D9DI_DATA_BUILD_ASSEMBLE_PRIVATE_H

#include "data/build/assemble.h"

/* --- iterating over units, in order
 * ------------------------------------------------------------------
 */

typedef d9d_status (*d9di_assemble_unit_fn)(void *arg, const char *dir,
                                            const d9di_shard_unit_state *unit);
d9d_status d9di_assemble_each_unit(const d9di_assemble_opts *opts, d9di_assemble_unit_fn fn,
                                   void *arg);

/* Receives consecutive bytes of a unit's file; `path` is for messages. */
typedef d9d_status (*d9di_assemble_bytes_fn)(void *arg, const char *path,
                                             const d9di_shard_unit_state *unit, const void *p,
                                             size_t n);
/* Reads the unit's file with suffix `end` in blocks of whole records.  The file must have `bytes`
 * bytes. */
d9d_status d9di_assemble_each_bytes(const char *dir, const d9di_shard_unit_state *unit,
                                    const char *end, uint64_t bytes, d9di_assemble_bytes_fn fn,
                                    void *arg);
/* The same for its ".records". */
typedef d9d_status (*d9di_assemble_record_fn)(void *arg, const char *path,
                                              const d9di_shard_unit_state *unit,
                                              const struct d9di_shard_unit_record *r);
d9d_status d9di_assemble_each_record(const char *dir, const d9di_shard_unit_state *unit,
                                     d9di_assemble_record_fn fn, void *arg);

/* Number of positions of a sample of the unit. */
int64_t d9di_assemble_sample_length(const d9di_shard_unit_state *unit,
                                    const struct d9di_shard_unit_record *r);

/* --- splits of given size --------------------------------------------------------------------- */

enum { D9DI_ASSEMBLE_KEY_BITS = 32 };

/* The split that takes documents with keys in [from, upto). */
typedef struct d9di_assemble_split {
    size_t split;
    uint64_t from, upto;
} d9di_assemble_split;
typedef struct d9di_assemble_splits {
    d9di_assemble_split list[D9DI_MAX_SPLITS]; /* contiguous key ranges, from key 0 on */
    size_t n;
} d9di_assemble_splits;

/* Chooses the key ranges of the splits of given size.  Each takes the documents with the least
 * remaining keys, at least one key, so that its samples come as close to its number as whole keys
 * allow.  EFORMAT if all documents make fewer samples. */
d9d_status d9di_assemble_choose_splits(const d9di_assemble_opts *opts,
                                       const d9di_dataset_manifest *m, d9di_assemble_splits *out);
/* The split of given size that contains a key; NULL: none. */
const d9di_assemble_split *d9di_assemble_splits_find(const d9di_assemble_splits *cuts,
                                                     uint32_t key);

/* --- records that were skipped ---------------------------------------------------------------- */

/* Writes skipped.jsonl from the units, if the manifest's counts say that records were skipped. */
d9d_status d9di_assemble_skipped(const d9di_assemble_opts *opts, const d9di_dataset_manifest *m);

/* --- packing assigned documents
 * -------------------------------------------------------------------
 */

/* Packs the unpacked documents of units into packed units in a subdirectory of opts->unit.dir: a
 * split of given size as a whole, the rest unit by unit.  *out holds the options for assembling the
 * packed units; it borrows from `opts`, and its arrays belong to the arena. */
d9d_status d9di_assemble_pack(const d9di_assemble_opts *opts, const d9di_assemble_splits *cuts,
                              d9d_arena *arena, d9di_assemble_opts *out);

#endif
