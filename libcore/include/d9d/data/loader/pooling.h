/* pooling.h - pooling: which positions of a batch represent each document.
 *
 * A sequence is one document, or several if documents are packed; a sequence without positions is
 * an empty document.  The first position of a document represents it (cls), the last, or the mean
 * of all:
 *
 *     last    | a a a - | b b b b |    0 0 1 -   0 0 0 1
 *     mean                             1/3 ...   1/4 ...
 *
 * Ranks of context parallelism hold some positions of each sequence (d9d/data/loader/cp_slice.h).
 * Ranks of tensor parallelism hold consecutive tokens of the rank's slice
 * (d9d/nn/parallel_groups.h).  A rank's contribution to a document is a sum over its own positions;
 * a reduce-scatter puts the sums over all ranks on the first rank:
 *
 *     documents of the batch          d0 d1 d2  -  -  -      2 ranks: twice as many rows, of
 *     reduce-scattered sums           rank 0    rank 1       which the first half are documents
 *
 * So the head and its losses count each document once.  The other ranks get as many rows of zeros,
 * whose labels are -100.
 *
 * The class of a document is the last of its labels that is not -100.
 *
 * With `paired`, the rows are first the first members of all pairs, then the second members, then
 * an unpaired last document.  The label of pair i is i, or -100 if one of the two has no positions.
 */
#ifndef D9D_DATA_LOADER_POOLING_H
#define D9D_DATA_LOADER_POOLING_H

#include "d9d/data/loader/loader.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9d_pooling {
    D9D_POOLING_NONE,
    D9D_POOLING_LAST,
    D9D_POOLING_MEAN,
    D9D_POOLING_FIRST
} d9d_pooling;

/* "last", "mean", "cls": the values of the configuration key, from D9D_POOLING_LAST on;
 * NULL-terminated. */
D9D_API extern const char *const d9d_pooling_names[];

typedef struct d9d_pooling_opts {
    d9d_pooling pooling;
    int cp, cp_ranks;      /* context parallelism: index of this rank, number of ranks */
    int tp, tp_ranks;      /* tensor parallelism: index, ranks */
    bool paired;           /* documents 2i and 2i + 1 are a pair */
    int64_t max_positions; /* L, of `number` */
} d9d_pooling_opts;

/* The host arrays that d9d_op_pool() takes. */
typedef struct d9d_pooling_index {
    int64_t documents; /* documents of the batch */
    int64_t n,
        k; /* n: rows, documents times ranks; k: positions of the longest document on this rank */
    int64_t tokens; /* tokens of this rank */
    const int32_t *token;
    const float *share; /* [n, k] */
    const int32_t *owner;
    const float *owner_share; /* [tokens] */
    int64_t n_labels;
    const int32_t *labels; /* [n_labels] of this rank: classes or pair numbers; -100: ignored */
    const int64_t *number; /* [documents]: k L + i of a row's document, which begins at position i
                              of sample k of the stream */
} d9d_pooling_index;

/* Reusable memory; begins as zeros. */
typedef struct d9d_pooling_buffer {
    D9D_VEC(int32_t) ints;
    D9D_VEC(float) floats;
    D9D_VEC(int64_t) numbers;
} d9d_pooling_buffer;
D9D_API void d9d_pooling_buffer_release(d9d_pooling_buffer *buffer);

/* Computes the index arrays into `buffer`; valid until that is reused.  EINVAL if positions do not
 * divide evenly over the ranks. */
D9D_API D9D_MUST_USE d9d_status d9d_batch_pooling_index(const d9d_batch *b,
                                                        const d9d_pooling_opts *opts,
                                                        d9d_pooling_buffer *buffer,
                                                        d9d_pooling_index *out);

/* Iterates over the documents of a batch; those of skipped sequences have no positions:
 *
 *     d9d_batch_document d = D9D_BATCH_DOCUMENT_NONE;
 *     while (d9d_batch_next_document(b, &d))
 *         ... positions [d.first, d.end) of row d.row ... */
typedef struct d9d_batch_document {
    int64_t seq, first, end;
    int64_t index; /* among the documents of its sequence */
    int64_t next;  /* position where the iteration continues */
} d9d_batch_document;
#define D9D_BATCH_DOCUMENT_NONE ((d9d_batch_document){.seq = -1})
D9D_API bool d9d_batch_next_document(const d9d_batch *b, d9d_batch_document *d);
D9D_API int64_t d9d_batch_count_documents(const d9d_batch *b);
/* Number of a document's labels other than -100. */
D9D_API int64_t d9d_batch_count_targets(const d9d_batch *b, const d9d_batch_document *d);

/* Number of pairs whose two documents have positions. */
D9D_API int64_t d9d_batch_count_pairs(const d9d_batch *b);
/* ECONFIG unless sequences 2i and 2i + 1 are samples 2k and 2k + 1 of one dataset. */
D9D_API D9D_MUST_USE d9d_status d9d_batch_check_pairs(const d9d_batch *b);
/* Number of documents that have a class. */
D9D_API int64_t d9d_batch_count_classes(const d9d_batch *b);
/* EMISMATCH names the sample of a class that is not in [0, n). */
D9D_API D9D_MUST_USE d9d_status d9d_batch_check_classes(const d9d_batch *b, int64_t n);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_LOADER_POOLING_H */
