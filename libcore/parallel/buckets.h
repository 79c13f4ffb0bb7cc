/* buckets.h - gradients that several ranks have whole, summed some at a time.
 *
 * The gradients of a bucket lie one behind the other in one array, so that a bucket is one call.
 * Buckets are made in the order in which backward finishes units; a bucket is summed when the last
 * of its units is done.
 */
#ifndef D9DI_PARALLEL_BUCKETS_H
#define D9DI_PARALLEL_BUCKETS_H

#include "d9d/base/mem.h"
#include "d9d/tape/param.h"

typedef struct d9di_bucket {
    d9d_comm *sum;
    d9d_dtype dtype;
    d9d_tensor all; /* [n] */
    uint64_t bytes;
    D9D_VEC(d9d_param *) params;
    D9D_VEC(size_t) units;     /* that have parameters in it */
    size_t done;               /* of those */
    d9d_pending_reduce summed; /* where the newest sum ends */
} d9di_bucket;

typedef struct d9di_buckets {
    D9D_VEC(d9di_bucket) list;
    uint64_t max_bytes; /* bytes of a bucket */
} d9di_buckets;

/* A parameter of a unit, units in the order of backward; those that are not summed are passed over.
 */
d9d_status d9di_buckets_add(d9di_buckets *b, size_t unit, d9d_param *p);
/* Take memory: own_grad of each parameter is a view of its bucket. */
d9d_status d9di_buckets_alloc(d9di_buckets *b, d9d_device *dev);
void d9di_buckets_release(d9di_buckets *b);

/* No unit is done. */
void d9di_buckets_begin(d9di_buckets *b);
/* Queue the sums of what is whole now that `unit` is done: own_grad of the parameters is late. */
d9d_status d9di_buckets_unit_done(d9di_buckets *b, size_t unit, d9d_device *dev);
/* The device's stream waits for all sums. */
d9d_status d9di_buckets_wait(d9di_buckets *b, d9d_device *dev);

#endif /* D9DI_PARALLEL_BUCKETS_H */
