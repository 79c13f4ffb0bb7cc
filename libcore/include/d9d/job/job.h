/* job.h - the configuration of d9d-train and d9d-infer, as structs.
 *
 * Sections and field names are those of the reference framework, d9d for PyTorch (0.16 to
 * 0.24).  Fields that it requires unnecessarily have defaults here.  The parser, --print-config,
 * the schema and the documentation all come from one key table (d9d_train_config_table,
 * d9d_infer_config_table).
 *
 * A bound configuration is plain data in an arena: binding opens no file and allocates no model
 * memory.  d9d_job_check_*() then check everything that needs no data.
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
    d9d_union source;    /* a synthetic dataset instead of a directory,
                            d9d/data/dataset/dataset_kind.h; choice NULL: none */
    const char *split;
    int order; /* d9d_loader_order, see d9d/data/loader/loader.h */
    int64_t seed;
    int64_t epochs;           /* D9D_INT_NULL: as many as the run takes */
    double weight;            /* sampling weight in a blend of datasets */
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
    const char *traces_dir; /* relative to the run directory, unless absolute */
    int64_t period_steps, warmup_steps, active_steps;
} d9d_job_profiling_section;

/* "fp8": products of layers in 8 bits (d9d/tensor/quantised.h). */
typedef struct d9d_job_fp8_section {
    int recipe;      /* d9d_quantised_scaling */
    int grad_format; /* d9d_job_fp8_format */
    bool fast_accumulation;
    bool experts;                /* the matrices of experts too */
    bool fsdp_float8_all_gather; /* shards are quantised before they are gathered */
} d9d_job_fp8_section;
typedef enum d9d_job_fp8_format { D9D_JOB_FP8_E4M3, D9D_JOB_FP8_E5M2 } d9d_job_fp8_format;

/* When sharded gradients are reduce-scattered: after each micro-batch, or once per step. */
typedef enum d9d_job_grad_reduce {
    D9D_JOB_GRAD_REDUCE_MICRO_BATCH,
    D9D_JOB_GRAD_REDUCE_STEP
} d9d_job_grad_reduce;

/* Keys of a pipeline schedule; keys that it does not have stay 0. */
typedef struct d9d_job_stages_section {
    int64_t num_stages_per_rank;
    bool zero_bubble, deep_warmup;
} d9d_job_stages_section;

/* Where something is kept between its uses. */
typedef enum d9d_job_offload { D9D_JOB_OFFLOAD_NONE, D9D_JOB_OFFLOAD_HOST } d9d_job_offload;

/* What a rank that computes slower than its peers leads to. */
typedef enum d9d_job_straggler_action {
    D9D_JOB_STRAGGLER_WARN,
    D9D_JOB_STRAGGLER_STOP
} d9d_job_straggler_action;

/* A moving average of the weights: d9d_ema_opts, and what it serves for. */
typedef struct d9d_job_ema_section {
    double decay;
    int64_t every_steps, start_step;
    int dtype;                      /* 0: float32; 1: bfloat16 */
    bool is_evaluated, is_exported; /* in place of the weights */
} d9d_job_ema_section;

/* Copies of hot experts on other ranks. */
typedef struct d9d_job_expert_replication_section {
    int64_t slots;        /* of a rank, in each layer */
    int64_t period_steps; /* between placements */
} d9d_job_expert_replication_section;

