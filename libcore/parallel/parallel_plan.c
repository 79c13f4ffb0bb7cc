/* parallel_plan.c - plans of providers, and the default plan (data parallelism).  See
 * d9d/parallel/parallel_plan.h.
 */
#include "d9d/parallel/parallel_plan.h"

#include <string.h>

#include "d9d/base/plugin_call.h"
#include "d9d/nn/adapter.h"

/* --- one parameter ---------------------------------------------------------------------- */

/* Shards are padded to the largest.  The first dimension is divided, unless the largest shard along
 * another one is below 4/5 of it: few experts in a stack, few rows of a router or of keys.  Rows
 * are divided as d9d_param_split() does it.  Of a quantised matrix rows are divided. */
static int shard_dim(const d9d_param *p, int64_t ranks)
{
    const d9d_shape *shape = &p->local.shape;
    const int64_t numel = d9d_shape_numel(shape);
    int64_t least = INT64_MAX / 5;
    int best = 0;

    for (int d = 0; d < (p->spec.stored == D9D_QUANT_NONE ? shape->ndim : 1); d++) {
        const int64_t extent = shape->dim[d];
        int64_t first, largest;

        d9d_param_split(shape, d, ranks, 0, &first, &largest);
        largest *= numel / (extent > 0 ? extent : 1);
        if (largest * 5 < least * 4) {
            least = largest;
            best = d;
        }
    }
    return best;
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
    p->placement.is_primary =
        sharding->grad_axes == 0 || d9d_mesh_index(mesh, sharding->grad_axes) == 0;
    return D9D_OK;
}

/* Ranks that divide the inputs of a matrix divide no block of its adapter's. */
static d9d_status blocks_check(const d9d_param *w, int64_t ranks)
{
    const d9d_param_adapter *a = w->peft.adapter;

    for (int i = 0; i < D9D_ADAPTER_PARAMS && a != NULL && a->forward != NULL; i++)
        for (int k = 0; k < 2 && a->param[i] != NULL; k++)
            if (a->kind->params[i].dim[k] == D9D_ADAPTER_IN_BLOCKS &&
                a->param[i]->spec.shape.dim[k] % ranks != 0)
                return D9D_FAIL(D9D_ECONFIG,
                                "mesh.tensor_parallel %lld does not divide %lld blocks of %lld "
                                "inputs, which %s of %s has",
                                (long long)ranks, (long long)a->param[i]->spec.shape.dim[k],
                                (long long)a->r, a->name, w->name);
    return D9D_OK;
}

/* A parameter that matrices share: the part that tensor parallelism leaves, on every rank, since
 * the unit that FSDP gathers it in would be the first matrix's.  It is placed with that one. */
static d9d_status shared_place(const d9d_param *w, int i, const d9d_mesh *mesh,
                               const d9d_param_sharding *sharding, int dim)
{
    const unsigned replicated =
        sharding->shard_axes | sharding->grad_axes | (dim < 0 ? sharding->slice_axes : 0);
    d9d_param *p = w->peft.adapter->param[i],
              here = {.spec = p->spec, .local = {.shape = p->spec.shape}};

    if (dim >= 0 && sharding->slice_axes != 0)
        d9d_param_partition(&here, dim, d9d_mesh_count(mesh, sharding->slice_axes),
                            d9d_mesh_index(mesh, sharding->slice_axes));
    if (p->peft.adapts == w) {
        p->local.shape = p->shard.shape = here.local.shape;
        memcpy(p->local.offset, here.local.offset, sizeof(p->local.offset));
        memcpy(p->shard.offset, here.local.offset, sizeof(p->shard.offset));
        p->placement.is_primary = p->placement.is_primary && d9d_mesh_index(mesh, replicated) == 0;
    }
    if (d9d_shape_equal(&p->local.shape, &here.local.shape) &&
        memcmp(p->local.offset, here.local.offset, sizeof(p->local.offset)) == 0)
        return D9D_OK;
    return D9D_FAIL(D9D_ENOTSUP, "%s: shares %s, and the model's plan divides the two differently",
                    w->name, p->name);
}

