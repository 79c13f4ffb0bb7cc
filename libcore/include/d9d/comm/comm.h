/* comm.h - collectives and point-to-point messages of a process group, over MPI, NCCL, a simulated
 * backend, or none for a group of one.
 *
 *     d9d_comm *tp;                                     // from a mesh: d9d/comm/mesh.h
 *     D9D_TRY(d9d_comm_all_reduce(tp, dev->stream, "loss", D9D_F64, sum, 1, D9D_COMM_SUM));
 *
 * Buffers are in the memory of the group's devices: host memory under MPI, GPU memory under NCCL.
 * A call enqueues its work on stream `s` and returns; on the CPU the work is complete on return.
 * `label` names the call for people ("model.layers.3.self_attn"): errors, the flight recorder and
 * traces show it.  It is borrowed for the call only.
 *
 * A NULL comm is a group of one: an all-gather is a copy (none if dst is src), and a sum leaves its
 * buffer unchanged.  Callers need no branch.
 *
 * Every call is collective over the group: all its ranks make the same calls in the same order with
 * the same type, counts and label.  D9D_COMM_CHECK=1 in the environment checks this
 * (desync_check.c) at the cost of two small messages for each call.  Counts are in elements; any
 * may be 0.
 *
 *     counts {2, 1, 1}     all_gather   a a | b | c       -> a a b c on every rank
 *                          reduce_scatter  a a b c on every rank -> A A | B | C, sums
 *
 * Sums of float32 and bfloat16 are accumulated in float32 in an order that depends on the group
 * only, and rounded once: the same group gives the same bits every time.  MPI adds in rank order.
 * NCCL has its own order and may round bfloat16 at each step.  Sums exist for float32, float64,
 * bfloat16, int32 and int64; other types can only be moved.
 *
 * Errors.  A failure that a library reports is ECOMM and names the group, the collective and the
 * label.  A rank that dies or hangs does not fail the calls of the others: the watchdog ends the
 * process when a call exceeds the timeout.  It names the call, its group and the ranks that have
 * not made it (d9d/comm/flight.h).  A rank that fails alone calls d9d_bootstrap_abort().
 *
 * A group belongs to one thread at a time.
 */
#ifndef D9D_COMM_COMM_H
#define D9D_COMM_COMM_H

#include "d9d/base/dtype.h"
#include "d9d/base/mem.h"
#include "d9d/kernels/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_comm d9d_comm;

typedef enum d9d_comm_op { D9D_COMM_SUM, D9D_COMM_MAX } d9d_comm_op;

/* Rank in the group and size of the group; NULL is rank 0 of 1. */
D9D_API int d9d_comm_rank(const d9d_comm *c);
D9D_API int d9d_comm_size(const d9d_comm *c);
/* The world rank of the group's rank i. */
D9D_API int d9d_comm_world_rank(const d9d_comm *c, int i);
/* "dp_shard" or "dp_shard+cp_shard"; "single" for NULL. */
D9D_API const char *d9d_comm_name(const d9d_comm *c);

/* All-reduce buf [n] in place. */
D9D_API D9D_MUST_USE d9d_status d9d_comm_all_reduce(d9d_comm *c, d9d_stream s, const char *label,
                                                    d9d_dtype t, void *buf, int64_t n,
                                                    d9d_comm_op op);
/* All-gather: dst [sum of counts] becomes the shards of all ranks in rank order.  src
 * [counts[rank]] may be the rank's own shard in dst. */
D9D_API D9D_MUST_USE d9d_status d9d_comm_all_gather(d9d_comm *c, d9d_stream s, const char *label,
                                                    d9d_dtype t, void *dst, const void *src,
                                                    const int64_t *counts);
/* Reduce-scatter: dst [counts[rank]] becomes this rank's shard of the sum over ranks of src [sum of
 * counts].  dst may be the rank's own shard in src. */
D9D_API D9D_MUST_USE d9d_status d9d_comm_reduce_scatter(d9d_comm *c, d9d_stream s,
                                                        const char *label, d9d_dtype t, void *dst,
                                                        const void *src, const int64_t *counts);
/* All-to-all: src has what goes to each rank, dst receives from each rank, both in rank order.
 * send[j] on this rank i equals recv[i] on rank j. */
