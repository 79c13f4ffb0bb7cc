/* shard_unit.h - a unit of work: the samples of one range of the inputs, in files of its own.
 *
 * A unit is atomic, either done or not: an input split or a part of one.  Its files are in the
 * working directory under the unit's name until d9di_assemble() makes one dataset of all units:
 *
 *     unit-00012-0000.tokens-000   ids; also .labels-000, and -001 ... above the shard size
 *     unit-00012-0000.fields-000   values of the documents' fields, if they have any; also
 *                                  .documents-000 (d9d/data/dataset/field.h)
 *     unit-00012-0000.records      one struct d9di_shard_unit_record per sample
 *     unit-00012-0000.segments     u32 stored tokens of each document, if samples have several
 *     unit-00012-0000.json         written last: counts and hashes, and where the next unit begins
 *
 * No unit depends on another, so tasks and threads may make them in any order.  An interrupted run
 * resumes after the last finished unit of each input split. */
#ifndef D9DI_DATA_BUILD_SHARD_UNIT_H
#define D9DI_DATA_BUILD_SHARD_UNIT_H

#include "d9d/base/fs.h"
#include "data/build/documents.h"
#include "data/dataset/dataset_manifest.h"
#include "data/io/skipped.h"

enum { D9DI_MAX_SPLITS = 16, D9DI_LENGTH_BINS = 31 };

/* What was written for one split; all counts. */
typedef struct d9di_shard_split_stats {
    int64_t samples, segments, positions, longest;
    int64_t lengths[D9DI_LENGTH_BINS]; /* samples with lengths in [2^i, 2^(i+1)) */
} d9di_shard_split_stats;
void d9di_shard_split_stats_add(d9di_shard_split_stats *s, int64_t length, int64_t n_segments);

/* A sample; shards are numbered within its unit. */
struct d9di_shard_unit_record {
    uint32_t split, shard, bucket, stored;
    uint64_t offset;
    uint32_t n_segments;
    uint32_t key; /* random; the least keys go to splits of given size */
};

struct d9di_shard_unit_shard {
    int64_t tokens;
    d9d_hash hash, labels_hash;
    int64_t documents, fields_bytes; /* where documents have fields */
    d9d_hash documents_hash, fields_hash;
};

typedef struct d9di_shard_unit_state {
    int64_t input_split, unit, last; /* last: 1 for the last unit of its input split, otherwise 0 */
    d9di_document_pos next;          /* where the next unit begins */
    d9di_dataset_documents documents;
    int64_t samples, segments; /* records in the spools */
    int64_t tokens;
    int64_t bound;                   /* the largest id or label, plus one, if it must be found */
    int64_t labels;                  /* -1: no samples, 0: next token, 1: given */
    int64_t longest[D9D_FIELDS_MAX]; /* most rows of each ragged field */
    d9di_field_ranges ranges[D9DI_MAX_SPLITS]; /* of integers and of labels that were given */
    bool ranged; /* the ranges are those of all values: not in units of older versions */
    bool hashed; /* the two hashes are valid: for all units but those of 0.1 */
    d9d_hash records_hash, segments_hash; /* hashes of the spools */
    d9di_shard_split_stats split[D9DI_MAX_SPLITS];
    D9D_VEC(struct d9di_shard_unit_shard) shards;
    D9D_VEC(struct d9di_document_source_end) source_ends;
    d9di_skipped_list skipped; /* line numbers count in the input split */
    struct d9di_document_source_lines lines_read;
} d9di_shard_unit_state; /* zero-initialised may be released */
void d9di_shard_unit_state_release(d9di_shard_unit_state *s);

typedef struct d9di_shard_unit_opts {
    const char *dir;
    d9d_hash job; /* hash of inputs and options: only the same run may resume */
    bool wide;
    bool find_bound;      /* the largest id is not known otherwise */
    uint64_t shard_bytes; /* a shard is closed before it grows larger */
    const int64_t *edges;
    size_t n_edges, n_splits;
    d9d_field_list fields;
} d9di_shard_unit_opts;

/* A document, or a part of one. */
typedef struct d9di_shard_document {
    const uint32_t *tokens;
    const int32_t *labels; /* NULL: the targets are the next tokens */
    size_t n;
    const char *fields; /* values of its fields */
    size_t fields_bytes;
    const uint32_t *part; /* tokens of each of its segments, which stay in one sample */
    size_t n_parts;       /* 0: it is one segment */
} d9di_shard_document;

typedef struct d9di_shard_sample {
    size_t split;
    uint32_t key;
    d9di_shard_document all;  /* its segments, one behind the other */
    const uint32_t *segments; /* [n_segments] tokens of each */
    const size_t *fields;     /* [n_segments] bytes of fields of each; NULL: without fields */
    size_t n_segments;
} d9di_shard_sample;

typedef struct d9di_shard_unit d9di_shard_unit;
d9d_status d9di_shard_unit_create(const d9di_shard_unit_opts *opts, int64_t input_split,
                                  int64_t unit, d9di_shard_unit **out);
/* Adds one sample.  Either all samples have labels or none has. */
d9d_status d9di_shard_unit_add(d9di_shard_unit *u, const d9di_shard_sample *s);
/* The state, in which the caller fills `last`, `next`, `documents`, `source_ends`, `skipped` and
 * `lines_read`. */
d9di_shard_unit_state *d9di_shard_unit_get_state(d9di_shard_unit *u);
/* Makes the unit durable (fsync), its state last. */
d9d_status d9di_shard_unit_commit(d9di_shard_unit *u);
void d9di_shard_unit_free(d9di_shard_unit *u);

/* "DIR/unit-00012-0000END". */
d9d_status d9di_shard_unit_path(const char *dir, int64_t input_split, int64_t unit, const char *end,
                                char **out);
/* Reads the state of a finished unit of the job.  ENOTFOUND, EFORMAT, EMISMATCH (another job). */
d9d_status d9di_shard_unit_state_read(const d9di_shard_unit_opts *opts, int64_t input_split,
                                      int64_t unit, d9di_shard_unit_state *out);
/* EFORMAT, with both hashes, unless the file is unchanged since its unit was sealed. */
d9d_status d9di_shard_unit_check_file(const char *path, d9d_hash want);

#endif
