/* segment.h - segments: the documents that are packed in rows of queries and keys.
 *
 * Segments (varlen attention, cu_seqlens) say which queries see which keys: queries [q, q + nq),
 * counted over B rows of S, see keys [k, k + nk), counted over B rows of Z, and no others. A causal
 * mask is aligned to the end (bottom right): query j of a segment sees its keys 0 .. nk - nq + j.
 *
 *     4 queries, 6 keys     x x x - - -
 *     x seen, - hidden      x x x x - -
 *                           x x x x x -
 *                           x x x x x x
 *
 * The diagonal key of query j is d = nk - nq + j, the last that a causal mask shows. With a sliding
 * window of W a query sees those of its keys that are less than W from it: keys d - (W - 1) .. d
 * under a causal mask, W at most; else d - (W - 1) .. d + (W - 1), at most 2 W - 1.
 *
 *     causal, W = 3         x x x - - -       not causal, W = 2     - x x x - -
 *                           - x x x - -                             - - x x x -
 *                           - - x x x -                             - - - x x x
 *                           - - - x x x                             - - - - x x
 *
 * Prefix masks (prefix-LM). A list may come with a prefix for each segment, under a causal mask:
 * all queries of segment i also see its first prefix[i] keys, with a window those of them that are
 * less than W behind the diagonal. So query j sees keys up to the larger of d and min(prefix[i],
 * d + W) - 1. A prefix of 0 or 1 is a causal mask, one of nk is bidirectional.
 *
 *     prefix 3              x x x - -       prefix 4, W = 2         x x - - -
 *                           x x x - -                               x x x - -
 *                           x x x - -                               - x x x -
 *                           x x x x -                               - - x x -
 *                           x x x x x                               - - - x x
 *
 * A prefix may exceed nk: the keys of the segment are then [k, k + prefix), while nk still says
 * where the diagonal is. A context-parallel chunk inside a prefix sees keys of later chunks so:
 *
 *     prefix 5, queries 2 and 3 of a document: nq = 2, nk = 4        x x x x x
 *                                                                    x x x x x
 *
 * Without a list, a row is one segment of all its queries and keys; or, if it consists of `chunks`
 * of equal size, each chunk is a segment that sees the row's keys before chunk_end[i]. The ends
 * ascend. This is context parallelism: a rank has a few chunks of a row's queries and all its keys,
 * rank 0 of 2 has chunks 0 and 3 of 4 (zigzag, d9d/nn/parallel_groups.h):
 *
 *     S = 4, Z = 8, chunk_end = {2, 8}    queries a a - - - - a a
 *
 * A list of segments lies in device memory, so that the host need not know it. It has two uses:
 *
 *  - Packed documents. Z = S; each document, and the padding of a row, is one segment.
 *
 *         S = 6    | a a a b b - | c d d d d d |
 *                  {0,3,0,3} {3,2,3,2} {5,1,5,1} {6,1,6,1} {7,5,7,5}
 *
 *  - Context-parallel chunks of packed documents: the part of each document in each chunk, with the
 *    document's keys up to the part's last.
 *
 *         S = 4, Z = 8    queries a a - - - - b b    {0,2,0,2} {2,2,3,5}
 *                         keys    a a a b b b b b
 *
 * A list is well-formed when
 *
 *     every query is in one segment, in order: q begins with 0, each begins where the last ended,
 *         the last ends with B S; a segment lies in one row, its keys in the same row of keys;
 *     where Z = S, each is square: k = q, nk = nq;
 *     a segment with queries has keys, under a causal mask or a window at least as many as queries;
 *     keys do not fall: a segment begins with the same key as the last and has as many or more,
 *         or it begins after the last one's keys;
 *     segments that begin with the same key have the same prefix, and those with one are causal.
 *
 * nq may be 0. Keys that are in no segment get gradients of 0. If the caller also says that a row
 * of queries consists of `chunks` of equal size, as on a context-parallel rank,
 *
 *     no segment is in two chunks;
 *     one with more keys than queries is the first in its chunk;
 *     one that begins with the same key as the last has more keys than queries.
 *
 * Batch invariance: the results of segments that begin with the same key, such as a document's,
 * have the same bits wherever they lie and whatever lies around them. This holds on the same device
 * and with the same D. The last bits may differ between rows without a list, rows with a list and Z
 * = S, and rows with more keys than queries, if a library computes some of them.
 */
#ifndef D9D_KERNELS_SEGMENT_H
#define D9D_KERNELS_SEGMENT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_segment {
    int32_t q, nq, k, nk;
} d9d_segment;

/* B rows of S tokens and the documents packed in them: a list of segments with Z = S, of which only
 * q and nq are read. Without a list a row is one document. The list lies in device memory. */
typedef struct d9d_varlen {
    int64_t b, s, segments;
    const d9d_segment *segment; /* [segments], or NULL */
} d9d_varlen;

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_SEGMENT_H */
