/* comm.h - collectives over a group of ranks: one interface over MPI, NCCL, and nobody.
 *
 *     d9d_comm *tp;                                     // of a mesh: d9d/comm/mesh.h
 *     D9D_TRY(d9d_comm_all_reduce(tp, dev->stream, "loss", D9D_F64, sum, 1, D9D_COMM_SUM));
 *
 * Buffers are in the memory of the group's devices: the host's under MPI, the GPU's under NCCL.
 * A call queues its work on `s` behind what is there and returns; on the CPU it is done then.
 * `what` says to people what is moved ("model.layers.3.self_attn"): it stands in errors, in the
 * flight recorder and in traces, and is borrowed for the call alone.
 *
 * A comm that is NULL is a group of one, in which a gather is a copy (none, when dst is src) and
 * a sum leaves its buffer alone: code that calls it needs no branch.
 *
 * Every call is collective over the group: all its ranks make the same calls in the same order
 * with the same type, counts and `what`; D9D_COMM_CHECK=1 in the environment holds them to it, for
 * two small messages more a call.  Counts are in elements, any may be 0.
 *
 *     counts {2, 1, 1}     all_gather   a a | b | c       -> a a b c on every rank
 *                          reduce_scatter  a a b c on every rank -> A A | B | C, sums
 *
 * Sums of float32 and bfloat16 are made in float32 in an order that the group alone decides, and
 * rounded once: the same group gives the same bits each time, whatever the timing.  MPI adds in
 * the order of ranks; NCCL in its own, and may round bfloat16 at each step.  There are sums of
 * float32, float64, bfloat16, int32 and int64; other types are moved only.
 *
 * Failure.  What a library reports is ECOMM with the group, the call and `what`.  A rank that
 * dies or stands still does not fail the calls of others: a watchdog ends the process when a call
 * has taken longer than the timeout, and says which call, of which group, and which ranks have
 * not come (d9d/comm/flight.h).  A rank that fails alone calls d9d_bootstrap_abort().
 *
 * Messages between threads of control: a group belongs to one thread at a time.
 */
#ifndef D9D_COMM_COMM_H
#define D9D_COMM_COMM_H

#include "d9d/base/mem.h"
#include "d9d/kernels/table.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_comm d9d_comm;

typedef enum d9d_comm_op { D9D_COMM_SUM, D9D_COMM_MAX } d9d_comm_op;

/* Of NULL: 0 of 1. */
D9D_API int d9d_comm_rank(const d9d_comm *c);
D9D_API int d9d_comm_size(const d9d_comm *c);
/* The number in the world of the group's rank i. */
D9D_API int d9d_comm_world_rank(const d9d_comm *c, int i);
/* "dp_shard" or "dp_shard+cp_shard"; "single" of NULL. */
D9D_API const char *d9d_comm_name(const d9d_comm *c);

/* buf [n], in place. */
D9D_API D9D_MUST_USE d9d_status d9d_comm_all_reduce(d9d_comm *c, d9d_stream s, const char *what,
                                                    d9d_dtype t, void *buf, int64_t n,
                                                    d9d_comm_op op);
/* dst [sum of counts] becomes the parts of all ranks in order; src [counts[rank]] may be the
 * rank's own place in dst. */
D9D_API D9D_MUST_USE d9d_status d9d_comm_all_gather(d9d_comm *c, d9d_stream s, const char *what,
                                                    d9d_dtype t, void *dst, const void *src,
                                                    const int64_t *counts);
/* dst [counts[rank]] becomes the sum over ranks of that part of src [sum of counts]; dst may be
 * the rank's own place in src. */
D9D_API D9D_MUST_USE d9d_status d9d_comm_reduce_scatter(d9d_comm *c, d9d_stream s, const char *what,
                                                        d9d_dtype t, void *dst, const void *src,
                                                        const int64_t *counts);
/* dst becomes what each rank sends here, in the order of ranks; src is what goes to each of them.
 * send[j] here is recv[i] of rank j, where i is this rank. */
