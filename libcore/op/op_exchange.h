/* op_exchange.h - rows of tokens to the ranks of a group and back: what dispatch and combine share.
 */
#ifndef D9D_OP_EXCHANGE_H
#define D9D_OP_EXCHANGE_H

#include "op/op_common.h"

/* A dispatch owns one, the nodes have copies. */
typedef struct d9d_exchange {
    d9d_comm *ep;
    const char *what;
    int64_t sent, came; /* rows in all */
    int64_t rows[];     /* [2, n]: sent to each rank, come from each; then [2, n] of scratch */
} d9d_exchange;

/* Bytes of one in a group of n. */
static inline size_t d9di_exchange_size(int n)
{
    return sizeof(d9d_exchange) + 4 * (size_t)n * sizeof(int64_t);
}

/* x [T, W] to y [came, W], by (rank, token).  `sent` is the routing over ranks. */
d9d_status d9di_exchange_spread(d9d_tape *t, d9d_exchange *e, const d9d_tensor *source,
                                const d9d_tensor *x, const d9d_tensor *y);
/* The same for rows that are in the order of ranks already, packed [sent, W]. */
d9d_status d9di_exchange_send(d9d_tape *t, d9d_exchange *e, const d9d_tensor *packed,
                              const d9d_tensor *y);
/* x [came, W] to y [T, W]: sums over ranks, ascending, in float32. */
d9d_status d9di_exchange_collect(d9d_tape *t, d9d_exchange *e, const d9d_tensor *row,
                                 const d9d_tensor *x, const d9d_tensor *y);

#endif /* D9D_OP_EXCHANGE_H */
