/* loader.h - batches from a dataset, in an order that is a function of numbers alone.
 *
 * Sample k of the stream, k = 0, 1, 2, ..., is a function of (manifest, split, order,
 * seed, k) and, when bucketed, of the pack size: of nothing that happened before, of no
 * rank and no thread.  The state of a loader is therefore one integer, the number of
 * samples consumed, and it means the same on another number of ranks.
 *
 *     sequential  k mod n
 *     shuffled    a permutation of the split for each epoch
 *     bucketed    the shuffled order, in buffers of some thousand samples; each is sorted
 *                 by length and cut into packs, the packs are shuffled and so are the
 *                 samples of each, so that a batch has samples of about one length
 *
 *         shuffled   | 3 9 2 8 1 7 4 6 | ...       a buffer, by lengths
 *         sorted     | 1 2 3 4 | 6 7 8 9 | ...     two packs of four
 *         bucketed   | 8 6 9 7 | 2 4 1 3 | ...     shuffled by (seed, epoch, buffer)
 *
 * An epoch's last pack may be short; it stays last.
 *
 *     D9D_TRY(d9d_loader_open(ds, &how, &loader));
 *     D9D_TRY(d9d_loader_batch(loader, first, n, &batch));    // samples [first, first + n)
 */
#ifndef D9D_DATA_LOADER_H
#define D9D_DATA_LOADER_H

#include "d9d/data/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9d_order { D9D_ORDER_SEQUENTIAL, D9D_ORDER_SHUFFLED, D9D_ORDER_BUCKETED } d9d_order;

typedef struct d9d_loader_how {
    d9d_order order;
    uint64_t seed;
    int64_t epochs;
    int64_t pack;     /* bucketed: samples of about one length in a row; the global batch size */
    int64_t multiple; /* sequences are padded to a multiple of this; 1: to the longest */
} d9d_loader_how;

typedef struct d9d_loader d9d_loader;

/* The dataset is borrowed.  ECONFIG when the split has no samples or the stream would have
 * more than 2^62.  A loader is for one thread at a time. */
D9D_API D9D_MUST_USE d9d_status d9d_loader_open(const d9d_dataset *ds, const d9d_loader_how *how,
                                                d9d_loader **out);
D9D_API void d9d_loader_close(d9d_loader *l);
/* Length of the stream: samples of the split times epochs. */
D9D_API int64_t d9d_loader_samples(const d9d_loader *l);
/* Number in the split of sample k of the stream, 0 <= k < d9d_loader_samples(); -1 when k is
 * not in the stream or the index cannot be read, which d9d_loader_batch() then says. */
D9D_API int64_t d9d_loader_sample(const d9d_loader *l, int64_t k);

/* Rows padded on the right to one length: ids with 0, labels with -100, positions with 0.
 * Arrays are [rows, length] int32 and belong to the loader until the next batch. */
typedef struct d9d_batch {
    int64_t first; /* number in the stream of row 0 */
    int64_t rows, length;
    const int32_t *ids, *labels, *positions;
    /* Packed documents, and the padding of each row as one more: cell bounds[i] is the first of
     * number i, bounds[documents] = rows * length.  NULL unless documents are packed. */
    int64_t documents;
    const int32_t *bounds;
    const int64_t *lengths; /* [rows], without padding */
    int64_t tokens;         /* without padding */
    int64_t targets;        /* labels that count */
} d9d_batch;
/* Samples [first, first + rows) of the stream; EINVAL when they are not all in it. */
D9D_API D9D_MUST_USE d9d_status d9d_loader_batch(d9d_loader *l, int64_t first, int64_t rows,
                                                 d9d_batch *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_LOADER_H */