D9D_API D9D_MUST_USE d9d_status d9d_comm_all_to_all(d9d_comm *c, d9d_stream s, const char *what,
                                                    d9d_dtype t, void *dst, const int64_t *recv,
                                                    const void *src, const int64_t *send);
D9D_API D9D_MUST_USE d9d_status d9d_comm_broadcast(d9d_comm *c, d9d_stream s, const char *what,
                                                   d9d_dtype t, void *buf, int64_t n, int root);

/* One rank to another; the only calls that not all ranks make. */
D9D_API D9D_MUST_USE d9d_status d9d_comm_send(d9d_comm *c, d9d_stream s, const char *what,
                                              d9d_dtype t, const void *src, int64_t n, int to);
D9D_API D9D_MUST_USE d9d_status d9d_comm_recv(d9d_comm *c, d9d_stream s, const char *what,
                                              d9d_dtype t, void *dst, int64_t n, int from);
/* Calls between begin and end, on one queue, may be handed over together, which takes less time: no
 * result is there before the end.  All that is sent and received between them is one call, and may
 * cross.  End comes also where a call between them failed. */
D9D_API D9D_MUST_USE d9d_status d9d_comm_group_start(d9d_comm *c);
D9D_API D9D_MUST_USE d9d_status d9d_comm_group_end(d9d_comm *c);

/* --- beside the computation -------------------------------------------------------- *
 *
 *     d9d_comm_wait_stream(c, dev->stream);       // the group's own queue goes on from here
 *     d9d_comm_all_gather(c, d9d_comm_stream(c), ...);
 *     ...                                  // computation that does not need it
 *     d9d_stream_wait_comm(c, dev->stream);       // from here on the result is there
 *
 * A point is a place in the group's queue, for a join that does not wait for what was queued behind
 * it.  On the CPU the queue is NULL, points are NULL and everything is done in turn. */
D9D_API d9d_stream d9d_comm_stream(d9d_comm *c);
D9D_API D9D_MUST_USE d9d_status d9d_comm_wait_stream(d9d_comm *c, d9d_stream s);
D9D_API D9D_MUST_USE d9d_status d9d_stream_wait_comm(d9d_comm *c, d9d_stream s);

typedef struct d9d_comm_event d9d_comm_event;
/* Put the point, made where it is NULL, behind what is queued now. */
D9D_API D9D_MUST_USE d9d_status d9d_comm_event_record(d9d_comm *c, d9d_comm_event **at);
D9D_API D9D_MUST_USE d9d_status d9d_stream_wait_event(d9d_comm *c, d9d_comm_event *at,
                                                      d9d_stream s);
D9D_API void d9d_comm_event_free(d9d_comm *c, d9d_comm_event *at); /* NULL is fine */

/* --- memory that others read -------------------------------------------------------- *
 *
 * GPUs of one host can read each other's memory by themselves, which takes no multiprocessor from
 * what computes, and no rank waits for another.  For arrays that are gathered often and change
 * rarely:
 *
 *     D9D_TRY(d9d_peer_map(c, "weights", mine, n, &shared));
 *     each time before the first is read, and before one changes:
 *         D9D_TRY(d9d_peer_barrier(shared, s));    // behind it everyone has come here
 *     D9D_TRY(d9d_peer_gather(shared, s, i, D9D_BF16, dst, counts));
 */
typedef struct d9d_peer_memory d9d_peer_memory;
/* Of each rank n arrays, the i-th of which are gathered together, each with counts[rank] elements;
 * they stay where they are.  NULL where not every rank can read every other's: on processors,
 * between hosts, or with D9D_P2P=off in some rank's environment. */
D9D_API D9D_MUST_USE d9d_status d9d_peer_map(d9d_comm *c, const char *what, void *const *mine,
                                             size_t n, d9d_peer_memory **out);
D9D_API D9D_MUST_USE d9d_status d9d_peer_barrier(d9d_peer_memory *x, d9d_stream s);
/* dst [sum of counts] becomes the i-th arrays of all ranks in order. */
D9D_API D9D_MUST_USE d9d_status d9d_peer_gather(d9d_peer_memory *x, d9d_stream s, size_t i,
                                                d9d_dtype t, void *dst, const int64_t *counts);