D9D_API D9D_MUST_USE d9d_status d9d_comm_all_to_all(d9d_comm *c, d9d_stream s, const char *label,
                                                    d9d_dtype t, void *dst, const int64_t *recv,
                                                    const void *src, const int64_t *send);
D9D_API D9D_MUST_USE d9d_status d9d_comm_broadcast(d9d_comm *c, d9d_stream s, const char *label,
                                                   d9d_dtype t, void *buf, int64_t n, int root);

/* Point-to-point: the only calls that not all ranks of the group make. */
D9D_API D9D_MUST_USE d9d_status d9d_comm_send(d9d_comm *c, d9d_stream s, const char *label,
                                              d9d_dtype t, const void *src, int64_t n, int to);
D9D_API D9D_MUST_USE d9d_status d9d_comm_recv(d9d_comm *c, d9d_stream s, const char *label,
                                              d9d_dtype t, void *dst, int64_t n, int from);
/* Group calls, as ncclGroupStart() and ncclGroupEnd() do: calls between start and end, on one
 * stream, may be submitted together, which takes less time.  No result is available before the end.
 * All sends and receives between them are one call, and may cross without deadlock.  Call the end
 * also when a call between them failed. */
D9D_API D9D_MUST_USE d9d_status d9d_comm_group_start(d9d_comm *c);
D9D_API D9D_MUST_USE d9d_status d9d_comm_group_end(d9d_comm *c);

/* --- overlap with computation -------------------------------------------------------- *
 *
 *     d9d_comm_wait_stream(c, dev->stream);       // the group's stream waits for the computation
 *     d9d_comm_all_gather(c, d9d_comm_stream(c), ...);
 *     ...                                         // computation that does not need the result
 *     d9d_stream_wait_comm(c, dev->stream);       // the computation waits for the result
 *
 * An event marks a position in the group's stream, so that another stream can wait for it and not
 * for work that was enqueued after it.  On the CPU the stream and events are NULL, and calls run in
 * order. */
D9D_API d9d_stream d9d_comm_stream(d9d_comm *c);
D9D_API D9D_MUST_USE d9d_status d9d_comm_wait_stream(d9d_comm *c, d9d_stream s);
D9D_API D9D_MUST_USE d9d_status d9d_stream_wait_comm(d9d_comm *c, d9d_stream s);

typedef struct d9d_comm_event d9d_comm_event;
/* Record the event after the work enqueued so far; *at is created if it is NULL. */
D9D_API D9D_MUST_USE d9d_status d9d_comm_event_record(d9d_comm *c, d9d_comm_event **at);
D9D_API D9D_MUST_USE d9d_status d9d_stream_wait_event(d9d_comm *c, d9d_comm_event *at,
                                                      d9d_stream s);
D9D_API void d9d_comm_event_free(d9d_comm *c, d9d_comm_event *at); /* NULL is fine */

/* --- peer memory --------------------------------------------------------------------- *
 *
 * GPUs of one host that have P2P access read each other's memory (CUDA IPC) with their copy
 * engines.  This takes no SM from the computation, and no rank waits in a collective.  It is for
 * arrays that are gathered often and change rarely:
 *
 *     D9D_TRY(d9d_peer_map(c, "weights", local, n, &shared));
 *     each time before the first read, and before an array changes:
 *         D9D_TRY(d9d_peer_barrier(shared, s));    // all ranks have come here
 *     D9D_TRY(d9d_peer_gather(shared, s, i, D9D_BF16, dst, counts)); */
typedef struct d9d_peer_memory d9d_peer_memory;
/* Map n arrays of each rank; the i-th arrays of all ranks are gathered together, each with
 * counts[rank] elements.  The arrays stay the caller's and must not move.  *out is NULL if not
 * every rank can read every other's memory: on CPUs, between hosts, or with D9D_P2P=off in the
 * environment of some rank.  Collective. */
D9D_API D9D_MUST_USE d9d_status d9d_peer_map(d9d_comm *c, const char *label, void *const *local,
                                             size_t n, d9d_peer_memory **out);
D9D_API D9D_MUST_USE d9d_status d9d_peer_barrier(d9d_peer_memory *x, d9d_stream s);
/* All-gather by copies: dst [sum of counts] becomes the i-th arrays of all ranks in rank order. */
D9D_API D9D_MUST_USE d9d_status d9d_peer_gather(d9d_peer_memory *x, d9d_stream s, size_t i,
                                                d9d_dtype t, void *dst, const int64_t *counts);
