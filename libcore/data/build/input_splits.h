/* input_splits.h - divides the inputs into splits that can be processed independently.
 *
 * An uncompressed file of lines that is longer than `unit_bytes` is divided every `unit_bytes`
 * bytes.  A line belongs to the split in which it begins.  Every other input is in one split as a
 * whole; small inputs share one:
 *
 *     inputs   | a.jsonl, 2.5 units          | b.gz | c.jsonl | d.jsonl |
 *     splits   | 0         | 1         | 2   | 3    | 4                 |
 *
 * The division depends on the inputs and `unit_bytes` alone, so the output for a split does not
 * depend on who makes it, or on the number of tasks. */
#ifndef D9DI_DATA_BUILD_INPUT_SPLITS_H
#define D9DI_DATA_BUILD_INPUT_SPLITS_H

#include "d9d/base/mem.h"
#include "d9d/data/build/shard.h"
#include "data/dataset/dataset_manifest.h"
#include "data/io/input_stream.h"

/* Bytes [from, upto) of one source, or whole sources; then from is 0 and upto INT64_MAX. */
typedef struct d9di_input_split {
    int64_t source, n_sources;
    int64_t from, upto;
    int64_t start, bytes; /* offset and size in the concatenated inputs, as on disk */
} d9di_input_split;

typedef struct d9di_input_splits {
    D9D_VEC(d9di_input_split) list;
    d9di_input_stat (
        *stats)[2];  /* [n_inputs] each input file, and its companion file (Megatron's .idx) */
    int64_t bytes;   /* bytes of all inputs */
} d9di_input_splits; /* zero-initialised may be released */

enum { D9DI_MAX_INPUT_SPLITS = D9DI_MAX_SHARDS }; /* each input split has its own shards */

enum { D9DI_MIN_SPLIT_BYTES = 512 }; /* bytes */

/* Divides the inputs.  ECONFIG: there would be more than D9DI_MAX_INPUT_SPLITS. */
d9d_status d9di_input_splits_make(const d9d_shard_opts *opts, int64_t unit_bytes,
                                  d9di_input_splits *out);
void d9di_input_splits_release(d9di_input_splits *p);

/* EIO unless the inputs of the split are unchanged since they were divided. */
d9d_status d9di_input_split_check(const d9d_shard_opts *opts, const d9di_input_splits *p,
                                  size_t input_split);

/* The task, of `tasks`, that processes the split: contiguous ranges of about equal bytes. */
int64_t d9di_input_split_task(const d9di_input_splits *p, size_t input_split, int64_t tasks);

#endif
