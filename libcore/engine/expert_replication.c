/* expert_replication.c - see engine/expert_replication.h. */
#include "engine/expert_replication.h"

#include <math.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/device/readback.h"

#define KEY "trainer.expert_replication"

typedef d9d_job_expert_replication_section section;

/* --- what it needs ------------------------------------------------------------------------- */

static d9d_status check_matrix(const d9d_param *p)
{
    if (p->peft.adapter != NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        KEY ": %s has an adapter, and copies of experts have none; leave peft or "
                            "the key out",
                        p->name);
    if (p->spec.stored != D9D_QUANT_NONE)
        return D9D_FAIL(D9D_ECONFIG, KEY ": %s is stored in %s, and copies of experts are not",
                        p->name, d9d_quant_name(p->spec.stored));
    return D9D_OK;
}

static d9d_status check_layer(const section *s, const d9d_parallel_degrees *mesh,
                              const d9d_block_moe *b)
{
    const int64_t per = b->shape.experts / mesh->expert_parallel;

    if (b->shape.router.capacity != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        KEY ": model_provider.router.capacity_factor %.9g bounds the load of "
                            "experts already; only one of the two is possible",
                        b->shape.router.capacity);
    if (s->slots > per)
        return D9D_FAIL(D9D_ECONFIG,
                        KEY ".slots %lld: a rank of mesh.expert_parallel %lld has %lld of %lld "
                            "experts, and at most as many copies are possible",
                        (long long)s->slots, (long long)mesh->expert_parallel, (long long)per,
                        (long long)b->shape.experts);
    D9D_TRY(check_matrix(&b->gate_proj.weight));
    D9D_TRY(check_matrix(&b->up_proj.weight));
    return check_matrix(&b->down_proj.weight);
}

d9d_status d9di_expert_replication_check(const section *s, const d9d_parallel_degrees *mesh,
                                         const d9d_job_fp8_section *fp8, const d9d_model *m)
{
    if (s == NULL)
        return D9D_OK;
    if (fp8 != NULL && fp8->experts)
        return D9D_FAIL(D9D_ECONFIG,
                        KEY ": trainer.fp8.experts true: copies of experts are multiplied in the "
                            "model's dtype alone");
    if (m->n_mixtures == 0)
        return D9D_FAIL(D9D_ECONFIG, KEY ": %s has no experts", m->ops->name);
    if (mesh->expert_parallel == 1)
        return D9D_FAIL(D9D_ECONFIG,
                        KEY ": mesh.expert_parallel is 1, so every rank has all experts; copies "
                            "need at least 2");
    for (size_t i = 0; i < m->n_mixtures; i++)
        D9D_TRY(check_layer(s, mesh, m->mixtures[i]));
    return D9D_OK;
}

d9d_expert_copies_size d9di_expert_replication_bytes(const d9di_engine *e, const section *s)
{
    d9d_expert_copies_size sum = {0, 0};

    for (size_t k = 0; s != NULL && k < e->n_stages; k++)
        for (size_t i = 0; i < e->models[k]->n_mixtures; i++) {
            const d9d_expert_copies_size one =
                d9d_expert_copies_bytes(e->models[k]->mixtures[i], s->slots);

            sum.weights += one.weights;
            sum.gradients += one.gradients;
        }
    return sum;
}

/* --- slots --------------------------------------------------------------------------------- */

static d9d_status state_alloc(d9di_expert_replication *x, d9d_arena *a)
{
    const d9d_model *m = x->engine->whole.model;
    const size_t slots = x->n * (size_t)(x->ranks * x->section->slots);
    size_t loads;

    for (size_t i = 0; i < x->n; i++)
        if (m->mixtures[i]->shape.experts > x->experts)
            x->experts = m->mixtures[i]->shape.experts;
    loads = x->n * (size_t)x->experts;
    x->last = d9d_arena_alloc(a, 2 * loads * sizeof(*x->last));
    x->placed = d9d_arena_alloc(a, 3 * slots * sizeof(*x->placed));
    if (x->last == NULL || x->placed == NULL)
        return D9D_FAIL(D9D_ENOMEM, "copies of experts: no memory for the loads of %zu layers",
                        x->n);
    x->now = x->last + loads;
    memset(x->last, 0, 2 * loads * sizeof(*x->last));
    memset(x->placed, -1, 3 * slots * sizeof(*x->placed));
    x->of_step[0] = x->placed + slots;
    x->of_step[1] = x->placed + 2 * slots;
    return D9D_OK;
}

static bool has_param(const d9d_params *of, const d9d_param *p)
{
    for (size_t i = 0; i < of->n; i++)
        if (of->p[i] == p)
            return true;
    return false;
}

