/* plan.h - estimates what a training job needs before it is queued: memory, time, communication.
 *
 *     const d9d_plan_opts opts = {.chip = "h200", .memory = 141000000000};
 *     D9D_TRY(d9d_plan_estimate(&config, &opts, &arena, &p));
 *     D9D_TRY(d9d_plan_print_text(&p, &text));
 *     D9D_TRY(d9d_plan_check_memory(&p));            // ECONFIG when it does not fit
 *
 * It needs neither a GPU nor a launcher.  One rank of every pipeline stage runs a step on the
 * simulated device, with the code of training (libcore/plan/plan_simulate.h).  Its memory is what
 * training will report, to the byte on the CPU, if experts get equal numbers of tokens and batches
 * are as long as assumed.  Other ranks of a stage need the same, or a little less if a size does
 * not divide.  Time comes from a cost model, whose constants are in docs/design/cost-model.md.
 *
 * Host memory covers what grows with the model and the batches, not programs and libraries.  Memory
 * is computed for the longest sequences of the data, time for the mean length in a batch.
 */
#ifndef D9D_PLAN_PLAN_H
#define D9D_PLAN_PLAN_H

#include "d9d/job/job.h"
#include "d9d/kernels/sim.h"
#include "d9d/nn/expert_copies.h"
#include "d9d/pipe/timeline.h"
#include "d9d/plan/goodput.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_plan_opts {
    const char *chip; /* a chip of d9d/kernels/sim.h */
    uint64_t memory;  /* limit per rank in bytes; 0: do not judge */
    int64_t length;   /* positions of every sequence; 0: from the dataset, which must exist */
    const char *measured_run; /* use the stage times that this run measured (metrics.jsonl) instead
                                 of the cost model; or NULL */
    double node_mtbf_h;       /* hours between failures of a node; 0: no goodput */
    uint64_t storage_rate;    /* bytes that the file system takes a second from all nodes; 0: any */
    double restart_s;         /* from a failure to the first step after it */
} d9d_plan_opts;

/* What failures leave of the time. */
typedef struct d9d_plan_goodput {
    int64_t nodes; /* 0: not asked for */
    double node_mtbf_h;
    d9d_goodput_costs costs; /* of checkpoints in files */
    int64_t period_steps;    /* as configured; 0: no checkpoints */
    double fraction;         /* with them */
    int64_t local_steps;     /* period of local checkpoints; 0: none */
    double local_fraction;   /* with them, if a host that has the copy lives */
    int64_t best_steps;      /* the best period of checkpoints in files */
    double best_fraction;
} d9d_plan_goodput;

/* How the ranks find each other (d9d/comm/bootstrap.h), all 0 for one rank. */
typedef struct d9d_plan_start {
    bool tcp;          /* they connect by TCP; else PMIx carries everything */
    int64_t exchanges; /* of all ranks, at start and end */
    int64_t requests;  /* of a node's ranks to its PMIx server, which answers one after the other */
    int64_t messages;  /* that a rank sends or receives by TCP, at most */
    double seconds;    /* of all of them, when every rank has come */
} d9d_plan_start;

/* A rank of a pipeline stage.  Bytes are of its device memory pool, except for `outside`. */
typedef struct d9d_plan_rank {
    int64_t rank;  /* its number in the world: the stage's first rank */
    int64_t ranks; /* number of equal ranks */
    uint64_t weights, gradients, optimizer;
    uint64_t residuals; /* of master weights; included in `optimizer` or `host_optimizer` */
    uint64_t units; /* FSDP buffers: at least the unsharded parameters and gradients of one unit */
    uint64_t activations; /* the rest of the peak, which gradients on demand share */
    uint64_t scratch;     /* of kernels, at the time of the peak */
    uint64_t peak;        /* of the pool; the sum of the above */
    uint64_t
        full_peak; /* peak where this rank's experts are at their capacity; 0: they have none */
    d9d_expert_copies_size copies; /* of experts; included in `weights` and `gradients` */
    uint64_t cache;    /* KV cache while completions are generated, when activations are none */
    uint64_t outside;  /* libraries' memory outside the pool */
    double step_s;     /* without waiting for other ranks */
    double bus_wait_s; /* of it, waiting for activations on the bus to the host */
    int live; /* most forwards in memory whose backward is not done; 1 without a pipeline */
    d9d_sim_tally tally; /* of a step */
    /* Host memory: optimizer states and activations that are offloaded; the copy for asynchronous
     * checkpoints, or 0; and prefetched batches, including the largest evaluation's. */
    uint64_t host_optimizer, host_activations, copy, batches;
    uint64_t local; /* host memory of local checkpoints: of this rank and of one of another host */
    uint64_t
        state; /* bytes of this rank's state in a checkpoint: of its replicas one writes them */
    uint64_t saved; /* bytes of a checkpoint that all ranks of the stage write */
} d9d_plan_rank;

/* How a method of context parallelism was planned. */
typedef struct d9d_plan_cp_candidate {
    d9d_cp_method method;
    const char *refused; /* why the model or the mesh has no such method, in the arena; or NULL */
    double step_s;
    uint64_t bytes; /* of the rank that needs most */
    bool fits;
} d9d_plan_cp_candidate;