/* A parameter of an adapter: divided with its matrix if it has that dimension. */
static d9d_status adapter_shard(const d9d_param *w, int i, d9d_mesh *mesh,
                                const d9d_param_sharding *sharding)
{
    const d9d_param_adapter *a = w->peft.adapter;
    const int dim = d9d_adapter_shared_dim(a->kind, i, &w->spec.shape, sharding->slice_dim);
    d9d_param_sharding own = *sharding;

    if (d9d_adapter_is_shared(w, i))
        return shared_place(w, i, mesh, sharding, dim);
    own.slice_dim = dim;
    if (dim < 0) {
        own.slice_dim = 0;
        own.slice_axes = 0;
        own.grad_axes |= sharding->slice_axes;
    }
    return param_shard(a->param[i], mesh, &own);
}

d9d_status d9d_param_sharding_apply(d9d_param *p, d9d_mesh *mesh,
                                    const d9d_param_sharding *sharding)
{
    if (p->peft.adapts != NULL)
        return D9D_OK;
    D9D_TRY(param_shard(p, mesh, sharding));
    if (p->peft.adapter == NULL)
        return D9D_OK;
    if (sharding->slice_axes != 0)
        D9D_TRY(d9d_mesh_group(mesh, sharding->slice_axes, &p->placement.slice_group));
    if (sharding->slice_axes != 0 && sharding->slice_dim == 1)
        D9D_TRY(blocks_check(p, d9d_mesh_count(mesh, sharding->slice_axes)));
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++)
        if (p->peft.adapter->param[i] != NULL)
            D9D_TRY(adapter_shard(p, i, mesh, sharding));
    return D9D_OK;
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

/* --- plan of a model of blocks ---------------------------------------------------------------- */

/* Degrees to check, and what was found of the model. */
typedef struct style_check {
    const d9d_parallel_degrees *degrees;
    bool has_experts;
} style_check;

static d9d_status tensor_parallel_check(const d9d_param_parallel *p, int64_t tp)
{
    if (p->units == 0 || p->units % tp == 0 || (p->shared && tp % p->units == 0))
        return D9D_OK;
    if (!p->shared)
        return D9D_FAIL(D9D_ECONFIG, "mesh.tensor_parallel %lld does not divide %s %lld",
                        (long long)tp, p->unit, (long long)p->units);
    return D9D_FAIL(D9D_ECONFIG,
                    "mesh.tensor_parallel %lld neither divides %s %lld nor is a multiple of it",
                    (long long)tp, p->unit, (long long)p->units);
}

/* By all-to-all, context parallelism divides the heads of each tensor-parallel rank again. */
static d9d_status cp_heads_check(const d9d_param_parallel *p, const d9d_parallel_degrees *d)
{
    const int64_t of_method[D9D_N_CP_METHODS] = {
        [D9D_CP_ALL_GATHER] = 1,
        [D9D_CP_ALL_TO_ALL] = d->context_parallel_shard * d->context_parallel_replicate,
        [D9D_CP_HYBRID] = d->context_parallel_replicate,
        [D9D_CP_RING] = 1,
        [D9D_CP_HYBRID_RING] = d->context_parallel_replicate};
    const int64_t cp = of_method[d->context_parallel_method], ranks = cp * d->tensor_parallel;

    if (cp == 1 || !p->heads || p->units % ranks == 0 || (p->shared && ranks % p->units == 0))
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "mesh.context_parallel_method \"%s\": %lld ranks of context parallelism x "
                    "tensor_parallel %lld %s %s %lld%s",
                    d9d_cp_method_name((d9d_cp_method)d->context_parallel_method), (long long)cp,
                    (long long)d->tensor_parallel, p->shared ? "neither divide" : "do not divide",
                    p->unit, (long long)p->units, p->shared ? " nor are a multiple of it" : "");
}

