/* adapter.h - adapters of the matrices of a model: a few parameters beside a matrix W, which alone
 * are trained, change what linear ops make of it.
 *
 * Which parameters an adapter has is its kind, a table of names by role (d9d/tape/param.h):
 *
 *     static const d9d_adapter_kind lora = {
 *         .size = sizeof(lora), .name = "lora",
 *         .params = {[D9D_ADAPTER_A] = {"lora_A.weight"}, [D9D_ADAPTER_B] = {"lora_B.weight"}}};
 *
 *     y = x W^T + alpha / r * (x A^T) B^T        A [r, in], B [out, r]
 *     y = x W_e + alpha / r * (x A_e) B_e        of a stack of experts: A [E, in, r], B [E, r, out]
 *     y = W[ids] + alpha / r * B[ids] A          of an embedding: A [r, in], B [ids, r]
 *
 * From the roles follow forward and backward (op/linear/op_adapter.c), sharding
 * (d9d/parallel/parallel_plan.h), merging and files (d9d/model/lora/adapters.h).  A matrix refers
 * to its adapter and the ops that multiply by it apply it, so that blocks and models need no code:
 *
 *     D9D_TRY(d9d_adapter_add(&attention->q_proj.module, &lora, &opts));  // before names are bound
 *     ... placed, materialised, W loaded ...
 *     D9D_TRY(d9d_adapter_start(&attention->q_proj.weight, dev));         // of random adapters
 *
 * declares the parameters next to the module's "weight".  A begins uniformly in +-1/sqrt(in), B
 * with zeros, factors of features with ones and magnitudes with the norms of W's rows: an untrained
 * adapter changes nothing.
 *
 * In training, dropout with probability p zeroes features of the x that A reads and divides the
 * others by 1 - p.  Stacks of experts, embeddings and heads have A and B alone; embeddings have no
 * dropout, as in peft.
 *
 * Hu et al., "LoRA", 2021.  Liu et al., "DoRA", 2024.  Liu et al., "(IA)^3", 2022.
 */
#ifndef D9D_NN_ADAPTER_H
#define D9D_NN_ADAPTER_H

#include "d9d/nn/module.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_adapter_param {
    const char *name; /* in the module: "lora_A.weight"; NULL: it has none of this role */
    bool frozen;      /* it keeps the numbers that it begins with */
} d9d_adapter_param;

typedef struct d9d_adapter_kind {
    size_t size;      /* sizeof(d9d_adapter_kind) */
    const char *name; /* "lora", in messages */
    d9d_adapter_param params[D9D_ADAPTER_ROLES];
} d9d_adapter_kind;

typedef struct d9d_adapter_opts {
    int64_t r; /* for A and B */
    double alpha;
    double dropout; /* of the input of A, in training */
} d9d_adapter_opts;

/* A plain LoRA, LoRA with a magnitude (DoRA), factors of a layer's output, and of its input, as
 * (IA)^3 has them for feed-forward layers. */
D9D_API extern const d9d_adapter_kind d9d_adapter_lora, d9d_adapter_dora, d9d_adapter_ia3,
    d9d_adapter_ia3_feedforward;

/* Has it A and B and no other parameters?  Stacks of experts have such adapters alone. */
D9D_API bool d9d_adapter_is_low_rank(const d9d_adapter_kind *kind);

/* The matrix of a module that an adapter can be added to: of a linear layer, of a stack of experts,
 * or the one table of an embedding or a head (`adaptable`).  NULL: none. */
D9D_API d9d_param *d9d_adapter_matrix(const d9d_module *m);
/* Is it a table, which has LoRA alone?  Ids choose rows of B, and y = x W^T is its head. */
D9D_API bool d9d_adapter_is_table(const d9d_module *m);

/* Add an adapter to that matrix; the module owns it.  EINVAL for a module without such a matrix,
 * for one that has an adapter, and for a stack with more than A and B.  ENOTSUP for
 * a table with more than these, and for factors of an output that is divided by its input and has a
 * bias. */
D9D_API D9D_MUST_USE d9d_status d9d_adapter_add(d9d_module *m, const d9d_adapter_kind *kind,
                                                const d9d_adapter_opts *opts);

/* Set the magnitudes of a matrix's adapter to the norms of its rows; nothing to do for others.
 * Collective over the ranks that have its parts. */
D9D_API D9D_MUST_USE d9d_status d9d_adapter_start(d9d_param *w, d9d_device *dev);

/* Shape of an adapter's parameter, for a matrix of this shape. */
D9D_API d9d_shape d9d_adapter_shape(d9d_param_adapter_role role, const d9d_shape *matrix,
                                    int64_t r);
/* The dimension of its own that is the matrix's dimension `dim`; -1: none.  Of stacks: the
 * experts. */
D9D_API int d9d_adapter_shared_dim(d9d_param_adapter_role role, const d9d_shape *matrix, int dim);

#ifdef __cplusplus
}
#endif
#endif /* D9D_NN_ADAPTER_H */