/* Unmap; afterwards the arrays may be freed.  Collective, unless a call of the mesh has failed.
 * NULL is fine. */
D9D_API void d9d_peer_unmap(d9d_peer_memory *x);

/* --- staging buffers (symmetric memory) ---------------------------------------------- *
 *
 * For data that change with every call.  Each rank has two staging buffers, used alternately; it
 * writes what its peers need, and each peer reads its share with its GPU's copy engines:
 *
 *     D9D_TRY(d9d_symm_buffer_reserve(c, bytes));       // the same number on all ranks
 *     char *buf = d9d_symm_buffer_local(c);             // this rank's; write it on s
 *     ...
 *     D9D_TRY(d9d_comm_wait_stream(c, s));
 *     D9D_TRY(d9d_symm_buffer_barrier(c, "rows"));      // on the group's stream: all have written;
 *                                                       // then local() is the other buffer
 *     D9D_TRY(d9d_symm_buffer_get(c, d9d_comm_stream(c), from, offset, dst, n));
 *     D9D_TRY(d9d_stream_wait_comm(c, s));
 *
 * A buffer may be overwritten two barriers later, on a stream that waits for the barrier in
 * between.  When the peers' streams pass that barrier, they have read the buffer. */
/* Allocate two staging buffers of at least `bytes` each.  On GPUs this needs one host with P2P
 * access, and no rank with D9D_P2P=off in its environment.  On CPUs it needs one host, and
 * D9D_P2P=force on all ranks.  Check d9d_symm_buffer_bytes() afterwards.
 *
 * Collective if the buffers must grow; their contents are then lost.  If some rank has not enough
 * memory, a warning says so once and the old buffers remain.  Only a later call tries again: the
 * 64th, then ever fewer. */
D9D_API D9D_MUST_USE d9d_status d9d_symm_buffer_reserve(d9d_comm *c, uint64_t bytes);
/* Makes the choice between staging buffers and messages the same in all groups over these mesh
 * axes.  Interleaved pipeline actions need this because they order the collectives of several
 * groups.  If some group has no buffers, none of them has any from here on.  Afterwards agreed() is
 * the same on all ranks; before, it is false.  Growing a buffer may still be refused for want of
 * memory.  Collective over `world`, with the same axes. */
D9D_API D9D_MUST_USE d9d_status d9d_symm_buffer_agree(d9d_comm *c, d9d_comm *world);
D9D_API bool d9d_symm_buffer_agreed(const d9d_comm *c);
/* True if there are buffers and `bytes`, the bytes to one rank, are enough to be faster than a
 * collective.  True for any number if forced: if all ranks have D9D_P2P=force, for tests.  The
 * same on all ranks. */
D9D_API bool d9d_symm_buffer_is_worthwhile(const d9d_comm *c, uint64_t bytes);
D9D_API bool d9d_symm_buffer_is_forced(const d9d_comm *c);
/* Bytes of one staging buffer, the same on all ranks; 0: there are none. */
D9D_API uint64_t d9d_symm_buffer_bytes(const d9d_comm *c);
D9D_API void *d9d_symm_buffer_local(const d9d_comm *c);
D9D_API D9D_MUST_USE d9d_status d9d_symm_buffer_barrier(d9d_comm *c, const char *label);
/* Copy n bytes at `offset` of the buffer that passed the last barrier, of rank `from`, which may be
 * this rank.  On a stream other than the group's: after it waited for an event recorded behind the
 * barrier, and before the group's stream next waits for that stream. */
D9D_API D9D_MUST_USE d9d_status d9d_symm_buffer_get(d9d_comm *c, d9d_stream s, int from,
                                                    uint64_t offset, void *dst, uint64_t n);

/* Signals for single peers: a peer is notified as soon as its data are written, and reads them
 * while the rest is computed.
 *
 *     D9D_TRY(d9d_comm_wait_stream(c, s));                         // dst is free
 *     for each other rank, in any order:
 *         ... write its slice of the buffer on s ...
 *         D9D_TRY(d9d_symm_buffer_signal(c, s, to));
 *     D9D_TRY(d9d_symm_buffer_get_on_signal(c, "rows", parts, n)); // in place of a barrier
 *     for each of the parts:
 *         D9D_TRY(d9d_symm_buffer_wait(c, from, s));               // its data have arrived
 *
 * Signal all other ranks before the call.  After it waited for the previous barrier, s may write
 * the buffer and signal.  The group's own stream always may, with d9d_symm_buffer_put(), so that
 * several exchanges can be enqueued one after the other. */
