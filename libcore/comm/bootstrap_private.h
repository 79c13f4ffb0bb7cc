/* bootstrap_private.h - the interface that a launcher's backend implements for bootstrap.c. */
#ifndef D9DI_COMM_BOOTSTRAP_PRIVATE_H
#define D9DI_COMM_BOOTSTRAP_PRIVATE_H

#include "comm/bootstrap_tree.h"

enum { D9DI_BOOTSTRAP_MAX_BYTES = 16 << 20 }; /* bytes of one all-gather, over all ranks */

/* What a launcher does for its tasks.  All ranks publish, which no rank leaves before all have
 * come; then each may get what any rank published last. */
typedef struct d9di_bootstrap_backend {
    void *self;
    int rank, size;
    bool one_node; /* all ranks are on this rank's node */
    char node[256];
    double timeout_s; /* of publish, in seconds; 0: none */
    d9d_status (*publish)(void *self, double timeout_s, const void *local, size_t n);
    d9d_status (*get)(void *self, int rank, d9d_arena *a, d9d_bootstrap_blob *out);
    void (*abort)(void *self, int code, const char *why);
    void (*close)(void *self);
} d9di_bootstrap_backend;

/* How the ranks met. */
typedef struct d9di_bootstrap_meeting {
    d9di_bootstrap_tree *tree; /* NULL: not connected */
    d9d_status unconnected;    /* why not, of this rank, with its message; D9D_OK: not wanted */
    bool reported;             /* another rank reports the failure */
    int listener; /* -1: none.  Open where the launcher or a choice failed: a child that is
                     refused would begin another exchange while the job ends */
} d9di_bootstrap_meeting;

/* The first exchange: ranks that choose different carriers of messages are refused
 * (bootstrap_hello.h).  Then all ranks connect, if there are many or D9D_BOOTSTRAP is "tcp": the
 * launcher carries one message of each, of which a rank gets one, its parent's.  Collective.
 * ECONFIG where ranks differ; another status is the launcher's. */
d9d_status d9di_bootstrap_meet(const d9di_bootstrap_backend *b, d9di_bootstrap_meeting *out);

/* A rank's failure as it is sent.  Packed: received blobs have any alignment and only the length of
 * the text. */
typedef struct __attribute__((packed)) d9di_bootstrap_failure {
    int32_t st;
    char text[sizeof(((d9di_bootstrap_backend *)0)->node) + sizeof(((d9d_err_copy *)0)->text) + 4];
} d9di_bootstrap_failure;
/* Pack `st` and this thread's error message, of one of `size` ranks, on `node`.  Returns the bytes
 * to send. */
size_t d9di_bootstrap_failure_pack(d9d_status st, const char *node, int size,
                                   d9di_bootstrap_failure *out);

/* A transport that replaces the launcher's all-gather: a mesh, while it is open.  The launcher's
 * all-gather waits without limit for a hung rank or a broken link, unseen by the watchdog, and Open
 * MPI's launcher may break when ranks end meanwhile. */
typedef struct d9di_bootstrap_transport {
    d9d_status (*allgather)(void *self, const void *local, size_t n, d9d_arena *a,
                            d9d_bootstrap_blob *all);
    void *self;
} d9di_bootstrap_transport;
/* NULL: use the launcher again. */
void d9di_bootstrap_set_transport(d9d_bootstrap *b, const d9di_bootstrap_transport *by);
/* Another rank reports this failure: see d9d_bootstrap_failure_reported(). */
void d9di_bootstrap_set_failure_reported(d9d_bootstrap *b);

/* Connect to the PMIx server of the launcher. */
d9d_status d9di_bootstrap_pmix(d9di_bootstrap_backend *out);

#endif /* D9DI_COMM_BOOTSTRAP_PRIVATE_H */
