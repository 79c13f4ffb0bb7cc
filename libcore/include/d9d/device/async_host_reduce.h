/* async_host_reduce.h - an asynchronous all-reduce of host numbers: it runs after the work that the
 * device has enqueued, and the host waits only when it needs the result.
 *
 *     d9d_async_host_reduce c = {0};
 *     D9D_TRY(d9d_async_host_reduce_start(&c, dev, world, "accuracy", D9D_F64, local, n,
 *                                         D9D_COMM_SUM));
 *     ... enqueue the next step ...
 *     D9D_TRY(d9d_async_host_reduce_wait(&c, all));       // [n]: the sums over the ranks
 *
 * The first start allocates pinned and device memory, which stays: use one object for each n and
 * type.  One reduction may be pending.
 */
#ifndef D9D_DEVICE_ASYNC_HOST_REDUCE_H
#define D9D_DEVICE_ASYNC_HOST_REDUCE_H

#include "d9d/comm/comm.h"
#include "d9d/device/readback.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_async_host_reduce {
    d9d_device *dev; /* NULL: not started yet */
    uint64_t bytes;
    void *pinned, *device_buf;
    d9d_readback *readback;
} d9d_async_host_reduce; /* zero-initialised is ready to use */

/* Copies local [n] and starts the all-reduce.  Collective over `world`. */
D9D_API D9D_MUST_USE d9d_status d9d_async_host_reduce_start(d9d_async_host_reduce *c,
                                                            d9d_device *dev, d9d_comm *world,
                                                            const char *label, d9d_dtype t,
                                                            const void *local, int64_t n,
                                                            d9d_comm_op op);
/* Wait for the last start; all [n] gets the result.  Call it once for each start. */
D9D_API D9D_MUST_USE d9d_status d9d_async_host_reduce_wait(d9d_async_host_reduce *c, void *all);
D9D_API void d9d_async_host_reduce_release(
    d9d_async_host_reduce *c); /* before the device; zeroes it */

#ifdef __cplusplus
}
#endif
#endif /* D9D_DEVICE_ASYNC_HOST_REDUCE_H */
