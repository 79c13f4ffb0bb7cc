/* lora.h - low-rank adaptation (LoRA) of the matrices of a model.
 *
 * The product of two thin matrices is added to a matrix W, and only the two are trained:
 *
 *     y = x W^T + alpha / r * (x A^T) B^T        A [r, in], B [out, r]
 *     y = x W_e + alpha / r * (x A_e) B_e        of a stack of experts: A [E, in, r], B [E, r, out]
 *
 * In training, dropout with probability p zeroes features of the second x and divides the others by
 * 1 - p.  Stacks of experts have no dropout, as in peft.
 *
 * A matrix refers to its adapter (d9d/tape/param.h) and the ops that multiply by the matrix apply
 * it. Blocks and models need no code for it:
 *
 *     D9D_TRY(d9d_lora_add(&attention->q_proj.module, &opts));   // before the names are bound
 *
 * declares "lora_A.weight" and "lora_B.weight" next to the module's "weight".  A is initialised
 * uniformly in +-1/sqrt(in) and B to zero, so an untrained adapter changes no bit of y.  Sharding
 * follows that of W (d9d/parallel/parallel_plan.h).  If W is divided along its output, B is
 * divided; along its input, A is.  The factor that is replicated on several ranks has its gradient
 * summed over them.
 *
 * Hu et al., "LoRA: low-rank adaptation of large language models", 2021.
 */
#ifndef D9D_NN_LORA_H
#define D9D_NN_LORA_H

#include "d9d/nn/module.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_lora_opts {
    int64_t r;
    double alpha;
    double dropout; /* of the input of A, in training; 0 for a stack */
} d9d_lora_opts;

/* The matrix of a module that an adapter can be added to: its parameter "weight", if only ops of
 * linear layers use it.  NULL: none. */
D9D_API d9d_param *d9d_lora_matrix(const d9d_module *m);

/* Add an adapter to that matrix; the module owns it.  EINVAL for a module without such a matrix,
 * for one that has an adapter, and for dropout with a stack. */
D9D_API D9D_MUST_USE d9d_status d9d_lora_add(d9d_module *m, const d9d_lora_opts *opts);

#ifdef __cplusplus
}
#endif
#endif /* D9D_NN_LORA_H */
