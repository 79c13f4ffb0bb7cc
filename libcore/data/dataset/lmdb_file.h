/* lmdb_file.h - key lookup in an untrusted LMDB file.
 *
 * liblmdb trusts the file that it maps, so a malicious or damaged file can crash the process.  Here
 * every number of the file is checked against the file before it is used, so any bytes lead to a
 * proper error.
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
    uint64_t root, entries; /* root page; number of entries */
    uint16_t depth;
} d9di_lmdb_tree;

typedef struct d9di_lmdb {
    const char *name; /* name for messages */
    const unsigned char *p;
    size_t bytes, page;  /* size of the file, of a page */
    uint64_t pages;      /* complete pages in the file */
    d9di_lmdb_tree main; /* the main tree, which maps names to trees */
} d9di_lmdb;

/* Opens the file's bytes; they and the name are borrowed.  EFORMAT here and below. */
d9d_status d9di_lmdb_open(const char *name, const void *p, size_t n, d9di_lmdb *out);
/* Finds the tree of that name, with plain keys in the order of memcmp(). */
d9d_status d9di_lmdb_find_tree(const d9di_lmdb *db, const char *name, d9di_lmdb_tree *out);
/* Looks up a key.  *value points into the file, possibly unaligned; NULL if there is none. */
d9d_status d9di_lmdb_get(const d9di_lmdb *db, const d9di_lmdb_tree *tree, const void *key, size_t n,
                         const void **value, size_t *value_bytes);

#endif
