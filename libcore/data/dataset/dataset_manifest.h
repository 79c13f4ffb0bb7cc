/* dataset_manifest.h - manifest.json of a dataset: parsing and writing. */
#ifndef D9DI_DATA_DATASET_DATASET_MANIFEST_H
#define D9DI_DATA_DATASET_DATASET_MANIFEST_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/hash.h"
#include "d9d/base/mem.h"
#include "d9d/data/dataset/dataset.h"
#include "data/dataset/field_values.h"
#include "data/io/skipped.h"

enum { D9DI_MAX_SHARDS = 100000 };          /* most shards of a dataset */
#define D9DI_MAX_LENGTH INT64_C(0x7fffffff) /* longest sample, in stored tokens */

typedef struct d9di_dataset_split {
    const char *name;
    int64_t first, samples, positions, longest;
    const d9di_field_ranges *ranges; /* NULL: they are known of all splits together */
} d9di_dataset_split;

typedef struct d9di_dataset_file {
    const char *name;
    int64_t bytes;
    d9d_hash hash;
} d9di_dataset_file;

typedef struct d9di_dataset_source {
    const char *name;
    int64_t bytes; /* bytes after decompression */
} d9di_dataset_source;

/* Counts of documents by outcome. */
typedef struct d9di_dataset_documents {
    int64_t read, kept, empty, dropped, truncated, split;
    int64_t untrained; /* of the empty ones: chats without a message of a trained role */
    int64_t turns_lost, targets_lost; /* of dropped or truncated documents */
    int64_t special_twice;            /* texts that began with the special tokens that were added */
    int64_t skipped[D9D_SHARD_BAD_REASONS]; /* bad records by reason; the other documents are kept,
                                               empty or dropped */
} d9di_dataset_documents;

/* The options with which a dataset was made. */
typedef struct d9di_dataset_recipe {
    const char *overflow;   /* "split", "truncate", "drop" */
    int64_t max_length;     /* 0: none */
    int64_t pack;           /* 0: not packed */
    const char *pack_mode;  /* "best-fit", "concat"; NULL: not packed */
    int64_t pack_window;    /* documents; 0: not packed */
    int64_t seed;           /* -1: not shuffled */
    int64_t unit_bytes;     /* input bytes of a unit, at whose end a shard ends; 0: unknown */
    const char *append_eos; /* NULL: none */
    d9d_dataset_special add_special;
    const char *on_error;                   /* "stop", "skip"; NULL: unknown */
    const char *chat_template, *chat_masks; /* what rendered chats, and how it is known what of them
                                               is trained; NULL: no chats */
    const char *chat_kwargs, *chat_date;    /* as they were given */
    int64_t record_documents; /* documents of a record of answers; 0: records are single ones */
} d9di_dataset_recipe;

typedef struct d9di_dataset_manifest {
    d9d_arena arena; /* holds every string and array */
    int64_t vocab_size, tokens, samples, positions;
    bool wide;   /* tokens are u32, otherwise u16 */
    bool labels; /* labels are stored; otherwise the target is the next token */
    bool has_tokenizer;
    d9d_hash tokenizer_hash;
    d9d_field_range label_range; /* of stored labels */
    d9d_field_list fields;       /* n 0: samples have ids and labels alone */
    d9di_dataset_recipe recipe;
    d9di_dataset_documents documents;
    int64_t *edges; /* upper bounds of the length buckets, ascending; bucket i holds lengths up to
                       edges[i] */
    d9di_dataset_split *splits;
    d9di_dataset_file *files;
    d9di_dataset_source *sources;
    size_t n_edges, n_splits, n_files, n_sources;
    uint32_t n_shards;
    int64_t *shard_tokens; /* [n_shards] tokens per shard, from the file sizes */
} d9di_dataset_manifest;   /* zero-initialised may be released */

/* Parses a manifest; `where` is its path for messages.  Checks all members for consistency. */
d9d_status d9di_dataset_manifest_parse(const char *where, const char *text, size_t n,
                                       d9di_dataset_manifest *out);
/* The same for a run's plan: it has no counts and no files, and only names of splits and
 * sources. */
d9d_status d9di_dataset_manifest_parse_plan(const char *where, const char *text, size_t n,
                                            d9di_dataset_manifest *out);
d9d_status d9di_dataset_manifest_print(const d9di_dataset_manifest *m, d9d_buf *out);
void d9di_dataset_manifest_release(d9di_dataset_manifest *m);

/* Hash of what the samples are: the format, the splits, the declared fields, the hashes of the
 * files that have samples, and the tokenizer whose ids they have.  What tells how they were made,
 * such as names of inputs, options, counts and the version, is no part of it. */
d9d_status d9di_dataset_manifest_samples_hash(const d9di_dataset_manifest *m, d9d_hash *out);

/* NULL if there is none. */
const d9di_dataset_file *d9di_dataset_manifest_file(const d9di_dataset_manifest *m,
                                                    const char *name);

#endif
