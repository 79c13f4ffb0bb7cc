/* job.h - the configuration of d9d-train and d9d-infer, as structs.
 *
 * The sections and field names are those of d9d of PyTorch (0.16), the reference framework;
 * fields that it requires without need have defaults here.  One table (d9d_train_config_table,
 * d9d_infer_config_table) gives the parser, --print-config, the schema and the documentation.
 *
 * A bound configuration is plain data in an arena: no file has been opened, no memory for
 * a model taken.  d9d_job_check_*() then say what can be said without data.
 */
#ifndef D9D_JOB_JOB_H
#define D9D_JOB_JOB_H

#include "d9d/comm/bootstrap.h"
#include "d9d/comm/mesh.h"
#include "d9d/config/config.h"
#include "d9d/config/period.h"
#include "d9d/model/provider.h"
#include "d9d/pipe/program.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_job_data_section {
    const char *dataset; /* directory made by d9d-shard */
    d9d_union source; /* d9d/data/dataset/dataset_kind.h, in the place of a directory; choice NULL:
                         none */
    const char *split;
    int order; /* d9d_loader_order, see d9d/data/loader/loader.h */
    int64_t seed;
    int64_t epochs;           /* D9D_INT_NULL: as many as the run takes */
    double weight;            /* among the datasets of a blend */
    const char *skip_samples; /* as d9d_index_set_read() takes them, or NULL */
} d9d_job_data_section;

typedef struct d9d_job_run_section {
    const char *name, *description, *dir;
    json_t *hparams;
    int64_t steps; /* stop after this many; D9D_INT_NULL: the whole dataset */
} d9d_job_run_section;

/* "profiling": of every period_steps, the last active_steps are traced. */
typedef struct d9d_job_profiling_section {
    bool enabled;
    const char *traces_dir; /* in the run directory, unless absolute */
    int64_t period_steps, warmup_steps, active_steps;
} d9d_job_profiling_section;

/* When gradients of parts are summed and scattered. */
typedef enum d9d_job_grad_reduce {
    D9D_JOB_GRAD_REDUCE_MICRO_BATCH,
    D9D_JOB_GRAD_REDUCE_STEP
} d9d_job_grad_reduce;

/* A schedule's own keys; those that it does not have stay at 0. */
typedef struct d9d_job_stages_section {
    int64_t num_stages_per_rank;
    bool zero_bubble, deep_warmup;
} d9d_job_stages_section;

typedef struct d9d_job_trainer_section {
    d9d_job_run_section run;
    struct d9d_job_batching_section {
        int64_t global_batch_size, microbatch_size;
    } batching;
    struct d9d_job_data_loading_section {
        int64_t num_workers, prefetch_factor;
        int64_t pad_to_multiple_of; /* rows are padded to a multiple of this */
    } data_loading;
    struct d9d_job_logging_section {
        d9d_step_period period_steps;
        bool samples;
        d9d_list tracker; /* d9d_union: d9d/track/sink.h */
        int experts;      /* off, a summary, numbers of each layer, all counts */
        int64_t documents;
    } logging;
    struct d9d_job_pipelining_section {
        d9d_union schedule; /* which: d9d_pipe_schedule */
    } pipelining;
    struct d9d_job_factory_section {
        const char *source_checkpoint, *source_adapter;
        bool checkpoint_only_trainable_parameters;
    } model_stage_factory;
    struct d9d_job_determinism_section {
        int64_t base_seed;
    } determinism;
    struct d9d_job_checkpointing_section {
        const char *save_dir;
        d9d_step_period period_steps;
        int64_t num_to_keep; /* 0 keeps all */
        bool resume, asynchronous;
    } checkpointing;
    struct d9d_job_clipping_section {
        double max_norm; /* NaN: none */
        d9d_step_period log_total_steps;
    } gradient_clipping;
    struct d9d_job_gradients_section {
        int grad_dtype; /* -1: the parameters' own; else as dtype above */
        int64_t bucket_size_mb;
        int reduce; /* d9d_job_grad_reduce */
    } gradient_manager;
    struct d9d_job_sharding_section {
        bool reshard_after_forward;
    } sharding;
    struct d9d_job_timeout_section {
        int64_t init_timeout, step_timeout; /* seconds of a collective call */
        /* The same while that is done; 0: as init_timeout, and in a save what its bytes take. */
        int64_t evaluation_timeout, save_timeout, export_timeout;
        int64_t save_margin; /* seconds before the Slurm time limit */
    } timeout;
    d9d_job_profiling_section *profiling; /* NULL: none */
} d9d_job_trainer_section;

