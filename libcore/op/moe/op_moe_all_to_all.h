/* op_moe_all_to_all.h - all-to-all of token rows in an expert-parallel group, shared by dispatch
 * and combine.
 *
 * With symmetric memory (d9d/comm/comm.h) each rank reads its rows from the staging buffers of its
 * peers.  Without it, or if a buffer is too small, rows are sent as messages.  Both run on the
 * group's own stream, overlapped with the work enqueued between start and wait.
 */
#ifndef D9DI_OP_MOE_OP_MOE_ALL_TO_ALL_H
#define D9DI_OP_MOE_OP_MOE_ALL_TO_ALL_H

#include "d9d/device/readback.h"
#include "op/op_common.h"

/* Row counts of one dispatch.  The dispatch owns one, its nodes have copies. */
typedef struct d9d_op_moe_exchange {
    d9d_comm *ep;
    const char *label;
    int64_t send, recv;      /* rows in total */
    int64_t choices;         /* choices of local experts among the received rows */
    int64_t lower;           /* those of the lower half of the local experts */
    int64_t max_packed_rows; /* largest number of rows that any rank reserved for packing */
    int64_t max_rows;        /* largest number of rows that any rank sends or receives */
    int64_t rows[];          /* [D9DI_MOE_ROWS_COUNT, n], then [2, n] of scratch */
} d9d_op_moe_exchange;

typedef enum d9di_op_moe_rows_kind {
    D9DI_MOE_SEND,        /* to rank i */
    D9DI_MOE_RECV,        /* from rank i */
    D9DI_MOE_SEND_OFFSET, /* offset of this rank's rows in what rank i sends */
    D9DI_MOE_RECV_OFFSET, /* offset of this rank's rows in what rank i received */
    D9DI_MOE_ROWS_COUNT
} d9di_op_moe_rows_kind;

static inline const int64_t *d9di_op_moe_rows(const d9d_op_moe_exchange *e,
                                              d9di_op_moe_rows_kind kind)
{
    return e->rows + (int)kind * d9d_comm_size(e->ep);
}

/* Bytes of an exchange in a group of n. */
static inline size_t d9di_op_moe_exchange_size(int n)
{
    return sizeof(d9d_op_moe_exchange) + (D9DI_MOE_ROWS_COUNT + 2) * (size_t)n * sizeof(int64_t);
}

/* --- row counts -------------------------------------------------------------------------- *
 *
 * Gathers the offsets of every rank's two routings, of its tokens over ranks and of their choices
 * over experts, and reads them back to the host, on the group's own stream.  The choices of a
 * limited routing do not say how many tokens a rank has, so that number is gathered too.  start
 * enqueues it; work enqueued until wait overlaps with it; wait blocks the host.  Release it even if
 * start failed. */
typedef struct d9di_op_moe_counts {
    d9d_comm *ep;
    const char *label;
    int64_t experts, k;
    bool partial, limited; /* d9d_routing */
    d9d_tensor local, all; /* [n + 1 + E + 1], and T of a limited routing; [n, that] */
    d9d_readback *readback;
} d9di_op_moe_counts;

d9d_status d9di_op_moe_counts_start(d9di_op_moe_counts *c, d9d_tape *t, d9d_comm *ep,
                                    const char *what, const d9d_routing *over_ranks,
                                    const d9d_routing *over_experts);
/* Return a new exchange; the caller frees it.  EINVAL on all ranks if one would get too many rows.
 */
d9d_status d9di_op_moe_counts_wait(d9di_op_moe_counts *c, d9d_op_moe_exchange **out);
void d9di_op_moe_counts_release(d9di_op_moe_counts *c);

/* --- transfers in flight -------------------------------------------------------------------- *
 *
 *     d9di_op_moe_transfer l = {0};
 *     d9di_op_moe_transfer_add(&l, ep, D9D_BF16, H);           // all arrays first
 *     D9D_TRY(d9di_op_moe_transfer_alloc(&l, dev, 0, rows));
 *     ... write payload[0].src, set payload[0].dst ...
 *     D9D_TRY(d9di_op_moe_transfer_start(&l, t, e, D9DI_MOE_DISPATCH, most));
 *     ...                                              // computation, overlapped
 *     D9D_TRY(d9di_op_moe_transfer_wait(&l, t));       // from here on dst is valid
 *     d9di_op_moe_transfer_release(&l);
 */
enum { D9DI_MOE_PAYLOADS_MAX = 4 };

