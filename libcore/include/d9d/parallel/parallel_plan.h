/* parallel_plan.h - a model over a mesh: which rank computes with what, keeps what, and sums with
 * whom.
 *
 *     D9D_TRY(d9d_parallel_plan_check(&spec, &degrees));     // before anything is spent
 *     ...
 *     D9D_TRY(d9d_module_bind(model->module));
 *     D9D_TRY(d9d_parallel_plan_apply(&spec, mesh, model));
 *     D9D_TRY(d9d_fsdp_create(model, ...));            // d9d/parallel/fsdp.h
 *     D9D_TRY(d9d_module_materialise(model->module, dev, true));
 *
 * A plan is decided by mesh and configuration alone.  It places every parameter (d9d/tape/param.h)
 * and fills model->cut, which blocks read (d9d/nn/parallel_groups.h).  In a world of one it changes
 * nothing.
 *
 *     what            computes with         kept by parts over      summed over
 *     dense           all of it             dp_shard, cp_shard      the other dp and cp ranks, tp
 *     cut by tp       1/tp                  the same                the other dp and cp ranks
 *     k v, tp > K     all of it, one head   the same                the other dp and cp ranks, tp
 *     experts         E/ep of them          all that hold the same, or summed over them where
 *                                           nothing is sharded
 */
#ifndef D9D_PARALLEL_PARALLEL_PLAN_H
#define D9D_PARALLEL_PARALLEL_PLAN_H

#include "d9d/comm/mesh.h"
#include "d9d/model/provider.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The plan of a model's provider: can the model be cut so?  ECONFIG with both numbers, ENOTSUP for
 * what is not built. */
D9D_API D9D_MUST_USE d9d_status d9d_parallel_plan_check(const d9d_model_spec *m,
                                                        const d9d_parallel_degrees *d);
/* Collective: over the world.  Once, on a bound model without memory. */
D9D_API D9D_MUST_USE d9d_status d9d_parallel_plan_apply(const d9d_model_spec *m, d9d_mesh *mesh,
                                                        d9d_model *model);

/* --- the plan of any model: data parallelism, replicated and sharded ------------------ */

/* ECONFIG for other degrees, that of pipelines excepted where the model is made by `stages`. */
D9D_API D9D_MUST_USE d9d_status d9d_parallel_plan_check_dp(const char *name, bool stages,
                                                           const d9d_parallel_degrees *d);
D9D_API D9D_MUST_USE d9d_status d9d_parallel_plan_apply_dp(d9d_mesh *mesh, d9d_model *m);

/* --- what plans are made of ----------------------------------------------------------- */

/* How a parameter lies: `work` is part (this rank among `cut`) along cut_dim, 0 for all of it; it
 * is kept by parts over `shard`, and its gradient summed over `sum`.  Sets of axes. */
typedef struct d9d_param_sharding {
    unsigned slice_axes;
    int slice_dim;
    unsigned shard_axes, grad_axes;
} d9d_param_sharding;
/* Places a parameter, and with a matrix its adapter, whose factors are passed over by themselves.
 * A factor is cut with the matrix where it has the dimension along which that is: B [out, r] the
 * output, A [r, in] the input, of a stack both the experts.  Else it is whole, and each rank of
 * `cut` has a part of its gradient.  Collective: over the world, as d9d_mesh_group(). */
D9D_API D9D_MUST_USE d9d_status d9d_param_sharding_apply(d9d_param *p, d9d_mesh *mesh,
                                                         const d9d_param_sharding *how);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PARALLEL_PARALLEL_PLAN_H */
