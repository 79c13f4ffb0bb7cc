/* plan_simulate.h - runs a training step of one rank on the simulated device.
 *
 * Model, parallel plan, optimizer and engine are those of training.  The device only counts
 * (d9d/device/simulated.h), and its process groups simulate the other ranks
 * (libcore/comm/backend/comm_sim.c).  So memory, operations and messages follow from training's own
 * code.
 */
#ifndef D9DI_PLAN_PLAN_SIMULATE_H
#define D9DI_PLAN_PLAN_SIMULATE_H

#include "d9d/job/job.h"
#include "d9d/kernels/sim.h"
#include "d9d/nn/expert_copies.h"
#include "d9d/pipe/stage_timer.h"
#include "engine/evaluate.h"

/* A micro-batch: sequences of one length, each a single document or packed documents of one
 * length. */
typedef struct d9di_plan_simulate_batch {
    int64_t rows, length;
    int64_t document; /* positions of a document; 0: not packed */
} d9di_plan_simulate_batch;

typedef struct d9di_plan_simulate_opts {
    const d9d_train_config *config; /* with its mesh and batch sizes */
    int rank;                       /* in the mesh */
    const char *chip;
    const d9di_run_data *data;           /* must fit the model; may have no datasets */
    const d9di_evaluations *evaluations; /* likewise */
    d9di_plan_simulate_batch batch;
    d9di_plan_simulate_batch evaluation; /* the largest; rows 0: none */
    int64_t n_evaluations;               /* upper bound of its batches on a rank */
    int64_t length;                      /* of sequences, without datasets; 0: from the datasets */
    bool experts_full; /* experts take as much as their capacity lets the rank's take */
} d9di_plan_simulate_opts;

/* The costs of a pipeline stage per micro-batch. */
typedef struct d9di_plan_simulate_stage {
    int stage; /* index in the whole pipeline */
    d9d_stage_costs costs;
} d9di_plan_simulate_stage;

typedef struct d9di_plan_simulation {
    int64_t parameters;       /* of the whole model, as far as on this rank's stages */
    int64_t frozen;           /* of a task's frozen model, the same; not in `parameters` */
    double model_flops;       /* of the whole model, per token of this batch */
    uint64_t saved, exported; /* bytes of these in a checkpoint and in an export */
    uint64_t written;         /* bytes that this rank writes to a checkpoint */
    /* Bytes that persist between steps. */
    uint64_t weights, gradients, optimizer;
    uint64_t host_optimizer; /* states in host memory */
    uint64_t host_activations;
    uint64_t residuals;  /* of master weights; included in `optimizer` */
    const char *updates; /* d9d_optimizer_describe() */
    /* In addition: unsharded parameters and gradients of FSDP units; kernel scratch at the time of
     * the peak. */
    uint64_t group_bytes, scratch;
    uint64_t peak;     /* of the device's pool in a step, blocks rounded up to their size class */
    double step_s;     /* all micro-batches and the update, without waiting for other ranks */
    double bus_wait_s; /* of it, waiting for activations on the bus to the host */
    /* With a pipeline, in the arena: this rank's stages, the sum of all executed actions, the cost
     * once per step, and the transfer of a micro-batch's hidden states to a neighbour. */
    d9di_plan_simulate_stage *stages;
    size_t n_stages;
    double pipeline_s, once_s, transfer_s;
    d9d_sim_tally tally;           /* of a step; its messages are in the arena */
    d9d_expert_copies_size copies; /* included in `weights` and `gradients` */
    double capacity;               /* capacity factor of experts; 0: none */
    uint64_t cache;                /* KV cache of a task that generates; 0: none */
    double generate_s;             /* of its completions, in a step */
} d9di_plan_simulation;

/* Simulates the steps.  Errors are those of opening the engine; reads only the files that the
 * model's configuration names. */
d9d_status d9di_plan_simulate(const d9di_plan_simulate_opts *opts, d9d_arena *a,
                              d9di_plan_simulation *out);

/* For plan_simulate.c: generation of the completions of a step, of `length` positions with their
 * prompts, by this many prompts of the rank.  Sets cache, generate_s, and raises peak. */
d9d_status d9di_plan_simulate_generation(struct d9di_engine *e, const d9d_grpo_section *c,
                                         int64_t rows, int64_t prompts, int64_t length,
                                         d9di_plan_simulation *out);
/* For plan_simulate.c: stage costs from the engine's last execution, given the stage timer and the
 * tally. */
struct d9di_engine;
d9d_status d9di_plan_simulate_costs(const struct d9di_engine *e, const d9d_stage_timer *m,
                                    d9d_arena *a, d9di_plan_simulation *out);

#endif /* D9DI_PLAN_PLAN_SIMULATE_H */
