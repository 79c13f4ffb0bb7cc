/* bootstrap_socket.h - TCP connections between the ranks of a job.
 *
 * A rank that others connect to listens on a port that the system chooses, on the loopback
 * interface alone if all ranks are on one host.  Its address names every interface of the host that
 * may be the right one.  A rank tries all of them; ranks of one host use the loopback interface.
 * Whoever connects has to know the listener's token, which only the launcher passes on: another
 * program that happens to listen or to connect there is turned away.
 */
#ifndef D9DI_COMM_BOOTSTRAP_SOCKET_H
#define D9DI_COMM_BOOTSTRAP_SOCKET_H

#include "d9d/comm/bootstrap.h"

enum { D9DI_BOOTSTRAP_INTERFACES = 8, D9DI_BOOTSTRAP_TOKEN_BYTES = 16 };

/* Where a rank listens, as the launcher passes it on: the machines of a job have one byte order. */
typedef struct d9di_bootstrap_address {
    unsigned char token[D9DI_BOOTSTRAP_TOKEN_BYTES];
    uint64_t host; /* equal for ranks that share a loopback interface */
    uint16_t port; /* 0: does not listen */
    uint16_t n;    /* IP addresses; IPv4 as ::ffff:a.b.c.d */
    unsigned char ip[D9DI_BOOTSTRAP_INTERFACES][16];
    char node[64];
} d9di_bootstrap_address;

/* A deadline of the monotonic clock in nanoseconds. */
typedef int64_t d9di_bootstrap_deadline;
#define D9DI_BOOTSTRAP_NO_DEADLINE INT64_MAX
/* `timeout_s` seconds from now; 0: never. */
d9di_bootstrap_deadline d9di_bootstrap_deadline_in(double timeout_s);

/* The address of this rank and its listening socket, closed by the caller.  listens false: *fd
 * becomes -1 and the port 0.  one_host: only ranks of this host will connect. */
d9d_status d9di_bootstrap_listen(const char *node, bool listens, bool one_host,
                                 d9di_bootstrap_address *out, int *fd);

/* Who connected: its rank, its node, and the connection. */
typedef struct d9di_bootstrap_caller {
    int rank;
    char node[64];
    int fd;
} d9di_bootstrap_caller;

/* Connect with the rank that listens at `to`, as rank `rank` with address `self`.  ECOMM if it
 * cannot be reached, or not in time. */
d9d_status d9di_bootstrap_dial(const d9di_bootstrap_address *to, int rank,
                               const d9di_bootstrap_address *self, d9di_bootstrap_deadline end,
                               int *fd);
/* The connections of n ranks that know the token of `self`; others are turned away.  A rank that
 * connects again replaces its first connection.  ECOMM if fewer come in time: *got of them, open.
 */
d9d_status d9di_bootstrap_accept(int listener, const d9di_bootstrap_address *self, int n,
                                 d9di_bootstrap_deadline end, d9di_bootstrap_caller *out /* [n] */,
                                 int *got);

/* All n bytes, or: D9D_ECOMM, and *late tells a deadline from a connection that ended.  No message
 * is written: the caller knows who is at the other end. */
d9d_status d9di_bootstrap_write(int fd, const void *bytes, size_t n, d9di_bootstrap_deadline end,
                                bool *late);
d9d_status d9di_bootstrap_read(int fd, void *bytes, size_t n, d9di_bootstrap_deadline end,
                               bool *late);

#endif /* D9DI_COMM_BOOTSTRAP_SOCKET_H */
