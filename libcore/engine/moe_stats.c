/* moe_stats.c - see engine/moe_stats.h. */
#include "engine/moe_stats.h"

#include <math.h>

/* --- the values ----------------------------------------------------------------------- */

enum {
    IMBALANCE,
    ENTROPY,
    DROPPED,
    AUX_LOSS,
    Z_LOSS,
    RANK_IMBALANCE,
    RANK_IMBALANCE_WITHOUT,
    COPIES,
    N_STAT_KINDS
};

/* One kind of statistic, per MoE layer and over all layers. */
static const struct stat_kind {
    const char *name;
    bool worst, least; /* over all layers: the maximum, the minimum, or else the mean */
} stat_kinds[N_STAT_KINDS] = {
    [IMBALANCE] = {.name = "expert_imbalance", .worst = true}, /* most loaded expert / mean */
    [ENTROPY] = {.name = "expert_entropy", .least = true},     /* over log E; 1: uniform load */
    [DROPPED] = {.name = "expert_dropped"},                    /* share of the choices */
    [AUX_LOSS] = {.name = "router_aux_loss"},
    [Z_LOSS] = {.name = "router_z_loss"},
    /* of copies of experts */
    [RANK_IMBALANCE] = {.name = "expert_rank_imbalance", .worst = true}, /* rank / mean */
    [RANK_IMBALANCE_WITHOUT] = {.name = "expert_rank_imbalance_without", .worst = true},
    [COPIES] = {.name = "expert_copies"},
};

static bool is_reported(const d9di_moe_stats *x, int stat_kind)
{
    const d9d_block_router *r = &x->engine->whole.model->mixtures[0]->shape.router;
    const bool copies = x->replication->section != NULL;
    const bool has[N_STAT_KINDS] = {[RANK_IMBALANCE] = copies,
                                    [RANK_IMBALANCE_WITHOUT] = copies,
                                    [COPIES] = copies,
                                    [IMBALANCE] = true,
                                    [ENTROPY] = true,
                                    [DROPPED] = r->capacity != 0,
                                    [AUX_LOSS] = r->aux_loss != 0,
                                    [Z_LOSS] = r->z_loss != 0};

    return has[stat_kind];
}

static d9d_status name_add(d9di_moe_stats *x, const char *name)
{
    if (name == NULL)
        return D9D_FAIL(D9D_ENOMEM, "moe: no memory for the names of statistics");
    x->names[x->n_values++] = name;
    return D9D_OK;
}

static d9d_status layer_names(d9di_moe_stats *x, const d9d_block_moe_shape *s, d9d_arena *a)
{
    for (int k = 0; k < N_STAT_KINDS; k++)
        if (is_reported(x, k))
            D9D_TRY(name_add(
                x, d9d_arena_printf(a, "%s/%lld", stat_kinds[k].name, (long long)s->layer)));
    for (int64_t e = 0; x->level == D9DI_MOE_STATS_COUNTS && e < s->experts; e++)
        D9D_TRY(name_add(
            x, d9d_arena_printf(a, "expert_load/%lld/%lld", (long long)s->layer, (long long)e)));
    return D9D_OK;
}

static d9d_status names_make(d9di_moe_stats *x, d9d_arena *a)
{
    const size_t max_load = N_STAT_KINDS + x->n * (N_STAT_KINDS + (size_t)x->width);

    x->names = d9d_arena_alloc(a, max_load * sizeof(char *));
    x->values = d9d_arena_alloc(a, max_load * sizeof(double));
    if (x->names == NULL || x->values == NULL)
        return D9D_FAIL(D9D_ENOMEM, "moe: no memory for %zu names", max_load);
    for (int k = 0; k < N_STAT_KINDS && x->level >= D9DI_MOE_STATS_SUMMARY; k++)
        if (is_reported(x, k))
            D9D_TRY(name_add(x, stat_kinds[k].name));
    for (size_t i = 0; i < x->n && x->level >= D9DI_MOE_STATS_LAYERS; i++)
        D9D_TRY(layer_names(x, &x->engine->whole.model->mixtures[i]->shape, a));
    return D9D_OK;
}

