/* plan.h - what a training job will take, before it is queued: memory, time, messages.
 *
 *     const d9d_plan_opts how = {.chip = "h200", .memory = 141000000000};
 *     D9D_TRY(d9d_plan_estimate(&config, &how, &arena, &f));
 *     D9D_TRY(d9d_plan_print_text(&f, &text));
 *     D9D_TRY(d9d_plan_check_memory(&f));            // ECONFIG when it does not fit
 *
 * Neither a GPU nor a launcher is needed.  One rank of every pipeline stage goes through a step on
 * paper, with the very code of training (libcore/plan/plan_simulate.h): its memory is what training
 * will report, to the byte on the CPU, as far as experts get the same numbers of tokens and batches
 * are as long as assumed.  Other ranks of a stage have as much or, where a size does not divide, a
 * little less.  Time is a model: docs/design/cost-model.md has its constants.
 *
 * Of the host's memory it says what grows with the model and the batches, not what programs and
 * libraries take.  Memory is that of the longest rows of the data, time that of rows of the mean
 * length in a batch.
 */
#ifndef D9D_PLAN_PLAN_H
#define D9D_PLAN_PLAN_H

#include "d9d/job/job.h"
#include "d9d/kernels/sim.h"
#include "d9d/pipe/timeline.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_plan_opts {
    const char *chip; /* d9d/kernels/sim.h */
    uint64_t memory;  /* that a rank may take; 0: no verdict is asked for */
    int64_t length;   /* positions of every row; 0: the dataset says, which must be there */
    const char
        *measured_run; /* a run whose pipeline has measured the prices of these stages, or NULL */
} d9d_plan_opts;

/* A rank of a pipeline stage; bytes of its pool, but for `outside`. */
typedef struct d9d_plan_rank {
    int64_t rank;  /* its number in the world: the stage's first */
    int64_t ranks; /* that are like it */
    uint64_t weights, gradients, optimizer;
    uint64_t residuals;   /* of master weights, which `optimizer` has too */
    uint64_t units;       /* parameters and gradients put together for a unit, at least */
    uint64_t activations; /* what is left of the peak */
    uint64_t scratch;     /* of kernels, at the peak */
    uint64_t peak;        /* of the pool: all of the above */
    uint64_t outside;     /* of libraries */
    double step_s;        /* of its own, waiting for no other */
    int live; /* most forwards at once whose backward is not through; 1 without pipeline */
    d9d_sim_tally tally; /* of a step */
    /* Of the host: the copy from which checkpoints are written behind, 0 where none is; batches
     * that are read ahead, those of the largest evaluation too. */
    uint64_t copy, batches;
    uint64_t saved; /* of a checkpoint, by all ranks of the stage */
} d9d_plan_rank;

typedef struct d9d_plan {
    d9d_parallel_degrees mesh;
    char mesh_text[96]; /* "dps 4 tp 2", "local" */
    const d9d_sim_chip *chip;
    uint64_t memory; /* as asked for, or the chip's; 0: unknown */
    bool memory_requested;
    int64_t ranks;
    int64_t parameters;            /* of the model */
    int64_t rows, micro_batches;   /* of a micro-batch; of a step on each rank */
    int64_t longest, length;       /* positions of a row: for memory; for time */
    int64_t document;              /* positions of a packed one; 0: none */
    int64_t steps;                 /* of the run; -1: nobody said */
    double step_s, tokens;         /* of a step */
    double mfu;                    /* model's operations over what the chips could do */
    double bubble;                 /* of the pipeline; 0 without */
    uint64_t checkpoint, exported; /* bytes of one */
    const char *updates;           /* d9d_optimizer_describe() of the first stage, in the arena */
    uint64_t manifest;             /* of a checkpoint's, at most */
    d9d_plan_rank *stages; /* [n_stages], in the arena: a rank of each pipeline coordinate */
    size_t n_stages;
    /* Of a pipeline. */
    char schedule[48]; /* "1f1b x2 zero bubble"; "" without a pipeline */
    d9d_pipe_schedule_opts pipe;
    d9d_stage_costs *stage_costs; /* [program's stages], in the arena */
    double transfer_s;            /* of hidden states between neighbours */
    const char *measured_run;     /* the run that has measured the prices; NULL: the model has */
    /* `copy` and `batches` of all ranks of the host that needs most, and how many these are. */
    uint64_t host;
    int64_t host_ranks;
} d9d_plan;

/* ECONFIG and ENOTSUP for what training would refuse before it takes memory. */
D9D_API D9D_MUST_USE d9d_status d9d_plan_estimate(const d9d_train_config *config,
                                                  const d9d_plan_opts *how, d9d_arena *a,
                                                  d9d_plan *out);
/* The rank that takes most. */
D9D_API const d9d_plan_rank *d9d_plan_largest_rank(const d9d_plan *p);
/* Bytes that a rank takes in all. */
D9D_API uint64_t d9d_plan_rank_bytes(const d9d_plan_rank *r);
/* Is the memory enough, as far as it is known? */
D9D_API bool d9d_plan_fits(const d9d_plan *p);
/* ECONFIG with both numbers when the memory that was asked for is too little. */
D9D_API D9D_MUST_USE d9d_status d9d_plan_check_memory(const d9d_plan *p);
D9D_API double d9d_plan_tokens_per_hour(const d9d_plan *p);

/* The pipeline's timeline as an image, by the name's ending: d9d/plot/pipeline_chart.h.  ECONFIG
 * without a pipeline. */
D9D_API D9D_MUST_USE d9d_status d9d_plan_write_timeline(const d9d_plan *p, const char *path);

/* For people, appended; and as d9d.plan.v1. */
D9D_API D9D_MUST_USE d9d_status d9d_plan_print_text(const d9d_plan *p, d9d_buf *out);
D9D_API json_t *d9d_plan_json(const d9d_plan *p); /* NULL when memory is out */

#ifdef __cplusplus
}
#endif
#endif /* D9D_PLAN_PLAN_H */
