/* assemble.h - one dataset of all units: their token files get their final names, their records
 * an index. */
#ifndef D9DI_DATA_BUILD_ASSEMBLE_H
#define D9DI_DATA_BUILD_ASSEMBLE_H

#include "d9d/base/log.h"
#include "data/build/packer.h"
#include "data/build/shard_unit.h"

/* Samples of a split, for d9di_assemble_opts. */
enum { D9DI_ASSEMBLE_SHARE = 0, D9DI_ASSEMBLE_REST = -1 };

typedef struct d9di_assemble_opts {
    d9di_shard_unit_opts unit; /* dir is where the dataset is made */
    const char *const *dir;    /* [n_pieces] where the units of each piece are */
    size_t n_input_splits;
    /* [n_splits] About how many samples of the documents with the least keys the split takes from
     * the others; or D9DI_ASSEMBLE_SHARE, what units say but for those; or D9DI_ASSEMBLE_REST, the
     * same, and it is left out when nothing remains. */
    const int64_t *counts;
    /* Of size 0 unless units have documents as they are, of which packs are yet to be made: when
     * the documents of a split of given size are known. */
    d9di_packer_opts packer;
    bool check; /* the hashes of units: others than this run made them, or an earlier life of it */
    bool move_files; /* token files may be moved from wherever they are */
} d9di_assemble_opts;

/* Whether packs are made when everything is joined. */
bool d9di_assemble_defers_packing(int64_t pack, const int64_t *counts, size_t n_splits);

/* The folder of units of packs, below that of the dataset. */
#define D9DI_ASSEMBLE_PACKS_DIR "packs"

/* Add up what the units have: documents, counts of tokens, samples, positions and splits,
 * and sizes of the sources.  Names of splits and sources, and what was planned, are there. */
d9d_status d9di_assemble_count(const d9di_assemble_opts *how, d9di_dataset_manifest *m);

/* Make the dataset but its manifest.json, which m is then ready for.  Token files of units
 * that are in the same directory are moved; from another one they are linked, or copied where
 * that cannot be.  Whatever an earlier, interrupted join did is done again.  EFORMAT when there
 * is no sample, or fewer than the splits are to have, or units are damaged: joining them again is
 * of no use. */
d9d_status d9di_assemble(const d9di_assemble_opts *how, const d9d_log *log,
                         d9di_dataset_manifest *m);

/* Remove what only the work needed, plan.json last. */
d9d_status d9di_assemble_clean(const char *dir);
/* Whether a file of that name is such. */
bool d9di_assemble_is_temp(const char *name);

#endif
