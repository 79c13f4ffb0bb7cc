/* tied_weights.h - parameters that the first and the last stage of a pipeline both have.
 *
 * The embedding of a tied model is read by the first stage and is the head of the last.  Each stage
 * has an instance of it: one name, one placement, one initial value.  The gradient of both is the
 * sum of the two, made after all other sums of a step, so that one optimizer makes the same update
 * of both.  One of them counts (d9d_param.counts): in norms, and in what is saved.
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

/* The last stage's instance does not count.  When it is placed; NULL is fine. */
D9D_API void d9d_tied_weights_set_primary(d9d_model *m);
/* own_grad of the module's parameters becomes the sum over both instances: `other` is the second
 * one, or NULL where the rank `peer` of the group has it.  Collective: over the two ranks. */
D9D_API D9D_MUST_USE d9d_status d9d_tied_weights_sum_grads(d9d_module *mine, d9d_module *other,
                                                           d9d_comm *comm, int peer,
                                                           d9d_device *dev);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PARALLEL_TIED_WEIGHTS_H */
