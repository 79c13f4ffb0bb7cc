/* op_moe_all_to_all.h - rows of tokens to the ranks of a group and back: what dispatch and combine
 * share.
 *
 * Rows go from the rooms of a group (d9d/comm/comm.h), where each rank takes its own, or where
 * there are none or they are too small, as messages.  Both go over the group's own queue, beside
 * what is queued between go and end.
 */
#ifndef D9DI_OP_MOE_OP_MOE_ALL_TO_ALL_H
#define D9DI_OP_MOE_OP_MOE_ALL_TO_ALL_H

#include "d9d/device/readback.h"
#include "op/op_common.h"

/* A dispatch owns one, the nodes have copies. */
typedef struct d9d_op_moe_exchange {
    d9d_comm *ep;
    const char *label;
    int64_t send, recv;      /* rows in all */
    int64_t choices;         /* of experts here, among what came */
    int64_t max_packed_rows; /* the most rows for which any rank had to have room when it packed */
    int64_t max_rows;        /* the most rows that any rank sends, or that come to any */
    int64_t rows[];          /* [d9di_rows, n], then [2, n] of scratch */
} d9d_op_moe_exchange;

typedef enum d9di_op_moe_rows_kind {
    D9DI_MOE_SEND,        /* to rank i */
    D9DI_MOE_RECV,        /* from rank i */
    D9DI_MOE_SEND_OFFSET, /* where this rank's begin in what rank i sends */
    D9DI_MOE_RECV_OFFSET, /* where this rank's begin in what has come to rank i */
    D9DI_MOE_ROWS_COUNT
} d9di_op_moe_rows_kind;

static inline const int64_t *d9di_op_moe_rows(const d9d_op_moe_exchange *e,
                                              d9di_op_moe_rows_kind kind)
{
    return e->rows + (int)kind * d9d_comm_size(e->ep);
}

/* Bytes of one in a group of n. */
static inline size_t d9di_op_moe_exchange_size(int n)
{
    return sizeof(d9d_op_moe_exchange) + (D9DI_MOE_ROWS_COUNT + 2) * (size_t)n * sizeof(int64_t);
}

/* --- how many rows go where ------------------------------------------------------------ *
 *
 * The offsets of every rank's two routings, of its tokens over ranks and of their choices over
 * experts, gathered and read back on the group's own queue: begin queues it, what the device is
 * given until end runs beside it, end waits for it.  Released also where begin failed. */
typedef struct d9di_op_moe_counts {
    d9d_comm *ep;
    const char *label;
    int64_t experts, k;
    d9d_tensor local, all; /* [n + 1 + E + 1]; [n, n + 1 + E + 1] */
    d9d_readback *readback;
} d9di_op_moe_counts;

d9d_status d9di_op_moe_counts_start(d9di_op_moe_counts *c, d9d_tape *t, d9d_comm *ep,
                                    const char *what, const d9d_routing *over_ranks,
                                    const d9d_routing *over_experts);
/* A new exchange, freed by the caller.  EINVAL, on all ranks, where one gets too many rows. */
d9d_status d9di_op_moe_counts_wait(d9di_op_moe_counts *c, d9d_op_moe_exchange **out);
void d9di_op_moe_counts_release(d9di_op_moe_counts *c);

/* --- arrays on their way ------------------------------------------------------------------- *
 *
 *     d9di_op_moe_transfer l = {0};
 *     d9di_op_moe_transfer_add(&l, ep, D9D_BF16, H);           // all arrays first
 *     D9D_TRY(d9di_op_moe_transfer_alloc(&l, dev, 0, rows));
 *     ... write cargo[0].src, and say cargo[0].dst ...
 *     D9D_TRY(d9di_op_moe_transfer_start(&l, t, e, D9DI_MOE_DISPATCH, most));
 *     ...                                           // computation beside it
 *     D9D_TRY(d9di_op_moe_transfer_wait(&l, t));                // from here on dst is there
 *     d9di_op_moe_transfer_release(&l);
 */
enum { D9DI_MOE_PAYLOADS_MAX = 3 };

