/* engine.h - a model on the ranks of a job, and micro-batches through it.
 *
 * Shared by the training and the inference loop.  Opening builds the structure and finds what
 * is wrong with it; filling takes the memory, and loads or initialises.
 *
 * A rank has one stage of the model or several; alone it has the whole, as one stage. Micro-batches
 * go through the stages as a program says (d9d/pipe/executor.h).  Every rank of a pipeline reads
 * the same micro-batches: the first stage for their ids, the last for their labels, the others for
 * their shape.
 */
#ifndef D9DI_ENGINE_ENGINE_H
#define D9DI_ENGINE_ENGINE_H

#include "d9d/base/log.h"
#include "d9d/data/loader/cp_slice.h"
#include "d9d/data/loader/pooling.h"
#include "d9d/model/weights.h"
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
    d9d_fsdp *sharded;       /* from filling on */
    d9d_weights *weights;    /* planned, until they are read; NULL without a source */
} d9di_engine_stage;

/* A micro-batch on the device. */
typedef struct d9di_engine_micro_batch {
    d9d_tensor ids, labels, positions, segments;
    d9d_op_pool_index pool;          /* without tokens where the task does not ask for documents */
    d9d_dropout_rng dropout_rng;     /* without tokens where nothing is dropped */
    d9d_token_weights token_weights; /* without weights where nothing is counted */
    d9di_loss_attribution_documents documents; /* empty where nobody asks for their losses */
} d9di_engine_micro_batch;

/* What a training engine does, while it goes forward alone. */
typedef struct d9di_engine_train_state {
    d9d_program program;
    d9d_executor *executor; /* NULL: it does it now */
    d9d_stage_timer *stage_timer;
} d9di_engine_train_state;

typedef struct d9di_engine {
    d9d_device *dev;
    d9d_mesh *mesh;      /* these from filling on */
    d9d_comm *world;     /* NULL: alone */
    d9d_comm *down, *up; /* the ranks of this pipeline */
    d9d_executor *executor;
    d9d_stage_timer *stage_timer; /* of its next plays, borrowed; NULL: they are not measured */
    d9d_model_spec spec;
    const d9di_task *task; /* or NULL */
    d9di_loss_attribution
        *loss_attribution;        /* that hear of losses in training, borrowed; NULL: none */
    d9d_model *whole;             /* all layers; structure alone, unless it is the only stage */
    d9d_params all;               /* of it */
    d9d_params base, adapters;    /* of all: the model's own, and what adapts them */
    d9d_adapters *given_adapters; /* of how->adapter, until they are where they belong */
    d9di_engine_stage *stages;
    size_t n_stages;
    d9d_model **models; /* of the stages */
    d9d_params params;  /* of the stages, one behind the other */
    d9d_pipe_schedule_opts pipe;
    d9d_program program; /* alone: of one micro-batch */
    d9di_engine_train_state train_state;
    int pipe_ranks, pipe_rank;
    struct d9di_engine_run *run; /* what goes through now */
    bool prefetch;               /* weights may be gathered before the next step begins */
    D9D_VEC(d9di_engine_micro_batch) micros;
    uint64_t seed;
    d9d_cp_slice_buffer cp_buffer;
    d9d_pooling_buffer pool_buffer;
    d9d_arena arena;
} d9di_engine;

typedef struct d9di_engine_opts {
    const d9d_job *where;
    const d9d_parallel_degrees *mesh;
    const d9d_union *provider;
    const d9d_union *peft;     /* what is trained; NULL: everything */
    const char *source;        /* checkpoint directory, or NULL */
    const char *adapter;       /* directory: into the model's adapters, or else merged; or NULL */
    const d9di_run_data *data; /* must fit the model; NULL: none */
    uint64_t seed;
    const d9di_task *task;       /* what is computed; NULL: the model's own losses */
    d9d_pipe_schedule_opts pipe; /* of training; matters with several pipeline ranks */
    int64_t micros;              /* micro-batches of a step */
    bool train;                  /* allocate gradients */
    bool initialise; /* false: leave parameters uncleared, a training checkpoint with all follows */
    const d9d_optimizer *optimizer;                    /* whose state comes beside; NULL: none */
    const struct d9d_job_gradients_section *gradients; /* of training, */
    const struct d9d_job_sharding_section *sharding;   /* as well */
    double timeout_s, stopped_s;                       /* of collective calls (d9d_mesh_opts) */
    const char *timeout_name;                          /* what the first is called, or NULL */
    const char *flight;                                /* where they are recorded, or NULL */
} d9di_engine_opts;

