/* moe_stats.h - how the experts of a run are used: counted, kept even, and said.
 *
 *     D9D_TRY(d9di_moe_stats_open(&engine, level, &arena, &x));
 *     each step:
 *         D9D_TRY(d9di_moe_stats_begin(&x));
 *         ... all micro-batches, whose routers count ...
 *         D9D_TRY(d9di_moe_stats_end(&x, &scale, slot));      // behind the optimizer's update
 *     and when its report is there:
 *         D9D_TRY(d9di_moe_stats_collect(&x, slot, targets));
 *
 * Counts are of all tokens of a step on all ranks: a token is counted once for each layer, by the
 * rank whose router sees it, and the ranks' counts are summed.  They are whole numbers, so that
 * what follows from them, such as a router's bias, is the same bits on any mesh.  Nothing waits for
 * the host.
 */
#ifndef D9DI_ENGINE_MOE_STATS_H
#define D9DI_ENGINE_MOE_STATS_H

#include "d9d/device/readback.h"
#include "engine/engine.h"

/* What is said of them in records: nothing, two numbers, two numbers a layer, all counts. */
typedef enum d9di_moe_stats_level {
    D9DI_MOE_STATS_OFF,
    D9DI_MOE_STATS_SUMMARY,
    D9DI_MOE_STATS_LAYERS,
    D9DI_MOE_STATS_COUNTS
} d9di_moe_stats_level;

enum { D9DI_MOE_STATS_SLOTS = 2 };

typedef struct d9di_moe_stats {
    const d9di_engine *engine;
    int level;
    size_t n;       /* mixtures of the whole model; 0: nothing is counted */
    int64_t width;  /* numbers of one: two losses, its experts */
    d9d_tensor all; /* [n, width] float64 */
    d9d_readback *readback[D9DI_MOE_STATS_SLOTS];
    size_t n_values;
    const char **names; /* [n_values]; in the arena */
    double *values;     /* of the step that was taken last; NaN where nothing was counted */
} d9di_moe_stats;

/* Of an engine that is filled, and lives as long. */
d9d_status d9di_moe_stats_open(const d9di_engine *e, int level, d9d_arena *a, d9di_moe_stats *out);
void d9di_moe_stats_release(d9di_moe_stats *x); /* before the engine */

d9d_status d9di_moe_stats_begin(d9di_moe_stats *x);
/* Collective: over the world.  scale as in d9d_optimizer_step(). */
d9d_status d9di_moe_stats_end(d9di_moe_stats *x, const d9d_tensor *scale, int slot);
/* The values of the step of a slot; -1: of one that had nothing to learn. */
d9d_status d9di_moe_stats_collect(d9di_moe_stats *x, int slot, double targets);

#endif /* D9DI_ENGINE_MOE_STATS_H */