typedef struct d9d_symm_buffer_slice {
    int from; /* not this rank; at most one slice of each rank */
    uint64_t offset;
    void *dst;
    uint64_t n; /* bytes */
} d9d_symm_buffer_slice;
/* Copy n bytes to `offset` of the local buffer, the one that the next barrier publishes. */
D9D_API D9D_MUST_USE d9d_status d9d_symm_buffer_put(d9d_comm *c, d9d_stream s, uint64_t offset,
                                                    const void *src, uint64_t n);
D9D_API D9D_MUST_USE d9d_status d9d_symm_buffer_signal(d9d_comm *c, d9d_stream s, int to);
/* Get the slices on the group's stream, each after its rank's signal, in the order of the list. */
D9D_API D9D_MUST_USE d9d_status d9d_symm_buffer_get_on_signal(d9d_comm *c, const char *label,
                                                              const d9d_symm_buffer_slice *parts,
                                                              int n);
D9D_API D9D_MUST_USE d9d_status d9d_symm_buffer_wait(d9d_comm *c, int from, d9d_stream s);

/* --- posted messages ----------------------------------------------------------------- *
 *
 *     D9D_TRY(d9d_comm_wait_stream(c, dev->stream));  // src is ready by then
 *     D9D_TRY(d9d_comm_post_send(c, "forward of stage 0, micro-batch 3", t, src, n, to, &m));
 *     ...                                             // computation, other messages
 *     D9D_TRY(d9d_message_wait(m, dev->stream));      // src may be reused
 *
 * As MPI_Isend() and MPI_Irecv(): a post enqueues on the group's own stream and returns at once.
 * Messages between two ranks arrive in the order in which they are posted, so both ranks post them
 * in the same order.  An order that would not deadlock with blocking messages does not deadlock
 * here. */
typedef struct d9d_message d9d_message;
/* Give each pair of neighbours in the group's order, the last and the first too, a ring of 32 MiB
 * in peer memory: 64 MiB for each rank.  Messages that wait for their peer then take no SM from the
 * computation.  Does nothing unless all ranks are GPUs of one host with P2P access, or if
 * D9D_P2P=off is in the environment of some rank, or if called again.  Collective. */
D9D_API D9D_MUST_USE d9d_status d9d_p2p_ring_enable(d9d_comm *c);
D9D_API D9D_MUST_USE d9d_status d9d_comm_post_send(d9d_comm *c, const char *label, d9d_dtype t,
                                                   const void *src, int64_t n, int to,
                                                   d9d_message **out);
D9D_API D9D_MUST_USE d9d_status d9d_comm_post_recv(d9d_comm *c, const char *label, d9d_dtype t,
                                                   void *dst, int64_t n, int from,
                                                   d9d_message **out);
/* True if the message is complete.  Does not block. */
D9D_API bool d9d_message_test(d9d_message *m);
/* Stream `s` waits for the message; on the CPU the call blocks until it is complete.  Frees the
 * message, also if it fails; NULL is fine. */
D9D_API D9D_MUST_USE d9d_status d9d_message_wait(d9d_message *m, d9d_stream s);
/* Abandon a message after a failure.  Between processors a receive is taken back, or waited for if
 * its transfer has begun.  The buffer of a send, and on a GPU either, must stay allocated. */
D9D_API void d9d_message_cancel(d9d_message *m);

/* --- bytes on the host --------------------------------------------------------------- */

/* All-gather of any number of bytes: all[r] becomes what rank r sent, in the arena. */
typedef struct d9d_comm_blob {
    const void *data; /* followed by a NUL */
    size_t n;
} d9d_comm_blob;
D9D_API D9D_MUST_USE d9d_status d9d_comm_allgather_bytes(d9d_comm *c, const char *label,
                                                         const void *local, size_t n, d9d_arena *a,
                                                         d9d_comm_blob *all /* [size] */);
/* No rank returns before every rank has called. */
D9D_API D9D_MUST_USE d9d_status d9d_comm_barrier(d9d_comm *c, const char *label);

#ifdef __cplusplus
}
#endif
#endif /* D9D_COMM_COMM_H */
