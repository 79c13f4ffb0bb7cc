/* bootstrap_tree.h - small exchanges of all ranks, over a tree of TCP connections.
 *
 *         0             parent(r) = r without its lowest set bit
 *       / | \           children(r) = r + 1, r + 2, r + 4, ... below the next multiple
 *      1  2  4
 *         |  | \        The ranks below a rank follow it, so what they send is joined in their
 *         3  5  6       order, and a branch stays on a node as long as nodes have
 *               |       consecutive ranks.
 *               7
 *
 * The launcher carries one address of each rank, and a rank asks it for one, its parent's.  All
 * later exchanges go up the tree and down again: a rank sends and receives at most log2(size) + 1
 * messages.  This is the binomial tree of MPI_Gather and MPI_Bcast.
 *
 * A connection that breaks, and a rank that stays away longer than the time limit, are ECOMM; then
 * the tree is of no more use.
 */
#ifndef D9DI_COMM_BOOTSTRAP_TREE_H
#define D9DI_COMM_BOOTSTRAP_TREE_H

#include "comm/bootstrap_socket.h"

typedef struct d9di_bootstrap_tree d9di_bootstrap_tree;

/* What this rank has sent and received. */
typedef struct d9di_bootstrap_traffic {
    uint64_t sent, sent_bytes, received, received_bytes;
} d9di_bootstrap_traffic;

/* The rank above; -1 for rank 0. */
int d9di_bootstrap_tree_parent(int rank);
/* Child number i, from 0; -1 behind the last. */
int d9di_bootstrap_tree_child(int rank, int size, int i);

/* A tree of rank `rank` without connections: d9di_bootstrap_tree_attach() gives it all of them. */
d9d_status d9di_bootstrap_tree_create(int rank, int size, d9di_bootstrap_tree **out);
/* Closes the connections. */
void d9di_bootstrap_tree_free(d9di_bootstrap_tree *t);
/* The connection with rank `peer`, its parent or a child, on node `node`.  Takes the socket. */
void d9di_bootstrap_tree_attach(d9di_bootstrap_tree *t, int peer, const char *node, int fd);

/* Connect with the parent, whose address is `parent` (rank 0: not read), and take the connections
 * of all children at `listener`, within timeout_s seconds.  `self` is this rank's own address. */
d9d_status d9di_bootstrap_tree_connect(d9di_bootstrap_tree *t, int listener,
                                       const d9di_bootstrap_address *self,
                                       const d9di_bootstrap_address *parent, double timeout_s);

/* Collective, both.  timeout_s: seconds that a rank waits for another; 0: without limit.
 * All-gather: all[r] becomes what rank r sent, in the arena, followed by a NUL. */
d9d_status d9di_bootstrap_tree_allgather(d9di_bootstrap_tree *t, double timeout_s,
                                         const void *local, size_t n, d9d_arena *a,
                                         d9d_bootstrap_blob *all /* [size] */);
/* The bytes of the first rank that sends any, on every rank; *rank is -1 where none does. */
d9d_status d9di_bootstrap_tree_first(d9di_bootstrap_tree *t, double timeout_s, const void *local,
                                     size_t n, d9d_arena *a, int *rank, d9d_bootstrap_blob *out);

d9di_bootstrap_traffic d9di_bootstrap_tree_traffic(const d9di_bootstrap_tree *t);

#endif /* D9DI_COMM_BOOTSTRAP_TREE_H */
