/* expert_replication.h - copies of hot experts on other ranks: when they are placed, and by which
 * loads.
 *
 *     D9D_TRY(d9di_expert_replication_check(section, &mesh, fp8, model));   // before memory
 *     D9D_TRY(d9di_expert_replication_open(&engine, section, &arena, &x));
 *     each step:
 *         D9D_TRY(d9di_expert_replication_begin(&x, step, log));
 *         ... forward and backward ...
 *     when a step's loads are on the host, in order:
 *         d9di_expert_replication_count(&x, step, loads);
 *
 * Steps are divided into periods of the configured number, from step 0.  At the begin of a period
 * the copies are placed anew by the loads of the period before (d9d/parallel/expert_placement.h),
 * the same on all ranks.  The loads of that period and of the one in progress are the state of a
 * run; its placement follows from them, on any mesh.
 */
#ifndef D9DI_ENGINE_EXPERT_REPLICATION_H
#define D9DI_ENGINE_EXPERT_REPLICATION_H

#include "d9d/checkpointer/checkpointer.h"
#include "d9d/nn/expert_copies.h"
#include "d9d/parallel/expert_placement.h"
#include "engine/engine.h"

/* What is said of a layer in a step. */
typedef struct d9di_expert_replication_stats {
    double imbalance; /* largest load of a rank over the mean */
    double without;   /* the same without copies */
    double copies;    /* in force */
} d9di_expert_replication_stats;

typedef struct d9di_expert_replication {
    const d9di_engine *engine;
    const d9d_job_expert_replication_section *section; /* NULL: off, and every call does nothing */
    int ranks;                                         /* over which experts are divided */
    size_t n;                                          /* MoE layers of the whole model */
    int64_t experts;     /* most of a layer: the length of its loads */
    double *last, *now;  /* [n, experts] of the last period, and behind it of this one so far */
    int32_t *placed;     /* [n, ranks, slots] in force */
    int32_t *of_step[2]; /* that of step k at [k % 2], for its record */
    int64_t next, placed_step; /* the first step without its loads; the last that was placed */
} d9di_expert_replication;

/* ECONFIG for a model or a mesh that has nothing to copy, and for what copies cannot be of. */
d9d_status d9di_expert_replication_check(const d9d_job_expert_replication_section *s,
                                         const d9d_parallel_degrees *mesh,
                                         const d9d_job_fp8_section *fp8, const d9d_model *m);
/* Bytes of a rank's copies, if all its slots are in use. */
d9d_expert_copies_size d9di_expert_replication_bytes(const d9di_engine *e,
                                                     const d9d_job_expert_replication_section *s);
/* Makes the slots of a materialised engine, which must outlive it.  Collective over the world. */
d9d_status d9di_expert_replication_open(const d9di_engine *e,
                                        const d9d_job_expert_replication_section *s, d9d_arena *a,
                                        d9di_expert_replication *out);
void d9di_expert_replication_close(d9di_expert_replication *x); /* before the engine is released */

/* Before the forward of a step, or of the same step again; places the copies if a period begins, or
 * the run. */
d9d_status d9di_expert_replication_begin(d9di_expert_replication *x, int64_t step,
                                         const d9d_log *log);
/* True if placing before this step needs the loads of the one before it. */
bool d9di_expert_replication_is_due(const d9di_expert_replication *x, int64_t step);
/* Adds the loads of a step, which is ignored if it was added; layer i has its E counts at counts +
 * i width.  NULL: a step without any. */
void d9di_expert_replication_count(d9di_expert_replication *x, int64_t step, const double *counts,
                                   int64_t width);
/* Statistics of a layer in a step whose placement is still known, from its loads [E]. */
d9di_expert_replication_stats d9di_expert_replication_measure(const d9di_expert_replication *x,
                                                              int64_t step, size_t layer,
                                                              const double *load);

/* Copies of the next rank's experts in all slots, as a plan takes them; begin() of step 0 leaves
 * them. */
d9d_status d9di_expert_replication_fill(d9di_expert_replication *x);

/* The state of a run in checkpoints; after a resume all ranks take rank 0's. */
d9d_status d9di_expert_replication_rank_state(d9di_expert_replication *x, d9d_arena *a,
                                              d9d_checkpointer_set *set);
d9d_status d9di_expert_replication_sync(d9di_expert_replication *x);

#endif /* D9DI_ENGINE_EXPERT_REPLICATION_H */