static d9d_status param_check(void *arg, d9d_param *p)
{
    style_check *c = arg;
    const int64_t ep = c->degrees->expert_parallel;

    if (p->spec.parallel.style != D9D_EXPERT_PARALLEL) {
        D9D_TRY(tensor_parallel_check(&p->spec.parallel, c->degrees->tensor_parallel));
        return cp_heads_check(&p->spec.parallel, c->degrees);
    }
    c->has_experts = true;
    if (p->spec.parallel.units % ep != 0)
        return D9D_FAIL(D9D_ECONFIG, "mesh.expert_parallel %lld does not divide %s %lld",
                        (long long)ep, p->spec.parallel.unit, (long long)p->spec.parallel.units);
    return D9D_OK;
}

d9d_status d9d_parallel_plan_check_blocks(const d9d_model *m, const d9d_parallel_degrees *d)
{
    style_check c = {.degrees = d};

    D9D_TRY(d9d_module_each(m->module, param_check, &c));
    if (d->expert_parallel > 1 && !c.has_experts)
        return D9D_FAIL(D9D_ECONFIG, "mesh.expert_parallel is %lld, but the model has no experts",
                        (long long)d->expert_parallel);
    if (m->whole_sequences && d->context_parallel_replicate * d->context_parallel_shard > 1)
        return D9D_FAIL(D9D_ECONFIG,
                        "mesh.context_parallel_replicate and mesh.context_parallel_shard are %lld "
                        "and %lld, but %s has recurrent layers, which need whole sequences: 1",
                        (long long)d->context_parallel_replicate,
                        (long long)d->context_parallel_shard, m->ops->name);
    return D9D_OK;
}

d9d_status d9d_parallel_plan_check_adapters(const d9d_params *params, const d9d_parallel_degrees *d)
{
    for (size_t i = 0; i < params->n; i++)
        if (params->p[i]->spec.parallel.style == D9D_ROWWISE)
            D9D_TRY(blocks_check(params->p[i], d->tensor_parallel));
    return D9D_OK;
}

/* Ranks that have the same experts: of one replica, or of any. */
#define EXPERT_COLUMN (D9D_AXES_EXPERT_SHARD | D9D_AXES_EXPERT_REPLICATE)

/* Experts are replicated over the ranks that have the same ones, unless the mesh shards. */
static d9d_param_sharding experts_sharding(const d9d_mesh *mesh)
{
    return d9d_mesh_count(mesh, D9D_AXES_SHARD) > 1
               ? (d9d_param_sharding){D9D_AXES_EXPERT, 0, D9D_AXES_EXPERT_SHARD,
                                      D9D_AXES_EXPERT_REPLICATE}
               : (d9d_param_sharding){D9D_AXES_EXPERT, 0, 0, EXPERT_COLUMN};
}

static d9d_status param_shard_by_style(void *arg, d9d_param *p)
{
    static const d9d_param_sharding styles[] = {
        [D9D_REPLICATED] = {0, 0, D9D_AXES_SHARD, D9D_AXES_REPLICATE | D9D_AXIS(TP)},
        [D9D_COLWISE] = {D9D_AXIS(TP), 0, D9D_AXES_SHARD, D9D_AXES_REPLICATE},
        [D9D_ROWWISE] = {D9D_AXIS(TP), 1, D9D_AXES_SHARD, D9D_AXES_REPLICATE},
    };
    const d9d_param_parallel *of = &p->spec.parallel;
    d9d_mesh *mesh = arg;
    const d9d_param_sharding experts = experts_sharding(mesh);
    const bool few = of->shared && d9d_mesh_count(mesh, D9D_AXIS(TP)) > of->units;

    return d9d_param_sharding_apply(p, mesh,
                                    of->style == D9D_EXPERT_PARALLEL ? &experts
                                    : few                            ? &styles[D9D_REPLICATED]
                                                                     : &styles[of->style]);
}