/* An array whose rows go, in the order of ranks, from src to dst. */
typedef struct d9di_op_moe_payload {
    d9d_dtype t;
    int64_t width;
    void *src, *dst;
    const void *local; /* where in src's order the rows are that stay here */
    uint64_t offset;   /* of src in a room, the same on all ranks */
    d9d_tensor packed; /* src where it is not in a room */
    d9d_tensor result; /* dst where it is ours */
} d9di_op_moe_payload;

static inline uint64_t d9di_op_moe_payload_row_bytes(const d9di_op_moe_payload *c)
{
    return (uint64_t)c->width * d9d_dtype_size(c->t);
}

typedef struct d9di_op_moe_transfer {
    d9d_comm *ep;
    d9di_op_moe_payload payload[D9DI_MOE_PAYLOADS_MAX];
    int n;
    int64_t max_rows; /* so many rows of all arrays have place in a room; -1: there is none */
    bool two_waits;   /* all arrays but the last may be needed first */
    d9d_comm_event *first_event; /* then: where they are there */
    bool overlaps;               /* something else is computed before end: d9d_device's pause */
    d9d_comm_event *last_event;  /* then: where all are there */
} d9di_op_moe_transfer;

typedef enum d9di_op_moe_direction { D9DI_MOE_DISPATCH, D9DI_MOE_COMBINE } d9di_op_moe_direction;

void d9di_op_moe_transfer_add(d9di_op_moe_transfer *l, d9d_comm *ep, d9d_dtype t, int64_t width);
/* Memory for src and mine of cargo i: in the group's next room where so many rows fit. */
d9d_status d9di_op_moe_transfer_alloc(d9di_op_moe_transfer *l, d9d_device *dev, int i,
                                      int64_t rows);
/* By the rooms where `most` rows fit, which is the same number on all ranks, and no rank's rows
 * for which it made memory were more. */
d9d_status d9di_op_moe_transfer_start(d9di_op_moe_transfer *l, d9d_tape *t, d9d_op_moe_exchange *e,
                                      d9di_op_moe_direction way, int64_t most);
/* In parts: what is queued from here on has all arrays but the last, */
d9d_status d9di_op_moe_transfer_wait_first(const d9di_op_moe_transfer *l, d9d_tape *t);
/* and here it has all.  Where the device has something else to do, that comes first, unless all
 * groups have agreed on rooms (d9d_symm_buffer_agree()), which two loads would share: what is done
 * in which order must not depend on this group alone. */
d9d_status d9di_op_moe_transfer_wait(const d9di_op_moe_transfer *l, d9d_tape *t);
void d9di_op_moe_transfer_release(d9di_op_moe_transfer *l);
/* Bytes of a room in which so many rows of all arrays fit. */
uint64_t d9di_op_moe_transfer_bytes(const d9di_op_moe_transfer *l, int64_t rows);

/* Rows that a rank packs at most: each of its tokens for each rank. */
int64_t d9di_op_moe_max_send_rows(int64_t tokens, int n, int64_t k);

/* x [T, W] to y [came, W], by (rank, token); row is that of the routing over ranks.  Weight halves
 * of the tape that were put off run beside it. */
d9d_status d9di_op_moe_dispatch_rows(d9d_tape *t, d9d_op_moe_exchange *e, const d9d_tensor *row,
                                     const d9d_tensor *x, const d9d_tensor *y);
/* x_i [came, W_i] back, n of them, between go and d9di_op_moe_transfer_wait(); */
d9d_status d9di_op_moe_combine_start(d9di_op_moe_transfer *l, d9d_tape *t, d9d_op_moe_exchange *e,
                                     const d9d_tensor *const *x, int n);
/* y [T, W_i] becomes its sums over ranks, ascending, in float32. */
d9d_status d9di_op_moe_combine_sum(const d9di_op_moe_transfer *l, d9d_tape *t,
                                   const d9d_op_moe_exchange *e, const d9d_tensor *row, int i,
                                   const d9d_tensor *y);

#endif /* D9DI_OP_MOE_OP_MOE_ALL_TO_ALL_H */
