/* loader.h - batches from datasets, in an order that is a function of numbers alone.
 *
 * Sample k of the stream, k = 0, 1, 2, ..., is a function of (manifests, splits, weights, orders,
 * seeds, k) and, when bucketed, of the pack size: of nothing that happened before, of no rank
 * and no thread.  The state of a loader is therefore one integer, the number of samples
 * consumed, and it means the same on another number of ranks.
 *
 * Which dataset gives sample k is d9d/data/loader/blend.h's affair; which of its samples is
 *
 *     sequential  k mod n
 *     shuffled    a permutation of the split for each epoch
 *     bucketed    the shuffled order, in buffers of some thousand samples; each is sorted
 *                 by length and cut into packs, the packs are shuffled and so are the
 *                 samples of each, so that a batch has samples of about one length
 *
 *         shuffled   | 3 9 2 8 1 7 4 6 | ...       a buffer, by lengths
 *         sorted     | 1 2 3 4 | 6 7 8 9 | ...     two packs of four
 *         bucketed   | 8 6 9 7 | 2 4 1 3 | ...     shuffled by (seed, buffer)
 *
 * Buffers go on over epochs, so that packs stay whole to the end of the stream, where the last
 * one may be short.  Datasets that are blended are bucketed together, by the first one's seed.
 *
 * A sample that is to be skipped keeps its number in the stream: its row is empty.  So nothing
 * else moves, and a run may begin to skip where it resumes.
 *
 *     D9D_TRY(d9d_loader_open(&source, 1, &how, &loader));
 *     D9D_TRY(d9d_loader_batch(loader, first, n, &batch));    // samples [first, first + n)
 *
 * d9d/data/loader/prefetch.h reads batches ahead.
 */
#ifndef D9D_DATA_LOADER_LOADER_H
#define D9D_DATA_LOADER_LOADER_H

#include "d9d/data/dataset/dataset.h"
#include "d9d/data/loader/index_set.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9d_loader_order {
    D9D_LOADER_SEQUENTIAL,
    D9D_LOADER_SHUFFLED,
    D9D_LOADER_BUCKETED
} d9d_loader_order;

/* One dataset of the stream; what is pointed to is borrowed. */
typedef struct d9d_loader_source {
    d9d_dataset *dataset; /* for the loader alone as long as it is open */
    d9d_loader_order order;
    uint64_t seed;
    int64_t epochs;            /* 0: as many as the others need */
    double weight;             /* share of the samples; one source may leave it 0 */
    const d9d_index_set *skip; /* samples of the split; NULL: none */
} d9d_loader_source;

typedef struct d9d_loader_opts {
    int64_t pack; /* bucketed: samples of about one length in a row; the global batch size */
    int64_t pad_to_multiple_of; /* sequences are padded to a multiple of this; 1: to the longest */
} d9d_loader_opts;

typedef struct d9d_loader d9d_loader;

/* ECONFIG when a split has no samples, the stream would have more than 2^62, some sources are
 * bucketed and others not, or one is to skip what it has not.  EMISMATCH for datasets of two
 * tokenizers.  A loader may be used by several threads at once, but for d9d_loader_batch(). */
D9D_API D9D_MUST_USE d9d_status d9d_loader_open(const d9d_loader_source *sources, size_t n,
                                                const d9d_loader_opts *how, d9d_loader **out);
D9D_API void d9d_loader_close(d9d_loader *l);

/* Length of the stream: until the first source with a number of epochs is through; 2^62 when
 * there is none. */
D9D_API int64_t d9d_loader_samples(const d9d_loader *l);
/* The source that ends the stream; -1: none does. */
D9D_API int32_t d9d_loader_last_source(const d9d_loader *l);
/* Hash of all manifests, and of what else makes the stream: seeds, orders, weights, the pack
 * size and the length of the stream if it is bucketed.  Else epochs may change, and what is
 * skipped always. */
D9D_API d9d_hash d9d_loader_data_hash(const d9d_loader *l);
D9D_API D9D_MUST_USE d9d_status d9d_loader_order_hash(const d9d_loader *l, d9d_hash *out);

/* One sample of the stream. */
typedef struct d9d_sample_ref {
    int32_t source;
    bool skipped;
    int64_t sample; /* number in the split */
} d9d_sample_ref;
/* Sample k of the stream; EINVAL when it is not in it, EFORMAT for a damaged index. */
D9D_API D9D_MUST_USE d9d_status d9d_loader_sample_ref(d9d_loader *l, int64_t k,
                                                      d9d_sample_ref *out);

/* Bytes of host memory that a batch of so many rows takes at least, however short they are. */
D9D_API double d9d_loader_min_bytes(const d9d_loader *l, int64_t rows);

/* Cells that rows of `rows` samples each would take for samples [first, first + n), cut to
 * whole groups, and the positions among them: the difference is padding. */
D9D_API D9D_MUST_USE d9d_status d9d_loader_measure_padding(d9d_loader *l, int64_t first, int64_t n,
                                                           int64_t rows, int64_t *n_padded,
                                                           int64_t *positions);

/* Rows padded on the right to one length: ids with 0, labels with -100, positions with 0.
 * Arrays are [rows, length] int32; rows that are all empty have one position of padding. */
typedef struct d9d_batch {
    int64_t first; /* number in the stream of row 0 */
    int64_t seqs, length;
    const int32_t *ids, *labels, *positions;
    /* Packed documents, and the padding of each row as one more: cell bounds[i] is the first of
     * number i, bounds[documents] = rows * length.  NULL unless documents are packed. */
    int64_t documents;
    const int32_t *cu_seqlens;
    const int64_t *lengths;     /* [rows], without padding; 0: skipped */
    const d9d_sample_ref *refs; /* [rows] */
    int64_t tokens;             /* without padding */
    int64_t targets;            /* labels that count */
} d9d_batch;

/* Where a batch is made: memory that is used again. */
typedef struct d9d_batch_buffer d9d_batch_buffer;
D9D_API D9D_MUST_USE d9d_status d9d_batch_buffer_create(d9d_batch_buffer **out);
D9D_API void d9d_batch_buffer_free(d9d_batch_buffer *buf);

/* Samples [first, first + rows) of the stream; EINVAL when they are not all in it.  The batch is
 * in `buf`, one a thread, until that is used again. */
D9D_API D9D_MUST_USE d9d_status d9d_loader_fill(d9d_loader *l, int64_t first, int64_t rows,
                                                d9d_batch_buffer *buf, d9d_batch *out);
/* The same in a room of the loader's own. */
D9D_API D9D_MUST_USE d9d_status d9d_loader_batch(d9d_loader *l, int64_t first, int64_t rows,
                                                 d9d_batch *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_LOADER_LOADER_H */
