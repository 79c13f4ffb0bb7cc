/* input_splits.h - the inputs cut into pieces that can be worked off apart.
 *
 * A plain file of lines that is longer than a part is cut every `part` bytes, and a line
 * belongs to the piece in which it begins; every other input is in one piece whole, small
 * ones together:
 *
 *     inputs   | a.jsonl, 2.5 parts          | b.gz | c.jsonl | d.jsonl |
 *     pieces   | 0         | 1         | 2   | 3    | 4                 |
 *
 * The cut depends on the inputs and the size of a part alone, so what is made of a piece is
 * the same whoever makes it, among however many. */
#ifndef D9DI_DATA_BUILD_INPUT_SPLITS_H
#define D9DI_DATA_BUILD_INPUT_SPLITS_H

#include "d9d/base/mem.h"
#include "d9d/data/build/shard.h"
#include "data/build/input_stream.h"
#include "data/dataset/dataset_manifest.h"

/* Bytes [from, upto) of one source, or whole sources: from is 0 and upto INT64_MAX then. */
typedef struct d9di_piece {
    int64_t source, n_sources;
    int64_t from, upto;
    int64_t start, bytes; /* in all inputs as they are on disk, one behind the other */
} d9di_piece;

typedef struct d9di_pieces {
    D9D_VEC(d9di_piece) list;
    d9di_seen (
        *seen)[2]; /* [n_inputs] of each its file, and that beside it which is read as well */
    int64_t bytes; /* of all */
} d9di_pieces;     /* zero-initialised may be released */

enum { D9DI_MAX_PIECES = D9DI_MAX_SHARDS }; /* each has shards of its own */

enum { D9DI_LEAST_PART = 512 }; /* bytes */

/* ECONFIG when there would be more. */
d9d_status d9di_pieces_cut(const d9d_shard_how *how, int64_t part, d9di_pieces *out);
void d9di_pieces_release(d9di_pieces *p);

/* EIO unless the inputs of the piece are what they were when they were cut. */
d9d_status d9di_piece_check(const d9d_shard_how *how, const d9di_pieces *p, size_t piece);

/* The task of `tasks` that works off the piece: about as many bytes each, in order. */
int64_t d9di_piece_task(const d9di_pieces *p, size_t piece, int64_t tasks);

#endif
