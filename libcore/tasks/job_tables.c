/* job_tables.c - the key tables of d9d-train and d9d-infer.  See d9d/job/job.h. */
#include "d9d/data/dataset/dataset_kind.h"
#include "d9d/data/loader/blend.h"
#include "d9d/job/job.h"
#include "d9d/metric/metric.h"
#include "d9d/model/kv_cache.h"
#include "d9d/model/lora/peft.h"
#include "d9d/models/models.h"
#include "d9d/optim/optim.h"
#include "d9d/sched/piecewise.h"
#include "d9d/tasks/task.h"
#include "d9d/track/sink.h"
#include "tasks/tasks.h"

#define MAX_EXACT_INT 9007199254740992.0 /* 2^53: every integer below is exact in JSON */

static const char *const name_tag[] = {"name", NULL};

/* --- mesh -------------------------------------------------------------------- */

static const char *const cp_method_names[] = {
#define X(name, word) word,
    D9D_CP_METHODS(X)
#undef X
        D9D_CP_AUTO_NAME,
    NULL};
#define DEGREE(f, ...) D9D_KEY_INT(d9d_parallel_degrees, f, "1", 1, 1 << 20, __VA_ARGS__)
static const d9d_key mesh_keys[] = {
    DEGREE(pipeline_parallel, "pipeline ranks"),
    DEGREE(data_parallel_replicate, "replicas of the model"),
    DEGREE(data_parallel_shard, "ranks that shard one copy of the parameters (FSDP)"),
    DEGREE(context_parallel_replicate, "replicas inside a sequence group"),
    DEGREE(context_parallel_shard, "ranks that share one sequence"),
    D9D_KEY_ENUM(d9d_parallel_degrees, context_parallel_method, "\"all_gather\"", cp_method_names,
                 "how attention reaches the keys of the ranks that share a sequence: by gathering "
                 "keys and values; by exchanging heads for positions (Ulysses); with one rank's "
                 "keys and values after the other's (ring attention); or by exchanging heads over "
                 "context_parallel_replicate and gathering, or a ring, over "
                 "context_parallel_shard; auto: in d9d-train, that of the fastest plan that fits"),
    DEGREE(tensor_parallel, "ranks that share each matrix"),
    DEGREE(expert_parallel, "ranks that share the experts; divides the others' product"),
    DEGREE(expert_parallel_local,
           "those of them on one node: a token goes once to each other node, and there to its "
           "ranks; divides expert_parallel; 1: a token goes to each rank"),
    D9D_KEY_END,
};
static const d9d_table mesh_table = D9D_TABLE(d9d_parallel_degrees, "mesh", mesh_keys,
                                              "degrees of parallelism; their product, "
                                              "expert_parallel left out, is the number of ranks");

/* --- data -------------------------------------------------------------------- */

