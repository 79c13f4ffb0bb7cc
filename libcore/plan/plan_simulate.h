/* plan_simulate.h - a step of training that one rank of an imagined job goes through on paper.
 *
 * The rank's model, placement, optimizer and engine are those of training; its device counts
 * (d9d/device/simulated.h), its groups answer for the others (libcore/comm/backend/comm_sim.c).  So
 * memory, operations and messages are what training does, whatever it does.
 */
#ifndef D9DI_PLAN_PLAN_SIMULATE_H
#define D9DI_PLAN_PLAN_SIMULATE_H

#include "d9d/job/job.h"
#include "d9d/kernels/sim.h"
#include "d9d/pipe/stage_timer.h"
#include "engine/evaluate.h"

/* A micro-batch: rows of one length, a document each or cut into documents of one length. */
typedef struct d9di_plan_simulate_batch {
    int64_t rows, length;
    int64_t document; /* positions of one; 0: rows are not packed */
} d9di_plan_simulate_batch;

typedef struct d9di_plan_simulate_opts {
    const d9d_train_config *config; /* with the mesh and the sizes of batches */
    int rank;                       /* of the mesh's product */
    const char *chip;
    const d9di_run_data *data;           /* must fit the model; may have no datasets */
    const d9di_evaluations *evaluations; /* as these */
    d9di_plan_simulate_batch batch;
    d9di_plan_simulate_batch evaluation; /* the largest, if it is larger than that; rows 0: none */
    int64_t n_evaluations;               /* so many of these on a rank, at most */
    int64_t length;                      /* of rows, where no data say; 0: they do */
} d9di_plan_simulate_opts;

/* What a stage of a pipeline takes for a micro-batch. */
typedef struct d9di_plan_simulate_stage {
    int stage; /* in the whole pipeline */
    d9d_stage_costs costs;
} d9di_plan_simulate_stage;

typedef struct d9di_plan_simulation {
    int64_t parameters;       /* of the whole model, as far as this rank's stages have it */
    double model_flops;       /* of a token in a row of this length, of the same */
    uint64_t saved, exported; /* bytes of those in a checkpoint and in an export */
    uint64_t written;         /* bytes of a checkpoint that this rank writes */
    uint64_t tensors, files;  /* of its manifest: d9d_checkpointer_manifest_bytes() */
    /* Bytes that are kept from step to step. */
    uint64_t weights, gradients, optimizer;
    uint64_t residuals;  /* of master weights, in `optimizer` */
    const char *updates; /* d9d_optimizer_describe() */
    /* Beside them: parameters and gradients that are put together for a unit; scratch of a kernel
     * at the moment of the peak. */
    uint64_t group_bytes, scratch;
    uint64_t peak; /* of the device's pool in a step, each block the size of its class */
    double step_s; /* of all micro-batches and the update, waiting for no other rank */
    /* Of a pipeline, in the arena: the rank's stages, what all that was played takes, what comes
     * once a step, and the transfer of a micro-batch's hidden states to a neighbour. */
    d9di_plan_simulate_stage *stages;
    size_t n_stages;
    double pipeline_s, once_s, transfer_s;
    d9d_sim_tally tally; /* of a step; talk is in the arena */
} d9di_plan_simulation;

/* What opening the engine says; nothing is read but what the configuration of the model names. */
d9d_status d9di_plan_simulate(const d9di_plan_simulate_opts *how, d9d_arena *a,
                              d9di_plan_simulation *out);

/* For plan_simulate.c: prices from what the engine's executor has just played, as the meter and the
 * tally say. */
struct d9di_engine;
d9d_status d9di_plan_simulate_costs(const struct d9di_engine *e, const d9d_stage_timer *m,
                                    d9d_arena *a, d9di_plan_simulation *out);

#endif /* D9DI_PLAN_PLAN_SIMULATE_H */
