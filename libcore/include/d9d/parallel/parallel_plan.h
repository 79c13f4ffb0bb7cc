/* parallel_plan.h - a model over a mesh: which part of each parameter a rank computes with, which
 * shard it stores, and over which ranks gradients are summed.
 *
 *     D9D_TRY(d9d_parallel_plan_check(&spec, &degrees));     // before any memory is allocated
 *     ...
 *     D9D_TRY(d9d_module_bind(model->module));
 *     D9D_TRY(d9d_parallel_plan_apply(&spec, mesh, model));
 *     D9D_TRY(d9d_fsdp_create(model, ...));            // d9d/parallel/fsdp.h
 *     D9D_TRY(d9d_module_materialise(model->module, dev, true));
 *
 * A plan depends on mesh and configuration only.  It places every parameter (d9d/tape/param.h) and
 * fills model->groups, which blocks read (d9d/nn/parallel_groups.h).  With one rank it changes
 * nothing.
 *
 *     parameter         computes with         sharded over           gradient summed over
 *     dense             all of it             dp_shard, cp_shard     the other dp and cp ranks, tp
 *     divided by tp     1/tp                  the same               the other dp and cp ranks
 *     k v, tp > K       all of it, one head   the same               the other dp and cp ranks, tp
 *     experts           E/ep of them          the ranks of a replica      the other replicas' ranks
 *                                             that hold the same          with the same experts
 */
#ifndef D9D_PARALLEL_PARALLEL_PLAN_H
#define D9D_PARALLEL_PARALLEL_PLAN_H

#include "d9d/comm/mesh.h"
#include "d9d/model/provider.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Can this model be divided so, by its provider's plan?  ECONFIG with both numbers; ENOTSUP for
 * what is not implemented. */
D9D_API D9D_MUST_USE d9d_status d9d_parallel_plan_check(const d9d_model_spec *m,
                                                        const d9d_parallel_degrees *d);
/* Place the parameters.  Call once, on a bound model without memory.  Collective: over the world.
 */
D9D_API D9D_MUST_USE d9d_status d9d_parallel_plan_apply(const d9d_model_spec *m, d9d_mesh *mesh,
                                                        d9d_model *model);

/* --- the default plan of any model: data parallelism, replicated and sharded ---------- */

/* ECONFIG for other degrees.  Pipelines are allowed if the provider's `stages` is set. */
D9D_API D9D_MUST_USE d9d_status d9d_parallel_plan_check_dp(const char *name, bool stages,
                                                           const d9d_parallel_degrees *d);
D9D_API D9D_MUST_USE d9d_status d9d_parallel_plan_apply_dp(d9d_mesh *mesh, d9d_model *m);

/* --- the plan of a model of blocks: every axis of a mesh ------------------------------ *
 *
 * Each parameter has the style that its block declared (d9d_param_parallel). */

/* Can this mesh divide the parameters of the whole model?  `m` needs no memory.  ECONFIG names the
 * degree and what it does not divide. */
D9D_API D9D_MUST_USE d9d_status d9d_parallel_plan_check_blocks(const d9d_model *m,
                                                               const d9d_parallel_degrees *d);
/* Can it divide the adapters of these parameters, whose blocks of inputs it must not cut? */
D9D_API D9D_MUST_USE d9d_status d9d_parallel_plan_check_adapters(const d9d_params *params,
                                                                 const d9d_parallel_degrees *d);
/* Place a stage's parameters and fill its groups.  Collective: over the world, in which all ranks
 * create the same groups, whatever their stages have. */
D9D_API D9D_MUST_USE d9d_status d9d_parallel_plan_apply_blocks(d9d_mesh *mesh, d9d_model *m);

/* --- building blocks of plans --------------------------------------------------------- */

/* Placement of one parameter, by sets of mesh axes.  The rank computes with slice (this rank among
 * slice_axes) along slice_dim; slice_axes 0: all of it.  That slice is sharded over shard_axes, and
 * its gradient is summed over grad_axes. */
typedef struct d9d_param_sharding {
    unsigned slice_axes;
    int slice_dim;
    unsigned shard_axes, grad_axes;
} d9d_param_sharding;
/* Place a parameter, and with a matrix its adapter; a call for an adapter's parameter itself does
 * nothing.  A part of it is divided with the matrix if it has the divided dimension: B [out, r] the
 * output, A [r, in] the input, both the experts of a stack.  Otherwise it is replicated, and each
 * rank of slice_axes has a partial gradient.  What matrices share is not sharded; ENOTSUP where
 * they are divided in different ways.  Collective: over the world, as d9d_mesh_group(). */
D9D_API D9D_MUST_USE d9d_status d9d_param_sharding_apply(d9d_param *p, d9d_mesh *mesh,
                                                         const d9d_param_sharding *sharding);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PARALLEL_PARALLEL_PLAN_H */