/* Collective, unless a call of the mesh has failed: behind it the arrays may go.  NULL is fine. */
D9D_API void d9d_peer_unmap(d9d_peer_memory *x);

/* --- rooms that others take from ------------------------------------------------------ *
 *
 * For rows that change from call to call: memory of each rank in which it puts what others get, and
 * from which each takes its own by itself, with the copy engines of a GPU.  There are two, in turn:
 *
 *     D9D_TRY(d9d_symm_buffer_reserve(c, bytes));               // all ask for as much
 *     char *room = d9d_symm_buffer_local(c);                        // this rank's, to be written
 * on s
 *     ...
 *     D9D_TRY(d9d_comm_wait_stream(c, s));
 *     D9D_TRY(d9d_symm_buffer_barrier(c, "rows"));  // on the group's queue: all have written, and
 * the
 *                                              // other room is the next
 *     D9D_TRY(d9d_symm_buffer_get(c, d9d_comm_stream(c), from, offset, dst, n));
 *     D9D_TRY(d9d_stream_wait_comm(c, s));
 *
 * A room is written again two openings later, behind a join with the one between: by then the
 * others have taken what they wanted, for their queues have come as far. */
/* Two rooms of at least so many bytes, where ranks can read each other's memory: GPUs of one host,
 * unless some rank has D9D_P2P=off in its environment, and processors of one host where all
 * have D9D_P2P=force.  Collective where that is more than there is; what is in them is lost.
 * Where some rank has no memory for so many, which is said once, those that there were stay, and
 * a later asking, the 64th and then ever rarer, tries again. */
D9D_API D9D_MUST_USE d9d_status d9d_symm_buffer_reserve(d9d_comm *c, uint64_t bytes);
/* Where what ranks do in turns depends on rooms, as calls of other groups come between it: from
 * here on this group has rooms only where all the groups over its axes have, small ones at least,
 * and agreed() is whether they do, the same on all ranks; before, it is false.  Later ones may
 * still be refused, for want of memory.  Collective: over the world, with the same axes. */
D9D_API D9D_MUST_USE d9d_status d9d_symm_buffer_agree(d9d_comm *c, d9d_comm *world);
D9D_API bool d9d_symm_buffer_agreed(const d9d_comm *c);
/* Are there rooms that are worth it where so many bytes go to a rank?  Not few, unless all ranks
 * have D9D_P2P=force, which is for tests: then always.  The same on all ranks. */
D9D_API bool d9d_symm_buffer_is_worthwhile(const d9d_comm *c, uint64_t bytes);
D9D_API bool d9d_symm_buffer_is_forced(const d9d_comm *c);
/* Bytes of a room, the same on all ranks; 0: there is none. */
D9D_API uint64_t d9d_symm_buffer_bytes(const d9d_comm *c);
D9D_API void *d9d_symm_buffer_local(const d9d_comm *c);
D9D_API D9D_MUST_USE d9d_status d9d_symm_buffer_barrier(d9d_comm *c, const char *what);
/* n bytes at an offset of the room that was opened last, of rank `from`; this rank's own too.  On
 * another queue behind a point of the group's, and before the group's next fork from it. */
D9D_API D9D_MUST_USE d9d_status d9d_symm_buffer_get(d9d_comm *c, d9d_stream s, int from,
                                                    uint64_t offset, void *dst, uint64_t n);

/* Rank by rank: what one of the others takes is told of as soon as it is written, and comes while
 * the rest is computed.
 *
 *     D9D_TRY(d9d_comm_wait_stream(c, s));                         // dst is free
 *     for each other rank, in any order:
 *         ... write its part of the room on s ...
 *         D9D_TRY(d9d_symm_buffer_signal(c, s, to));
 *     D9D_TRY(d9d_symm_buffer_get_on_signal(c, "rows", parts, n)); // in place of an opening
 *     for each of the parts:
 *         D9D_TRY(d9d_symm_buffer_wait(c, from, s));          // from here on it is there
 *
 * All others are told before the call.  Behind a join with the opening before, s may write the room
 * and tell of it; the group's own queue always may, with d9d_symm_buffer_put(), so that several
 * openings are under way, one behind the other. */
