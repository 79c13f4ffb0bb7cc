/* engine.h - a model on the ranks of a job, and the execution of micro-batches.
 *
 * Training and inference share it.  d9di_engine_open() builds the structure and reports errors;
 * d9di_engine_materialize() allocates memory, and loads or initialises the parameters.
 *
 * A rank has one or several pipeline stages; without a pipeline it has the whole model as one
 * stage. The executor runs micro-batches through the stages in the order of a program
 * (d9d/pipe/executor.h). All ranks of a pipeline read the same micro-batches: the first stage uses
 * their ids, the last one their labels, the others their shape.
 *
 * The engine owns its stages, models, mesh and executor.  The caller owns the device.
 */
#ifndef D9DI_ENGINE_ENGINE_H
#define D9DI_ENGINE_ENGINE_H

#include "d9d/base/log.h"
#include "d9d/data/loader/cp_slice.h"
#include "d9d/data/loader/pooling.h"
#include "d9d/model/weights/weights.h"
#include "d9d/optim/optim.h"
#include "d9d/parallel/fsdp.h"
#include "d9d/pipe/executor.h"
#include "engine/loss_attribution.h"
#include "tasks/run_data.h"
#include "tasks/tasks.h"

/* A stage of this rank. */
typedef struct d9di_engine_stage {
    d9d_model *model;
    d9d_params params, base; /* base: without adapters */
    d9d_fsdp *sharded;       /* set by materialize */
    d9d_weights *weights;    /* planned until they are read; NULL without a source */
} d9di_engine_stage;

/* A second model that is not trained: engine/frozen_model.h. */
typedef struct d9di_frozen_model_stage {
    d9d_model *model;
    d9d_params params;
    d9d_fsdp *sharded;    /* set by materialize */
    d9d_weights *weights; /* planned until they are read; NULL without a source */
} d9di_frozen_model_stage;
typedef struct d9di_frozen_model {
    bool is_on;
    bool without_adapters; /* it is the trained model without its adapters, and the rest is empty */
    bool wants_losses;     /* of tokens; else hidden states */
    const char *task_name, *source; /* borrowed; source NULL: initialised as the trained model */
    d9d_model_spec spec;
    d9d_model *whole;
    d9d_params params; /* of the whole model */
    d9di_frozen_model_stage *stages;
    size_t n_stages;
} d9di_frozen_model;

/* A micro-batch on the device. */
typedef struct d9di_engine_micro_batch {
    d9d_tensor ids, labels, positions, segments;
    d9d_tensor prefix;                         /* empty without a prefix mask */
    d9d_op_pool_index pool;                    /* empty unless the task pools documents */
    d9d_op_document_index answers;             /* empty unless the task is over answers */
    d9d_dropout_rng dropout_rng;               /* empty without dropout */
    d9d_token_weights token_weights;           /* empty unless routers need it */
    d9di_loss_attribution_documents documents; /* empty unless losses are attributed */
    d9d_model_field fields[D9D_FIELDS_MAX];
    size_t n_fields;
} d9di_engine_micro_batch;

/* All layers: structure only, unless this rank has them as one stage. */
typedef struct d9di_engine_whole {
    d9d_model *model;
    d9d_params params;
    d9d_params base, adapters; /* the same, divided into the model's own and its adapters */
} d9di_engine_whole;

/* What enters a stage: the model's and the task's tensors, then the frozen model's. */
typedef struct d9di_stage_tuple {
    d9d_stage_spec specs[D9D_EXECUTOR_TENSORS_MAX];
    size_t n_own, n;
} d9di_stage_tuple;

/* This rank in the pipeline. */
typedef struct d9di_engine_pipe {
    d9d_pipe_schedule_opts opts; /* of training */
    int ranks, rank;
    d9d_comm *down,
        *up; /* the pipeline's group, a communicator per direction; set by materialize */
    const d9di_stage_tuple *tuples; /* [stages]; of the first it is empty */
} d9di_engine_pipe;

/* A program, and what executes it. */
typedef struct d9di_engine_exec {
    d9d_program program; /* without a pipeline: of one micro-batch */
    d9d_executor *executor;
    d9d_stage_timer *stage_timer; /* times the next executions, borrowed; NULL: off */
} d9di_engine_exec;

/* What one step uses. */
typedef struct d9di_engine_step {
    struct d9di_engine_run *run; /* the execution in progress */
    D9D_VEC(d9di_engine_micro_batch) micros;
    d9d_cp_slice_buffer cp_buffer;
    d9d_pooling_buffer pool_buffer;
    const d9d_tensor *part_targets; /* d9d_model_in.part_targets of the next execution, borrowed; or
                                       NULL */
    d9d_tape_offload offload;       /* of activations; to NULL: they stay */
    bool prefetch;                  /* the next step's first weights may be unsharded early */
    d9di_loss_attribution *loss_attribution; /* gets the losses in training, borrowed; NULL: none */
} d9di_engine_step;

