/* lora.h - low-rank adaptation of the matrices of a model.
 *
 * To a matrix W a product of two thin ones is added, and those are trained in its place:
 *
 *     y = x W^T + alpha / r * (x A^T) B^T        A [r, in], B [out, r]
 *     y = x W_e + alpha / r * (x A_e) B_e        of a stack of experts: A [E, in, r], B [E, r, out]
 *
 * With dropout the second x is, while training, that of each feature with this probability nothing,
 * else x / (1 - p); of experts it is not dropped, as in peft.
 *
 * A matrix knows its adapter (d9d/tape/param.h) and the operations that multiply by it do the rest,
 * so blocks and models have no word of it:
 *
 *     D9D_TRY(d9d_lora_add(&attention->q_proj.module, &how));   // before the names are bound
 *
 * declares "lora_A.weight" and "lora_B.weight" beside the module's "weight".  A starts uniform in
 * +-1/sqrt(in) and B at zero, so that an untrained adapter changes no bit of y.  Placement follows
 * that of W (d9d/parallel/parallel_plan.h): of a matrix cut along its output B is cut, along its
 * input A, and the factor that is whole on several ranks has its gradient summed over them.
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
    double dropout; /* of what goes into A, while training; 0 for a stack */
} d9d_lora_opts;

/* The matrix of a module that can be adapted: its own parameter "weight", where operations of
 * linear layers alone use it; NULL: none. */
D9D_API d9d_param *d9d_lora_matrix(const d9d_module *m);

/* Adapt it; the adapter lives as long as the module.  EINVAL for a module without such a matrix, or
 * with an adapter, and for dropout beside a stack. */
D9D_API D9D_MUST_USE d9d_status d9d_lora_add(d9d_module *m, const d9d_lora_opts *how);

#ifdef __cplusplus
}
#endif
#endif /* D9D_NN_LORA_H */
