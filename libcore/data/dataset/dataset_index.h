/* dataset_index.h - index.lmdb: written once as a whole, then read without locks.
 * d9d/data/dataset/dataset.h has the layout. */
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

/* Creates a writer.  Records are written to `path` in order of their number, through a working file
 * in `dir`.  Pages are appended and written once, in transactions of some megabytes, so memory is
 * bounded. */
d9d_status d9di_dataset_index_create(const char *dir, const char *path, uint64_t records,
                                     uint64_t segments, d9di_dataset_index_writer **out);
d9d_status d9di_dataset_index_put(d9di_dataset_index_writer *w, uint64_t number,
                                  const d9di_dataset_index_record *r);
d9d_status d9di_dataset_index_put_summary(d9di_dataset_index_writer *w, const char *split,
                                          const char *json, size_t n);
/* Finishes the index.  Its bytes depend on the records alone; the caller syncs it. */
d9d_status d9di_dataset_index_finish(d9di_dataset_index_writer *w);
void d9di_dataset_index_abandon(d9di_dataset_index_writer *w);

/* --- reading -------------------------------------------------------------------------- */

typedef struct d9di_dataset_index d9di_dataset_index;

/* Opens an untrusted file; EFORMAT if it is not such an index. */
d9d_status d9di_dataset_index_open(const char *path, uint64_t records, d9di_dataset_index **out);
/* The same for bytes, which are borrowed. */
d9d_status d9di_dataset_index_open_bytes(const char *name, const void *p, size_t n,
                                         uint64_t records, d9di_dataset_index **out);
/* Reads a record; its segments are valid until the next call on the handle. */
d9d_status d9di_dataset_index_get(d9di_dataset_index *ix, uint64_t number,
                                  d9di_dataset_index_record *out);
/* The summary JSON of a split, borrowed from the map. */
d9d_status d9di_dataset_index_get_summary(d9di_dataset_index *ix, const char *split,
                                          const char **json, size_t *n);
void d9di_dataset_index_close(d9di_dataset_index *ix);

#endif