typedef struct d9di_engine {
    /* From opening to release. */
    d9d_device *dev;
    bool simulated;  /* ranks and device of a plan */
    d9d_mesh *mesh;  /* set by materialize, as the next */
    d9d_comm *world; /* NULL: a single rank */
    d9d_model_spec spec;
    const d9di_task *task; /* or NULL */
    uint64_t seed;
    d9d_quantised_recipe fp8; /* of the matrices that are multiplied in 8 bits, if any */
    d9di_engine_whole whole;
    d9d_adapters *given_adapters; /* read from opts->adapter, until they are loaded */
    d9di_engine_stage *stages;
    size_t n_stages;
    d9di_frozen_model frozen;
    d9d_model **models; /* of the stages */
    d9d_params params;  /* of all stages, in order */
    d9di_engine_pipe pipe;
    d9d_arena arena;
    /* Of training or of an evaluation between two steps. */
    d9di_engine_exec exec;
    d9di_engine_exec train_exec; /* put aside by an evaluation; executor NULL: there is none */
    d9di_engine_step step;
} d9di_engine;

/* Formats of parameters that are not trained: of the layers' matrices, and of the head's tables. */
typedef struct d9di_engine_quant {
    d9d_quant_format layers, head;
} d9di_engine_quant;

typedef struct d9di_engine_opts {
    const d9d_job *where;
    const d9d_parallel_degrees *mesh;
    const d9d_union *provider;
    const d9d_union *peft;     /* what is trained; NULL: all parameters */
    const char *source;        /* checkpoint directory, or NULL */
    const char *adapter;       /* a directory: loaded into adapters, or else merged; or NULL */
    const d9di_run_data *data; /* must fit the model; NULL: none */
    uint64_t seed;
    const d9di_task *task;       /* NULL: the model's own losses */
    d9d_pipe_schedule_opts pipe; /* of training; used with several pipeline ranks */
    int64_t micros;              /* micro-batches of a step */
    bool train;                  /* allocate gradients */
    bool initialise; /* false: leave the parameters uninitialised, since a full training checkpoint
                        follows */
    const d9d_optimizer *optimizer; /* to estimate the memory of its state; NULL: none */
    /* Bytes that the caller allocates on this rank later, such as a KV cache, known once the model
     * is placed on its mesh.  They must fit too before anything is read.  NULL: none. */
    uint64_t (*more_bytes)(const d9di_engine *e, const void *arg);
    const void *more_bytes_arg;
    const struct d9d_job_gradients_section *gradients; /* of training */
    const struct d9d_job_sharding_section *sharding;   /* of training */
    const struct d9d_job_offload_section *offload;     /* of training */
    const struct d9d_job_fp8_section *fp8;             /* of training; NULL: none */
    bool release_grads; /* of training: d9d_fsdp_set_post_accumulate_grad_hook() of each stage */
    d9di_engine_quant quantised; /* what is not trained: engine/quant_weights.h */
    /* Of training, opened by the caller: engine/expert_replication.h; NULL: none. */
    const d9d_job_expert_replication_section *replication;
    double timeout_s, stopped_s; /* of collective calls: see d9d_mesh_opts */
    const char *timeout_name;    /* name of timeout_s in messages, or NULL */
    const char *flight;          /* directory of the flight recorder, or NULL */
} d9di_engine_opts;

/* Builds the structure, and checks it against the mesh, the dataset and the source's headers. */
d9d_status d9di_engine_open(const d9di_engine_opts *opts, d9di_engine *out);
/* Allocates and loads everything else; unnecessary if nothing is computed.  This and all functions
 * below are collective over the job. */
d9d_status d9di_engine_materialize(d9di_engine *e, const d9di_engine_opts *opts);
void d9di_engine_release(d9di_engine *e);
d9d_fsdp_opts d9di_engine_fsdp_opts(const d9di_engine_opts *opts);
/* ECONFIG if the trained parameters do not go with the directories to start from (NULL: none).
 * Reads nothing. */
d9d_status d9di_engine_check_adapter(const d9di_engine *e, const char *adapter, const char *source);
/* The adapters of the model, if this rank has all of it, or of its training checkpoint at
 * `saved`. */
d9d_status d9di_engine_adapters(const d9di_engine *e, const char *saved, d9d_adapters **out);
/* Writes them, and what is trained whole beside them, in the layout of the peft library; warns
 * about those that it cannot hold. */
d9d_status d9di_engine_adapters_write(const d9di_engine *e, const char *saved, const char *base,
                                      const char *dir, const d9d_log *log);
