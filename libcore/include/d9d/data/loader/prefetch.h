/* prefetch.h - a loader's batches in turn, made ahead by threads of their own.
 *
 * A step takes `global` samples of the stream.  Of these a data-parallel rank has one part in a
 * row, the first rank the first, and works on it in micro-batches:
 *
 *     global 8, ranks 2, rows 2    | 0 1 | 2 3 | 4 5 | 6 7 |
 *                                    rank 0      rank 1
 *
 * So the parts of all ranks one behind the other are the batch that one rank would have, and a
 * run may go on with another number of ranks at any step.
 *
 * Batches come in their order and hold the same bits whatever the number of threads; what went
 * wrong with a batch is said when it is its turn.
 *
 *     D9D_TRY(d9d_prefetcher_open(loader, &how, &feed));
 *     while (...) D9D_TRY(d9d_prefetcher_next(feed, &batch));
 *     d9d_prefetcher_close(feed);
 */
#ifndef D9D_DATA_LOADER_PREFETCH_H
#define D9D_DATA_LOADER_PREFETCH_H

#include "d9d/data/loader/loader.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_prefetcher_opts {
    int64_t first;            /* number in the stream of the first step's first sample */
    int64_t global;           /* samples of a step */
    int64_t rank, ranks;      /* of the data-parallel group; ranks divide global */
    int64_t micro_batch_size; /* of a batch; a rank's last one in a step may have fewer */
    int64_t end;              /* no sample from here on; the last step may be short then */
    int threads;              /* 0: a batch is made when it is asked for */
    int ahead;                /* batches of this rank kept ready; at least 1 */
} d9d_prefetcher_opts;

typedef struct d9d_prefetcher d9d_prefetcher;

/* The loader is borrowed.  EINVAL for numbers that do not fit together. */
D9D_API D9D_MUST_USE d9d_status d9d_prefetcher_open(d9d_loader *l, const d9d_prefetcher_opts *how,
                                                    d9d_prefetcher **out);
/* The next batch, until the next call; EINVAL behind the end. */
D9D_API D9D_MUST_USE d9d_status d9d_prefetcher_next(d9d_prefetcher *f, d9d_batch *out);
/* Nanoseconds that all calls of d9d_prefetcher_next() took. */
D9D_API int64_t d9d_prefetcher_wait_ns(const d9d_prefetcher *f);
/* Stops the threads. */
D9D_API void d9d_prefetcher_close(d9d_prefetcher *f);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_LOADER_PREFETCH_H */
