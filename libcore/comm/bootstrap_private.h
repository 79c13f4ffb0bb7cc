/* bootstrap_private.h - what bootstrap.c asks of a launcher. */
#ifndef D9DI_COMM_BOOTSTRAP_PRIVATE_H
#define D9DI_COMM_BOOTSTRAP_PRIVATE_H

#include "d9d/comm/bootstrap.h"

enum { D9DI_BOOTSTRAP_MAX_BYTES = 16 << 20 }; /* bytes of one gather, over all ranks */

typedef struct d9di_bootstrap_backend {
    void *self;
    int rank, size;
    char node[256];
    double timeout_s; /* of a gather; 0: for ever */
    d9d_status (*allgather)(void *self, double timeout_s, const void *mine, size_t n, d9d_arena *a,
                            d9d_bootstrap_blob *all);
    void (*abort)(void *self, int code, const char *why);
    void (*close)(void *self);
} d9di_bootstrap_backend;

/* What a rank says of its failure: words lie anywhere, and are as long as what is said. */
typedef struct __attribute__((packed)) d9di_bootstrap_failure {
    int32_t st;
    char text[sizeof(((d9di_bootstrap_backend *)0)->node) + sizeof(((d9d_err_copy *)0)->text) + 4];
} d9di_bootstrap_failure;
/* One of `size` ranks on a node fails with this thread's record.  Returns the bytes to be sent. */
size_t d9di_bootstrap_failure_pack(d9d_status st, const char *node, int size,
                                   d9di_bootstrap_failure *out);

/* Who carries exchanges in the launcher's place: a mesh, while it is open.  What goes through the
 * launcher waits for ever for a rank that stands still or a cable that is out, unseen by a
 * watchdog, and Open MPI's launcher may break when ranks end meanwhile. */
typedef struct d9di_bootstrap_transport {
    d9d_status (*allgather)(void *self, const void *mine, size_t n, d9d_arena *a,
                            d9d_bootstrap_blob *all);
    void *self;
} d9di_bootstrap_transport;
/* NULL: the launcher again. */
void d9di_bootstrap_set_transport(d9d_bootstrap *b, const d9di_bootstrap_transport *by);
/* Another rank says what this one has met: see d9d_bootstrap_failure_reported(). */
void d9di_bootstrap_set_failure_reported(d9d_bootstrap *b);

/* Join the tasks that PMIx knows of. */
d9d_status d9di_bootstrap_pmix(d9di_bootstrap_backend *out);

#endif /* D9DI_COMM_BOOTSTRAP_PRIVATE_H */
