/* qwen3_plan.c - Qwen3's parallel plan: tensor, context, expert and data parallelism.  See
 * d9d/models/qwen3/qwen3.h.
 */
#include <string.h>

#include "d9d/models/qwen3/qwen3.h"

/* --- checks --------------------------------------------------------------------------- */

/* tp must divide the key-value heads or be a multiple of them; then each rank that shares a head
 * computes it.  Columns of an FFN and rows of a vocabulary need not be divisible. */
static d9d_status check_heads(const d9d_qwen3_config *c, int64_t tp)
{
    if (c->heads % tp != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "mesh.tensor_parallel %lld does not divide num_attention_heads %lld",
                        (long long)tp, (long long)c->heads);
    if (c->kv_heads % tp != 0 && tp % c->kv_heads != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "mesh.tensor_parallel %lld neither divides num_key_value_heads %lld nor is "
                        "a multiple of it",
                        (long long)tp, (long long)c->kv_heads);
    return D9D_OK;
}

static d9d_status check_experts(const d9d_qwen3_config *c, int64_t ep)
{
    if (ep > 1 && c->experts == 0)
        return D9D_FAIL(D9D_ECONFIG, "mesh.expert_parallel is %lld, but the model has no experts",
                        (long long)ep);
    if (c->experts % ep != 0)
        return D9D_FAIL(D9D_ECONFIG, "mesh.expert_parallel %lld does not divide num_experts %lld",
                        (long long)ep, (long long)c->experts);
    return D9D_OK;
}

d9d_status d9d_qwen3_plan_check(const d9d_qwen3_config *c, const d9d_parallel_degrees *d)
{
    D9D_TRY(check_heads(c, d->tensor_parallel));
    D9D_TRY(check_experts(c, d->expert_parallel));
    return D9D_OK;
}

/* --- placement ------------------------------------------------------------------------ */

#define REPLICATE_AXES D9D_AXES_REPLICATE
static const d9d_param_sharding replicated = {0, 0, D9D_AXES_SHARD, REPLICATE_AXES | D9D_AXIS(TP)};
static const d9d_param_sharding column_parallel = {D9D_AXIS(TP), 0, D9D_AXES_SHARD,
                                                   REPLICATE_AXES}; /* columns: along the output */
static const d9d_param_sharding row_parallel = {D9D_AXIS(TP), 1, D9D_AXES_SHARD,
                                                REPLICATE_AXES}; /* rows: along the input */
static const d9d_param_sharding experts_sharded = {D9D_AXES_EXPERT, 0, D9D_AXES_EXPERT_REPLICATE,
                                                   0};
static const d9d_param_sharding experts_replicated = {D9D_AXES_EXPERT, 0, 0,
                                                      D9D_AXES_EXPERT_REPLICATE};

/* A model's configuration and its mesh. */
typedef struct plan_context {
    const d9d_qwen3_config *config;
    d9d_mesh *mesh;
} plan_context;

static bool is_sharded(const plan_context *s)
{
    return d9d_mesh_count(s->mesh, D9D_AXES_SHARD) > 1;
}
static bool heads_are_few(const plan_context *s)
{
    return d9d_mesh_count(s->mesh, D9D_AXIS(TP)) > s->config->kv_heads;
}

/* Placement of parameters by a part of their name; the first row that matches and whose condition
 * holds counts.  Few key-value heads are replicated on the tp ranks, and each computes the one that
 * it needs. */
static const struct sharding_rule {
    const char *part;
    const d9d_param_sharding *sharding;
    bool (*when)(const plan_context *s); /* NULL: always */
} sharding_rules[] = {
    {".grouped_experts.", &experts_sharded, is_sharded},
    {".grouped_experts.", &experts_replicated, NULL},
    {".shared_expert.", &replicated, NULL},
    {".k_proj.", &replicated, heads_are_few},
    {".v_proj.", &replicated, heads_are_few},
    {".o_proj.", &row_parallel, NULL},
    {".down_proj.", &row_parallel, NULL},
    {"_proj.", &column_parallel, NULL},
    {"embed_tokens.", &column_parallel, NULL},
    {"lm_head.", &column_parallel, NULL},
    {"", &replicated, NULL},
};

static const d9d_param_sharding *sharding_of(const d9d_param *p, const plan_context *s)
{
    const struct sharding_rule *r = sharding_rules;

    while (strstr(p->name, r->part) == NULL || (r->when != NULL && !r->when(s)))
        r++;
    return r->sharding;
}

static d9d_status param_shard(void *arg, d9d_param *p)
{
    const plan_context *s = arg;

    return d9d_param_sharding_apply(p, s->mesh, sharding_of(p, s));
}

/* Create all groups, on every rank in one order, whatever parameters its stages have. */
static d9d_status groups_create(const d9d_qwen3_config *c, d9d_mesh *mesh)
{
    static const unsigned sets[] = {D9D_AXIS(TP),
                                    D9D_AXES_CP,
                                    D9D_AXES_SHARD,
                                    D9D_AXES_REPLICATE,
                                    D9D_AXES_REPLICATE | D9D_AXIS(TP),
                                    D9D_AXES_EXPERT,
                                    D9D_AXES_EXPERT_REPLICATE};
    const size_t n = sizeof(sets) / sizeof(sets[0]) - (c->experts > 0 ? 0 : 2);
    d9d_comm *made;

    for (size_t i = 0; i < n; i++)
        D9D_TRY(d9d_mesh_group(mesh, sets[i], &made));
    return D9D_OK;
}

d9d_status d9d_qwen3_plan(const d9d_qwen3_config *c, d9d_mesh *mesh, d9d_model *m)
{
    plan_context s = {c, mesh};

    D9D_TRY(d9d_qwen3_plan_check(c, d9d_mesh_degrees(mesh)));
    D9D_TRY(groups_create(c, mesh));
    D9D_TRY(d9d_mesh_group(mesh, D9D_AXIS(TP), &m->groups.tp));
    D9D_TRY(d9d_mesh_group(mesh, D9D_AXES_CP, &m->groups.cp));
    D9D_TRY(d9d_mesh_group(mesh, D9D_AXES_EXPERT, &m->groups.ep));
    return d9d_module_each(m->module, param_shard, &s);
}
