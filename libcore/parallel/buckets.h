/* buckets.h - gradient buckets: gradients of replicated parameters, all-reduced some at a time.
 *
 * The gradients of a bucket are contiguous, so that a bucket is one all-reduce.  Buckets are filled
 * in the order in which backward finishes units; a bucket is reduced when the last of its units is
 * done.
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
    /* Of gradients that travel as bfloat16 (parallel/narrow_reduce.h), during a reduction: what is
     * sent and what has come, counts[rank] elements of each rank, all equal. */
    d9d_tensor packed, received;
    D9D_VEC(int64_t) counts;
    D9D_VEC(d9d_param *) params;
    D9D_VEC(size_t) units;     /* units with parameters in it */
    size_t done;               /* of these units */
    bool reducing;             /* an all-reduce is in flight */
    d9d_pending_reduce summed; /* its completion */
} d9di_bucket;

typedef struct d9di_buckets {
    D9D_VEC(d9di_bucket) list;
    uint64_t max_bytes; /* bytes of a bucket */
    d9d_dtype reduce_dtype;
    /* Called for each gradient that was not reduced before; or NULL. */
    d9d_status (*hook)(void *arg, const d9d_param *p, const d9d_tensor *grad);
    void *hook_arg;
    /* Called for the parameters of a bucket that is reduced, or NULL; it may clear gradients on
     * demand, and then the bucket's memory is free. */
    d9d_status (*reduced)(void *arg, d9d_param *const *p, size_t n);
    void *reduced_arg;
} d9di_buckets;

/* Add a parameter of a unit, units in the order of backward.  Parameters without a gradient group
 * are ignored. */
d9d_status d9di_buckets_add(d9di_buckets *b, size_t unit, d9d_param *p);
/* Allocate what has no memory: shard.grad of each parameter becomes a view of its bucket.  All
 * buckets, or those of a unit. */
d9d_status d9di_buckets_alloc(d9di_buckets *b, d9d_device *dev);
d9d_status d9di_buckets_alloc_unit(d9di_buckets *b, size_t unit, d9d_device *dev);
void d9di_buckets_release(d9di_buckets *b);

/* Start of a backward: no unit is done. */
void d9di_buckets_begin(d9di_buckets *b);
/* Unit `unit` is done: enqueue the all-reduce of each bucket that is complete.  Its parameters'
 * shard.grad is pending then. */
d9d_status d9di_buckets_unit_done(d9di_buckets *b, size_t unit, d9d_device *dev);
/* The device's stream waits for all reductions in flight. */
d9d_status d9di_buckets_wait(d9di_buckets *b, d9d_device *dev);

#endif /* D9DI_PARALLEL_BUCKETS_H */
