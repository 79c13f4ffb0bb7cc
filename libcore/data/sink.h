/* sink.h - writing the samples of a dataset, in a working directory.
 *
 * Tokens and labels go to shards as they come.  Where each sample is goes to a spool for
 * each split, fixed records and their segments, from which the index is made at the end,
 * when the numbers are known: splits one behind the other, each permuted if it is to be
 * shuffled.  The state is a few numbers, so a run that was cut off goes on from the last
 * state that was written down: files are cut back to it. */
#ifndef D9DI_DATA_SINK_H
#define D9DI_DATA_SINK_H

#include "d9d/base/fs.h"
#include "d9d/base/log.h"
#include "data/dataset_manifest.h"

enum { D9DI_MAX_SPLITS = 16, D9DI_LENGTH_BINS = 31 };

/* What was written of one split. */
typedef struct d9di_split_state {
    int64_t samples, segments, positions, longest;
    int64_t lengths[D9DI_LENGTH_BINS]; /* samples with lengths in [2^i, 2^(i+1)) */
} d9di_split_state;

typedef struct d9di_sink_state {
    int64_t shard;        /* the one that is written; -1: none yet */
    int64_t shard_tokens; /* in it */
    int64_t tokens;       /* in all */
    int64_t bound;        /* the largest id or label, plus one */
    int64_t labels;       /* -1: not known yet, 0: next token, 1: given */
    d9di_split_state split[D9DI_MAX_SPLITS];
} d9di_sink_state;

typedef struct d9di_sink_how {
    const char *dir;
    bool wide;
    uint64_t shard_bytes; /* a shard is closed before it grows beyond */
    const int64_t *edges;
    size_t n_edges, n_splits;
} d9di_sink_how;

typedef struct d9di_sink d9di_sink;

/* `from` is NULL or a state to go on from. */
d9d_status d9di_sink_open(const d9di_sink_how *how, const d9di_sink_state *from, d9di_sink **out);
void d9di_sink_close(d9di_sink *s);

/* One sample of `n` tokens in segments; labels NULL or as many.  Samples either all have
 * labels or none has. */
d9d_status d9di_sink_add(d9di_sink *s, size_t split, const uint32_t *tokens, const int32_t *labels,
                         size_t n, const uint32_t *segments, size_t n_segments);

const d9di_sink_state *d9di_sink_at(const d9di_sink *s);
/* Make durable what the state says. */
d9d_status d9di_sink_sync(d9di_sink *s);

/* Write index.lmdb and remove the spools; fill the manifest's splits (whose names are set),
 * counts, shards and files, all but manifest.json itself.  seed -1: not shuffled. */
d9d_status d9di_sink_finish(d9di_sink *s, int64_t seed, const d9d_log *log, d9di_manifest *m);

#endif
