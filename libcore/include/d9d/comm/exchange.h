/* exchange.h - all-gather and broadcast of small host data, at start-up and between steps; results
 * are in an arena. */
#ifndef D9D_COMM_EXCHANGE_H
#define D9D_COMM_EXCHANGE_H

#include "d9d/comm/bootstrap.h"
#include "d9d/comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All-gather over the job (d9d_bootstrap_allgather()).  (*all)[k] is what rank k sent, in the
 * arena.  Collective. */
D9D_API D9D_MUST_USE d9d_status d9d_bootstrap_allgather_arena(d9d_bootstrap *bootstrap,
                                                              const void *local, size_t n,
                                                              d9d_arena *a,
                                                              d9d_bootstrap_blob **all);

/* Broadcast: *text becomes rank 0's text, in the arena; NULL is broadcast too.  Collective over the
 * job. */
D9D_API D9D_MUST_USE d9d_status d9d_bootstrap_broadcast_text(d9d_bootstrap *bootstrap, d9d_arena *a,
                                                             const char **text);

/* All-gather over `world` (d9d_comm_allgather_bytes()).  (*all)[k] is what rank k sent, in the
 * arena.  Collective. */
D9D_API D9D_MUST_USE d9d_status d9d_comm_allgather_arena(d9d_comm *world, const char *label,
                                                         const void *local, size_t n, d9d_arena *a,
                                                         d9d_comm_blob **all);

#ifdef __cplusplus
}
#endif
#endif /* D9D_COMM_EXCHANGE_H */