/* Backward is done with a unit: the owners get the gradients of the copies of its experts. */
static d9d_status unit_done(void *arg, const d9d_params *unit)
{
    const d9di_engine *e = arg;

    for (size_t k = 0; k < e->n_stages; k++)
        for (size_t i = 0; i < e->models[k]->n_mixtures; i++)
            if (has_param(unit, &e->models[k]->mixtures[i]->gate_proj.weight))
                D9D_TRY(d9d_expert_copies_reduce(e->models[k]->mixtures[i], e->dev));
    return D9D_OK;
}

static d9d_status stage_open(const d9di_engine *e, const section *s, size_t k, d9d_comm *group)
{
    for (size_t i = 0; i < e->models[k]->n_mixtures; i++)
        D9D_TRY(d9d_expert_copies_create(e->models[k]->mixtures[i], e->dev, group, s->slots));
    d9d_fsdp_set_unit_hook(e->stages[k].sharded, unit_done, (void *)(uintptr_t)e);
    return D9D_OK;
}

d9d_status d9di_expert_replication_open(const d9di_engine *e, const section *s, d9d_arena *a,
                                        d9di_expert_replication *out)
{
    d9di_expert_replication x = {
        .engine = e, .section = s, .n = e->whole.model->n_mixtures, .placed_step = -1};
    d9d_comm *group;

    *out = (d9di_expert_replication){0};
    if (s == NULL)
        return D9D_OK;
    D9D_TRY(d9d_mesh_group(e->mesh, D9D_AXES_EXPERT, &group));
    x.ranks = d9d_comm_size(group);
    D9D_TRY(state_alloc(&x, a));
    *out = x;
    for (size_t k = 0; k < e->n_stages; k++)
        D9D_TRY(stage_open(e, s, k, group));
    return D9D_OK;
}

void d9di_expert_replication_close(d9di_expert_replication *x)
{
    const d9di_engine *e = x->engine;

    for (size_t k = 0; x->section != NULL && k < e->n_stages; k++) {
        d9d_fsdp_set_unit_hook(e->stages[k].sharded, NULL, NULL);
        for (size_t i = 0; i < e->models[k]->n_mixtures; i++)
            d9d_expert_copies_free(e->models[k]->mixtures[i]);
    }
    *x = (d9di_expert_replication){0};
}

/* --- placing ------------------------------------------------------------------------------- */

/* The placement of a layer, in the array of all layers. */
static d9d_expert_placement placement_of(const d9di_expert_replication *x, int32_t *all,
                                         size_t layer)
{
    return (d9d_expert_placement){.ranks = x->ranks,
                                  .experts = x->engine->whole.model->mixtures[layer]->shape.experts,
                                  .slots = x->section->slots,
                                  .expert = all + layer * (size_t)(x->ranks * x->section->slots)};
}

static size_t slots_bytes(const d9di_expert_replication *x)
{
    return x->n * (size_t)(x->ranks * x->section->slots) * sizeof(*x->placed);
}

/* Of one period. */
static size_t loads_bytes(const d9di_expert_replication *x)
{
    return x->n * (size_t)x->experts * sizeof(*x->last);
}

/* Tells the blocks of this rank. */
static d9d_status blocks_place(d9di_expert_replication *x)
{
    const d9di_engine *e = x->engine;

    for (size_t k = 0; k < e->n_stages; k++)
        for (size_t i = 0; i < e->models[k]->n_mixtures; i++) {
            d9d_block_moe *b = e->models[k]->mixtures[i];
            const size_t at = d9di_engine_mixture_number(e, b);

            D9D_TRY(d9d_expert_copies_place(b, e->dev, placement_of(x, x->placed, at).expert));
        }
    return D9D_OK;
}

/* One line: the copies of all layers, and what they would have made of the last period in the worst
 * one. */
static void log_placement(const d9di_expert_replication *x, int64_t step, const d9d_log *log)
{
    double most = 1, without = 1;
    int64_t copies = 0;

    for (size_t i = 0; i < x->n; i++) {
        const double *load = x->last + i * (size_t)x->experts;
        const d9d_expert_placement p = placement_of(x, x->placed, i);
        d9d_expert_placement none = p;

        none.slots = 0;
        copies += d9d_expert_placement_copies(&p);
        most = fmax(most, d9d_expert_placement_imbalance(&p, load));
        without = fmax(without, d9d_expert_placement_imbalance(&none, load));
    }
    d9d_log_info(log,
                 "step %lld: %lld cop%s of experts in %zu layer%s; by the loads of the last period "
                 "the busiest rank has %.3g times the mean of its layer, without copies %.3g",
                 (long long)(step + 1), (long long)copies, copies == 1 ? "y" : "ies", x->n,
                 D9D_PLURAL(x->n), most, without);
}

static d9d_status place(d9di_expert_replication *x, int64_t step, const d9d_log *log)
{
    for (size_t i = 0; i < x->n; i++) {
        d9d_expert_placement p = placement_of(x, x->placed, i);

        D9D_TRY(d9d_expert_placement_choose(&p, x->last + i * (size_t)x->experts));
    }
    if (step >= x->section->period_steps)
        log_placement(x, step, log);
    return blocks_place(x);
}