/* The structure alone, checked against the mesh, the dataset and the headers of the source. */
d9d_status d9di_engine_open(const d9di_engine_opts *how, d9di_engine *out);
/* Everything else; may be left out when there is nothing to compute.  Collective: over the job, as
 * everything from here on. */
d9d_status d9di_engine_materialize(d9di_engine *e, const d9di_engine_opts *how);
void d9di_engine_release(d9di_engine *e);
d9d_fsdp_opts d9di_engine_fsdp_opts(const d9di_engine_opts *how);
/* ECONFIG where what is trained and the directories to begin from, either NULL for none, do not go
 * together.  Reads nothing. */
d9d_status d9di_engine_check_adapter(const d9di_engine *e, const char *adapter, const char *source);
/* The adapters of the model, if it is whole here, or of a training checkpoint of it. */
d9d_status d9di_engine_adapters(const d9di_engine *e, const char *saved, d9d_adapters **out);
/* As peft writes them; a warning where HuggingFace's files have no place for one. */
d9d_status d9di_engine_adapters_write(const d9di_engine *e, const d9d_adapters *ad,
                                      const char *base, const char *dir, const d9d_log *log);
/* Elements of all parameters, and of those that are trained. */
int64_t d9di_engine_param_count(const d9di_engine *e, bool trainable_only);

/* Is the last stage here, and with it losses? */
bool d9di_engine_has_last_stage(const d9di_engine *e);

/* Micro-batches, and what comes of them. */
typedef struct d9di_engine_callbacks {
    d9d_status (*next)(void *arg, d9d_batch *out); /* the next one, until the next call */
    /* Inference: losses [rows, length] float32 on the device, in order, where the last stage is.
     * Batches of the same pipeline rank are asked for in the same order everywhere. */
    d9d_status (*loss)(void *arg, const d9d_batch *b, const d9d_tensor *loss);
    /* Instead of these, of a task with values: some columns of them, [n, columns] of at least as
     * many documents as the batch has, on the first of the ranks that share these. */
    d9d_status (*values)(void *arg, const d9d_batch *b, const d9d_tensor *v, int64_t at);
    void *arg;
} d9di_engine_callbacks;

/* The gradients of a step of n micro-batches: own_grad of every parameter becomes the sum of the
 * gradients of all losses over all ranks, which may be late (d9d/tape/param.h): settle behind what
 * awaits each, and before anything else of the engine.  sums [n] float64 become the sums of each
 * micro-batch's losses, where the last stage is.  Alone, a micro-batch without targets does nothing
 * and sums to 0.  */
d9d_status d9di_engine_forward_backward(d9di_engine *e, const d9di_engine_callbacks *flow,
                                        int64_t n, const d9d_tensor *sums);
d9d_status d9di_engine_wait_grads(d9di_engine *e);
/* From here on, while e->ahead, steps of the optimizer gather the weights that the next forward
 * needs first as soon as their update is queued (d9d/parallel/fsdp.h).  Drop lets go of them: no
 * forward comes, or parameters change otherwise.  Of a rank with several stages those of the first,
 * with which every program begins. */
d9d_status d9di_engine_set_prefetch(d9di_engine *e, d9d_optimizer *o);
d9d_status d9di_engine_reshard(d9di_engine *e);
/* An engine that trains goes forward alone for a while, between two steps: nothing is recorded, no
 * gradient touched, nothing dropped.  sums as of learn. */
d9d_status d9di_engine_eval_begin(d9di_engine *e, int64_t micros);
d9d_status d9di_engine_eval_forward(d9di_engine *e, const d9di_engine_callbacks *flow, int64_t n,
                                    const d9d_tensor *sums);
void d9di_engine_eval_end(d9di_engine *e);

/* Forward of n micro-batches. */
d9d_status d9di_engine_forward(d9di_engine *e, const d9di_engine_callbacks *flow, int64_t n);

/* --- for engine_step.c: see engine.c ----------------------------------------------------- */

/* A program and an executor for so many micro-batches at once. */
d9d_status d9di_engine_build_pipe(d9di_engine *e, int64_t micros);
extern const d9d_executor_ops d9di_engine_executor_ops; /* self: the engine */

/* "nan", "inf" or "-inf", whatever the sign of a NaN. */
static inline const char *d9di_engine_nonfinite_name(double v)
{
    return v > 0 ? "inf" : v < 0 ? "-inf" : "nan";
}

#endif /* D9DI_ENGINE_ENGINE_H */
