/* lmdb_file.h - looking up keys in a file of LMDB's, whoever made it.
 *
 * liblmdb trusts what it maps, and a file from elsewhere ends a process.  Here every number of the
 * file is compared with the file before it is followed, so that any bytes end in a sentence.
 *
 *     page     header of 16 bytes: number u64, -, flags u16, then lower u16 and upper u16, or the
 *              pages of a long value u32; behind it lower - 16 bytes of u16 places of nodes
 *     node     u16 x 2, flags u16, length of its key u16, key, then data; a branch's is a page
 *     pages    0 and 1 are meta pages, of which the later transaction counts
 */
#ifndef D9DI_DATA_DATASET_LMDB_FILE_H
#define D9DI_DATA_DATASET_LMDB_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "d9d/base/status.h"

typedef struct d9di_lmdb_tree {
    uint64_t root, entries; /* a page */
    uint16_t depth;
} d9di_lmdb_tree;

typedef struct d9di_lmdb {
    const char *name; /* for sentences */
    const unsigned char *p;
    size_t bytes, page;  /* of the file, of a page */
    uint64_t pages;      /* that are in it whole */
    d9di_lmdb_tree main; /* of names */
} d9di_lmdb;

/* The file's bytes, which are borrowed as the name is.  EFORMAT here and below. */
d9d_status d9di_lmdb_open(const char *name, const void *p, size_t n, d9di_lmdb *out);
/* The tree of that name, of plain keys in the order of memcmp(). */
d9d_status d9di_lmdb_find_tree(const d9di_lmdb *db, const char *name, d9di_lmdb_tree *out);
/* The value of a key, in the file and perhaps not aligned; *value NULL when there is none. */
d9d_status d9di_lmdb_get(const d9di_lmdb *db, const d9di_lmdb_tree *tree, const void *key, size_t n,
                         const void **value, size_t *value_bytes);

#endif
