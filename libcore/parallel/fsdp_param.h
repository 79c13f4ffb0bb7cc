/* fsdp_param.h - one parameter between the parts that ranks keep and the whole that they compute
 * with.
 *
 * Where the parts do not lie one behind the other in the whole (a cut along an inner dimension)
 * they pass through `room` or `packed`, rank by rank; likewise where ranks have more and less, for
 * which a library has no call but one a rank: there all are as far apart as the largest is long,
 * and what lies between is anything.  `start` queues on the queue of the parameter's group, which
 * must have been forked; `finish` works on the device's stream, which must have been joined.
 */
#ifndef D9DI_PARALLEL_FSDP_PARAM_H
#define D9DI_PARALLEL_FSDP_PARAM_H

#include "d9d/tape/param.h"

/* A transfer under way. */
typedef struct d9di_fsdp_param {
    /* Parts in order of ranks, of data and of gradients, which may be under way at once: a forward
     * can follow a backward closely.  Storage NULL where they are so in the whole. */
    d9d_tensor staging, packed;
    d9d_tensor grad; /* of reduce: what was the parameter's, which has none from its start on */
    d9d_tensor sum;  /* of reduce: this rank's part, where it is not made in own_grad */
    int64_t *counts; /* elements of each part */
    int64_t *padded_counts;  /* those that are sent: all as the largest; NULL where they are so */
    d9d_peer_memory *shared; /* where ranks read each other's own; NULL: they are sent */
    size_t shared_index;     /* among what is shared */
} d9di_fsdp_param;

/* `counts` has room for the group's ranks twice; kept. */
void d9di_fsdp_param_init(d9di_fsdp_param *t, const d9d_param *p, int64_t *counts);

/* data becomes the whole of all ranks' own. */
d9d_status d9di_fsdp_param_unshard_start(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev);
d9d_status d9di_fsdp_param_unshard_finish(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev);

/* The sum over ranks of this part of grad becomes own_grad, or is added to it.  Before start the
 * group forks behind d9di_fsdp_param_reduce_pack(); d9di_fsdp_param_reduce_accumulate() comes when
 * the call of start is handed over. */
d9d_status d9di_fsdp_param_reduce_pack(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev);
d9d_status d9di_fsdp_param_reduce_start(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev);
d9d_status d9di_fsdp_param_reduce_accumulate(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev);
void d9di_fsdp_param_reduce_finish(d9di_fsdp_param *t);

#endif /* D9DI_PARALLEL_FSDP_PARAM_H */
