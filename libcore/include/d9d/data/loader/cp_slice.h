/* cp_slice.h - the part of a batch that one rank of context parallelism computes with.
 *
 * Rows are cut into 2n pieces, of which rank r of n has pieces r and 2n - 1 - r: a position costs
 * what it sees, so under a causal mask each rank has the same to do.
 *
 *     n = 2, rows of 8      | a b | c d | e f | g h |
 *     rank 0                  a b               g h       rows of 4
 *     rank 1                        c d   e f
 *
 * Attention sees whole rows of keys (d9d_op_cp_gather()); which of them each query of a packed
 * document sees is said by segments (d9d/kernels/table.h), whose keys are counted over the rows of
 * the batch.
 *
 *     D9D_TRY(d9d_cp_slice_make(&batch, rank, n, &room, &part));
 *
 * One rank of one has the batch itself, with packed documents as segments.
 */
#ifndef D9D_DATA_LOADER_CP_SLICE_H
#define D9D_DATA_LOADER_CP_SLICE_H

#include "d9d/data/loader/loader.h"
#include "d9d/kernels/table.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_cp_slice {
    int64_t seqs, length;
    const int32_t *ids, *labels, *positions; /* [rows, length] */
    int64_t segments;
    const d9d_segment *segment; /* NULL: each row is one document */
} d9d_cp_slice;

/* The position in its row of number i of the `length` that rank `rank` of n has of it. */
static inline int64_t d9d_cp_slice_position(int rank, int n, int64_t length, int64_t i)
{
    const int64_t half = length / 2;

    if (n == 1)
        return i;
    return i < half ? rank * half + i : (2 * n - 1 - rank) * half + i - half;
}

/* Memory that is used again; begins as zeros. */
typedef struct d9d_cp_slice_buffer {
    D9D_VEC(int32_t) ints;
    D9D_VEC(d9d_segment) segments;
} d9d_cp_slice_buffer;
D9D_API void d9d_cp_slice_buffer_release(d9d_cp_slice_buffer *buffer);

/* The part is in `buffer` and in the batch, until either is used again.  EINVAL unless 2n divides
 * the batch's length, for n above 1. */
D9D_API D9D_MUST_USE d9d_status d9d_cp_slice_make(const d9d_batch *b, int rank, int n,
                                                  d9d_cp_slice_buffer *buffer, d9d_cp_slice *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_LOADER_CP_SLICE_H */
