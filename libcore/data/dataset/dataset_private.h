/* dataset_private.h - the struct of an open dataset, for the files that read it. */
#ifndef D9DI_DATA_DATASET_DATASET_PRIVATE_H
#define D9DI_DATA_DATASET_DATASET_PRIVATE_H

#include <sys/types.h>

#include "d9d/data/dataset/dataset.h"
#include "d9d/data/tokenizer/tokenizer.h"
#include "data/dataset/dataset_index.h"
#include "data/dataset/dataset_manifest.h"

/* A process may have about 65,000 maps in all. */
enum { D9DI_MAX_MAPS = 8192 };

/* A shard's file: mapped, or read if a dataset has more files than it maps. */
struct d9di_dataset_map {
    void *data; /* NULL: not mapped */
    size_t bytes;
    char *path;
    dev_t device; /* device and inode of the opened file, whatever file has its name later */
    ino_t inode;
};

struct d9d_dataset {
    char *dir;
    d9d_buf text;          /* text of the manifest */
    d9d_hash hash;         /* of the manifest */
    d9d_hash samples_hash; /* of what the samples are */
    d9di_dataset_manifest manifest;
    const d9di_dataset_split *split;
    d9di_dataset_index *index;
    struct d9di_dataset_map *tokens, *labels;    /* [n_shards] */
    struct d9di_dataset_map *fields, *documents; /* [n_shards], where samples have fields */
    uint32_t n_maps, max_maps;
    d9d_tokenizer *tokenizer; /* NULL until text is needed */
    bool no_targets;          /* the last token is a position too */
    bool next_targets;        /* then the others have the next token as target, else none */
    /* A synthetic dataset: the members above are empty except the name, the hash and the split. */
    const struct d9d_dataset_kind *kind; /* NULL: a dataset read from a directory */
    void *self;
    d9di_dataset_split synthetic_split;
    bool is_stream;
    int interrupted; /* atomic */
};

/* Members of a kind that older plugins do not have. */
#define D9DI_DATASET_KIND_HAS(kind, member)                                                        \
    ((kind)->size > offsetof(d9d_dataset_kind, member) && (kind)->member != NULL)

/* See dataset_synthetic.c. */
d9d_status d9di_dataset_synthetic_sample(const d9d_dataset *ds, int64_t k, d9d_sample *out);
d9d_status d9di_dataset_synthetic_expand(const d9d_dataset *ds, const d9d_sample *s, int32_t *ids,
                                         int32_t *labels, int32_t *positions, int32_t *segments);

/* The range of a field's values, or of labels, in a split as far as it is known. */
const d9d_field_range *d9di_dataset_field_range(const d9d_dataset *ds,
                                                const d9di_dataset_split *split, size_t index);
const d9d_field_range *d9di_dataset_label_range(const d9d_dataset *ds,
                                                const d9di_dataset_split *split);

/* Reads a sample's record by its number in the dataset. */
d9d_status d9di_dataset_sample(d9d_dataset *ds, int64_t number, d9d_sample *out);

/* d9d_dataset_open() with at most `most_maps` mapped files. */
d9d_status d9di_dataset_open(const char *dir, const char *split, uint32_t max_maps,
                             d9d_dataset **out);

/* Stored tokens of a sample, and its labels if the dataset has them: in the mapped file, or read
 * into memory. */
typedef struct d9di_dataset_tokens {
    const void *tokens; /* u16 or u32 */
    const int32_t *labels;
    void *read[2]; /* owned */
} d9di_dataset_tokens;
/* Reads n of them from `from` on.  EIO if the file is not the one that was opened. */
d9d_status d9di_dataset_tokens_read(const d9d_dataset *ds, const d9d_sample *s, size_t from,
                                    size_t n, d9di_dataset_tokens *out);
void d9di_dataset_tokens_release(d9di_dataset_tokens *t);
/* n bytes of a file from byte `at` on: in its map, or read into *owned. */
d9d_status d9di_dataset_map_get(const struct d9di_dataset_map *m, uint64_t at, size_t bytes,
                                void **owned, const void **out);
/* Counts the positions of a split with a target; without labels, all positions. */
d9d_status d9di_dataset_count_targets(d9d_dataset *ds, const d9di_dataset_split *split,
                                      int64_t *out);

/* See inspect_fields.c: what fields there are; a sample's, as JSON ", "fields": [...]". */
d9d_status d9di_dataset_print_fields(const d9d_dataset *ds, d9d_buf *out);
d9d_status d9di_sample_print_fields(const d9d_dataset *ds, const d9d_sample *s, bool json,
                                    d9d_buf *out);

/* EIO if a file of the sample was truncated while mapped: the rest of its last page then silently
 * reads as zeros.  Call it after reading. */
d9d_status d9di_sample_check_not_truncated(const d9d_dataset *ds, const d9d_sample *s);

/* Checks the size and, unless NULL, the hash of one file against the manifest.  EFORMAT shows both
 * values. */
d9d_status d9di_dataset_check_file(const d9d_dataset *ds, const d9di_dataset_file *f,
                                   uint64_t bytes, const d9d_hash *hash);

/* The bucket of a length: the first with edge >= length; n_edges past the last. */
static inline uint32_t d9di_dataset_length_bucket(const int64_t *edges, size_t n, int64_t length)
{
    uint32_t i = 0;

    while (i < n && length > edges[i])
        i++;
    return i;
}

#endif
