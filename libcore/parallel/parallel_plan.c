/* parallel_plan.c - plans of providers, and the default plan (data parallelism).  See
 * d9d/parallel/parallel_plan.h.
 */
#include "d9d/parallel/parallel_plan.h"

#include "d9d/base/plugin_call.h"

/* --- one parameter ---------------------------------------------------------------------- */

/* A stack with fewer experts than ranks is sharded by rows of its matrices. */
static int shard_dim(const d9d_param *p, int ranks)
{
    return p->local.shape.ndim > 2 && p->local.shape.dim[0] < ranks ? 1 : 0;
}

static d9d_status param_shard(d9d_param *p, d9d_mesh *mesh, const d9d_param_sharding *sharding)
{
    d9d_comm *shard = NULL;

    if (sharding->slice_axes != 0)
        d9d_param_partition(p, sharding->slice_dim, d9d_mesh_count(mesh, sharding->slice_axes),
                            d9d_mesh_index(mesh, sharding->slice_axes));
    if (sharding->shard_axes != 0)
        D9D_TRY(d9d_mesh_group(mesh, sharding->shard_axes, &shard));
    if (shard != NULL)
        d9d_param_shard(p, shard, shard_dim(p, d9d_comm_size(shard)), d9d_comm_size(shard),
                        d9d_comm_rank(shard));
    if (sharding->grad_axes != 0)
        D9D_TRY(d9d_mesh_group(mesh, sharding->grad_axes, &p->placement.grad_group));
    p->placement.is_primary = sharding->grad_axes == 0 || d9d_mesh_index(mesh, sharding->grad_axes) == 0;
    return D9D_OK;
}

/* A factor of an adapter; dimension `dim` of it is a dimension of the matrix: 0 for B, 1 for A. */
static d9d_status factor_shard(d9d_param *p, int dim, d9d_mesh *mesh,
                               const d9d_param_sharding *sharding)
{
    const d9d_param_sharding whole = {.shard_axes = sharding->shard_axes,
                                      .grad_axes = sharding->grad_axes | sharding->slice_axes};
    const bool has = p->spec.shape.ndim == 3 || sharding->slice_dim == dim;

    return param_shard(p, mesh, sharding->slice_axes == 0 || has ? sharding : &whole);
}

d9d_status d9d_param_sharding_apply(d9d_param *p, d9d_mesh *mesh,
                                    const d9d_param_sharding *sharding)
{
    if (p->lora.adapts != NULL)
        return D9D_OK;
    D9D_TRY(param_shard(p, mesh, sharding));
    if (p->lora.adapter == NULL)
        return D9D_OK;
    D9D_TRY(factor_shard(p->lora.adapter->a, 1, mesh, sharding));
    return factor_shard(p->lora.adapter->b, 0, mesh, sharding);
}

/* --- default plan -------------------------------------------------------------------------- */

d9d_status d9d_parallel_plan_check_dp(const char *name, bool stages, const d9d_parallel_degrees *d)
{
    const struct {
        const char *name;
        int64_t degree;
    } refused[] = {
        {"pipeline_parallel", stages ? 1 : d->pipeline_parallel},
        {"context_parallel_replicate", d->context_parallel_replicate},
        {"context_parallel_shard", d->context_parallel_shard},
        {"tensor_parallel", d->tensor_parallel},
        {"expert_parallel", d->expert_parallel},
    };

    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        if (refused[i].degree > 1)
            return D9D_FAIL(D9D_ECONFIG,
                            "mesh.%s is %lld, and %s has no plan for it: 1 is possible",
                            refused[i].name, (long long)refused[i].degree, name);
    return D9D_OK;
}

static d9d_status param_shard_dp(void *mesh, d9d_param *p)
{
    static const d9d_param_sharding shared = {0, 0, D9D_AXES_SHARD, D9D_AXES_REPLICATE};

    return d9d_param_sharding_apply(p, mesh, &shared);
}

d9d_status d9d_parallel_plan_apply_dp(d9d_mesh *mesh, d9d_model *m)
{
    return d9d_module_each(m->module, param_shard_dp, mesh);
}

/* --- choice of the plan ----------------------------------------------------------------------- */

d9d_status d9d_parallel_plan_check(const d9d_model_spec *m, const d9d_parallel_degrees *d)
{
    const d9d_model_provider *p = m->provider;

    return p->check != NULL ? D9D_PLUGIN_CALL(p->table->name, p, check, m->config, d)
                            : d9d_parallel_plan_check_dp(p->table->name, p->stages, d);
}

d9d_status d9d_parallel_plan_apply(const d9d_model_spec *m, d9d_mesh *mesh, d9d_model *model)
{
    const d9d_model_provider *p = m->provider;

    return p->place != NULL ? D9D_PLUGIN_CALL(p->table->name, p, place, m->config, mesh, model)
                            : d9d_parallel_plan_apply_dp(mesh, model);
}