/* The statistics of one layer from its two losses, its expert counts, and the kept and dropped
 * choices, 0 without a capacity. */
static void compute_stats(const double *counts, int64_t experts, double targets, double *out)
{
    const double *load = counts + 2, *limited = load + experts;
    double sum = 0, max_load = 0, entropy = 0;

    for (int64_t e = 0; e < experts; e++) {
        sum += load[e];
        max_load = fmax(max_load, load[e]);
    }
    for (int64_t e = 0; e < experts; e++)
        if (load[e] > 0)
            entropy -= load[e] / sum * log(load[e] / sum);
    out[IMBALANCE] = sum > 0 ? max_load * (double)experts / sum : NAN;
    out[ENTROPY] = sum > 0 ? (experts > 1 ? entropy / log((double)experts) : 1) : NAN;
    out[DROPPED] = limited[1] / (limited[0] + limited[1]);
    out[AUX_LOSS] = counts[0] / targets;
    out[Z_LOSS] = counts[1] / targets;
}

/* Those of copies besides, of layer i in a step. */
static void layer_stats(const d9di_moe_stats *x, int64_t step, size_t i, const double *counts,
                        double targets, double *out)
{
    d9di_expert_replication_stats copies = {0};

    compute_stats(counts, x->engine->whole.model->mixtures[i]->shape.experts, targets, out);
    if (x->replication->section != NULL)
        copies = d9di_expert_replication_measure(x->replication, step, i, counts + 2);
    out[RANK_IMBALANCE] = copies.imbalance;
    out[RANK_IMBALANCE_WITHOUT] = copies.without;
    out[COPIES] = copies.copies;
}

/* Accumulates one layer's statistics into those over all n layers. */
static void accumulate_stat(const double *one, size_t i, size_t n, double *all)
{
    for (int k = 0; k < N_STAT_KINDS; k++) {
        const double first = stat_kinds[k].worst || stat_kinds[k].least ? one[k] : 0,
                     had = i > 0 ? all[k] : first;

        all[k] = stat_kinds[k].worst   ? fmax(had, one[k])
                 : stat_kinds[k].least ? fmin(had, one[k])
                                       : had + one[k] / (double)n;
    }
}

static double *write_values(const d9di_moe_stats *x, const double *one, double *to)
{
    for (int k = 0; k < N_STAT_KINDS; k++)
        if (is_reported(x, k))
            *to++ = one[k];
    return to;
}

d9d_status d9di_moe_stats_count(d9di_moe_stats *x, int64_t step, int slot)
{
    const void *counts;

    if (x->replication->section == NULL || slot < 0) {
        d9di_expert_replication_count(x->replication, step, NULL, 0);
        return D9D_OK;
    }
    D9D_TRY(d9d_readback_wait(x->readback[slot], &counts));
    d9di_expert_replication_count(x->replication, step, (const double *)counts + 2, x->width);
    return D9D_OK;
}

d9d_status d9di_moe_stats_collect(d9di_moe_stats *x, int64_t step, int slot, double targets)
{
    double all[N_STAT_KINDS] = {0}, one[N_STAT_KINDS], *at = x->values;
    const double *counts;
    const void *back;

    if (x->n > 0)
        D9D_TRY(d9di_moe_stats_count(x, step, slot));
    for (size_t i = 0; i < x->n_values && slot < 0; i++)
        x->values[i] = NAN;
    if (x->n_values == 0 || slot < 0)
        return D9D_OK;
    D9D_TRY(d9d_readback_wait(x->readback[slot], &back));
    counts = back;
    for (size_t i = 0; i < x->n; i++) {
        layer_stats(x, step, i, counts + (int64_t)i * x->width, targets, one);
        accumulate_stat(one, i, x->n, all);
    }
    at = write_values(x, all, at);
    for (size_t i = 0; i < x->n && x->level >= D9DI_MOE_STATS_LAYERS; i++, counts += x->width) {
        const int64_t experts = x->engine->whole.model->mixtures[i]->shape.experts;

        layer_stats(x, step, i, counts, targets, one);
        at = write_values(x, one, at);
        for (int64_t e = 0; e < experts && x->level == D9DI_MOE_STATS_COUNTS; e++)
            *at++ = counts[2 + e];
    }
    return D9D_OK;
}

