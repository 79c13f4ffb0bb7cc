/* dataset_private.h - an open dataset, for the files that read one. */
#ifndef D9DI_DATA_DATASET_DATASET_PRIVATE_H
#define D9DI_DATA_DATASET_DATASET_PRIVATE_H

#include <sys/types.h>

#include "d9d/data/dataset/dataset.h"
#include "d9d/data/tokenizer/tokenizer.h"
#include "data/dataset/dataset_index.h"
#include "data/dataset/dataset_manifest.h"

/* A process may have some 65,000 maps in all. */
enum { D9DI_MAX_MAPS = 8192 };

/* A shard's file: mapped, or read where there are more of them than a dataset maps. */
struct d9di_dataset_map {
    void *data; /* NULL: not mapped */
    size_t bytes;
    char *path;
    dev_t device; /* and inode of the file that was opened, whatever has its name later */
    ino_t inode;
};

struct d9d_dataset {
    char *dir;
    d9d_buf text; /* of the manifest */
    d9d_hash hash;
    d9di_dataset_manifest manifest;
    const d9di_dataset_split *split;
    d9di_dataset_index *index;
    struct d9di_dataset_map *tokens, *labels; /* [n_shards] */
    uint32_t n_maps, max_maps;
    d9d_tokenizer *tokenizer; /* NULL until text is asked for */
    bool no_targets;          /* the last token is a position too */
    /* Of one that is made: what is above is empty but for the name, the hash and the split. */
    const struct d9d_dataset_kind *kind; /* NULL: of one that is read */
    void *self;
    d9di_dataset_split synthetic_split;
};

/* See dataset_synthetic.c. */
d9d_status d9di_dataset_synthetic_sample(const d9d_dataset *ds, int64_t k, d9d_sample *out);
d9d_status d9di_dataset_synthetic_expand(const d9d_dataset *ds, const d9d_sample *s, int32_t *ids,
                                         int32_t *labels, int32_t *positions, int32_t *segments);

/* Sample by its number in the dataset. */
d9d_status d9di_dataset_sample(d9d_dataset *ds, int64_t number, d9d_sample *out);

/* As d9d_dataset_open(), with at most so many files mapped. */
d9d_status d9di_dataset_open(const char *dir, const char *split, uint32_t most_maps,
                             d9d_dataset **out);

/* Stored tokens of a sample, and labels where the dataset has them: in the mapped file, or read. */
typedef struct d9di_dataset_tokens {
    const void *tokens; /* u16 or u32 */
    const int32_t *labels;
    void *read[2]; /* owned */
} d9di_dataset_tokens;
/* n of them from `from` on.  EIO where the file is not the one that was opened. */
d9d_status d9di_dataset_tokens_read(const d9d_dataset *ds, const d9d_sample *s, size_t from,
                                    size_t n, d9di_dataset_tokens *out);
void d9di_dataset_tokens_release(d9di_dataset_tokens *t);
/* The positions of a split that have a target: all where labels are not given. */
d9d_status d9di_dataset_count_targets(d9d_dataset *ds, const d9di_dataset_split *split,
                                      int64_t *out);

/* EIO where a file of the sample is shorter by now than what is mapped of it: up to the end of a
 * page that then reads as zeros, and the kernel says nothing.  To be asked after reading. */
d9d_status d9di_sample_check_not_truncated(const d9d_dataset *ds, const d9d_sample *s);

/* Bytes, and hash unless that is NULL, of one file against the manifest; EFORMAT with both
 * numbers. */
d9d_status d9di_dataset_check_file(const d9d_dataset *ds, const d9di_dataset_file *f,
                                   uint64_t bytes, const d9d_hash *hash);

/* The bucket of a length: the first whose edge is not below it, n_edges past the last. */
static inline uint32_t d9di_dataset_length_bucket(const int64_t *edges, size_t n, int64_t length)
{
    uint32_t i = 0;

    while (i < n && length > edges[i])
        i++;
    return i;
}

#endif
