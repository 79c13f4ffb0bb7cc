/* tied_weights.h - tied weights over a pipeline: parameters that the first and the last stage both
 * have.
 *
 * A tied model's embedding is read by the first stage and is the head of the last stage.  Each
 * stage has an instance with the same name, placement and initial value.  Their gradients are
 * summed over the two, after all other reductions of a step, so that the same optimizer makes the
 * same update of both.  One of them is primary (d9d_param.is_primary): the one in norms and in
 * checkpoints.
 *
 *     first stage   embedding   grad a   -> a + b -.
 *                                                   one update
 *     last stage    head        grad b   -> a + b -'
 */
#ifndef D9D_PARALLEL_TIED_WEIGHTS_H
#define D9D_PARALLEL_TIED_WEIGHTS_H

#include "d9d/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Mark the last stage's instance as not counted.  Call when it is placed; NULL is fine. */
D9D_API void d9d_tied_weights_set_primary(d9d_model *m);
/* shard.grad of the module's parameters becomes the sum over both instances.  `other` is the second
 * instance, or NULL if rank `peer` of the group has it.  Collective: over the two ranks. */
D9D_API D9D_MUST_USE d9d_status d9d_tied_weights_sum_grads(d9d_module *local, d9d_module *other,
                                                           d9d_comm *comm, int peer,
                                                           d9d_device *dev);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PARALLEL_TIED_WEIGHTS_H */