typedef struct d9d_symm_buffer_slice {
    int from; /* not this rank; one part of each at most */
    uint64_t offset;
    void *dst;
    uint64_t n; /* bytes */
} d9d_symm_buffer_slice;
/* n bytes to an offset of the room that is opened next. */
D9D_API D9D_MUST_USE d9d_status d9d_symm_buffer_put(d9d_comm *c, d9d_stream s, uint64_t offset,
                                                    const void *src, uint64_t n);
D9D_API D9D_MUST_USE d9d_status d9d_symm_buffer_signal(d9d_comm *c, d9d_stream s, int to);
/* On the group's queue, each when it is there, in the order of the list. */
D9D_API D9D_MUST_USE d9d_status d9d_symm_buffer_get_on_signal(d9d_comm *c, const char *what,
                                                              const d9d_symm_buffer_slice *parts,
                                                              int n);
D9D_API D9D_MUST_USE d9d_status d9d_symm_buffer_wait(d9d_comm *c, int from, d9d_stream s);

/* --- messages under way ------------------------------------------------------------------- *
 *
 *     D9D_TRY(d9d_comm_wait_stream(c, dev->stream));      // src is ready by then
 *     D9D_TRY(d9d_comm_post_send(c, "forward of stage 0, micro-batch 3", t, src, n, to, &m));
 *     ...                                          // computation, other messages
 *     D9D_TRY(d9d_message_wait(m, dev->stream));    // src may be used again
 *
 * Posted messages go over the group's own queue and return at once; those of one pair of ranks
 * arrive in the order in which they are posted, so both post them in one order.  Where that order
 * is one that blocking messages could have, nobody waits for ever. */
typedef struct d9d_message d9d_message;
/* Neighbours in the group's order, the last and the first too, reach into 32 MiB of each other's
 * memory from here on, and messages that wait for their peer take nothing from what computes: 64
 * MiB a rank.  Does nothing where not all of the group are GPUs of one host that can reach each
 * other, or where D9D_P2P=off is in some rank's environment, and when called again.
 * Collective. */
D9D_API D9D_MUST_USE d9d_status d9d_p2p_ring_enable(d9d_comm *c);
D9D_API D9D_MUST_USE d9d_status d9d_comm_post_send(d9d_comm *c, const char *what, d9d_dtype t,
                                                   const void *src, int64_t n, int to,
                                                   d9d_message **out);
D9D_API D9D_MUST_USE d9d_status d9d_comm_post_recv(d9d_comm *c, const char *what, d9d_dtype t,
                                                   void *dst, int64_t n, int from,
                                                   d9d_message **out);
/* Is it done?  Waits for nothing. */
D9D_API bool d9d_message_test(d9d_message *m);
/* What is queued on `s` from here on comes behind the message; on the CPU waits for it.  Takes the
 * message, also where it fails; NULL is fine. */
D9D_API D9D_MUST_USE d9d_status d9d_message_wait(d9d_message *m, d9d_stream s);
/* Forget one that is not waited for any more, because something has failed.  Its memory stays its
 * own: it may still be written. */
D9D_API void d9d_message_cancel(d9d_message *m);

/* --- words on the host ---------------------------------------------------------------- */

/* all[r] becomes what rank r of the group gave, any number of bytes; from the arena. */
typedef struct d9d_comm_blob {
    const void *data; /* followed by a NUL */
    size_t n;
} d9d_comm_blob;
D9D_API D9D_MUST_USE d9d_status d9d_comm_allgather_bytes(d9d_comm *c, const char *what,
                                                         const void *mine, size_t n, d9d_arena *a,
                                                         d9d_comm_blob *all /* [size] */);
/* No rank returns before every rank has called. */
D9D_API D9D_MUST_USE d9d_status d9d_comm_barrier(d9d_comm *c, const char *what);

#ifdef __cplusplus
}
#endif
#endif /* D9D_COMM_COMM_H */
