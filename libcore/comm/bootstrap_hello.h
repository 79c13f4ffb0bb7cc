/* bootstrap_hello.h - a rank's first message: what carries its later ones.
 *
 *     PMIx   hello             every rank reads the hello of all
 *     TCP    hello + address   a rank reads that of its parent (bootstrap_tree.h)
 *
 * Ranks that choose differently would take one's address for another's message.  A rank that reads
 * the hello of all sees it, whichever rank differs, and there is one where any differ.  The first
 * of these says it.
 */
#ifndef D9DI_COMM_BOOTSTRAP_HELLO_H
#define D9DI_COMM_BOOTSTRAP_HELLO_H

#include "comm/bootstrap_private.h"

typedef enum d9di_bootstrap_carrier {
    D9DI_BOOTSTRAP_BY_PMIX = 1,
    D9DI_BOOTSTRAP_BY_TCP,
    D9DI_BOOTSTRAP_BY_UNKNOWN /* D9D_BOOTSTRAP has another value */
} d9di_bootstrap_carrier;

typedef struct d9di_bootstrap_hello {
    uint32_t carrier; /* a d9di_bootstrap_carrier */
    char value[32];   /* D9D_BOOTSTRAP, truncated; "": not set */
    char node[64];
} d9di_bootstrap_hello;

/* The first message of a rank that connects. */
typedef struct d9di_bootstrap_invitation {
    d9di_bootstrap_hello hello;
    d9di_bootstrap_address address;
} d9di_bootstrap_invitation;

/* D9D_BOOTSTRAP chooses; else it is the number of ranks. */
void d9di_bootstrap_hello_make(const char *node, int size, d9di_bootstrap_hello *out);
/* The hello at the beginning of what `rank` sent, `rest` bytes before the end.  ECOMM for other
 * bytes. */
d9d_status d9di_bootstrap_hello_read(const d9d_bootstrap_blob *blob, int rank, size_t rest,
                                     d9di_bootstrap_hello *out);
/* ECONFIG, naming both ranks, if they differ, or one if its value is unknown. */
d9d_status d9di_bootstrap_hello_compare(const d9di_bootstrap_hello *a, int rank_a,
                                        const d9di_bootstrap_hello *b, int rank_b);

#endif /* D9DI_COMM_BOOTSTRAP_HELLO_H */
