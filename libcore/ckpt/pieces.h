/* pieces.h - tensors cut into pieces for threads that read all of them. */
#ifndef D9DI_CKPT_PIECES_H
#define D9DI_CKPT_PIECES_H

#include "d9d/base/mem.h"

enum { D9DI_PIECE = 1 << 20 }; /* elements */

typedef struct d9di_piece {
    size_t tensor;
    uint64_t at, n; /* elements */
} d9di_piece;

typedef D9D_VEC(d9di_piece) d9di_pieces;

static inline d9d_status d9di_pieces_add(d9di_pieces *v, size_t tensor, uint64_t elements)
{
    for (uint64_t at = 0; at < elements; at += D9DI_PIECE) {
        uint64_t left = elements - at;

        D9D_TRY(D9D_VEC_PUSH(v, (d9di_piece){tensor, at, left < D9DI_PIECE ? left : D9DI_PIECE}));
    }
    return D9D_OK;
}

#endif /* D9DI_CKPT_PIECES_H */