bool d9di_expert_replication_is_due(const d9di_expert_replication *x, int64_t step)
{
    return x->section != NULL && step > 0 && step % x->section->period_steps == 0 &&
           x->placed_step != step;
}

d9d_status d9di_expert_replication_begin(d9di_expert_replication *x, int64_t step,
                                         const d9d_log *log)
{
    const bool due = d9di_expert_replication_is_due(x, step);
    const d9di_engine *e = x->engine;

    if (x->section == NULL)
        return D9D_OK;
    if (due) {
        memcpy(x->last, x->now, loads_bytes(x));
        memset(x->now, 0, loads_bytes(x));
    }
    if (due || x->placed_step < 0) {
        D9D_TRY(place(x, step, log));
        x->placed_step = step;
    }
    memcpy(x->of_step[step % 2], x->placed, slots_bytes(x));
    for (size_t k = 0; k < e->n_stages; k++)
        for (size_t i = 0; i < e->models[k]->n_mixtures; i++)
            d9d_expert_copies_expire(e->models[k]->mixtures[i]);
    return D9D_OK;
}

d9d_status d9di_expert_replication_fill(d9di_expert_replication *x)
{
    for (size_t i = 0; x->section != NULL && i < x->n; i++) {
        const d9d_expert_placement p = placement_of(x, x->placed, i);
        const int64_t per = p.experts / p.ranks;

        for (int64_t s = 0; s < p.ranks * p.slots; s++)
            p.expert[s] = (int32_t)((s / p.slots + 1) % p.ranks * per + s % p.slots);
    }
    x->placed_step = 0;
    return x->section != NULL ? blocks_place(x) : D9D_OK;
}

/* --- loads --------------------------------------------------------------------------------- */

void d9di_expert_replication_count(d9di_expert_replication *x, int64_t step, const double *counts,
                                   int64_t width)
{
    if (x->section == NULL || step < x->next)
        return;
    x->next = step + 1;
    for (size_t i = 0; counts != NULL && i < x->n; i++)
        for (int64_t e = 0; e < x->engine->whole.model->mixtures[i]->shape.experts; e++)
            x->now[i * (size_t)x->experts + (size_t)e] += counts[(int64_t)i * width + e];
}

d9di_expert_replication_stats d9di_expert_replication_measure(const d9di_expert_replication *x,
                                                              int64_t step, size_t layer,
                                                              const double *load)
{
    const d9d_expert_placement p = placement_of(x, x->of_step[step % 2], layer);
    d9d_expert_placement none = p;

    none.slots = 0;
    return (d9di_expert_replication_stats){
        .imbalance = d9d_expert_placement_imbalance(&p, load),
        .without = d9d_expert_placement_imbalance(&none, load),
        .copies = (double)d9d_expert_placement_copies(&p),
    };
}

/* --- checkpoints --------------------------------------------------------------------------- */

d9d_status d9di_expert_replication_rank_state(d9di_expert_replication *x, d9d_arena *a,
                                              d9d_checkpointer_set *set)
{
    const d9d_checkpointer_rank_state c = {.name = "expert_loads",
                                           .dtype = D9D_F64,
                                           .n = 2 * (int64_t)x->n * x->experts,
                                           .reduce_op = D9D_COMM_MAX,
                                           .data = x->last};

    return x->section != NULL ? d9d_checkpointer_set_add_rank_state(set, &c, 1, a) : D9D_OK;
}

/* After a change of the number of ranks, only rank 0 has read it. */
static d9d_status loads_broadcast(d9di_expert_replication *x, const d9d_tensor *t)
{
    const d9di_engine *e = x->engine;
    d9d_readback *back;
    const void *host;
    d9d_status st;

    D9D_TRY(d9d_comm_broadcast(e->world, e->dev->stream, "expert loads", D9D_F64,
                               d9d_tensor_data(t), d9d_tensor_numel(t), 0));
    D9D_TRY(d9d_readback_create(e->dev, d9d_tensor_bytes(t), &back));
    D9D_TRY_OR(st, d9d_readback_enqueue(back, d9d_tensor_data(t)), out);
    D9D_TRY_OR(st, d9d_readback_wait(back, &host), out);
    memcpy(x->last, host, d9d_tensor_bytes(t));
out:
    d9d_readback_free(back);
    return st;
}

d9d_status d9di_expert_replication_sync(d9di_expert_replication *x)
{
    d9d_tensor t;
    d9d_status st;

    if (x->section == NULL)
        return D9D_OK;
    D9D_TRY(d9d_tensor_from_host(x->engine->dev, D9D_F64, D9D_SHAPE(2 * (int64_t)x->n * x->experts),
                                 x->last, &t));
    st = loads_broadcast(x, &t);
    d9d_tensor_release(&t);
    return st;
}