typedef struct d9d_job_trainer_section {
    d9d_job_run_section run;
    struct d9d_job_batching_section {
        int64_t global_batch_size, microbatch_size;
    } batching;
    struct d9d_job_data_loading_section {
        int64_t num_workers, prefetch_factor;
        int64_t pad_to_multiple_of; /* pad the sequence length to a multiple of this */
    } data_loading;
    struct d9d_job_logging_section {
        d9d_step_period period_steps;
        bool samples;
        d9d_list tracker; /* d9d_union: d9d/track/sink.h */
        int experts;      /* MoE statistics: off, summary, per layer, all counts */
        int64_t documents;
        d9d_step_period token_metrics_period_steps;
        int64_t line_steps; /* 0: by time alone */
    } logging;
    struct d9d_job_pipelining_section {
        d9d_union schedule; /* the choice is a d9d_pipe_schedule */
    } pipelining;
    struct d9d_job_factory_section {
        const char *source_checkpoint, *source_adapter;
        bool checkpoint_only_trainable_parameters;
        int quantization, head_quantization; /* d9d_quant_format of the frozen matrices of layers,
                                                and of the tables of a head */
    } model_stage_factory;
    struct d9d_job_determinism_section {
        int64_t base_seed;
    } determinism;
    struct d9d_job_checkpointing_section {
        const char *save_dir;
        d9d_step_period period_steps;
        int64_t num_to_keep; /* 0 keeps all */
        bool resume, asynchronous;
        d9d_step_period local_period_steps;
    } checkpointing;
    struct d9d_job_clipping_section {
        double max_norm; /* NaN: none */
        d9d_step_period log_total_steps;
    } gradient_clipping;
    struct d9d_job_gradients_section {
        int grad_dtype;   /* -1: the parameters' own; else an index into d9d_model_dtype_names */
        int reduce_dtype; /* -1: grad_dtype; else as that */
        int64_t bucket_size_mb;
        int reduce; /* d9d_job_grad_reduce */
    } gradient_manager;
    struct d9d_job_sharding_section {
        bool reshard_after_forward, reshard_after_backward;
        int64_t prefetch;
    } sharding;
    struct d9d_job_offload_section {
        int optimizer, activations; /* a d9d_job_offload each */
        double activation_fraction; /* of the layers */
        int64_t activation_prefetch;
    } offload;
    bool optimizer_in_backward;
    struct d9d_job_timeout_section {
        int64_t init_timeout, step_timeout; /* of collective calls, in seconds */
        /* Timeouts during an evaluation, save or export; 0: init_timeout, and for a save longer
         * with its size. */
        int64_t evaluation_timeout, save_timeout, export_timeout;
        int64_t save_margin; /* save this many seconds before the Slurm time limit */
    } timeout;
    d9d_job_fp8_section *fp8; /* NULL: products in the model's own type */
    struct d9d_job_integrity_section {
        d9d_step_period period_steps, rerun_period_steps;
        bool optimizer_state, memory, rerun_on_peer;
    } integrity;
    struct d9d_job_stragglers_section {
        d9d_step_period period_steps;
        double factor;
        int64_t periods;
        int action; /* d9d_job_straggler_action */
    } stragglers;
    d9d_job_profiling_section *profiling;                   /* NULL: none */
    d9d_job_ema_section *ema;                               /* NULL: none */
    d9d_job_expert_replication_section *expert_replication; /* NULL: none */
} d9d_job_trainer_section;

/* An evaluation dataset, on which the model is measured during training. */
typedef struct d9d_job_evaluation_section {
    const char *name; /* prefix of its values: "valid/loss" */
    d9d_list data;    /* d9d_job_data_section, at least one */
    d9d_step_period period_steps;
    bool at_start, at_end;   /* before the first step; after the last one, whatever the period */
    int64_t samples;         /* of the stream; D9D_INT_NULL: all */
    int64_t microbatch_size; /* D9D_INT_NULL: as in training */
    d9d_list metrics;        /* as in training */
} d9d_job_evaluation_section;

typedef struct d9d_train_config {
    d9d_parallel_degrees mesh;
    d9d_list data;            /* d9d_job_data_section, at least one */
    d9d_union model_provider; /* of d9d_model_choices */
    d9d_job_trainer_section trainer;
    d9d_union optimizer;    /* d9d/optim/optim.h */
    d9d_union lr_scheduler; /* d9d/sched/lr.h */
    d9d_union task;         /* d9d/tasks/task.h */
    d9d_list metrics;       /* d9d_union: d9d/metric/metric.h */
    d9d_union peft;         /* d9d/model/lora/peft.h; which -1: full fine-tuning */
    const char *export_to;
    d9d_list evaluation; /* d9d_job_evaluation_section */
} d9d_train_config;

typedef struct d9d_infer_config {
    d9d_parallel_degrees mesh;
    d9d_list data; /* d9d_job_data_section; empty if the task has prompts */
    d9d_union model_provider;
    d9d_job_trainer_section trainer;
    d9d_union task;
    d9d_union peft;   /* the adapters that stay beside the weights; which -1: they are merged */
    d9d_list metrics; /* d9d_union */
} d9d_infer_config;

/* The first member of every inference task's section. */
typedef struct d9d_job_output_section {
    const char *output; /* file to write; NULL: none */
} d9d_job_output_section;

