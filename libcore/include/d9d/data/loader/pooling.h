/* pooling.h - the documents of a batch, and what of its positions stands for each.
 *
 * A row is a document, but where documents are packed, which are several; a row without positions
 * is one that has none.  What stands for a document is the first of its positions, the last, or the
 * mean of all:
 *
 *     last    | a a a - | b b b b |    0 0 1 -   0 0 0 1
 *     mean                             1/3 ...   1/4 ...
 *
 * Ranks that share a batch's rows have some positions each (d9d/data/loader/cp_slice.h), those that
 * share tensors some of the rank's tokens in a row (d9d/nn/parallel_groups.h).  A rank's part of
 * each document is a sum over the positions that it has; the sums over all ranks go to the first
 * one:
 *
 *     documents of this rank's part    d0 d1 d2  -  -  -      for 2 ranks: twice as many, of which
 *     scattered sums                   rank 0    rank 1       the first half are documents
 *
 * so that what follows, a head and its losses, counts once.  The other ranks have as many rows of
 * zeros, whose labels do not count.
 *
 * The class of a document is the last of its labels that counts.
 *
 * Of pairs the rows are the first ones, then those that belong to them, and a lone last one; the
 * label of pair i is i, or none where one of the two has no positions.
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

/* "last", "mean", "cls": the words of a configuration, from D9D_POOLING_LAST on; NULL-ended. */
D9D_API extern const char *const d9d_pooling_names[];

typedef struct d9d_pooling_opts {
    d9d_pooling pooling;
    int cp, cp_ranks; /* this one among those that share rows, of how many */
    int tp, tp_ranks; /* among those that share tensors */
    bool paired;      /* documents 2i and 2i + 1 belong together */
} d9d_pooling_opts;

/* Arrays as d9d_op_pool() takes them, on the host. */
typedef struct d9d_pooling_index {
    int64_t documents; /* of the batch */
    int64_t n, k;      /* rows: documents times all ranks; positions of the longest here */
    int64_t tokens;    /* of this rank */
    const int32_t *token;
    const float *share; /* [n, k] */
    const int32_t *owner;
    const float *owner_share; /* [tokens] */
    int64_t n_labels;
    const int32_t *labels; /* [n_labels] of this rank: classes, or -100; or of pairs */
} d9d_pooling_index;

/* Memory that is used again; begins as zeros. */
typedef struct d9d_pooling_buffer {
    D9D_VEC(int32_t) ints;
    D9D_VEC(float) floats;
} d9d_pooling_buffer;
D9D_API void d9d_pooling_buffer_release(d9d_pooling_buffer *buffer);

/* In `buffer`, until that is used again.  EINVAL where positions do not divide over the ranks. */
D9D_API D9D_MUST_USE d9d_status d9d_batch_pooling_index(const d9d_batch *b,
                                                        const d9d_pooling_opts *how,
                                                        d9d_pooling_buffer *buffer,
                                                        d9d_pooling_index *out);

/* The documents of a batch in turn, those of skipped rows without positions:
 *
 *     d9d_batch_document d = D9D_BATCH_DOCUMENT_NONE;
 *     while (d9d_batch_next_document(b, &d))
 *         ... positions [d.first, d.end) of row d.row ... */
typedef struct d9d_batch_document {
    int64_t seq, first, end;
    int64_t index; /* among the documents of its row */
    int64_t next;  /* where it goes on from */
} d9d_batch_document;
#define D9D_BATCH_DOCUMENT_NONE ((d9d_batch_document){.seq = -1})
D9D_API bool d9d_batch_next_document(const d9d_batch *b, d9d_batch_document *d);
/* Labels of a document that count. */
D9D_API int64_t d9d_batch_count_targets(const d9d_batch *b, const d9d_batch_document *d);

/* Pairs of which both have positions. */
D9D_API int64_t d9d_batch_count_pairs(const d9d_batch *b);
/* ECONFIG unless rows 2i and 2i + 1 are samples 2k and 2k + 1 of one dataset. */
D9D_API D9D_MUST_USE d9d_status d9d_batch_check_pairs(const d9d_batch *b);
/* Documents that have a class. */
D9D_API int64_t d9d_batch_count_classes(const d9d_batch *b);
/* EMISMATCH for a class that is not one of `n`, with its sample. */
D9D_API D9D_MUST_USE d9d_status d9d_batch_check_classes(const d9d_batch *b, int64_t n);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_LOADER_POOLING_H */
