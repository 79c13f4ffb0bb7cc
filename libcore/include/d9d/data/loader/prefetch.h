/* prefetch.h - prefetching: threads read a loader's batches ahead, in order.
 *
 * A step takes `global` samples of the stream.  Each data-parallel rank gets one contiguous part,
 * the first rank the first, and processes it in micro-batches:
 *
 *     global 8, ranks 2, micro 2    | 0 1 | 2 3 | 4 5 | 6 7 |
 *                                    rank 0      rank 1
 *
 * The concatenated parts of all ranks are the batch that a single rank would have.  So a run may
 * resume with another number of ranks at any step.
 *
 * Batches arrive in order with the same bits, whatever the number of threads. next() returns the
 * error of a batch when that batch is due.
 *
 *     D9D_TRY(d9d_prefetcher_open(loader, &opts, &feed));
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
    int64_t global;           /* samples per step (global batch size) */
    int64_t rank, ranks;      /* of the data-parallel group; ranks divide global */
    int64_t micro_batch_size; /* samples of a batch; a rank's last batch of a step may have fewer */
    int64_t end;              /* the stream ends before this sample; the last step may be short */
    int threads;              /* 0: next() reads the batch itself */
    int ahead;                /* batches of this rank that are read ahead; at least 1 */
    int64_t held;             /* the newest batches that stay valid; 0: 1 */
} d9d_prefetcher_opts;

typedef struct d9d_prefetcher d9d_prefetcher;

/* Starts the threads.  The loader is borrowed.  EINVAL for inconsistent options. */
D9D_API D9D_MUST_USE d9d_status d9d_prefetcher_open(d9d_loader *l, const d9d_prefetcher_opts *opts,
                                                    d9d_prefetcher **out);
/* The next batch, valid until `held` more are taken.  EINVAL past the end. */
D9D_API D9D_MUST_USE d9d_status d9d_prefetcher_next(d9d_prefetcher *f, d9d_batch *out);
/* Nanoseconds spent in d9d_prefetcher_next() so far: the exposed data loading time. */
D9D_API int64_t d9d_prefetcher_wait_ns(const d9d_prefetcher *f);
/* Stops the threads and frees the prefetcher. */
D9D_API void d9d_prefetcher_close(d9d_prefetcher *f);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_LOADER_PREFETCH_H */
