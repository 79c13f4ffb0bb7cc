/* qwen3_plan.c - Qwen3 over a mesh.  See d9d/parallel/plan.h. */
#include <string.h>

#include "d9d/parallel/plan.h"

/* --- what is refused ------------------------------------------------------------------ */

d9d_status d9d_qwen3_plan_check(const d9d_qwen3_config *c, const d9d_degrees *d)
{
    const struct {
        const char *name;
        int64_t degree;
    } alone[] = {
        {"pipeline_parallel", d->pipeline_parallel},
        {"tensor_parallel", d->tensor_parallel},
        {"expert_parallel", d->expert_parallel},
    };

    (void)c;
    for (size_t i = 0; i < sizeof(alone) / sizeof(alone[0]); i++)
        if (alone[i].degree > 1)
            return D9D_FAIL(D9D_ENOTSUP, "mesh.%s is %lld; this version computes with 1",
                            alone[i].name, (long long)alone[i].degree);
    return D9D_OK;
}

/* --- how parameters lie --------------------------------------------------------------- */

/* A kind of parameter: cut into what is computed with, shared out, summed over. */
typedef struct kind {
    unsigned cut; /* axes over which `work` is cut, along dimension cut_dim; 0: none */
    int cut_dim;
    unsigned shard, sum;
} kind;

#define REPLICAS D9D_AXES_REPLICATE
static const kind dense = {0, 0, D9D_AXES_SHARD, REPLICAS | D9D_AXIS(TP)};
static const kind experts_shared = {D9D_AXES_EXPERT, 0, D9D_AXES_EXPERT_REPLICATE, 0};
static const kind experts_summed = {D9D_AXES_EXPERT, 0, 0, D9D_AXES_EXPERT_REPLICATE};

/* Parameters whose name has this part; the first row that fits counts. */
static const struct rule {
    const char *part;
    const kind *when_sharded, *otherwise; /* over dp_shard and cp_shard */
} rules[] = {
    {".grouped_experts.", &experts_shared, &experts_summed},
    {"", &dense, &dense},
};

static const kind *kind_of(const d9d_param *p, bool sharded)
{
    const struct rule *r = rules;

    while (strstr(p->name, r->part) == NULL)
        r++;
    return sharded ? r->when_sharded : r->otherwise;
}

/* A stack of few experts is shared out by rows of its matrices. */
static int shard_dim(const d9d_param *p, int ranks)
{
    return p->work.ndim > 2 && p->work.dim[0] < ranks ? 1 : 0;
}

static d9d_status place(void *arg, d9d_param *p)
{
    d9d_mesh *m = arg;
    const kind *k = kind_of(p, d9d_mesh_count(m, D9D_AXES_SHARD) > 1);
    d9d_comm *shard = NULL;

    if (k->cut != 0)
        d9d_param_cut(p, k->cut_dim, d9d_mesh_count(m, k->cut), d9d_mesh_index(m, k->cut));
    if (k->shard != 0)
        D9D_TRY(d9d_mesh_group(m, k->shard, &shard));
    if (shard != NULL)
        d9d_param_shard(p, shard, shard_dim(p, d9d_comm_size(shard)), d9d_comm_size(shard),
                        d9d_comm_rank(shard));
    if (k->sum != 0)
        D9D_TRY(d9d_mesh_group(m, k->sum, &p->sum));
    p->counts = k->sum == 0 || d9d_mesh_index(m, k->sum) == 0;
    return D9D_OK;
}

d9d_status d9d_qwen3_plan(const d9d_qwen3_config *c, d9d_mesh *mesh, d9d_model *m)
{
    D9D_TRY(d9d_qwen3_plan_check(c, d9d_mesh_degrees(mesh)));
    D9D_TRY(d9d_mesh_group(mesh, D9D_AXES_CP, &m->cut.cp));
    return d9d_module_each(m->module, place, mesh);
}