/* See d9d/infer/infer.h. */
typedef struct d9d_job_generate_section {
    const char *output;             /* JSONL file to write */
    const char *prompts;            /* d9d/data/chat/prompts.h; NULL: samples of the data section */
    const char *tokenizer;          /* tokenizer.json; NULL: the one in the model folder, if any */
    bool add_special_tokens;        /* the tokenizer's, around a prompt of text */
    const char *chat_template;      /* NULL: that beside the tokenizer */
    json_t *chat_template_kwargs;   /* more variables of it; NULL: none */
    const char *chat_template_date; /* what its strftime_now() prints; NULL: an error */
    bool enable_thinking;  /* false: so is the variable of that name; true: it is not given */
    int64_t prompt_tokens; /* length of a prompt from a sample; D9D_INT_NULL: the tokens before its
                              first target */
    /* null, D9D_INT_NULL or NaN: those of the model's generation_config.json */
    int64_t max_new_tokens;
    double temperature;        /* 0: greedy */
    int64_t top_k;             /* 0: no limit */
    double top_p, min_p;       /* 1, 0: no limit */
    double repetition_penalty; /* 1: none */
    int64_t seed;
    bool stop_at_eos;
    d9d_list stop_tokens; /* int64_t */
    int kv_cache_dtype;   /* d9d_kv_cache_dtype */
} d9d_job_generate_section;

typedef struct d9d_plugins d9d_plugins; /* d9d/tasks/plugin.h */

/* Where a job runs; everything is borrowed. */
typedef struct d9d_job {
    d9d_bootstrap *bootstrap; /* its ranks */
    const char *device; /* as for d9d_device_open(); "auto" and "cuda" select a GPU per rank */
    const d9d_log *log; /* on rank 0; NULL or errors only on the others */
    /* 0: a normal run.  Else a trial of at most this many first steps, at the learning rate before
     * the schedule, without evaluations.  It writes records, but no checkpoint and no model. */
    int64_t trial;
    const d9d_plugins *plugins; /* their event handlers; NULL: none */
} d9d_job;

/* The key tables of both configurations, with the built-in choices. */
D9D_API extern const d9d_table d9d_train_config_table, d9d_infer_config_table;

/* The built-in pipeline schedules and models. */
D9D_API extern const d9d_table *const d9d_job_pipe_schedule_choices[]; /* NULL-terminated */

/* The options of the configured pipeline schedule. */
D9D_API d9d_pipe_schedule_opts
d9d_job_pipe_schedule_opts(const struct d9d_job_pipelining_section *s);
/* The section trainer.pipelining of a schedule that is none of a plugin's, without defaults:
 * {"schedule": {"schedule": "1f1b", "zero_bubble": true}}.  The caller's; NULL without memory. */
D9D_API json_t *d9d_job_pipelining_json(const d9d_pipe_schedule_opts *opts);

/* Turns what a configuration of the reference framework, d9d for PyTorch 0.16 to 0.24, names
 * otherwise into the names here, with a line in the log for each key.  Other keys stay.  ECONFIG if
 * both names of a key are given.  Done before the document is resolved. */
D9D_API D9D_MUST_USE d9d_status d9d_job_translate_reference(json_t *doc, const d9d_log *log);

/* Where a built-in `model_provider` of a document has neither hf_config nor model, its hf_config
 * becomes `trainer.model_stage_factory.source_checkpoint`.  Done before the document is resolved;
 * one of another shape is left to that. */
D9D_API D9D_MUST_USE d9d_status d9d_job_fill_hf_config(json_t *doc);

/* ECONFIG if the batch sizes do not fit each other or the mesh. */
D9D_API D9D_MUST_USE d9d_status d9d_job_check_batching(const d9d_parallel_degrees *mesh,
                                                       const struct d9d_job_batching_section *b);
/* ECONFIG for trainer.optimizer_in_backward with what keeps gradients, or needs the weights of
 * before a step: clipping, several micro-batches, a pipeline, repeated steps. */
D9D_API D9D_MUST_USE d9d_status d9d_job_check_optimizer_in_backward(const d9d_train_config *c);
/* ECONFIG if more steps are traced than a period has.  NULL is fine. */
D9D_API D9D_MUST_USE d9d_status d9d_job_check_profiling(const d9d_job_profiling_section *p);

/* ECONFIG unless all ranks run the same program (`label` includes its version) with the same
 * resolved configuration.  The message names the first differing rank and key.  Collective. */
D9D_API D9D_MUST_USE d9d_status d9d_job_check_same_config(d9d_bootstrap *bootstrap,
                                                          const char *label, json_t *doc);
/* ECONFIG unless each of these files and checkpoint directories (NULL entries are skipped) has the
 * same content on every rank, on shared or local disks.  The message names the first that differs.
 * Collective. */
D9D_API D9D_MUST_USE d9d_status d9d_job_check_same_files(d9d_bootstrap *bootstrap,
                                                         const char *const *paths, size_t n);

#ifdef __cplusplus
}
#endif
#endif /* D9D_JOB_JOB_H */
