/* dataset_index.h - index.lmdb: written whole, then read without locks.  The layout is in
 * d9d/data/dataset/dataset.h. */
#ifndef D9DI_DATA_DATASET_DATASET_INDEX_H
#define D9DI_DATA_DATASET_DATASET_INDEX_H

#include <stdint.h>

#include "d9d/base/mem.h"

typedef struct d9di_dataset_index_record {
    uint32_t shard, bucket;
    uint64_t offset;
    uint32_t stored, n_segments;
    const uint32_t *segments; /* [n_segments] */
} d9di_dataset_index_record;

/* --- writing ------------------------------------------------------------------------- */

typedef struct d9di_dataset_index_writer d9di_dataset_index_writer;

/* Records go to `path` in order of their number, by way of a work file in `dir`.  Pages are
 * appended and written once, in transactions of some megabytes, so that memory is bounded. */
d9d_status d9di_dataset_index_create(const char *dir, const char *path, uint64_t records,
                                     uint64_t segments, d9di_dataset_index_writer **out);
d9d_status d9di_dataset_index_put(d9di_dataset_index_writer *w, uint64_t number,
                                  const d9di_dataset_index_record *r);
d9d_status d9di_dataset_index_put_summary(d9di_dataset_index_writer *w, const char *split,
                                          const char *json, size_t n);
/* Seal: what `path` has then depends on the records alone; the caller syncs it. */
d9d_status d9di_dataset_index_finish(d9di_dataset_index_writer *w);
void d9di_dataset_index_abandon(d9di_dataset_index_writer *w);

/* --- reading -------------------------------------------------------------------------- */

typedef struct d9di_dataset_index d9di_dataset_index;

/* Whatever the file has: EFORMAT for what is no such index. */
d9d_status d9di_dataset_index_open(const char *path, uint64_t records, d9di_dataset_index **out);
/* The same of bytes, which are borrowed. */
d9d_status d9di_dataset_index_open_bytes(const char *name, const void *p, size_t n,
                                         uint64_t records, d9di_dataset_index **out);
/* Segments are in the handle until the next call. */
d9d_status d9di_dataset_index_get(d9di_dataset_index *ix, uint64_t number,
                                  d9di_dataset_index_record *out);
/* The JSON of a split; borrowed from the map. */
d9d_status d9di_dataset_index_get_summary(d9di_dataset_index *ix, const char *split,
                                          const char **json, size_t *n);
void d9di_dataset_index_close(d9di_dataset_index *ix);

#endif