/* Create all groups, on every rank in one order, whatever parameters its stages have. */
static d9d_status groups_create(d9d_mesh *mesh, bool has_experts, d9d_groups *out)
{
    static const unsigned sets[] = {D9D_AXES_SHARD, D9D_AXES_REPLICATE,
                                    D9D_AXES_REPLICATE | D9D_AXIS(TP)};
    static const struct {
        unsigned heads, keys;
        bool ring;
    } cp_axes[D9D_N_CP_METHODS] = {
        [D9D_CP_ALL_GATHER] = {0, D9D_AXES_CP, false},
        [D9D_CP_ALL_TO_ALL] = {D9D_AXES_CP, 0, false},
        [D9D_CP_HYBRID] = {D9D_AXIS(CP_REPLICATE), D9D_AXIS(CP_SHARD), false},
        [D9D_CP_RING] = {0, D9D_AXES_CP, true},
        [D9D_CP_HYBRID_RING] = {D9D_AXIS(CP_REPLICATE), D9D_AXIS(CP_SHARD), true},
    };
    const int method = d9d_mesh_degrees(mesh)->context_parallel_method;
    const d9d_param_sharding experts = experts_sharding(mesh);
    d9d_comm *made;

    D9D_TRY(d9d_mesh_group(mesh, D9D_AXIS(TP), &out->tp));
    D9D_TRY(d9d_mesh_group(mesh, D9D_AXES_CP, &out->cp));
    D9D_TRY(d9d_mesh_group(mesh, cp_axes[method].heads, &out->cp_heads));
    D9D_TRY(d9d_mesh_group(mesh, cp_axes[method].keys, &out->cp_keys));
    out->cp_ring = cp_axes[method].ring;
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++)
        D9D_TRY(d9d_mesh_group(mesh, sets[i], &made));
    if (!has_experts)
        return D9D_OK;
    D9D_TRY(d9d_mesh_group(mesh, D9D_AXES_EXPERT_ACROSS, &out->ep));
    D9D_TRY(d9d_mesh_group(mesh, D9D_AXES_EXPERT_LOCAL, &out->ep_local));
    if (experts.shard_axes != 0)
        D9D_TRY(d9d_mesh_group(mesh, experts.shard_axes, &made));
    return d9d_mesh_group(mesh, experts.grad_axes, &made);
}

d9d_status d9d_parallel_plan_apply_blocks(d9d_mesh *mesh, d9d_model *m)
{
    D9D_TRY(groups_create(mesh, m->has_experts, &m->groups));
    return d9d_module_each(m->module, param_shard_by_style, mesh);
}

/* Check the structure of the whole model. */
static d9d_status check_blocks(const d9d_model_spec *m, const d9d_parallel_degrees *d)
{
    const d9d_model_provider *p = m->provider;
    d9d_model *whole;
    d9d_status st;

    D9D_TRY(
        D9D_PLUGIN_CALL(p->table->name, p, create, m->config, D9D_WHOLE_MODEL, &m->opts, &whole));
    st = d9d_parallel_plan_check_blocks(whole, d);
    d9d_model_free(whole);
    return st;
}

/* --- choice of the plan ----------------------------------------------------------------------- */

d9d_status d9d_parallel_plan_check(const d9d_model_spec *m, const d9d_parallel_degrees *d)
{
    const d9d_model_provider *p = m->provider;

    if (p->check != NULL)
        return D9D_PLUGIN_CALL(p->table->name, p, check, m->config, d);
    return p->blocks ? check_blocks(m, d)
                     : d9d_parallel_plan_check_dp(p->table->name, p->stages, d);
}

d9d_status d9d_parallel_plan_apply(const d9d_model_spec *m, d9d_mesh *mesh, d9d_model *model)
{
    const d9d_model_provider *p = m->provider;

    if (p->place != NULL)
        return D9D_PLUGIN_CALL(p->table->name, p, place, m->config, mesh, model);
    return p->blocks ? d9d_parallel_plan_apply_blocks(mesh, model)
                     : d9d_parallel_plan_apply_dp(mesh, model);
}