/* What mesh.context_parallel_method "auto" is: the fastest method that fits, or else that of the
 * least memory.  A method must be 1 % faster than those before it in d9d/comm/cp_method.h. */
typedef struct d9d_plan_cp_choice {
    d9d_cp_method method;
    int n; /* candidates; 0: the configuration names a method, or there is one rank */
    d9d_plan_cp_candidate item[D9D_N_CP_METHODS];
} d9d_plan_cp_choice;

typedef struct d9d_plan {
    d9d_parallel_degrees mesh;
    char mesh_text[96]; /* "dps 4 tp 2", "local" */
    const d9d_sim_chip *chip;
    uint64_t memory; /* requested limit, or the chip's; 0: unknown */
    bool memory_requested;
    int64_t ranks;
    int64_t parameters;            /* of the model */
    int64_t frozen;                /* of a task's frozen model, if it is a copy */
    int64_t rows, micro_batches;   /* sequences of a micro-batch; per rank and step */
    int64_t samples;               /* of a micro-batch: its rows, or prompts of several rows each */
    int64_t longest, length;       /* positions of a sequence: for memory; for time */
    int64_t document;              /* positions of a packed document; 0: not packed */
    const char *micro_batch_term;  /* what of the loss is over a micro-batch; NULL: nothing */
    int64_t steps;                 /* of the run; -1: unknown */
    double step_s, tokens;         /* of a step */
    double generate_s;             /* of a step, for a task that generates what it learns; else 0 */
    double mfu;                    /* model FLOP over the chips' peak */
    double bubble;                 /* of the pipeline; 0 without one */
    uint64_t checkpoint, exported; /* bytes of one checkpoint, and of an export */
    const char *updates;           /* d9d_optimizer_describe() of the first stage, in the arena */
    d9d_plan_rank *stages;         /* [n_stages], in the arena: one rank per pipeline coordinate */
    size_t n_stages;
    /* With a pipeline: */
    char schedule[48]; /* "1f1b x2 zero bubble"; "" without a pipeline */
    d9d_pipe_schedule_opts pipe;
    d9d_stage_costs *stage_costs; /* [stages of the program], in the arena */
    double transfer_s;            /* of what neighbouring stages exchange */
    const char *measured_run;     /* the run that measured the costs; NULL: the cost model */
    /* Sum of `host_optimizer`, `host_activations`, `copy`, `batches` and `local` over the ranks of
     * the host that needs most, and the number of these ranks. */
    uint64_t host;
    int64_t host_ranks;
    d9d_plan_start start;
    d9d_plan_goodput goodput;
    d9d_plan_cp_choice cp_choice;
    /* Of a plan that does not fit: bytes of the rank that needs most, with
     * trainer.optimizer_in_backward; 0: the configuration has it, or is refused with it. */
    uint64_t released;
} d9d_plan;

/* Estimates a job.  ECONFIG and ENOTSUP where training would refuse the configuration before it
 * allocates memory. */
D9D_API D9D_MUST_USE d9d_status d9d_plan_estimate(const d9d_train_config *config,
                                                  const d9d_plan_opts *opts, d9d_arena *a,
                                                  d9d_plan *out);
/* For a job that begins: where the configuration says "auto", rank 0 plans for the device that the
 * job computes on, logs the plans, and all ranks get the method.  Others of `config` stay.
 * Collective. */
D9D_API D9D_MUST_USE d9d_status d9d_plan_settle_cp_method(const d9d_job *where,
                                                          d9d_train_config *config);
/* Appends "ring; all_gather: a step of 1.2 s, 90.10 GiB do not fit; ...". */
D9D_API D9D_MUST_USE d9d_status d9d_plan_print_cp_choice(const d9d_plan_cp_choice *c, d9d_buf *out);
/* The rank that needs the most device memory. */
D9D_API const d9d_plan_rank *d9d_plan_largest_rank(const d9d_plan *p);
/* All device memory of a rank, in bytes. */
D9D_API uint64_t d9d_plan_rank_bytes(const d9d_plan_rank *r);
/* The most that a rank takes, in the pool and outside, where its experts are at their capacity; 0
 * if they have none. */
D9D_API uint64_t d9d_plan_full_bytes(const d9d_plan *p);
/* True if the memory suffices, as far as the limit is known. */
D9D_API bool d9d_plan_fits(const d9d_plan *p);
/* ECONFIG with both numbers if the requested limit is too small. */
D9D_API D9D_MUST_USE d9d_status d9d_plan_check_memory(const d9d_plan *p);
/* Of the whole job. */
D9D_API double d9d_plan_tokens_per_hour(const d9d_plan *p);

/* Writes the pipeline's timeline as an image in the format of the extension:
 * d9d/plot/pipeline_chart.h. ECONFIG without a pipeline. */
D9D_API D9D_MUST_USE d9d_status d9d_plan_write_timeline(const d9d_plan *p, const char *path);

/* Appends the plan as text; d9d_plan_json() returns it as d9d.plan.v1. */
D9D_API D9D_MUST_USE d9d_status d9d_plan_print_text(const d9d_plan *p, d9d_buf *out);
D9D_API json_t *d9d_plan_json(const d9d_plan *p); /* NULL if out of memory */

#ifdef __cplusplus
}
#endif
#endif /* D9D_PLAN_PLAN_H */
