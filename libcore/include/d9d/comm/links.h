/* links.h - byte streams between ranks beside their process groups: TCP connections of one thread,
 * which moves data while another one computes and makes collective calls.
 *
 *     ranks     0 --> 2 --> 4        target of 0 is 2, which has the source 0
 *               1 --> 3 --> 5
 *
 *     all ranks:    D9D_TRY(d9d_links_open(bootstrap, target, 60, &x));
 *     a thread:     D9D_TRY(d9d_links_exchange(x, &sent, received));    // both directions at once
 *     the other:    d9d_links_cancel(x);                                // ends that call
 *     at last:      d9d_links_close(x);
 *
 * A stream has no frames: a source and its target know how many bytes come next.  The flight
 * recorder and the watchdog do not see them, so whoever waits for the thread needs a limit.
 */
#ifndef D9D_COMM_LINKS_H
#define D9D_COMM_LINKS_H

#include "d9d/comm/bootstrap.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_links d9d_links;

typedef struct d9d_links_bytes {
    void *data;
    size_t n;
} d9d_links_bytes;

/* Connects this rank with its target and its sources.  target[r], the same list on all ranks, is
 * the rank that rank r sends to; r itself: none.  ECOMM, on the rank that it happens to, if they
 * are not connected in time.  Collective over the job. */
D9D_API D9D_MUST_USE d9d_status d9d_links_open(d9d_bootstrap *bootstrap, const int *target,
                                               double timeout_s, d9d_links **out);
/* How many ranks have this one as their target; *ranks, ascending, is borrowed. */
D9D_API int d9d_links_sources(const d9d_links *x, const int **ranks);
/* Sends *sent to the target and fills received[i] from the i-th source.  ECOMM names the rank whose
 * connection has ended, or says that the call was cancelled; no later call can succeed then. */
D9D_API D9D_MUST_USE d9d_status d9d_links_exchange(d9d_links *x, const d9d_links_bytes *sent,
                                                   const d9d_links_bytes *received);
/* Makes the exchange of another thread, and all later ones, fail soon. */
D9D_API void d9d_links_cancel(d9d_links *x);
/* With no exchange in another thread.  NULL is fine for this and for cancel. */
D9D_API void d9d_links_close(d9d_links *x);

#ifdef __cplusplus
}
#endif
#endif /* D9D_COMM_LINKS_H */