/* An array whose rows are sent, in rank order, from src to dst. */
typedef struct d9di_op_moe_payload {
    d9d_dtype t;
    int64_t width;
    void *src, *dst;
    const void *local; /* the rows of src that stay on this rank */
    uint64_t offset;   /* of src in the staging buffer, equal on all ranks */
    d9d_tensor packed; /* src if it is not in a staging buffer */
    d9d_tensor result; /* dst if the transfer allocates it */
} d9di_op_moe_payload;

static inline uint64_t d9di_op_moe_payload_row_bytes(const d9di_op_moe_payload *c)
{
    return (uint64_t)c->width * d9d_dtype_size(c->t);
}

typedef struct d9di_op_moe_transfer {
    d9d_comm *ep;
    d9di_op_moe_payload payload[D9DI_MOE_PAYLOADS_MAX];
    int n;
    int64_t max_rows;            /* rows of all arrays that fit a staging buffer; -1: no buffer */
    bool two_waits;              /* the first wait is for all arrays except the last */
    d9d_comm_event *first_event; /* then: recorded after these arrays */
    bool overlaps;               /* other work runs before the wait: d9d_device.on_wait */
    d9d_comm_event *last_event;  /* then: recorded after all arrays */
} d9di_op_moe_transfer;

typedef enum d9di_op_moe_direction { D9DI_MOE_DISPATCH, D9DI_MOE_COMBINE } d9di_op_moe_direction;

void d9di_op_moe_transfer_add(d9di_op_moe_transfer *l, d9d_comm *ep, d9d_dtype t, int64_t width);
/* Memory for src of payload i: in the group's next staging buffer if so many rows fit, else an
 * array. */
d9d_status d9di_op_moe_transfer_alloc(d9di_op_moe_transfer *l, d9d_device *dev, int i,
                                      int64_t rows);
/* Use the staging buffers if `max_rows` rows fit; `max_rows` is equal on all ranks, so all take the
 * same path. No rank may send more rows than it reserved. */
d9d_status d9di_op_moe_transfer_start(d9di_op_moe_transfer *l, d9d_tape *t, d9d_op_moe_exchange *e,
                                      d9di_op_moe_direction way, int64_t max_rows);
/* Work enqueued from here on sees all arrays except the last. */
d9d_status d9di_op_moe_transfer_wait_first(const d9di_op_moe_transfer *l, d9d_tape *t);
/* Work enqueued from here on sees all arrays.
 *
 * If the device has other work to interleave (another pipeline action), that is enqueued first.  It
 * is not if all groups have agreed on staging buffers (d9d_symm_buffer_agree()), which two
 * transfers would share: the order of collectives must not depend on this group alone. */
d9d_status d9di_op_moe_transfer_wait(const d9di_op_moe_transfer *l, d9d_tape *t);
void d9di_op_moe_transfer_release(d9di_op_moe_transfer *l);
/* Bytes of a staging buffer for so many rows of all arrays. */
uint64_t d9di_op_moe_transfer_bytes(const d9di_op_moe_transfer *l, int64_t rows);

/* Most rows that a rank packs: each of its tokens for each rank.  They are not more than its
 * choices either, which is what other ranks know of a partial routing. */
int64_t d9di_op_moe_max_send_rows(int64_t tokens, int n, int64_t k);

/* x [T, W] to y [recv, W], sorted by (rank, token); row is that of the routing over ranks.
 * Deferred wgrad of the tape overlaps with it. */
d9d_status d9di_op_moe_dispatch_rows(d9d_tape *t, d9d_op_moe_exchange *e, const d9d_tensor *row,
                                     const d9d_tensor *x, const d9d_tensor *y);
/* Send the n arrays x_i [recv, W_i] back; d9di_op_moe_transfer_wait() completes it. */
d9d_status d9di_op_moe_combine_start(d9di_op_moe_transfer *l, d9d_tape *t, d9d_op_moe_exchange *e,
                                     const d9d_tensor *const *x, int n);
/* y [T, W_i] becomes the sum over ranks, ascending, in float32. */
d9d_status d9di_op_moe_combine_sum(const d9di_op_moe_transfer *l, d9d_tape *t,
                                   const d9d_op_moe_exchange *e, const d9d_tensor *row, int i,
                                   const d9d_tensor *y);

#endif /* D9DI_OP_MOE_OP_MOE_ALL_TO_ALL_H */