/* --- counting --------------------------------------------------------------------------------- */

static bool needs_stats(const d9d_model *m, int level, bool copies)
{
    bool biased = false;

    for (size_t i = 0; i < m->n_mixtures; i++)
        biased = biased || m->mixtures[i]->shape.router.expert_bias;
    return m->n_mixtures > 0 && (biased || copies || level != D9DI_MOE_STATS_OFF);
}

/* Makes this rank's routers count into the rows of their layers. */
static void attach_counters(d9di_moe_stats *x)
{
    const d9di_engine *e = x->engine;

    for (size_t k = 0; k < e->n_stages; k++)
        for (size_t i = 0; i < e->models[k]->n_mixtures; i++) {
            d9d_block_moe *b = e->models[k]->mixtures[i];
            const size_t at = d9di_engine_mixture_number(e, b);

            b->counted = d9d_tensor_rows(&x->all, (int64_t)at, 1);
        }
}

/* Is what was counted read back? */
static bool is_read(const d9di_moe_stats *x)
{
    return x->n_values > 0 || x->replication->section != NULL;
}

d9d_status d9di_moe_stats_open(const d9di_engine *e, int level,
                               d9di_expert_replication *replication, d9d_arena *a,
                               d9di_moe_stats *out)
{
    d9di_moe_stats x = {
        .engine = e, .replication = replication, .level = level, .n = e->whole.model->n_mixtures};

    *out = (d9di_moe_stats){0};
    if (!needs_stats(e->whole.model, level, replication->section != NULL))
        return D9D_OK;
    for (size_t i = 0; i < x.n; i++) {
        const int64_t width = 4 + e->whole.model->mixtures[i]->shape.experts;

        x.width = width > x.width ? width : x.width;
    }
    D9D_TRY(names_make(&x, a));
    D9D_TRY(d9d_tensor_alloc(e->dev, D9D_F64, D9D_SHAPE((int64_t)x.n, x.width), &x.all));
    *out = x;
    attach_counters(out);
    for (int i = 0; i < D9DI_MOE_STATS_SLOTS && is_read(&x); i++)
        D9D_TRY(d9d_readback_create(e->dev, d9d_tensor_bytes(&x.all), &out->readback[i]));
    return D9D_OK;
}

void d9di_moe_stats_release(d9di_moe_stats *x)
{
    const d9di_engine *e = x->engine;

    for (size_t k = 0; x->n > 0 && k < e->n_stages; k++)
        for (size_t i = 0; i < e->models[k]->n_mixtures; i++)
            d9d_tensor_release(&e->models[k]->mixtures[i]->counted);
    for (int i = 0; i < D9DI_MOE_STATS_SLOTS; i++)
        d9d_readback_free(x->readback[i]);
    d9d_tensor_release(&x->all);
    *x = (d9di_moe_stats){0};
}

d9d_status d9di_moe_stats_begin(d9di_moe_stats *x)
{
    if (x->n == 0)
        return D9D_OK;
    return x->engine->dev->kernels->elementwise->fill(
        x->engine->dev->stream, D9D_F64, d9d_tensor_data(&x->all), d9d_tensor_numel(&x->all), 0.0f);
}

d9d_status d9di_moe_stats_end(d9di_moe_stats *x, const d9d_tensor *scale, int slot)
{
    const d9di_engine *e = x->engine;

    if (x->n == 0)
        return D9D_OK;
    D9D_TRY(d9d_comm_all_reduce(e->world, e->dev->stream, "expert load", D9D_F64,
                                d9d_tensor_data(&x->all), d9d_tensor_numel(&x->all), D9D_COMM_SUM));
    for (size_t k = 0; k < e->n_stages; k++)
        for (size_t i = 0; i < e->models[k]->n_mixtures; i++)
            D9D_TRY(d9d_block_moe_update_expert_bias(e->models[k]->mixtures[i], e->dev, scale));
    return is_read(x) ? d9d_readback_enqueue(x->readback[slot], d9d_tensor_data(&x->all)) : D9D_OK;
}
