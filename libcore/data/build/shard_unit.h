/* shard_unit.h - the samples of one unit of the inputs, written to files of their own.
 *
 * A unit is what is done or not done: a piece of the inputs, or a part of one.  Its files are
 * in the working directory, and lie there under the unit's name until d9di_assemble() makes one
 * dataset of all units:
 *
 *     unit-00012-0000.tokens-000   ids; also .labels-000, and -001 ... above the shard size
 *     unit-00012-0000.records      where each sample is: struct d9di_shard_unit_record
 *     unit-00012-0000.segments     u32 stored tokens of each document, where samples have several
 *     unit-00012-0000.json         written last: what the others have, and where the next begins
 *
 * Nothing of a unit depends on another one, so tasks and threads may make them in any order,
 * and an interrupted run goes on behind the last whole one of each piece. */
#ifndef D9DI_DATA_BUILD_SHARD_UNIT_H
#define D9DI_DATA_BUILD_SHARD_UNIT_H

#include "d9d/base/fs.h"
#include "data/build/documents.h"
#include "data/build/skipped.h"
#include "data/dataset/dataset_manifest.h"

enum { D9DI_MAX_SPLITS = 16, D9DI_LENGTH_BINS = 31 };

/* What was written of one split; numbers throughout. */
typedef struct d9di_shard_split_stats {
    int64_t samples, segments, positions, longest;
    int64_t lengths[D9DI_LENGTH_BINS]; /* samples with lengths in [2^i, 2^(i+1)) */
} d9di_shard_split_stats;
void d9di_shard_split_stats_add(d9di_shard_split_stats *s, int64_t length, int64_t n_segments);

/* A sample, by the shards of its unit. */
struct d9di_shard_unit_record {
    uint32_t split, shard, bucket, stored;
    uint64_t offset;
    uint32_t n_segments;
    uint32_t key; /* random; those of the least keys go to splits of given size */
};

struct d9di_shard_unit_shard {
    int64_t tokens;
    d9d_hash hash, labels_hash;
};

typedef struct d9di_shard_unit_state {
    int64_t input_split, unit, last; /* last of its piece: 0 or 1 */
    d9di_document_pos next;          /* where the next unit begins */
    d9di_dataset_documents documents;
    int64_t samples, segments; /* in the spools */
    int64_t tokens;
    int64_t bound;  /* the largest id or label, plus one, where that is to be found */
    int64_t labels; /* -1: no samples, 0: next token, 1: given */
    bool hashed;    /* the next two are said: of all but units of 0.1 */
    d9d_hash records_hash, segments_hash; /* of the spools */
    d9di_shard_split_stats split[D9DI_MAX_SPLITS];
    D9D_VEC(struct d9di_shard_unit_shard) shards;
    D9D_VEC(struct d9di_document_source_end) source_ends;
    d9di_skipped_list skipped; /* lines are those of the piece */
    struct d9di_document_source_lines lines_read;
} d9di_shard_unit_state; /* zero-initialised may be released */
void d9di_shard_unit_state_release(d9di_shard_unit_state *s);

typedef struct d9di_shard_unit_opts {
    const char *dir;
    d9d_hash job; /* of inputs and options: only the same run goes on */
    bool wide;
    bool find_bound;      /* nothing else says how large ids are */
    uint64_t shard_bytes; /* a shard is closed before it grows beyond */
    const int64_t *edges;
    size_t n_edges, n_splits;
} d9di_shard_unit_opts;

typedef struct d9di_shard_unit d9di_shard_unit;
d9d_status d9di_shard_unit_create(const d9di_shard_unit_opts *how, int64_t input_split,
                                  int64_t unit, d9di_shard_unit **out);
/* One sample of `n` tokens in segments; labels NULL or as many.  Samples either all have
 * labels or none has. */
d9d_status d9di_shard_unit_add(d9di_shard_unit *u, size_t split, uint32_t key,
                               const uint32_t *tokens, const int32_t *labels, size_t n,
                               const uint32_t *segments, size_t n_segments);
/* For the caller: `last`, `next`, `documents`, `ended`, `skipped` and `passed` are
 * its own to fill. */
d9di_shard_unit_state *d9di_shard_unit_get_state(d9di_shard_unit *u);
/* Make all of it durable. */
d9d_status d9di_shard_unit_commit(d9di_shard_unit *u);
void d9di_shard_unit_free(d9di_shard_unit *u);

/* "DIR/unit-00012-0000END". */
d9d_status d9di_shard_unit_path(const char *dir, int64_t input_split, int64_t unit, const char *end,
                                char **out);
/* The state of a unit of the job that is whole; ENOTFOUND, EFORMAT, EMISMATCH. */
d9d_status d9di_shard_unit_state_read(const d9di_shard_unit_opts *how, int64_t input_split,
                                      int64_t unit, d9di_shard_unit_state *out);
/* EFORMAT, with both hashes, unless the file is what it was when its unit was sealed. */
d9d_status d9di_shard_unit_check_file(const char *path, d9d_hash want);

#endif