/* Another dataset that the model is measured on while it is trained. */
typedef struct d9d_job_evaluation_section {
    const char *name; /* before its values: "valid/loss" */
    d9d_list data;    /* d9d_job_data_section, at least one */
    d9d_step_period period_steps;
    bool at_start, at_end;   /* before the first step, and after the last one whatever the period */
    int64_t samples;         /* of the stream; D9D_INT_NULL: all */
    int64_t microbatch_size; /* D9D_INT_NULL: training's */
    d9d_list metrics;        /* as training's */
} d9d_job_evaluation_section;

typedef struct d9d_train_config {
    d9d_parallel_degrees mesh;
    d9d_list data;            /* d9d_job_data_section, at least one */
    d9d_union model_provider; /* of d9d_job_model_choices */
    d9d_job_trainer_section trainer;
    d9d_union optimizer;    /* d9d/optim/optim.h */
    d9d_union lr_scheduler; /* d9d/sched/lr.h */
    d9d_union task;         /* d9d/tasks/task.h */
    d9d_list metrics;       /* d9d_union: d9d/metric/metric.h */
    d9d_union peft;         /* d9d/model/lora/peft.h; which -1: all is trained */
    const char *export_to;
    d9d_list evaluation; /* d9d_job_evaluation_section */
} d9d_train_config;

typedef struct d9d_infer_config {
    d9d_parallel_degrees mesh;
    d9d_list data; /* d9d_job_data_section; none where the task has prompts of its own */
    d9d_union model_provider;
    d9d_job_trainer_section trainer;
    d9d_union task;
} d9d_infer_config;

/* What a section of inference's task begins with. */
typedef struct d9d_job_output_section {
    const char *output; /* file to write; NULL: none */
} d9d_job_output_section;

/* See d9d/infer/infer.h. */
typedef struct d9d_job_generate_section {
    const char *output;        /* JSONL file to write */
    const char *prompts;       /* d9d/data/chat/prompts.h; NULL: samples of the data section */
    const char *tokenizer;     /* tokenizer.json; NULL: that beside the weights, if there is one */
    const char *chat_template; /* d9d.chat.v1, or NULL */
    const char *role;          /* that speaks next in chats */
    bool enable_thinking;      /* false: it goes on behind empty thoughts */
    int64_t prompt_tokens; /* of a sample; D9D_INT_NULL: those before the first that is learned */
    int64_t max_new_tokens;
    double temperature; /* 0: the likeliest token */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 1: all */
    int64_t seed;
    bool stop_at_eos;
    d9d_list stop_tokens; /* int64_t */
} d9d_job_generate_section;

typedef struct d9d_plugins d9d_plugins; /* d9d/tasks/plugin.h */

/* Where a job runs: all of it borrowed. */
typedef struct d9d_job {
    d9d_bootstrap *boot; /* its ranks */
    const char *device;  /* as d9d_device_open(); "auto" and "cuda" are each rank's own GPU */
    const d9d_log *log;  /* of rank 0; on the others NULL, or one that has errors alone */
    int64_t trial; /* not 0: the run's first steps, so many at most, at the learning rate before
                    * the schedule, without evaluations; nothing but records is written: no
                    * checkpoint, no model */
    const d9d_plugins *plugins; /* who hear of events; NULL: none */
} d9d_job;

D9D_API extern const d9d_table d9d_train_config_table, d9d_infer_config_table;

/* The models and the pipeline's schedules that are built in. */
D9D_API extern const d9d_table *const d9d_job_pipe_schedule_choices[]; /* NULL-ended */
D9D_API extern const d9d_table *const d9d_job_model_choices[];         /* NULL-ended */

D9D_API d9d_pipe_schedule_opts
d9d_job_pipe_schedule_opts(const struct d9d_job_pipelining_section *s);

/* Batch sizes against each other and the mesh: ECONFIG. */
D9D_API D9D_MUST_USE d9d_status d9d_job_check_batching(const d9d_parallel_degrees *mesh,
                                                       const struct d9d_job_batching_section *b);
/* No more steps to trace than a period has: ECONFIG.  NULL is fine. */
D9D_API D9D_MUST_USE d9d_status d9d_job_check_profiling(const d9d_job_profiling_section *p);

/* Collective: ECONFIG unless every rank is the same program, `label` with its version, with the
 * same resolved configuration; the sentence has a rank that is not as rank 0 is, and the key. */
D9D_API D9D_MUST_USE d9d_status d9d_job_check_same_config(d9d_bootstrap *boot, const char *label,
                                                          json_t *doc);
/* Collective: ECONFIG unless each of these files and checkpoint directories (NULL: none) is the
 * same on every rank, on whatever disks they lie; the sentence has the first that is not. */
D9D_API D9D_MUST_USE d9d_status d9d_job_check_same_files(d9d_bootstrap *boot,
                                                         const char *const *paths, size_t n);

#ifdef __cplusplus
}
#endif
#endif /* D9D_JOB_JOB_H */
