/* cp_slice.h - the slice of a batch that one rank of context parallelism computes (zigzag sharding
 * of the sequence).
 *
 * Sequences are divided into 2n chunks; rank r of n gets chunks r and 2n - 1 - r.  Under a causal
 * mask the cost of a position grows with its index, so this balances the work of the ranks.
 *
 *     n = 2, length 8       | a b | c d | e f | g h |
 *     rank 0                  a b               g h       length 4
 *     rank 1                        c d   e f
 *
 * Attention uses the keys of whole sequences (d9d_op_cp_gather()).  For packed documents (varlen),
 * segments (d9d/kernels/segment.h) say which keys a query sees; key indices run over all sequences
 * of the batch.
 *
 *     D9D_TRY(d9d_cp_slice_make(&batch, rank, n, &buffer, &slice));
 *
 * With n = 1 the slice is the batch itself, with packed documents as segments.
 */
#ifndef D9D_DATA_LOADER_CP_SLICE_H
#define D9D_DATA_LOADER_CP_SLICE_H

#include "d9d/data/loader/loader.h"
#include "d9d/kernels/segment.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_cp_slice {
    int64_t seqs, length;
    const int32_t *ids, *labels, *positions; /* [seqs, length] */
    int64_t segments;
    const d9d_segment *segment; /* NULL: each sequence is one document */
    const int32_t *prefix;      /* [segments], of a prefix mask; NULL: none */
    /* [n_fields] Those of positions are cut like the ids; every rank has those of documents whole.
     */
    const d9d_batch_field *fields;
    size_t n_fields;
} d9d_cp_slice;

/* The position in its sequence of element i of the `length` elements that rank `rank` of n
 * holds. */
static inline int64_t d9d_cp_slice_position(int rank, int n, int64_t length, int64_t i)
{
    const int64_t half = length / 2;

    if (n == 1)
        return i;
    return i < half ? rank * half + i : (2 * n - 1 - rank) * half + i - half;
}

/* Reusable memory; begins as zeros. */
typedef struct d9d_cp_slice_buffer {
    D9D_VEC(int32_t) ints;
    D9D_VEC(d9d_segment) segments;
    D9D_VEC(int32_t) prefixes, row_bounds;
    D9D_VEC(d9d_batch_field) fields;
    d9d_buf values[D9D_FIELDS_MAX];
} d9d_cp_slice_buffer;
D9D_API void d9d_cp_slice_buffer_release(d9d_cp_slice_buffer *buffer);

/* Computes the slice of rank `rank` of n.  It points into `buffer` and the batch and is valid until
 * either is reused.  EINVAL unless 2n divides the batch's length, for n above 1. */
D9D_API D9D_MUST_USE d9d_status d9d_cp_slice_make(const d9d_batch *b, int rank, int n,
                                                  d9d_cp_slice_buffer *buffer, d9d_cp_slice *out);
/* For attention that has exchanged heads for positions (d9d/comm/cp_method.h): the segments become
 * those of the slice of rank `rank` of n, as which it computes: of whole sequences with n = 1. */
D9D_API D9D_MUST_USE d9d_status d9d_cp_slice_set_segments(const d9d_batch *b, int rank, int n,
                                                          d9d_cp_slice_buffer *buffer,
                                                          d9d_cp_slice *slice);
/* For attention without a causal mask: the padding of each sequence becomes a segment of its own.
 * Over several ranks a segment ends with its last query's key, and its prefix is its whole
 * document: under a causal mask with these prefixes every query sees all keys of its document. */
D9D_API D9D_MUST_USE d9d_status d9d_cp_slice_set_bidirectional(const d9d_batch *b, int rank, int n,
                                                               d9d_cp_slice_buffer *buffer,
                                                               d9d_cp_slice *slice);
/* For attention under a prefix mask (prefix-LM): the prefix of each segment of the slice of rank
 * `rank` of n, and a list of segments if the slice has none.  The prefix of a document is its
 * prompt: the tokens before its first target, or all of them if it has none.  Since labels are
 * shifted, the last token of a prompt has the first target.
 *
 *     tokens    p p p a a a      labels    - - a a a .      prefix 3
 */
D9D_API D9D_MUST_USE d9d_status d9d_cp_slice_add_prefixes(const d9d_batch *b, int rank, int n,
                                                          d9d_cp_slice_buffer *buffer,
                                                          d9d_cp_slice *slice);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_LOADER_CP_SLICE_H */