/* Host memory of activations, in bytes. */
uint64_t d9di_engine_host_activations(const d9di_engine *e);
/* Number of elements of all or of the trainable parameters. */
int64_t d9di_engine_param_count(const d9di_engine *e, bool trainable_only);

/* True if this rank has the last stage, and with it the losses. */
bool d9di_engine_has_last_stage(const d9di_engine *e);

/* Source of micro-batches, and receiver of results. */
typedef struct d9di_engine_callbacks {
    d9d_status (*next)(void *arg, d9d_batch *out); /* the next one, valid until the next call */
    /* Training, or NULL: the forward of the step's only micro-batch is done, and its loss is in
     * sums; backward comes next. */
    d9d_status (*pre_backward)(void *arg);
    /* Inference: losses [rows, length] float32 on the device, in order, on the last stage's ranks.
     * All ranks of a pipeline request batches in the same order. */
    d9d_status (*loss)(void *arg, const d9d_batch *b, const d9d_tensor *loss);
    /* For a task with values, instead of `loss`: columns of the values from `at` on, [n, columns],
     * n at least the batch's documents.  Called on the first of the ranks that have the same
     * values. */
    d9d_status (*values)(void *arg, const d9d_batch *b, const d9d_tensor *v, int64_t at);
    void *arg;
} d9di_engine_callbacks;

/* Forward and backward of a step of n micro-batches.  The shard.grad of every parameter becomes the
 * sum of all losses' gradients over all ranks.  The reduction may still be in flight
 * (d9d/tape/param.h): call d9di_engine_wait_grads() before any other engine function, after work
 * that waits per parameter.  sums [n] float64 become the losses of each micro-batch on the last
 * stage.  Without a pipeline, a micro-batch without targets is skipped and sums to 0. */
d9d_status d9di_engine_forward_backward(d9di_engine *e, const d9di_engine_callbacks *flow,
                                        int64_t n, const d9d_tensor *sums);
d9d_status d9di_engine_wait_grads(d9di_engine *e);
/* The optimizer of a configuration, with its moving average of the weights, without memory. */
d9d_status d9di_engine_create_optimizer(const d9d_train_config *c, const d9d_params *params,
                                        const d9d_params *whole, uint64_t seed,
                                        d9d_optimizer **out);
/* d9d_optimizer_use_averages() and d9d_optimizer_use_weights(), with no step enqueued and nothing
 * prefetched. */
d9d_status d9di_engine_use_averages(d9di_engine *e, d9d_optimizer *o);
d9d_status d9di_engine_use_weights(d9di_engine *e, d9d_optimizer *o);
/* d9d_optimizer_fill(), with the group of ranks that have parts of the same parameters. */
d9d_status d9di_engine_fill_optimizer(d9di_engine *e, d9d_optimizer *o);
/* While e->step.prefetch is set, an optimizer step unshards the weights that the next forward needs
 * first, each as soon as its update is enqueued (d9d/parallel/fsdp.h).  With several stages these
 * are the first stage's, with which every program begins.  reshard drops prefetched weights: no
 * forward follows, or parameters change otherwise. */
d9d_status d9di_engine_set_prefetch(d9di_engine *e, d9d_optimizer *o);
d9d_status d9di_engine_reshard(d9di_engine *e);
/* A training engine evaluates between two steps: forward only, without recording, gradients or
 * dropout. sums: as for d9di_engine_forward_backward(). */
d9d_status d9di_engine_eval_begin(d9di_engine *e, int64_t micros);
d9d_status d9di_engine_eval_forward(d9di_engine *e, const d9di_engine_callbacks *flow, int64_t n,
                                    const d9d_tensor *sums);
void d9di_engine_eval_end(d9di_engine *e);
bool d9di_engine_is_evaluating(const d9di_engine *e);

/* Inference: forward of n micro-batches. */
d9d_status d9di_engine_forward(d9di_engine *e, const d9di_engine_callbacks *flow, int64_t n);

/* The number of a stage's mixture of experts among those of the whole model. */
size_t d9di_engine_mixture_number(const d9di_engine *e, const d9d_block_moe *b);

/* --- shared with engine_step.c -------------------------------------------------------- */

/* Builds a program and an executor for this many micro-batches per run. */
d9d_status d9di_engine_build_pipe(d9di_engine *e, int64_t micros);
extern const d9d_executor_ops d9di_engine_executor_ops; /* self: the engine */

/* "nan", "inf" or "-inf", whatever the sign of a NaN. */
static inline const char *d9di_engine_nonfinite_name(double v)
{
    return v > 0 ? "inf" : v < 0 ? "-inf" : "nan";
}

/* The arrays of a pooling index on the device, which d9d_op_pool_index_release() frees. */
d9d_status d9di_engine_pool_upload(d9d_device *dev, const d9d_pooling_index *h,
                                   d9d_op_pool_index *out);

#endif /* D9DI_ENGINE_ENGINE_H */
