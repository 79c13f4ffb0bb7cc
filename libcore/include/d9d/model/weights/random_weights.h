/* random_weights.h - a model's initial weights as a source of tensors, for a checkpoint that is
 * made without building the model.
 *
 *     D9D_TRY(provider->tensors(config, &arena, &list));
 *     D9D_TRY(d9d_random_weights_open(&list, D9D_BF16, seed, &r));
 *     d9d_tensor_source src = d9d_random_weights_source(r);     // in the layout D9D
 *
 * Element i of a tensor is a function of (seed, d9d_hash_u64() of its name, i): the weights that
 * d9d_module_reset() gives the model.
 */
#ifndef D9D_MODEL_WEIGHTS_RANDOM_WEIGHTS_H
#define D9D_MODEL_WEIGHTS_RANDOM_WEIGHTS_H

#include "d9d/model/provider.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_random_weights d9d_random_weights;

/* Names are borrowed.  ENOTSUP for a dtype other than F32 and BF16; ECONFIG for a deviation beyond
 * its range. */
D9D_API D9D_MUST_USE d9d_status d9d_random_weights_open(const d9d_model_tensors *of,
                                                        d9d_dtype dtype, uint64_t seed,
                                                        d9d_random_weights **out);
D9D_API void d9d_random_weights_close(d9d_random_weights *r);
D9D_API d9d_tensor_source d9d_random_weights_source(d9d_random_weights *r); /* borrows r */

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_WEIGHTS_RANDOM_WEIGHTS_H */
