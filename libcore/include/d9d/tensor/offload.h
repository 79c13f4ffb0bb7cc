/* offload.h - arrays that wait in host memory while the device computes without them.
 *
 *     D9D_TRY(d9d_offload_create(dev, &opts, &o));
 *     D9D_TRY(d9d_offload_send(o, refs, n, &group));   // begin to copy out
 *     ... enqueue work that does not read them: their memory is free after a while ...
 *     D9D_TRY(d9d_offload_fetch(group));               // begin to copy back
 *     ... enqueue more of it ...
 *     D9D_TRY(d9d_offload_wait(group));                // from here on work may read them
 *     d9d_offload_group_free(group);
 *
 * Copies run beside the compute stream, one stream for each direction of the bus:
 *
 *     compute    | layer 0 | layer 1 | layer 2 |   ...   | layer 2 | layer 1 | layer 0 |
 *     to host              | 0 ----- | 1 ----- |
 *     from host                                | 1 ------ | 0 ----- |
 *
 * Device memory belongs to who allocates it next on the compute stream.  So a group gives its
 * memory back when the compute stream waits for its copy, which is when `depth` further groups have
 * been sent.  The host waits nowhere; a bus that is too slow holds the compute stream up.
 *
 * Host memory is pinned and comes from a caching pool: steps of equal form pin in the first alone.
 * The bits are those that left.  An offload belongs to its device's thread.
 */
#ifndef D9D_TENSOR_OFFLOAD_H
#define D9D_TENSOR_OFFLOAD_H

#include "d9d/tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_offload d9d_offload;
typedef struct d9d_offload_group d9d_offload_group;

typedef struct d9d_offload_opts {
    const char *name;   /* what it is, in plans: "activations"; borrowed */
    const char *key;    /* of the configuration, in messages; borrowed */
    int depth;          /* groups whose copies to the host may be under way; at least 1 */
    uint64_t min_bytes; /* smaller storages stay */
} d9d_offload_opts;

D9D_API D9D_MUST_USE d9d_status d9d_offload_create(d9d_device *dev, const d9d_offload_opts *opts,
                                                   d9d_offload **out);
/* Every group must have been freed.  NULL is fine. */
D9D_API void d9d_offload_free(d9d_offload *o);

/* Send the storages of n references, after the work enqueued so far.  Only those go to which nobody
 * else refers, so that no one can miss them; a reference may be given once for each time that it
 * counts.  Between here and the wait, references stay valid and have no data.  A group may be
 * empty. EOOM names the key if the host has no memory left. */
D9D_API D9D_MUST_USE d9d_status d9d_offload_send(d9d_offload *o, const d9d_tensor *const *refs,
                                                 size_t n, d9d_offload_group **out);
/* Begin to copy back; nothing to do where that has begun, or where the memory was not given back
 * yet.  EOOM leaves the group away. */
D9D_API D9D_MUST_USE d9d_status d9d_offload_fetch(d9d_offload_group *g);
/* The compute stream waits until the group is back, fetching it if nobody has. */
D9D_API D9D_MUST_USE d9d_status d9d_offload_wait(d9d_offload_group *g);
/* What is away is lost.  NULL is fine. */
D9D_API void d9d_offload_group_free(d9d_offload_group *g);

/* Bytes of the host's memory, and bytes sent since it was created. */
typedef struct d9d_offload_stats {
    uint64_t host, sent;
} d9d_offload_stats;
D9D_API d9d_offload_stats d9d_offload_get_stats(const d9d_offload *o);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TENSOR_OFFLOAD_H */
