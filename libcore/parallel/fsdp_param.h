/* fsdp_param.h - one parameter: unshard (shards to the full parameter) and reduce-scatter (full
 * gradient to shards).
 *
 * If the shards are not contiguous in the full parameter (sharded along an inner dimension), they
 * pass through `staging` or `packed`, in rank order.  The same holds for shards of unequal size:
 * they are padded to the largest, because collectives need equal counts.  Padding is uninitialised.
 * `start` enqueues on the stream of the parameter's group, which must have been forked; `finish`
 * works on the device's stream, which must have been joined.
 */
#ifndef D9DI_PARALLEL_FSDP_PARAM_H
#define D9DI_PARALLEL_FSDP_PARAM_H

#include "d9d/tape/param.h"

/* Of a parameter that is gathered in 8 bits (parallel/fsdp_fp8.h). */
typedef struct d9di_fsdp_param_fp8 {
    int32_t *maxima;         /* of the full parameter, on the device; borrowed */
    unsigned wanted[2];      /* copies that forward and backward read */
    unsigned coming;         /* copies in flight */
    d9d_tensor cols_staging; /* bytes of cols, where those of rows are others */
} d9di_fsdp_param_fp8;

/* A transfer in flight. */
typedef struct d9di_fsdp_param {
    /* Shards in rank order, of data and of gradients; both may be in flight, since a forward can
     * follow a backward closely.  Storage NULL if the shards are contiguous in the full parameter.
     */
    d9d_tensor staging, packed;
    d9d_tensor received; /* reduce: what ranks sent of this shard, if it travels as bfloat16 */
    d9d_tensor grad;     /* reduce: the full gradient, taken from the parameter at start */
    d9d_tensor sum;      /* reduce: this rank's shard of the sum, if it is not made in shard.grad */
    d9d_dtype reduce_dtype;  /* in which gradients travel: d9d_fsdp_opts */
    int64_t *counts;         /* elements of each shard */
    int64_t *padded_counts;  /* counts that are sent, all equal to the largest; NULL: `counts` */
    int64_t *narrow_counts;  /* of gradients that travel as bfloat16: all equal, and aligned */
    d9d_peer_memory *shared; /* ranks read each other's shards from peer memory; NULL: all-gather */
    size_t shared_index;     /* index in `shared` */
    d9di_fsdp_param_fp8 fp8;
} d9di_fsdp_param;

/* `counts` has 3 * ranks elements; borrowed. */
void d9di_fsdp_param_init(d9di_fsdp_param *t, const d9d_param *p, d9d_dtype reduce_dtype,
                          int64_t *counts);

/* Unshard: `data` becomes the full parameter from all ranks' shards. */
d9d_status d9di_fsdp_param_unshard_start(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev);
d9d_status d9di_fsdp_param_unshard_finish(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev);

/* An all-gather of other elements of type `dtype`, one for each of the parameter: where all ranks'
 * arrive, and the index there at which this rank's begin; then as the full parameter, `from` being
 * released or taken. */
d9d_status d9di_fsdp_param_gathered_alloc(const d9di_fsdp_param *t, const d9d_param *p,
                                          d9d_device *dev, d9d_dtype dtype, d9d_tensor *out);
int64_t d9di_fsdp_param_own_place(const d9di_fsdp_param *t, const d9d_param *p);
d9d_status d9di_fsdp_param_gathered_take(const d9di_fsdp_param *t, const d9d_param *p,
                                         d9d_device *dev, d9d_tensor *from, d9d_tensor *out);

/* Reduce-scatter: the sum over ranks of this shard of grad becomes shard.grad, or is added to it.
 * Order: d9di_fsdp_param_reduce_pack(), fork of the group, start;
 * d9di_fsdp_param_reduce_accumulate() when the collective of start has been submitted. */
d9d_status d9di_fsdp_param_reduce_pack(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev);
d9d_status d9di_fsdp_param_reduce_start(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev);
d9d_status d9di_fsdp_param_reduce_accumulate(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev);
void d9di_fsdp_param_reduce_finish(d9di_fsdp_param *t);

#endif /* D9DI_PARALLEL_FSDP_PARAM_H */
