/* op_exchange.h - rows of tokens to the ranks of a group and back: what dispatch and combine share.
 */
#ifndef D9D_OP_EXCHANGE_H
#define D9D_OP_EXCHANGE_H

#include "d9d/device/readback.h"
#include "op/op_common.h"

/* A dispatch owns one, the nodes have copies. */
typedef struct d9d_exchange {
    d9d_comm *ep;
    const char *what;
    int64_t sent, came; /* rows in all */
    int64_t choices;    /* of experts here, among what came */
    int64_t rows[];     /* [2, n]: sent to each rank, come from each; then [2, n] of scratch */
} d9d_exchange;

/* Bytes of one in a group of n. */
static inline size_t d9di_exchange_size(int n)
{
    return sizeof(d9d_exchange) + 4 * (size_t)n * sizeof(int64_t);
}

/* --- how many rows go where ------------------------------------------------------------ *
 *
 * The offsets of every rank's two routings, of its tokens over ranks and of their choices over
 * experts, gathered on the device and read back: begin queues it, end waits for it. */
typedef struct d9di_counts {
    d9d_comm *ep;
    const char *what;
    int64_t experts, k;
    d9d_tensor all; /* [n, n + 1 + E + 1] */
    d9d_readback *back;
} d9di_counts;

d9d_status d9di_counts_begin(d9di_counts *c, d9d_tape *t, d9d_comm *ep, const char *what,
                             const d9d_routing *over_ranks, const d9d_routing *over_experts);
/* A new exchange, freed by the caller.  EINVAL, on all ranks, where one gets too many rows. */
d9d_status d9di_counts_end(d9di_counts *c, d9d_exchange **out);
void d9di_counts_release(d9di_counts *c);

/* --- moving them ------------------------------------------------------------------------- */

/* x [T, W] to y [came, W], by (rank, token); row is that of the routing over ranks. */
d9d_status d9di_exchange_spread(d9d_tape *t, d9d_exchange *e, const d9d_tensor *row,
                                const d9d_tensor *x, const d9d_tensor *y);
/* The same for rows that are in the order of ranks already; packed has `sent` rows or more. */
d9d_status d9di_exchange_send(d9d_tape *t, d9d_exchange *e, const d9d_tensor *packed,
                              const d9d_tensor *y);
/* x [came, W] to y [T, W]: sums over ranks, ascending, in float32. */
d9d_status d9di_exchange_collect(d9d_tape *t, d9d_exchange *e, const d9d_tensor *row,
                                 const d9d_tensor *x, const d9d_tensor *y);

#endif /* D9D_OP_EXCHANGE_H */
