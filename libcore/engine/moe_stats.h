/* moe_stats.h - statistics of expert load, and the update of router biases.
 *
 *     D9D_TRY(d9di_moe_stats_open(&engine, level, &copies, &arena, &x));
 *     each step:
 *         D9D_TRY(d9di_moe_stats_begin(&x));
 *         ... all micro-batches; their routers count ...
 *         D9D_TRY(d9di_moe_stats_end(&x, &scale, slot));      // after the optimizer's update
 *     when the step's report is collected:
 *         D9D_TRY(d9di_moe_stats_collect(&x, step, slot, targets));
 *
 * Counts cover all tokens of a step on all ranks.  The rank whose router sees a token counts it
 * once per layer, and the counts are summed over ranks.  They are integers, so a router's bias,
 * which depends on them, has the same bits on any mesh.  The host never waits.
 */
#ifndef D9DI_ENGINE_MOE_STATS_H
#define D9DI_ENGINE_MOE_STATS_H

#include "d9d/device/readback.h"
#include "engine/engine.h"
#include "engine/expert_replication.h"

/* What records contain: nothing, a few numbers, these for each layer, all counts. */
typedef enum d9di_moe_stats_level {
    D9DI_MOE_STATS_OFF,
    D9DI_MOE_STATS_SUMMARY,
    D9DI_MOE_STATS_LAYERS,
    D9DI_MOE_STATS_COUNTS
} d9di_moe_stats_level;

enum { D9DI_MOE_STATS_SLOTS = 2 };

typedef struct d9di_moe_stats {
    const d9di_engine *engine;
    d9di_expert_replication *replication; /* borrowed: gets the loads of every step */
    int level;
    size_t n;       /* MoE layers of the whole model; 0: off */
    int64_t width;  /* numbers per layer: those of d9d_op_router_opts.counted */
    d9d_tensor all; /* [n, width] float64 */
    d9d_readback *readback[D9DI_MOE_STATS_SLOTS];
    size_t n_values;
    const char **names; /* [n_values]; in the arena */
    double *values;     /* of the last collected step; NaN without tokens */
} d9di_moe_stats;

/* Of a materialised engine, which must outlive it, as must the copies of experts. */
d9d_status d9di_moe_stats_open(const d9di_engine *e, int level,
                               d9di_expert_replication *replication, d9d_arena *a,
                               d9di_moe_stats *out);
void d9di_moe_stats_release(d9di_moe_stats *x); /* before the engine is released */

d9d_status d9di_moe_stats_begin(d9di_moe_stats *x);
/* Collective over the world.  `scale`: as for d9d_optimizer_step(). */
d9d_status d9di_moe_stats_end(d9di_moe_stats *x, const d9d_tensor *scale, int slot);
/* Collects the values of the step in `slot`; -1: of a step without targets. */
d9d_status d9di_moe_stats_collect(d9di_moe_stats *x, int64_t step, int slot, double targets);
/* Waits for the loads of a step that is not collected yet, and counts them for copies of experts.
 */
d9d_status d9di_moe_stats_count(d9di_moe_stats *x, int64_t step, int slot);

#endif /* D9DI_ENGINE_MOE_STATS_H */
