/* input_splits.h - the inputs cut into pieces that can be worked off apart.
 *
 * A plain file of lines that is longer than a part is cut every `unit_bytes` bytes, and a line
 * belongs to the piece in which it begins; every other input is in one piece whole, small
 * ones together:
 *
 *     inputs   | a.jsonl, 2.5 parts          | b.gz | c.jsonl | d.jsonl |
 *     pieces   | 0         | 1         | 2   | 3    | 4                 |
 *
 * The cut depends on the inputs and the size of a part alone, so what is made of a piece is
 * the same whoever makes it, among however many. */
#ifndef D9DI_DATA_BUILD_INPUT_SPLITS_H
#define D9DI_DATA_BUILD_INPUT_SPLITS_H

#include "d9d/base/mem.h"
#include "d9d/data/build/shard.h"
#include "data/build/input_stream.h"
#include "data/dataset/dataset_manifest.h"

/* Bytes [from, upto) of one source, or whole sources: from is 0 and upto INT64_MAX then. */
typedef struct d9di_input_split {
    int64_t source, n_sources;
    int64_t from, upto;
    int64_t start, bytes; /* in all inputs as they are on disk, one behind the other */
} d9di_input_split;

typedef struct d9di_input_splits {
    D9D_VEC(d9di_input_split) list;
    d9di_input_stat (
        *stats)[2];  /* [n_inputs] of each its file, and that beside it which is read as well */
    int64_t bytes;   /* of all */
} d9di_input_splits; /* zero-initialised may be released */

enum { D9DI_MAX_INPUT_SPLITS = D9DI_MAX_SHARDS }; /* each has shards of its own */

enum { D9DI_MIN_SPLIT_BYTES = 512 }; /* bytes */

/* ECONFIG when there would be more. */
d9d_status d9di_input_splits_make(const d9d_shard_opts *how, int64_t unit_bytes,
                                  d9di_input_splits *out);
void d9di_input_splits_release(d9di_input_splits *p);

/* EIO unless the inputs of the piece are what they were when they were cut. */
d9d_status d9di_input_split_check(const d9d_shard_opts *how, const d9di_input_splits *p,
                                  size_t input_split);

/* The task of `tasks` that works off the piece: about as many bytes each, in order. */
int64_t d9di_input_split_task(const d9di_input_splits *p, size_t input_split, int64_t tasks);

#endif
