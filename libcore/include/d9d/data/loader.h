/* loader.h - batches from a dataset, in an order that is a function of numbers alone.
 *
 * Sample k of the stream, k = 0, 1, 2, ..., is a function of (manifest, split, order,
 * seed, k): of nothing that happened before, of no rank and no thread.  The state of a
 * loader is therefore one integer, the number of samples consumed.
 *
 *     sequential  k mod n
 *     shuffled    a permutation of the split for each epoch
 *     bucketed    spec 9.1 without its defect: buffers of shuffled samples are sorted by
 *                 length and cut into packs, which are shuffled; each buffer by its own
 *                 (seed, epoch, buffer)
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

/* The dataset is borrowed. */
D9D_API D9D_MUST_USE d9d_status d9d_loader_open(const d9d_dataset *ds, const d9d_loader_how *how,
                                                d9d_loader **out);
D9D_API void d9d_loader_close(d9d_loader *l);
/* Length of the stream: samples of the split times epochs. */
D9D_API int64_t d9d_loader_samples(const d9d_loader *l);
/* Number in the split of sample k of the stream, 0 <= k < d9d_loader_samples(). */
D9D_API int64_t d9d_loader_sample(const d9d_loader *l, int64_t k);

/* Rows padded on the right to one length: ids with 0, labels with -100, positions with 0.
 * Arrays are [rows, length] int32 and belong to the loader until the next batch. */
typedef struct d9d_batch {
    int64_t first;        /* number in the stream of row 0 */
    int64_t rows, length;
    const int32_t *ids, *labels, *positions;
    const int32_t *segments; /* NULL unless documents are packed */
    const int64_t *lengths;  /* [rows], without padding */
    int64_t tokens;          /* without padding */
    int64_t targets;         /* labels that count */
} d9d_batch;
D9D_API D9D_MUST_USE d9d_status d9d_loader_batch(d9d_loader *l, int64_t first, int64_t rows,
                                                 d9d_batch *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_LOADER_H */