static const char *const order_names[] = {"sequential", "shuffled", "bucketed", NULL};
static const d9d_key data_keys[] = {
    D9D_KEY_STR(d9d_job_data_section, dataset, D9D_REQUIRED,
                "directory made by d9d-shard; with a source, what that is called", .min = 1),
    D9D_KEY_UNION(d9d_job_data_section, source, "null", d9d_dataset_tag, d9d_dataset_choices,
                  "what makes the samples, in the place of a directory", .flags = D9D_NULLABLE),
    D9D_KEY_STR(d9d_job_data_section, split, "\"train\"", "part of the dataset to read", .min = 1),
    D9D_KEY_ENUM(d9d_job_data_section, order, "\"sequential\"", order_names,
                 "sequence of the samples: as stored, shuffled, or by similar length"),
    D9D_KEY_INT(d9d_job_data_section, seed, "0", 0, MAX_EXACT_INT, "seed of the order"),
    D9D_KEY_INT(d9d_job_data_section, epochs, "1", 1, 1 << 30,
                "passes over the split; null: as many as the run takes, or the other datasets of "
                "a blend",
                .flags = D9D_NULLABLE),
    D9D_KEY_REAL(d9d_job_data_section, weight, "1", 0, 1e12,
                 "share of the samples, where several datasets are blended",
                 .flags = D9D_ABOVE_MIN),
    D9D_KEY_STR(d9d_job_data_section, skip_samples, "null",
                "samples of the split to leave out: a list such as \"3,17,100-200\", or the name "
                "of a file of such",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_END,
};
static const d9d_table data_table =
    D9D_TABLE(d9d_job_data_section, "data", data_keys, "the samples and their order");
static const d9d_key data_elem = {
    .kind = D9D_KIND_TABLE, .def = "{}", .table = &data_table, .doc = "one dataset"};

/* --- trainer -------------------------------------------------------------------- */

static const d9d_key run_keys[] = {
    D9D_KEY_STR(d9d_job_run_section, name, "\"run\"", "name of the run", .min = 1, .max = 200),
    D9D_KEY_STR(d9d_job_run_section, description, "null", "for people", .flags = D9D_NULLABLE),
    D9D_KEY_STR(d9d_job_run_section, dir, "null", "run directory; runs/NAME when null",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_JSON(d9d_job_run_section, hparams, "{}", "anything worth recording with the run"),
    D9D_KEY_INT(d9d_job_run_section, steps, "null", 1, MAX_EXACT_INT,
                "stop after this many steps; null: when the data ends", .flags = D9D_NULLABLE),
    D9D_KEY_END,
};
static const d9d_table run_table =
    D9D_TABLE(d9d_job_run_section, "run", run_keys, "the run itself");

typedef struct d9d_job_batching_section batching_section;
static const d9d_key train_batching_keys[] = {
    D9D_KEY_INT(batching_section, global_batch_size, D9D_REQUIRED, 1, 1 << 30,
                "samples of one optimizer step"),
    D9D_KEY_INT(batching_section, microbatch_size, "1", 1, 1 << 30,
                "samples of one forward and backward pass on a rank"),
    D9D_KEY_END,
};
static const d9d_key infer_batching_keys[] = {
    {.name = "global_batch_size",
     .kind = D9D_KIND_INT,
     .flags = D9D_NO_EFFECT,
     .offset = D9D_NO_FIELD,
     .def = "1",
     .min = 1,
     .max = 1 << 30,
     .doc = "accepted; inference has no optimizer steps"},
    D9D_KEY_INT(batching_section, microbatch_size, "1", 1, 1 << 30,
                "samples of one forward pass on a rank"),
    D9D_KEY_END,
};
static const d9d_table train_batching_table =
    D9D_TABLE(batching_section, "train_batching", train_batching_keys, "how samples make a step");
static const d9d_table infer_batching_table = D9D_TABLE(
    batching_section, "infer_batching", infer_batching_keys, "how many samples at a time");

typedef struct d9d_job_data_loading_section data_loading_section;
static const d9d_key data_loading_keys[] = {
    D9D_KEY_INT(data_loading_section, num_workers, "1", 0, 1024,
                "threads that read batches ahead; 0: batches are read as they are needed"),
    D9D_KEY_INT(data_loading_section, prefetch_factor, "2", 1, 1024,
                "batches that each of them keeps ready"),
    D9D_KEY_INT(data_loading_section, pad_to_multiple_of, "1", 1, 1 << 20,
                "rows are padded to a multiple of this many positions; 1: to the longest of them",
                .former = "multiple"),
    {.name = "pin_memory",
     .kind = D9D_KIND_BOOL,
     .flags = D9D_NO_EFFECT,
     .offset = D9D_NO_FIELD,
     .def = "true",
     .doc = "accepted; memory of transfers is always pinned"},
    {.name = "persistent_workers",
     .kind = D9D_KIND_BOOL,
     .flags = D9D_NO_EFFECT,
     .offset = D9D_NO_FIELD,
     .def = "true",
     .doc = "accepted; workers always persist"},
    D9D_KEY_END,
};
static const d9d_table data_loading_table =
    D9D_TABLE(data_loading_section, "data_loading", data_loading_keys, "how batches are prepared");

static const d9d_key no_keys[] = {D9D_KEY_END};
static const d9d_key tracker_elem = {.kind = D9D_KIND_UNION,
                                     .names = d9d_sink_tag,
                                     .choices = d9d_sink_choices,
                                     .doc = "a place where metrics go"};

typedef struct d9d_job_logging_section logging_section;
/* In the order of d9di_moe_stats_level. */
static const char *const experts_level_names[] = {"off", "summary", "layers", "counts", NULL};
static const d9d_key logging_keys[] = {
    D9D_KEY_PERIOD(logging_section, period_steps, "1", "steps between records in metrics.jsonl"),
    D9D_KEY_BOOL(logging_section, samples, "true",
                 "write samples.jsonl, which says of every step what samples made it"),
    D9D_KEY_LIST(logging_section, tracker, "[]", &tracker_elem,
                 "where else metrics go while the run goes on: one, a list, or null: nowhere",
                 .flags = D9D_OR_ONE | D9D_NULLABLE),
    D9D_KEY_ENUM(logging_section, experts, "\"summary\"", experts_level_names,
                 "how evenly experts are used: off; summary, of the worst layer; layers, of each; "
                 "counts, choices of every expert besides"),
    D9D_KEY_INT(logging_section, documents, "0", 0, 1000,
                "documents of a step to record, those that raise its loss most: what "
                "d9d-metrics spikes names"),
    D9D_KEY_PERIOD(logging_section, token_metrics_period_steps, "1",
                   "steps between those whose next tokens the metrics of a language model count: "
                   "each computes its logits once more"),
    D9D_KEY_INT(logging_section, line_steps, "0", 0, 1 << 30,
                "steps between lines of progress in a log, beside one every 30 seconds; 0: those "
                "alone"),
    D9D_KEY_END,
};
static const d9d_table logging_table =
    D9D_TABLE(logging_section, "logging", logging_keys, "what is recorded, and when");

/* Pipeline schedules, in the order of d9d_pipe_schedule.  They are checked even with one pipeline
 * rank. */
typedef d9d_job_stages_section stages_section;
#define STAGES_KEY                                                                                 \
    D9D_KEY_INT(stages_section, num_stages_per_rank, "1", 1, 1 << 16, "stages on each rank")
static const d9d_key looped_keys[] = {STAGES_KEY, D9D_KEY_END};
static const d9d_key interleaved_keys[] = {
    STAGES_KEY,
    D9D_KEY_BOOL(stages_section, zero_bubble, "false", "split backward into dgrad and wgrad"),
    D9D_KEY_BOOL(stages_section, deep_warmup, "false",
                 "twice as many forwards ahead as must be, which hides slow transfers and holds "
                 "more activations"),
    D9D_KEY_END,
};
#define SCHEDULE(var, word, k, d)                                                                  \
    static const d9d_table var = {.name = word, .size = sizeof(stages_section), .keys = k, .doc = d}
SCHEDULE(inference_table, "inference", no_keys, "forward alone");
SCHEDULE(gpipe_table, "gpipe", no_keys, "all forwards, then all backwards");
SCHEDULE(looped_table, "looped_bfs", looped_keys, "GPipe over several stages a rank");
SCHEDULE(interleaved_table, "1f1b", interleaved_keys, "one forward, one backward");
SCHEDULE(zbv_table, "zero_bubble_v", no_keys, "zero bubble, two stages a rank in a V");
SCHEDULE(dual_table, "dual_pipe_v", no_keys, "DualPipe, two stages a rank in a V");
const d9d_table *const d9d_job_pipe_schedule_choices[] = {
    &inference_table, &gpipe_table, &looped_table, &interleaved_table,
    &zbv_table,       &dual_table,  NULL};
static const char *const schedule_tag[] = {"schedule", NULL};

typedef struct d9d_job_pipelining_section pipelining_section;
static const d9d_key pipelining_keys[] = {
    D9D_KEY_UNION(pipelining_section, schedule, "{\"schedule\": \"1f1b\"}", schedule_tag,
                  d9d_job_pipe_schedule_choices,
                  "order of the micro-batches; matters with pipeline ranks"),
    D9D_KEY_END,
};
static const d9d_table pipelining_table =
    D9D_TABLE(pipelining_section, "pipelining", pipelining_keys, "pipeline parallelism");

typedef struct d9d_job_factory_section factory_section;
static const char *const quantizations[] = {"none", "fp8", "nf4", NULL}; /* d9d_quant_format */
static const d9d_key factory_keys[] = {
    D9D_KEY_STR(factory_section, source_checkpoint, "null",
                "directory to start from, HuggingFace or d9d; null: random weights",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_STR(factory_section, source_adapter, "null",
                "directory of adapters as peft writes it: what the run's own adapters start "
                "from; without such it is merged into source_checkpoint",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_BOOL(factory_section, checkpoint_only_trainable_parameters, "false",
                 "leave frozen parameters out of checkpoints; a run that goes on takes them from "
                 "where it began"),
    D9D_KEY_ENUM(factory_section, quantization, "\"none\"", quantizations,
                 "store the layers' matrices, which are not trained, in 8 bits (fp8: e4m3, a scale "
                 "a row) or 4 (nf4: blocks of 64 with double quantisation, QLoRA)"),
    D9D_KEY_ENUM(
        factory_section, head_quantization, "\"none\"", quantizations,
        "d9d-infer: store the head's tables in 8 or 4 bits; of a tied model the embedding, "
        "which reads the same"),
    D9D_KEY_END,
};
static const d9d_table factory_table =
    D9D_TABLE(factory_section, "model_stage_factory", factory_keys, "where the weights come from");

typedef struct d9d_job_determinism_section determinism_section;
static const d9d_key determinism_keys[] = {
    D9D_KEY_INT(determinism_section, base_seed, "0", 0, MAX_EXACT_INT,
                "seed of initial weights and stochastic rounding"),
    D9D_KEY_END,
};
static const d9d_table determinism_table =
    D9D_TABLE(determinism_section, "determinism", determinism_keys, "seeds");

typedef struct d9d_job_checkpointing_section checkpointing_section;
static const d9d_key checkpointing_keys[] = {
    D9D_KEY_STR(checkpointing_section, save_dir, "null",
                "where this run's checkpoints go; RUN_DIR/checkpoints when null",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_PERIOD(checkpointing_section, period_steps, "\"last_step\"",
                   "steps between checkpoints; the last step is always saved but with "
                   "\"disable\""),
    D9D_KEY_INT(checkpointing_section, num_to_keep, "0", 0, 1 << 20,
                "newest checkpoints to keep; 0 or null: all", .flags = D9D_NULLABLE),
    D9D_KEY_BOOL(checkpointing_section, resume, "true",
                 "go on from the newest complete checkpoint of this run"),
    D9D_KEY_BOOL(checkpointing_section, asynchronous, "true",
                 "train on while a checkpoint is written, from a copy in the host's memory; the "
                 "last one is waited for"),
    D9D_KEY_PERIOD(checkpointing_section, local_period_steps, "\"disable\"",
                   "steps between local checkpoints, in the memory of each rank's host and of "
                   "another one, written while training goes on; \"disable\": none"),
    D9D_KEY_END,
};
static const d9d_table checkpointing_table =
    D9D_TABLE(checkpointing_section, "checkpointing", checkpointing_keys, "training checkpoints");

typedef struct d9d_job_clipping_section clipping_section;
static const d9d_key clipping_keys[] = {
    D9D_KEY_REAL(clipping_section, max_norm, "null", 0, 1e30,
                 "largest global gradient norm, from 1e-12 on; null or 0: no clipping",
                 .flags = D9D_NULLABLE),
    D9D_KEY_PERIOD(clipping_section, log_total_steps, "1", "steps between records of the norm"),
    D9D_KEY_END,
};
/* The square of a smaller norm underflows float32: with such a limit no gradient would change a
 * weight. */
static d9d_status clipping_check(const void *value, const char *path)
{
    const double max_norm_value = ((const clipping_section *)value)->max_norm, least = 1e-12;

    if (max_norm_value > 0 && max_norm_value < least)
        return D9D_FAIL(
            D9D_ECONFIG,
            "%s.max_norm: gradients clipped to a norm of %.9g, below %.9g, move nothing; "
            "null clips none",
            path, max_norm_value, least);
    return D9D_OK;
}

static const d9d_table clipping_table =
    D9D_TABLE(clipping_section, "gradient_clipping", clipping_keys, "norm of the gradient",
              .check = clipping_check);

static const char *const grad_reduce_names[] = {"micro_batch", "step", NULL};
typedef struct d9d_job_gradients_section gradients_section;
static const d9d_key gradients_keys[] = {
    D9D_KEY_ENUM(gradients_section, grad_dtype, "\"float32\"", d9d_model_dtype_names,
                 "type in which gradients are accumulated; null: the parameters'",
                 .flags = D9D_NULLABLE),
    D9D_KEY_ENUM(gradients_section, reduce_dtype, "null", d9d_model_dtype_names,
                 "type in which gradients travel between ranks; null: grad_dtype. \"bfloat16\" "
                 "sends half of float32, rounded once, and sums in float32",
                 .flags = D9D_NULLABLE),
    D9D_KEY_INT(gradients_section, bucket_size_mb, "32", 1, 1 << 20,
                "size of a gradient bucket, which is reduced in one call"),
    D9D_KEY_ENUM(gradients_section, reduce, "\"micro_batch\"", grad_reduce_names,
                 "when gradients of sharded parameters are reduced: \"micro_batch\" has a shard of "
                 "them in memory, \"step\" all of them, for fewer reduce-scatters"),
    D9D_KEY_END,
};

/* A wider type than that of the gradients would send more and find nothing more. */
static d9d_status gradients_check(const void *s, const char *path)
{
    const gradients_section *g = s;

    if (g->reduce_dtype < 0 || g->grad_dtype == 0 || g->reduce_dtype == g->grad_dtype)
        return D9D_OK;
    return D9D_FAIL(
        D9D_ECONFIG,
        "%s: reduce_dtype \"%s\" with grad_dtype %s%s%s: gradients that are accumulated "
        "in float32 may be sent as another type",
        path, d9d_model_dtype_names[g->reduce_dtype], g->grad_dtype < 0 ? "" : "\"",
        g->grad_dtype < 0 ? "null" : d9d_model_dtype_names[g->grad_dtype],
        g->grad_dtype < 0 ? "" : "\"");
}

static const d9d_table gradients_table = D9D_TABLE(
    gradients_section, "gradient_manager", gradients_keys, "gradients", .check = gradients_check);

typedef struct d9d_job_sharding_section sharding_section;
static const d9d_key sharding_keys[] = {
    D9D_KEY_BOOL(sharding_section, reshard_after_forward, "true",
                 "reshard a layer after its forward and unshard it again for backward; false: it "
                 "stays unsharded until then, for half as many all-gathers"),
    D9D_KEY_BOOL(
        sharding_section, reshard_after_backward, "true",
        "false: layers stay unsharded over all micro-batches of a step, after forward too, "
        "for one all-gather a step (ZeRO-2; with reduce \"step\" ZeRO-1)"),
    D9D_KEY_INT(sharding_section, prefetch, "1", 0, 64,
                "layers that are unsharded ahead of the one that computes"),
    D9D_KEY_END,
};
static const d9d_table sharding_table =
    D9D_TABLE(sharding_section, "sharding", sharding_keys, "sharded weights (FSDP)");

typedef struct d9d_job_offload_section offload_section;
static const char *const offload_names[] = {
    [D9D_JOB_OFFLOAD_NONE] = "none", [D9D_JOB_OFFLOAD_HOST] = "host", NULL};
static const d9d_key offload_keys[] = {
    D9D_KEY_ENUM(offload_section, optimizer, "\"none\"", offload_names,
                 "host: optimizer states, master weights' residuals and averages are in pinned "
                 "memory of the host, which each update streams over the bus; the same bits"),
    D9D_KEY_ENUM(offload_section, activations, "\"none\"", offload_names,
                 "host: what layers save for backward waits in pinned memory of the host and comes "
                 "back before it is read, copied beside the computation; the same bits"),
    D9D_KEY_REAL(offload_section, activation_fraction, "1", 0.01, 1,
                 "share of a stage's layers whose activations go, evenly spread from the first on: "
                 "less for a bus that computation waits for"),
    D9D_KEY_INT(offload_section, activation_prefetch, "1", 1, 64,
                "of the layers that go, how many return ahead of the one that backward computes, "
                "and how many may be on their way to the host; each takes a layer's device memory"),
    D9D_KEY_END,
};

static d9d_status offload_check(const void *section, const char *path)
{
    const offload_section *s = section;
    const bool off = s->activations == D9D_JOB_OFFLOAD_NONE;

    if (off && (s->activation_fraction < 1 || s->activation_prefetch > 1))
        return D9D_FAIL(D9D_ECONFIG, "%s.%s: %g has no effect without activations \"host\"", path,
                        s->activation_fraction < 1 ? "activation_fraction" : "activation_prefetch",
                        s->activation_fraction < 1 ? s->activation_fraction
                                                   : (double)s->activation_prefetch);
    return D9D_OK;
}

static const d9d_table offload_table =
    D9D_TABLE(offload_section, "offload", offload_keys, "what is kept in the host's memory",
              .check = offload_check);

typedef struct d9d_job_timeout_section timeout_section;
static const d9d_key timeout_keys[] = {
    D9D_KEY_INT(
        timeout_section, init_timeout, "1800", 1, 1 << 30,
        "seconds that a collective may take until the first step is done, and while ranks read a "
        "stream"),
    D9D_KEY_INT(timeout_section, step_timeout, "100", 1, 1 << 30,
                "seconds that a collective may take afterwards, and at any time while a rank of "
                "the host is stopped"),
    D9D_KEY_INT(timeout_section, evaluation_timeout, "0", 0, 1 << 30,
                "seconds that a collective may take in an evaluation; 0: init_timeout"),
    D9D_KEY_INT(timeout_section, save_timeout, "0", 0, 1 << 30,
                "the same while a checkpoint is begun or waited for; 0: init_timeout, and a second "
                "for each 100 MB that a rank writes"),
    D9D_KEY_INT(timeout_section, export_timeout, "0", 0, 1 << 30,
                "the same while the finished model is exported; 0: as in a save"),
    D9D_KEY_INT(timeout_section, save_margin, "300", 0, 1 << 30,
                "seconds before the Slurm time limit at which the run saves and leaves"),
    D9D_KEY_END,
};
static const d9d_table timeout_table =
    D9D_TABLE(timeout_section, "timeout", timeout_keys, "limits of time");

typedef struct d9d_job_integrity_section integrity_section;
static const d9d_key integrity_keys[] = {
    D9D_KEY_PERIOD(integrity_section, period_steps, "\"disable\"",
                   "steps between two comparisons of all replicas by checksums, which also precede "
                   "every save; \"disable\": never"),
    D9D_KEY_BOOL(integrity_section, optimizer_state, "true",
                 "compare the optimizer's state too, not only the weights"),
    D9D_KEY_BOOL(integrity_section, memory, "false",
                 "in every step, verify that nothing changed since the last update"),
    D9D_KEY_PERIOD(integrity_section, rerun_period_steps, "\"disable\"",
                   "compute every so many steps' gradients twice and compare them bit for bit"),
    D9D_KEY_BOOL(integrity_section, rerun_on_peer, "false",
                 "and once more on another data-parallel rank, which finds a processor that is "
                 "always wrong; needs processors that compute alike"),
    D9D_KEY_END,
};
static const d9d_table integrity_table =
    D9D_TABLE(integrity_section, "integrity", integrity_keys, "silent data corruption");

typedef struct d9d_job_stragglers_section stragglers_section;
static const char *const straggler_actions[] = {"warn", "stop", NULL};
static const d9d_key stragglers_keys[] = {
    D9D_KEY_PERIOD(stragglers_section, period_steps, "\"disable\"",
                   "compare after every so many steps how long ranks with the same work compute; "
                   "\"disable\": never"),
    D9D_KEY_REAL(stragglers_section, factor, "1.2", 1.01, 100,
                 "a rank that takes so many times as long as its peers is slow"),
    D9D_KEY_INT(stragglers_section, periods, "3", 1, 1e6,
                "it is named when it was slow in so many periods in a row"),
    D9D_KEY_ENUM(stragglers_section, action, "\"warn\"", straggler_actions,
                 "\"stop\": save, and ask to be started without its node"),
    D9D_KEY_END,
};
static const d9d_table stragglers_table =
    D9D_TABLE(stragglers_section, "stragglers", stragglers_keys, "ranks that compute slowly");

static const d9d_key gc_keys[] = {
    {.name = "period_steps",
     .kind = D9D_KIND_CUSTOM,
     .offset = D9D_NO_FIELD,
     .def = "\"disable\"",
     .custom = &d9d_step_period_kind,
     .doc = "accepted"},
    D9D_KEY_END,
};
static const d9d_table gc_table = {
    .name = "gc", .keys = gc_keys, .doc = "there is no garbage collector here"};

static const d9d_key profiling_keys[] = {
    D9D_KEY_BOOL(d9d_job_profiling_section, enabled, "true", "write traces"),
    D9D_KEY_STR(d9d_job_profiling_section, traces_dir, "\"traces\"",
                "where they go: in the run directory, of inference in the working directory, "
                "unless absolute"),
    D9D_KEY_INT(d9d_job_profiling_section, period_steps, "100", 1, 1e15, "of so many steps"),
    D9D_KEY_INT(d9d_job_profiling_section, warmup_steps, "1", 0, 1e15,
                "accepted: tracing needs no steps to warm up"),
    D9D_KEY_INT(d9d_job_profiling_section, active_steps, "1", 1, 1000,
                "the last so many are traced"),
    D9D_KEY_END,
};
static const d9d_table profiling_table =
    D9D_TABLE(d9d_job_profiling_section, "profiling", profiling_keys,
              "timelines of what the device did, in Chrome's trace format");

static const char *const ema_dtype_names[] = {"float32", "bfloat16", NULL};
static const d9d_key ema_keys[] = {
    D9D_KEY_REAL(d9d_job_ema_section, decay, "0.999", 0, 1, "what stays of the average each time",
                 .flags = D9D_BELOW_MAX | D9D_FLOAT32),
    D9D_KEY_INT(d9d_job_ema_section, every_steps, "1", 1, 1e15, "steps between its updates"),
    D9D_KEY_INT(d9d_job_ema_section, start_step, "0", 0, 1e15,
                "it begins as the weights after so many steps"),
    D9D_KEY_ENUM(d9d_job_ema_section, dtype, "\"float32\"", ema_dtype_names,
                 "type of the average; bfloat16 is rounded stochastically"),
    {.name = "evaluate",
     .kind = D9D_KIND_BOOL,
     .offset = offsetof(d9d_job_ema_section, is_evaluated),
     .def = "true",
     .doc = "evaluations measure the average in place of the weights"},
    {.name = "export",
     .kind = D9D_KIND_BOOL,
     .offset = offsetof(d9d_job_ema_section, is_exported),
     .def = "true",
     .doc = "the model that is exported is the average"},
    D9D_KEY_END,
};
static const d9d_table ema_table =
    D9D_TABLE(d9d_job_ema_section, "ema", ema_keys, "an exponential moving average of the weights");

static const d9d_key expert_replication_keys[] = {
    D9D_KEY_INT(d9d_job_expert_replication_section, slots, D9D_REQUIRED, 1, 1 << 20,
                "copies that a rank can have of each layer's experts, at most as many as it has "
                "experts of its own"),
    D9D_KEY_INT(d9d_job_expert_replication_section, period_steps, "100", 1, 1e15,
                "steps whose loads decide which experts have copies in the next ones, and where"),
    D9D_KEY_END,
};
static const d9d_table expert_replication_table =
    D9D_TABLE(d9d_job_expert_replication_section, "expert_replication", expert_replication_keys,
              "copies of hot experts on other ranks of an expert-parallel group");

static const char *const fp8_recipes[] = {"tensorwise", "rowwise", NULL};
static const char *const fp8_formats[] = {"e4m3", "e5m2", NULL};
static const d9d_key fp8_keys[] = {
    D9D_KEY_ENUM(d9d_job_fp8_section, recipe, "\"rowwise\"", fp8_recipes,
                 "what has a scale of its own: each row, and of transposed copies each column "
                 "(rowwise), or each array (tensorwise)"),
    D9D_KEY_ENUM(d9d_job_fp8_section, grad_format, "\"e4m3\"", fp8_formats,
                 "format of output gradients: e5m2 has more range and a bit less of precision; "
                 "activations and weights are e4m3"),
    D9D_KEY_BOOL(d9d_job_fp8_section, fast_accumulation, "false",
                 "sum products with about 14 bits, which is faster on Hopper"),
    D9D_KEY_BOOL(d9d_job_fp8_section, experts, "false",
                 "the matrices of experts too; false: these are multiplied in the model's dtype, "
                 "which is faster where they are narrow"),
    D9D_KEY_BOOL(d9d_job_fp8_section, fsdp_float8_all_gather, "false",
                 "FSDP quantises its shards and gathers 8 bits an element, with the bits of a "
                 "gather in the model's dtype: half the bytes of bfloat16"),
    D9D_KEY_END,
};
static const d9d_table fp8_table = D9D_TABLE(d9d_job_fp8_section, "fp8", fp8_keys,
                                             "products of the layers' matrices in 8 bits (FP8)");

#define TRAINER_KEYS(batching_table, fp8_field, fp8_doc, flag)                                     \
    D9D_KEY_TABLE(d9d_job_trainer_section, run, &run_table, "the run itself"),                     \
        D9D_KEY_TABLE(d9d_job_trainer_section, batching, &batching_table,                          \
                      "how samples make a step"),                                                  \
        {.name = "data_loading",                                                                   \
         .kind = D9D_KIND_TABLE,                                                                   \
         .offset = offsetof(d9d_job_trainer_section, data_loading),                                \
         .def = "{}",                                                                              \
         .table = &data_loading_table,                                                             \
         .doc = "how batches are prepared"},                                                       \
        D9D_KEY_TABLE(d9d_job_trainer_section, logging, &logging_table, "records"),                \
        D9D_KEY_TABLE(d9d_job_trainer_section, pipelining, &pipelining_table, "pipeline"),         \
        D9D_KEY_TABLE(d9d_job_trainer_section, model_stage_factory, &factory_table,                \
                      "where the weights come from"),                                              \
        D9D_KEY_TABLE(d9d_job_trainer_section, determinism, &determinism_table, "seeds"),          \
        D9D_KEY_TABLE(d9d_job_trainer_section, checkpointing, &checkpointing_table,                \
                      "training checkpoints"),                                                     \
        D9D_KEY_TABLE(d9d_job_trainer_section, gradient_clipping, &clipping_table, "clipping"),    \
        D9D_KEY_TABLE(d9d_job_trainer_section, gradient_manager, &gradients_table, "gradients"),   \
        D9D_KEY_TABLE(d9d_job_trainer_section, sharding, &sharding_table,                          \
                      "sharded weights (FSDP)"),                                                   \
        {.name = "fp8",                                                                            \
         .kind = D9D_KIND_TABLE,                                                                   \
         .flags = D9D_NULLABLE | (flag),                                                           \
         .offset = (fp8_field),                                                                    \
         .def = "null",                                                                            \
         .table = &fp8_table,                                                                      \
         .doc = (fp8_doc)},                                                                        \
        D9D_KEY_TABLE(d9d_job_trainer_section, timeout, &timeout_table, "limits of time"),         \
        D9D_KEY_TABLE(d9d_job_trainer_section, integrity, &integrity_table,                        \
                      "silent data corruption"),                                                   \
        {.name = "gc",                                                                             \
         .kind = D9D_KIND_TABLE,                                                                   \
         .flags = D9D_NO_EFFECT,                                                                   \
         .offset = D9D_NO_FIELD,                                                                   \
         .def = "{}",                                                                              \
         .table = &gc_table,                                                                       \
         .doc = "accepted for compatibility"},                                                     \
    {                                                                                              \
        .name = "profiling", .kind = D9D_KIND_TABLE, .flags = D9D_NULLABLE,                        \
        .offset = offsetof(d9d_job_trainer_section, profiling), .def = "null",                     \
        .table = &profiling_table, .doc = "traces of what the device did; null: none"              \
    }

static const d9d_key train_loop_keys[] = {
    TRAINER_KEYS(train_batching_table, offsetof(d9d_job_trainer_section, fp8),
                 "FP8 in the layers' matrices; null: products in the model's dtype", 0),
    {.name = "ema",
     .kind = D9D_KIND_TABLE,
     .flags = D9D_NULLABLE,
     .offset = offsetof(d9d_job_trainer_section, ema),
     .def = "null",
     .table = &ema_table,
     .doc = "a moving average of the weights; null: none"},
    {.name = "expert_replication",
     .kind = D9D_KIND_TABLE,
     .flags = D9D_NULLABLE,
     .offset = offsetof(d9d_job_trainer_section, expert_replication),
     .def = "null",
     .table = &expert_replication_table,
     .doc = "copies of hot experts, which share their tokens; null: none"},
    D9D_KEY_TABLE(d9d_job_trainer_section, offload, &offload_table,
                  "what is kept in the host's memory"),
    D9D_KEY_BOOL(d9d_job_trainer_section, optimizer_in_backward, "false",
                 "update each layer within backward, as soon as its gradients are final, and free "
                 "them (gradient release): one layer's are in memory, and no bit changes. Of steps "
                 "of one micro-batch without max_norm"),
    D9D_KEY_TABLE(d9d_job_trainer_section, stragglers, &stragglers_table,
                  "ranks that compute slowly"),
    D9D_KEY_END};
static const d9d_key infer_loop_keys[] = {TRAINER_KEYS(infer_batching_table, D9D_NO_FIELD,
                                                       "accepted: training alone is in FP8",
                                                       D9D_NO_EFFECT),
                                          D9D_KEY_END};
static const d9d_table train_loop_table =
    D9D_TABLE(d9d_job_trainer_section, "train_loop", train_loop_keys, "the loop");
static const d9d_table infer_loop_table =
    D9D_TABLE(d9d_job_trainer_section, "infer_loop", infer_loop_keys, "the loop");

/* --- inference tasks --------------------------------------------------------------- */

static const d9d_key logprobs_keys[] = {
    D9D_KEY_STR(d9d_job_output_section, output, D9D_REQUIRED, "JSONL file to write", .min = 1),
    D9D_KEY_END,
};
static const d9d_key perplexity_keys[] = {
    D9D_KEY_STR(d9d_job_output_section, output, "null",
                "JSON file to write besides the printed result", .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_END,
};
static const d9d_table logprobs_table =
    D9D_TABLE(d9d_job_output_section, "logprobs", logprobs_keys,
              "log-probability of every target, by sample", .row = &d9di_infer_task_logprobs);
static const d9d_table perplexity_table =
    D9D_TABLE(d9d_job_output_section, "perplexity", perplexity_keys,
              "exp of the mean negative log-probability over all targets",
              .row = &d9di_infer_task_perplexity);

static const d9d_key token_elem = {
    .kind = D9D_KIND_INT, .min = 0, .max = INT32_MAX, .doc = "a token"};
/* What a null means. */
#define MODELS "; null: that of the model's generation_config.json, else "
static const d9d_key generate_keys[] = {
    D9D_KEY_STR(d9d_job_generate_section, output, D9D_REQUIRED, "JSONL file to write", .min = 1),
    D9D_KEY_STR(d9d_job_generate_section, prompts, "null",
                "JSONL file of {\"prompt\": text}, {\"messages\": [...]} or {\"input_ids\": "
                "[...]}; null: samples of the data section",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_STR(d9d_job_generate_section, tokenizer, "null",
                "tokenizer.json for prompts and for \"text\"; null: that beside the weights, if "
                "there is one",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_BOOL(
        d9d_job_generate_section, add_special_tokens, "true",
        "put what the tokenizer's post_processor says around a {\"prompt\": text}, such as "
        "<s>; chats have their template's"),
    D9D_KEY_STR(d9d_job_generate_section, chat_template, "null",
                "Jinja file that says how messages are rendered; null: the one beside the "
                "tokenizer",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_JSON(d9d_job_generate_section, chat_template_kwargs, "{}",
                 "object: more variables of the chat template"),
    D9D_KEY_STR(d9d_job_generate_section, chat_template_date, "null",
                "YYYY-MM-DD, what strftime_now() of the chat template prints; null: an error there",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_BOOL(
        d9d_job_generate_section, enable_thinking, "true",
        "false: the chat template's variable of that name is false; true or null: it is not given",
        .flags = D9D_NULL_DEFAULT),
    D9D_KEY_INT(d9d_job_generate_section, prompt_tokens, "null", 1, INT32_MAX,
                "of a sample of the data section so many tokens are the prompt; null: those before "
                "its first target",
                .flags = D9D_NULLABLE),
    D9D_KEY_INT(d9d_job_generate_section, max_new_tokens, "null", 1, 1 << 24,
                "most tokens that are generated for a prompt" MODELS "128", .flags = D9D_NULLABLE),
    D9D_KEY_REAL(d9d_job_generate_section, temperature, "null", 0, 1e6,
                 "of sampling; 0: always the likeliest token" MODELS
                 "0, as where its do_sample is not true",
                 .flags = D9D_NULLABLE),
    D9D_KEY_INT(d9d_job_generate_section, top_k, "null", 0, INT32_MAX,
                "draw from so many of the likeliest tokens; 0: from all" MODELS
                "0, or 50 where its do_sample is true",
                .flags = D9D_NULLABLE),
    D9D_KEY_REAL(d9d_job_generate_section, top_p, "null", 0, 1,
                 "draw from the likeliest tokens that have this share of the probability" MODELS
                 "1",
                 .flags = D9D_ABOVE_MIN | D9D_NULLABLE),
    D9D_KEY_REAL(d9d_job_generate_section, min_p, "null", 0, 1,
                 "draw from tokens at least this share as likely as the likeliest" MODELS "0",
                 .flags = D9D_NULLABLE),
    D9D_KEY_REAL(d9d_job_generate_section, repetition_penalty, "null", 0, 1e6,
                 "divides the positive logits of tokens that a sequence has, and multiplies the "
                 "negative ones" MODELS "1",
                 .flags = D9D_ABOVE_MIN | D9D_FLOAT32 | D9D_NULLABLE),
    D9D_KEY_INT(d9d_job_generate_section, seed, "0", 0, MAX_EXACT_INT, "seed of sampling"),
    D9D_KEY_BOOL(d9d_job_generate_section, stop_at_eos, "true",
                 "stop at the eos_token_id of the generation_config.json beside the weights, or of "
                 "the config.json where there is none"),
    D9D_KEY_LIST(d9d_job_generate_section, stop_tokens, "[]", &token_elem, "tokens to stop at too"),
    D9D_KEY_ENUM(d9d_job_generate_section, kv_cache_dtype, "\"auto\"", d9d_kv_cache_dtype_names,
                 "what the KV cache stores keys and values as: auto, the model's dtype; fp8, e4m3 "
                 "with a scale for each head and token"),
    D9D_KEY_END,
};
static const d9d_table generate_table =
    D9D_TABLE(d9d_job_generate_section, "generate", generate_keys, "what follows each prompt");
const d9d_table *const d9d_infer_task_choices[] = {&logprobs_table,
                                                   &perplexity_table,
                                                   &d9di_masked_lm_infer_table,
                                                   &d9di_fill_mask_table,
                                                   &generate_table,
                                                   &d9di_head_task_infer_classification_table,
                                                   &d9di_head_task_infer_embedding_table,
                                                   &d9di_head_task_infer_hidden_states_table,
                                                   &d9di_heads_infer_table,
                                                   &d9di_reward_infer_table,
                                                   NULL};

/* --- the configurations -------------------------------------------------------------- */

static const d9d_key plugin_elem = {
    .kind = D9D_KIND_STR, .min = 1, .doc = "a shared library: a name or a path"};

#define COMMON_KEYS(S, loop_table, data_default, data_least)                                       \
    {.name = "plugin",                                                                             \
     .kind = D9D_KIND_LIST,                                                                        \
     .flags = D9D_OR_ONE,                                                                          \
     .offset = D9D_NO_FIELD,                                                                       \
     .def = "[]",                                                                                  \
     .elem = &plugin_elem,                                                                         \
     .doc = "libraries whose models and other parts this configuration may name"},                 \
        D9D_KEY_TABLE(S, mesh, &mesh_table, "degrees of parallelism"),                             \
        {.name = "data",                                                                           \
         .kind = D9D_KIND_LIST,                                                                    \
         .flags = D9D_OR_ONE,                                                                      \
         .offset = offsetof(S, data),                                                              \
         .def = (data_default),                                                                    \
         .min = (data_least),                                                                      \
         .max = D9D_BLEND_SOURCES,                                                                 \
         .elem = &data_elem,                                                                       \
         .doc = "the samples and their order, or a list of datasets to blend"},                    \
        D9D_KEY_UNION(S, model_provider, D9D_REQUIRED, name_tag, d9d_model_choices, "the model"),  \
        D9D_KEY_TABLE(S, trainer, &loop_table, "the loop")

static const d9d_key metric_elem = {.kind = D9D_KIND_UNION,
                                    .names = d9d_metric_tag,
                                    .choices = d9d_metric_choices,
                                    .doc = "a metric"};
static const d9d_key evaluation_keys[] = {
    D9D_KEY_STR(d9d_job_evaluation_section, name, "\"valid\"",
                "stands before the names of its values: \"valid/loss\"", .min = 1, .max = 64),
    D9D_KEY_LIST(d9d_job_evaluation_section, data, D9D_REQUIRED, &data_elem,
                 "the samples, as in the section data, or a list of datasets to blend", .min = 1,
                 .max = D9D_BLEND_SOURCES, .flags = D9D_OR_ONE),
    D9D_KEY_PERIOD(d9d_job_evaluation_section, period_steps, "\"last_step\"",
                   "steps between evaluations"),
    D9D_KEY_BOOL(d9d_job_evaluation_section, at_start, "false",
                 "evaluate before the first step too"),
    D9D_KEY_BOOL(d9d_job_evaluation_section, at_end, "true",
                 "evaluate after the last step whatever the period"),
    D9D_KEY_INT(d9d_job_evaluation_section, samples, "null", 1, MAX_EXACT_INT,
                "evaluate on the first so many samples; null: on all", .flags = D9D_NULLABLE),
    D9D_KEY_INT(d9d_job_evaluation_section, microbatch_size, "null", 1, 1 << 30,
                "samples of one forward pass on a rank; null: as in training",
                .flags = D9D_NULLABLE),
    D9D_KEY_LIST(d9d_job_evaluation_section, metrics, "[]", &metric_elem,
                 "what the task's predictions are worth"),
    D9D_KEY_END,
};
static const d9d_table evaluation_table =
    D9D_TABLE(d9d_job_evaluation_section, "evaluation", evaluation_keys,
              "another dataset on which the model is measured while it is trained");
static const d9d_key evaluation_elem = {.kind = D9D_KIND_TABLE,
                                        .def = "{}",
                                        .table = &evaluation_table,
                                        .doc = "one dataset to evaluate on"};
static const d9d_key train_keys[] = {
    COMMON_KEYS(d9d_train_config, train_loop_table, "{}", 1),
    D9D_KEY_UNION(d9d_train_config, optimizer, D9D_REQUIRED, d9d_optimizer_tag,
                  d9d_optimizer_choices, "the optimizer"),
    D9D_KEY_UNION(d9d_train_config, lr_scheduler, D9D_LR_SCHEDULE_CONSTANT, d9d_lr_schedule_tag,
                  d9d_lr_schedule_choices, "the learning-rate schedule", .flags = D9D_NULL_DEFAULT),
    D9D_KEY_UNION(d9d_train_config, task, "{\"name\": \"causal_lm\"}", d9d_train_task_tag,
                  d9d_train_task_choices, "what is learned"),
    D9D_KEY_LIST(d9d_train_config, metrics, "[]", &metric_elem,
                 "what the task's predictions are worth, in every record"),
    D9D_KEY_LIST(
        d9d_train_config, evaluation, "[]", &evaluation_elem,
        "datasets on which the model is measured while it is trained: one, a list, or null: "
        "none",
        .flags = D9D_OR_ONE | D9D_NULLABLE),
    D9D_KEY_UNION(d9d_train_config, peft, "null", d9d_peft_tag, d9d_peft_choices,
                  "what is trained, in place of the whole model; null: everything",
                  .flags = D9D_NULLABLE),
    D9D_KEY_STR(d9d_train_config, export_to, "null",
                "directory for the finished model in HuggingFace layout; RUN_DIR/export when null",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_END,
};
const d9d_table d9d_train_config_table =
    D9D_TABLE(d9d_train_config, "d9d-train", train_keys, "configuration of d9d-train");

static const d9d_key infer_keys[] = {
    COMMON_KEYS(d9d_infer_config, infer_loop_table, "[]", 0),
    D9D_KEY_UNION(d9d_infer_config, task, "{\"name\": \"perplexity\"}", name_tag,
                  d9d_infer_task_choices, "what is computed"),
    D9D_KEY_UNION(
        d9d_infer_config, peft, "null", d9d_peft_tag, d9d_peft_choices,
        "as the run that trained source_adapter had it: its adapters are computed with as "
        "they are; null: they are merged into the weights",
        .flags = D9D_NULLABLE),
    D9D_KEY_LIST(d9d_infer_config, metrics, "[]", &metric_elem,
                 "what the task's probabilities of classes are worth, or figures of its losses, "
                 "over all samples"),
    D9D_KEY_END,
};
const d9d_table d9d_infer_config_table =
    D9D_TABLE(d9d_infer_config, "d9d-infer", infer_keys, "configuration of d9d-infer");
