/* assemble.h - assembles one dataset from all units: renames their token files and builds the index
 * of their records. */
#ifndef D9DI_DATA_BUILD_ASSEMBLE_H
#define D9DI_DATA_BUILD_ASSEMBLE_H

#include "d9d/base/log.h"
#include "data/build/packer.h"
#include "data/build/shard_unit.h"

/* Special values of d9di_assemble_opts.counts. */
enum { D9DI_ASSEMBLE_SHARE = 0, D9DI_ASSEMBLE_REST = -1 };

typedef struct d9di_assemble_opts {
    d9di_shard_unit_opts unit; /* dir: the directory of the dataset */
    const char *const *dir;    /* directory of each input split's units */
    size_t n_input_splits;
    /* [n_splits] Approximate number of samples of a split of given size, which takes the documents
     * with the least keys.  D9DI_ASSEMBLE_SHARE: the split keeps what units assigned to it, minus
     * those.  D9DI_ASSEMBLE_REST: the same, and the split is omitted if nothing remains. */
    const int64_t *counts;
    /* Size 0 unless units hold unpacked documents.  Packing then waits until the documents of
     * splits of given size are known. */
    d9di_packer_opts packer;
    bool check; /* check the hashes of units, because another run or an earlier attempt made them */
    bool move_files; /* token files may be moved from any directory */
} d9di_assemble_opts;

/* True if packing waits until all units are assembled. */
bool d9di_assemble_defers_packing(int64_t pack, const int64_t *counts, size_t n_splits);

/* Subdirectory of the dataset that holds packed units. */
#define D9DI_ASSEMBLE_PACKS_DIR "packs"

/* Sums up what the units hold: documents, tokens, samples, positions, splits and source sizes.  The
 * manifest must already hold the names of splits and sources, and the plan. */
d9d_status d9di_assemble_count(const d9di_assemble_opts *opts, d9di_dataset_manifest *m);

/* Makes the dataset except manifest.json, for which it completes m.  Token files of units in the
 * same directory are moved; others are hard-linked, or copied if that fails.  Work of an
 * interrupted assembly is done again.  EFORMAT: there is no sample, splits of given size want more
 * samples than there are, or units are damaged; a retry does not help. */
d9d_status d9di_assemble(const d9di_assemble_opts *opts, const d9d_log *log,
                         d9di_dataset_manifest *m);

/* Removes the working files, plan.json last. */
d9d_status d9di_assemble_clean(const char *dir);
/* True if a file of that name is a working file. */
bool d9di_assemble_is_temp(const char *name);

#endif
