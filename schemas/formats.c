/* formats.c - see formats.h.  Optional keys are null if they are absent. */
#include "formats.h"

#include <math.h>

#include "d9d/comm/cp_method.h"
#include "d9d/data/dataset/field.h"
#include "d9d/job/job.h"

/* Bound values are only checked and never read; these fields exist for checks across keys. */
struct unread_fields {
    char none;
};

#define FIELD(n, k, d, ...)                                                                        \
    {                                                                                              \
        .name = (n), .kind = D9D_KIND_##k, .offset = D9D_NO_FIELD, .def = (d), .doc = __VA_ARGS__  \
    }
#define COUNT(n, ...)       FIELD(n, INT, D9D_REQUIRED, __VA_ARGS__, .min = 0, .max = 0x1p63)
#define HASH(n, ...)        FIELD(n, STR, D9D_REQUIRED, __VA_ARGS__, .min = 32, .max = 32)
#define CHECKSUM            HASH("xxh3", "hash of the bytes before this line, hexadecimal")
#define TEXT(n, ...)        FIELD(n, STR, D9D_REQUIRED, __VA_ARGS__)
#define NULLABLE(n, k, ...) FIELD(n, k, "null", __VA_ARGS__, .flags = D9D_NULLABLE)
#define REAL(n, ...)                                                                               \
    NULLABLE(n, REAL, __VA_ARGS__, .min = -(double)INFINITY, .max = (double)INFINITY)
#define LIST(n, e, ...)  FIELD(n, LIST, D9D_REQUIRED, __VA_ARGS__, .elem = (e))
#define NUMBERS(n, ...)  FIELD(n, LIST, "[]", __VA_ARGS__, .elem = &a_number)
#define FORMAT(id)       FIELD("schema", ENUM, D9D_REQUIRED, "the format", .names = (id))
#define TABLE(n, k, ...) D9D_TABLE(struct unread_fields, n, k, __VA_ARGS__)

static const d9d_key an_integer = {.kind = D9D_KIND_INT, .min = -0x1p63, .max = 0x1p63};
static const d9d_key a_range = {.kind = D9D_KIND_LIST, .elem = &an_integer, .flags = D9D_NULLABLE};
static const d9d_key an_index = {.kind = D9D_KIND_INT, .min = 0, .max = 0x1p63};
static const d9d_key a_number = {
    .kind = D9D_KIND_REAL, .min = -(double)INFINITY, .max = (double)INFINITY};
static const d9d_key a_hash = {.kind = D9D_KIND_STR, .min = 32, .max = 32};
static const d9d_key a_text = {.kind = D9D_KIND_STR};

/* --- d9d.dataset.v1 ------------------------------------------------------------------- */

static const char *const dataset_ids[] = {"d9d.dataset.v1", NULL};
static const char *const token_types[] = {"u16", "u32", NULL};
static const char *const targets[] = {"next", "labels", NULL};
static const char *const pack_modes[] = {"best-fit", "concat", NULL};
static const char *const on_errors[] = {"stop", "skip", NULL};
static const char *const overflows[] = {"split", "truncate", "drop", NULL};

static const char *const chat_masks[] = {"generation", "differences", NULL};

static const d9d_key tokenizer_keys[] = {
    TEXT("file", "its file in the dataset"),
    HASH("xxh3_128", "XXH3-128 of that file, hexadecimal"),
    D9D_KEY_END,
};
static const d9d_key recipe_keys[] = {
    NULLABLE("max_length", INT, "most tokens of a sample; null: any", .min = 1, .max = 0x1p63),
    FIELD("overflow", ENUM, D9D_REQUIRED, "what becomes of longer documents", .names = overflows),
    NULLABLE("shuffle_seed", INT, "seed of the order of samples; null: as read", .max = 0x1p63),
    NULLABLE("on_error", ENUM, "what was done about bad records; null: not said",
             .names = on_errors),
    FIELD(
        "add_special_tokens", BOOL, "false",
        "special tokens of the tokenizer stand around texts; absent: of chats, given ids and older "
        "ones"),
    NULLABLE("append_eos", STR, "token after every document; null: none"),
    NULLABLE("chat_template", STR, "what rendered the chats; null: there are none"),
    NULLABLE(
        "record_documents", INT,
        "documents of a record of answers, of which a sample has whole ones; absent: records are "
        "single documents",
        .min = 2, .max = 4),
    NULLABLE("chat_masks", ENUM, "how it is known what of chats is trained; null: no chats",
             .names = chat_masks),
    NULLABLE("chat_kwargs", STR, "--template-kwargs as given; null: none"),
    NULLABLE("chat_date", STR, "--template-date as given; null: none"),
    NULLABLE("pack_mode", ENUM, "how documents are put together; null: they are not",
             .names = pack_modes),
    NULLABLE("pack_window", INT, "documents that best-fit chose among; null: none", .min = 1,
             .max = 0x1p63),
    NULLABLE("unit_bytes", INT, "of input that shards were made of apart; null: not said", .min = 1,
             .max = 0x1p63, .former = "part_bytes"),
    D9D_KEY_END,
};
static const d9d_key skipped_keys[] = {
    COUNT("not_utf8", "the text is no UTF-8"),
    COUNT("not_json", "the line is not one JSON object"),
    COUNT("no_member", "a member that is read is not there"),
    COUNT("bad_value", "a member has a value that cannot be used"),
    COUNT("chat_not_rendered", "the template does not say how to render the chat"),
    COUNT("not_tokenized", "the tokenizer refuses the text"),
    D9D_KEY_END,
};
static const d9d_table skipped_table =
    TABLE("skipped", skipped_keys, "bad records that were left out, by reason");
static const d9d_key documents_keys[] = {
    COUNT("read", "documents in the sources"),
    COUNT("kept", "documents that gave samples"),
    COUNT("too_short", "documents without a target"),
    NULLABLE("no_trained_role", INT,
             "of those, chats in which no message is trained; null: not said", .max = 0x1p63),
    COUNT("dropped", "documents left out because they were too long"),
    COUNT("truncated", "documents cut at the maximum length"),
    COUNT("split", "documents that gave more than one sample"),
    NULLABLE("turns_lost", INT,
             "turns of chats left out of those dropped or truncated; null: not said", .min = 0,
             .max = 0x1p63),
    NULLABLE("skipped", TABLE, "bad records by reason; null: such a record ended the run",
             .table = &skipped_table),
    NULLABLE("special_twice", INT,
             "texts that began with the special tokens that were added; null: not said",
             .max = 0x1p63),
    NULLABLE("targets_lost", INT, "targets left out of those dropped or truncated; null: not said",
             .min = 0, .max = 0x1p63),
    D9D_KEY_END,
};
static const d9d_key split_keys[] = {
    TEXT("name", "its name"),
    COUNT("first", "number of its first sample"),
    COUNT("samples", "how many samples follow each other from there"),
    COUNT("positions", "positions with a target in them"),
    COUNT("longest", "positions of its longest sample"),
    NULLABLE("field_ranges", LIST, "`range` of each field in it; null: of all splits together",
             .elem = &a_range),
    NULLABLE("label_range", LIST, "that of the split; null: not known, or of all splits together",
             .elem = &an_integer),
    D9D_KEY_END,
};
static const d9d_key source_keys[] = {
    TEXT("name", "path as given"),
    COUNT("bytes", "size of the file"),
    D9D_KEY_END,
};
static const d9d_key data_file_keys[] = {
    TEXT("name", "plain name in the dataset"),
    COUNT("bytes", "its size"),
    HASH("xxh3_128", "XXH3-128 of its bytes, hexadecimal"),
    D9D_KEY_END,
};

static const char *const field_types[] = {"F32", "I64", "I32", "U8", NULL};
static const d9d_key field_keys[] = {
    TEXT("name", "its name"),
    FIELD("dtype", ENUM, D9D_REQUIRED, "type of its elements", .names = field_types),
    FIELD("per", ENUM, D9D_REQUIRED, "what has a row of it", .names = d9d_field_per_names),
    LIST("shape", &an_index, "of a row; [] is a number"),
    FIELD("ragged", BOOL, D9D_REQUIRED, "a sample has any number of rows"),
    FIELD("pad", REAL, D9D_REQUIRED, "value of padding", .min = -0x1p128, .max = 0x1p128),
    FIELD("allow_nan", BOOL, D9D_REQUIRED, "NaN and infinities are values"),
    NULLABLE("padding", ENUM, "where ragged ones are padded; null: it is not ragged",
             .names = d9d_field_padding_names),
    NULLABLE("longest", INT, "most rows of a document; null: it is not ragged", .min = 0,
             .max = 0x1p31),
    NULLABLE("range", LIST, "the least and the greatest integer but -100; null: it is not known",
             .elem = &an_integer),
    D9D_KEY_END,
};

static const d9d_table tokenizer_table = TABLE("tokenizer", tokenizer_keys, "a copy");
static const d9d_table recipe_table = TABLE("recipe", recipe_keys, "how documents became samples");
static const d9d_table documents_table =
    TABLE("documents", documents_keys, "what became of the documents");
static const d9d_table split_table = TABLE("split", split_keys, "samples side by side");
static const d9d_table source_table = TABLE("source", source_keys, "an input");
static const d9d_table data_file_table = TABLE("file", data_file_keys, "a file of the dataset");
static const d9d_table field_table = TABLE("field", field_keys, "a named tensor of each sample");
static const d9d_key a_field = {.kind = D9D_KIND_TABLE, .table = &field_table};
static const d9d_key a_split = {.kind = D9D_KIND_TABLE, .table = &split_table};
static const d9d_key a_source = {.kind = D9D_KIND_TABLE, .table = &source_table};
static const d9d_key a_data_file = {.kind = D9D_KIND_TABLE, .table = &data_file_table};

static const d9d_key dataset_keys[] = {
    FORMAT(dataset_ids),
    TEXT("version", "of the suite that wrote it"),
    NULLABLE("tokenizer", TABLE, "null: the inputs were tokens", .table = &tokenizer_table),
    COUNT("vocab_size", "every token is below it"),
    FIELD("dtype", ENUM, D9D_REQUIRED, "of tokens on disk, little endian", .names = token_types),
    FIELD("targets", ENUM, D9D_REQUIRED, "the next token, or labels-*.bin", .names = targets),
    COUNT("samples", "in all splits"),
    COUNT("tokens", "on disk"),
    COUNT("positions", "inputs that the samples have together"),
    COUNT("shards", "number of tokens-*.bin"),
    COUNT("pack", "positions of a packed sample; 0: a document a sample"),
    FIELD("fields", LIST, "[]", "named tensors of samples; none: it has no fields-*.bin",
          .elem = &a_field),
    NULLABLE("label_range", LIST, "the least and the greatest label but -100; null: not known",
             .elem = &an_integer),
    FIELD("recipe", TABLE, D9D_REQUIRED, "options of d9d-shard", .table = &recipe_table),
    FIELD("documents", TABLE, D9D_REQUIRED, "counts", .table = &documents_table),
    LIST("splits", &a_split, "in the order of their samples"),
    LIST("bucket_edges", &an_index, "rising lengths that part the buckets"),
    LIST("sources", &a_source, "the inputs, in order"),
    LIST("files", &a_data_file, "every other file, by name"),
    CHECKSUM,
    D9D_KEY_END,
};
const d9d_table d9di_dataset_format =
    TABLE("dataset", dataset_keys, "manifest.json of a dataset directory");

/* --- d9d.checkpoint.v1 ------------------------------------------------------------------ */

static const char *const checkpoint_ids[] = {"d9d.checkpoint.v1", NULL};

static const d9d_key checkpoint_file_keys[] = {
    TEXT("name", "plain name in the directory"),
    COUNT("bytes", "its size"),
    LIST("chunks", &a_hash, "XXH3-128 of each chunk, hexadecimal"),
    D9D_KEY_END,
};
static const d9d_key slice_keys[] = {
    TEXT("file", "where it is"),
    LIST("start", &an_index, "its first index in the tensor"),
    LIST("shape", &an_index, "its shape"),
    D9D_KEY_END,
};
static const d9d_table checkpoint_file_table = TABLE("file", checkpoint_file_keys, "a file");
static const d9d_table slice_table = TABLE("slice", slice_keys, "a box of a tensor in a file");
static const d9d_key a_checkpoint_file = {.kind = D9D_KIND_TABLE, .table = &checkpoint_file_table};
static const d9d_key a_slice = {.kind = D9D_KIND_TABLE, .table = &slice_table};

static const d9d_key tensor_keys[] = {
    TEXT("name", "of the parameter, or of its optimizer state"),
    TEXT("dtype", "as safetensors calls it"),
    LIST("shape", &an_index, "of the whole tensor"),
    LIST("slices", &a_slice, "boxes that do not overlap"),
    D9D_KEY_END,
};
static const d9d_table tensor_table = TABLE("tensor", tensor_keys, "a tensor and where it is");
static const d9d_key a_tensor = {.kind = D9D_KIND_TABLE, .table = &tensor_table};

/* The position of a run. */
#define RUN_STATE_KEYS                                                                             \
    NULLABLE("samples", INT, "samples consumed", .max = 0x1p63),                                   \
        NULLABLE("tokens", INT, "target tokens seen", .max = 0x1p63),                              \
        NULLABLE("parent", INT, "step that this life of the run began with; -1: none", .min = -1,  \
                 .max = 0x1p63),                                                                   \
        NULLABLE("seed", INT, "of the run", .max = 0x1p63),                                        \
        FIELD("finite", BOOL, "true", "loss and gradient norm of the step were"),                  \
        NULLABLE("source", STR, "identity of the source checkpoint, hexadecimal", .min = 32,       \
                 .max = 32),                                                                       \
        NULLABLE("source_path", STR, "of earlier versions: where that was"),                       \
        NULLABLE("reference", STR, "identity of the task's frozen model, as of \"source\""),       \
        NULLABLE("reference_path", STR, "of earlier versions: where that was"),                    \
        NULLABLE("hf_config", STR, "hash of the model's config.json, hexadecimal", .min = 32,      \
                 .max = 32),                                                                       \
        NULLABLE("config", STR, "hash of the settings that may not change, hexadecimal",           \
                 .min = 32, .max = 32),                                                            \
        NULLABLE("dataset", STR, "hash of the dataset, hexadecimal", .min = 32, .max = 32),        \
        NULLABLE("optimizer_steps", STR_INT_MAP, "how often each parameter was stepped",           \
                 .max = 0x1p63)

/* Members of a training checkpoint, between identification and files. */
struct checkpoint {
    int64_t step;
    d9d_list tensors;
};

static const d9d_key checkpoint_keys[] = {
    FORMAT(checkpoint_ids),
    D9D_KEY_INT(struct checkpoint, step, "null", 0, 0x1p63,
                "optimizer steps done; null: no checkpoint of a training run",
                .flags = D9D_NULLABLE),
    RUN_STATE_KEYS,
    D9D_KEY_LIST(struct checkpoint, tensors, "null", &a_tensor, "every tensor that was saved",
                 .flags = D9D_NULLABLE),
    FIELD("rank_state", LIST, "null", "files of what each rank had counted, in the order of ranks",
          .elem = &a_text, .flags = D9D_NULLABLE, .former = "cells"),
    FIELD("chunk_bytes", INT, D9D_REQUIRED, "bytes of a chunk that has a hash of its own",
          .min = 16 << 20, .max = 16 << 20),
    LIST("files", &a_checkpoint_file, "every other file"),
    CHECKSUM,
    D9D_KEY_END,
};

static d9d_status check_checkpoint(const void *value, const char *path)
{
    const struct checkpoint *c = value;

    if (c->step != D9D_INT_NULL && c->tensors.n == 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: it has a step and no tensors", path);
    return D9D_OK;
}

const d9d_table d9di_checkpoint_format = {
    .name = "checkpoint",
    .size = sizeof(struct checkpoint),
    .keys = checkpoint_keys,
    .doc = "manifest.json of a checkpoint directory; from \"step\" to \"tensors\" only in those "
           "of training runs before d9d.checkpoint.v2",
    .check = check_checkpoint,
};

/* --- d9d.checkpoint.v2 ------------------------------------------------------------------ */

static const char *const root_ids[] = {"d9d.checkpoint.v2", NULL};

static const d9d_key slice_step_keys[] = {
    FIELD("n", INT, D9D_REQUIRED, "how often the slices before it are there", .min = 2,
          .max = 0x1p20),
    FIELD("dim", INT, D9D_REQUIRED, "the dimension along which they repeat", .max = 0x1p3),
    FIELD("by", INT, D9D_REQUIRED, "the distance", .min = 1, .max = 0x1p63),
    FIELD("ranks", INT, D9D_REQUIRED, "how many ranks further each repetition is", .min = -0x1p20,
          .max = 0x1p20),
    D9D_KEY_END,
};
static const d9d_table slice_step_table = TABLE("step", slice_step_keys, "repetitions of slices");
static const d9d_key a_slice_step = {.kind = D9D_KIND_TABLE, .table = &slice_step_table};

static const d9d_key slice_run_keys[] = {
    COUNT("rank", "of the first slice"),
    LIST("start", &an_index, "its first index in the tensor"),
    LIST("shape", &an_index, "its shape"),
    FIELD("steps", LIST, "[]", "how it repeats", .elem = &a_slice_step),
    D9D_KEY_END,
};
static const d9d_table slice_run_table =
    TABLE("slice", slice_run_keys, "boxes of a tensor at equal distances");
static const d9d_key a_slice_run = {.kind = D9D_KIND_TABLE, .table = &slice_run_table};

static const d9d_key root_tensor_keys[] = {
    TEXT("name", "of the parameter, or of its optimizer state"),
    TEXT("group", "\"model\" or \"optimizer\", with which the names of its files begin"),
    TEXT("dtype", "as safetensors calls it"),
    LIST("shape", &an_index, "of the whole tensor"),
    LIST("slices", &a_slice_run, "boxes that do not overlap"),
    D9D_KEY_END,
};
static const d9d_table root_tensor_table =
    TABLE("tensor", root_tensor_keys, "a tensor and where it is");
static const d9d_key a_root_tensor = {.kind = D9D_KIND_TABLE, .table = &root_tensor_table};

static const d9d_key part_keys[] = {
    TEXT("dir", "a directory with a manifest of its own, d9d.checkpoint.v1"),
    COUNT("bytes", "of the files that this lists"),
    D9D_KEY_END,
};
static const d9d_table part_table = TABLE("part", part_keys, "the files of some ranks");
static const d9d_key a_part = {.kind = D9D_KIND_TABLE, .table = &part_table};

static const d9d_key root_keys[] = {
    FORMAT(root_ids),
    COUNT("step", "optimizer steps done"),
    RUN_STATE_KEYS,
    COUNT("ranks", "that have written"),
    COUNT("ranks_per_dir", "how many of them have a directory together"),
    LIST("tensors", &a_root_tensor, "every tensor that was saved"),
    FIELD("rank_state", BOOL, "false", "each rank has written what it had counted"),
    LIST("parts", &a_part, "the directories"),
    FIELD("chunk_bytes", INT, D9D_REQUIRED, "bytes of a chunk that has a hash of its own",
          .min = 16 << 20, .max = 16 << 20),
    LIST("files", &a_checkpoint_file, "the manifests of the directories"),
    CHECKSUM,
    D9D_KEY_END,
};
const d9d_table d9di_checkpoint_root_format =
    TABLE("checkpoint", root_keys, "manifest.json of a training run's checkpoint");

/* --- d9d.run.v1 ----------------------------------------------------------------------------- */

static const char *const run_ids[] = {"d9d.run.v1", NULL};

static const d9d_key run_keys[] = {
    FORMAT(run_ids),
    NULLABLE("id", STR, "32 hex digits, the same in all lives of the run"),
    TEXT("name", "of the run"),
    NULLABLE("description", STR, "what the configuration says it is for"),
    TEXT("version", "of the suite that runs it"),
    TEXT("started", "when this life of the run began, UTC"),
    LIST("hosts", &a_text, "the nodes of its ranks, each once"),
    NULLABLE("slurm_job", STR, "number of its Slurm job"),
    NULLABLE("slurm_restarts", STR, "how often Slurm has requeued that job"),
    COUNT("restarts", "how often the run was resumed"),
    FIELD("hparams", JSON, "null", "what the configuration wants recorded, as it is there"),
    D9D_KEY_END,
};
const d9d_table d9di_run_format = TABLE("run", run_keys, "manifest.json of a run directory");

/* --- d9d.metrics.v1 --------------------------------------------------------------------------- */

struct metrics {
    int64_t restart, save, local_save, pipeline, step, tokens;
    int end;
    const char *evaluation, *time;
};

static const char *const run_ends[] = {"done", "saved", "failed", NULL};

static const d9d_key metrics_keys[] = {
    D9D_KEY_INT(struct metrics, restart, "null", 1, 0x1p63,
                "a resumption, counted from 1; records that follow replace those beyond \"step\"",
                .flags = D9D_NULLABLE),
    D9D_KEY_ENUM(struct metrics, end, "null", run_ends, "how a life of the run ended",
                 .flags = D9D_NULLABLE),
    D9D_KEY_INT(struct metrics, save, "null", 0, 0x1p63, "the checkpoint of this step is there",
                .flags = D9D_NULLABLE),
    D9D_KEY_INT(struct metrics, local_save, "null", 0, 0x1p63,
                "the checkpoint of this step is in the memory of hosts", .flags = D9D_NULLABLE),
    D9D_KEY_INT(struct metrics, pipeline, "null", 1, 0x1p63,
                "what the ranks of a pipeline did in this step, two steps later",
                .flags = D9D_NULLABLE),
    D9D_KEY_STR(struct metrics, evaluation, "null",
                "its name, which its values begin with: what the model is worth on another dataset",
                .flags = D9D_NULLABLE),
    D9D_KEY_INT(struct metrics, step, "null", 0, 0x1p63,
                "optimizer steps done; of a resumption: those that stand; not of a checkpoint or "
                "a pipeline",
                .flags = D9D_NULLABLE),
    D9D_KEY_STR(struct metrics, time, "null", "of all but a step and an evaluation, UTC",
                .flags = D9D_NULLABLE),
    REAL("blocked_ms", "of a checkpoint: time for which training stood still"),
    REAL("total_ms", "of a checkpoint: from its step until it was there"),
    NULLABLE("schedule", STR, "of a pipeline, in words"),
    NULLABLE("micro_batches", INT, "of a pipeline: of its step", .max = 0x1p63),
    NULLABLE("rows", INT, "of a pipeline: of a micro-batch", .max = 0x1p63),
    REAL("pipeline_ms",
         "of a pipeline: the longest that a rank's micro-batches took, milliseconds, with waiting",
         .former = "play_ms"),
    REAL("bubble", "of a pipeline: part of its ranks' pipeline_ms in which they computed nothing"),
    NUMBERS("compute_ms", "of a pipeline: of each rank, what it computed for", .former = "busy_ms"),
    NUMBERS("forward_ms", "of a pipeline: of each stage, a micro-batch's forward"),
    NUMBERS("dgrad_ms", "of a pipeline: of each stage, the input half of a backward",
            .former = "input_ms"),
    NUMBERS("wgrad_ms", "of a pipeline: of each stage, the weight half of a backward",
            .former = "weight_ms"),
    REAL("loss", "mean over the target tokens of the step; absent: none; null: not finite"),
    REAL("grad_norm", "before clipping; absent: not computed, or no target"),
    REAL("lr", "learning rate of the step"),
    D9D_KEY_INT(struct metrics, tokens, "null", 0, 0x1p63, "target tokens since the run began",
                .flags = D9D_NULLABLE),
    NULLABLE("samples", INT, "samples since the run began", .max = 0x1p63),
    REAL("step_ms", "time of the step, milliseconds"),
    REAL("tokens_per_s", "target tokens a second"),
    REAL("data_ms", "of step_ms, waiting for batches"),
    REAL("mfu", "part of the device's peak that was used; absent: unknown"),
    NULLABLE("mem_bytes", INT, "most memory of the device so far", .max = 0x1p63),
    NULLABLE("host_bytes", INT, "host memory of offloaded optimizer states and activations",
             .max = 0x1p63),
    REAL("joules", "energy of rank 0's device since the record before; absent: not measured"),
    REAL("tokens_per_joule", "target tokens of a rank over that energy"),
    D9D_KEY_END,
};

/* Metrics, experts and evaluations have numbers under names of their own. */
static const d9d_key metrics_other = REAL(NULL, "of a metric, of experts or of an evaluation");

static d9d_status check_metrics(const void *value, const char *path)
{
    const struct metrics *m = value;
    const bool restart = m->restart != D9D_INT_NULL, end = m->end >= 0;
    const bool step = m->tokens != D9D_INT_NULL, disk = m->save != D9D_INT_NULL;
    const bool local = m->local_save != D9D_INT_NULL, save = disk || local;
    const bool pipeline = m->pipeline != D9D_INT_NULL, evaluation = m->evaluation != NULL;

    if (restart + end + step + disk + local + pipeline + evaluation != 1 ||
        (m->time != NULL) == (step || evaluation) ||
        (m->step != D9D_INT_NULL) == (save || pipeline))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: none of a step with \"tokens\", an \"evaluation\", and, with "
                        "\"time\", a \"restart\", an \"end\", a \"save\", a \"local_save\" and a "
                        "\"pipeline\"",
                        path);
    return D9D_OK;
}

const d9d_table d9di_metrics_format = {
    .name = "metrics",
    .size = sizeof(struct metrics),
    .keys = metrics_keys,
    .doc = "a line of metrics.jsonl: a step, an evaluation, a resumption, a checkpoint, a pipeline "
           "or an end",
    .check = check_metrics,
    .others = &metrics_other,
};

/* --- d9d.model.v1 ------------------------------------------------------------------------ */

static const char *const model_ids[] = {"d9d.model.v1", NULL};
static const char *const rules[] = {"read", "one value", "ignored", "refused", NULL};
static const char *const heads[] = {"causal_lm", "classification", "embedding", NULL};

#define SIZE(n, ...) NULLABLE(n, INT, __VA_ARGS__, .min = 0, .max = 0x1p63)
static const d9d_key weights_dtype_keys[] = {
    TEXT("dtype", "type, as in safetensors files"),
    COUNT("tensors", "tensors of this type"),
    COUNT("bytes", "their size"),
    D9D_KEY_END,
};
static const d9d_table weights_dtype_table =
    TABLE("dtype", weights_dtype_keys, "tensors of one type, as they are stored");
static const d9d_key a_weights_dtype = {.kind = D9D_KIND_TABLE, .table = &weights_dtype_table};
static const d9d_key weights_keys[] = {
    COUNT("files", "safetensors files"),
    COUNT("tensors", "tensors in them"),
    COUNT("bytes", "their size"),
    LIST("dtypes", &a_weights_dtype, "by type"),
    D9D_KEY_END,
};
static const d9d_table weights_table = TABLE("weights", weights_keys, "what is stored");
static const d9d_key memory_keys[] = {
    COUNT("bfloat16", "bytes of the parameters as bfloat16"),
    COUNT("float32", "as float32"),
    COUNT("adamw_float32", "with gradients and AdamW's moments, all float32"),
    D9D_KEY_END,
};
static const d9d_table memory_table = TABLE("memory", memory_keys, "to hold all parameters");
static const d9d_key quantised_keys[] = {
    NULLABLE("fp8", INT, "the layers' matrices in fp8", .min = 0, .max = 0x1p63),
    NULLABLE("nf4", INT, "in nf4", .min = 0, .max = 0x1p63),
    NULLABLE("head_fp8", INT, "the head's tables in fp8", .min = 0, .max = 0x1p63),
    NULLABLE("head_nf4", INT, "in nf4", .min = 0, .max = 0x1p63),
    D9D_KEY_END,
};
static const d9d_table quantised_table =
    TABLE("quantised", quantised_keys, "bytes less than as bfloat16; null: not possible");
static const d9d_key text_file_keys[] = {
    TEXT("file", "name in the folder"),
    FIELD("readable", BOOL, D9D_REQUIRED, "it can be read"),
    NULLABLE("message", STR, "why not"),
    SIZE("vocab_size", "ids of a tokenizer"),
    NULLABLE("special_tokens", STR,
             "what a tokenizer puts around a text, which is $A; null: it cannot"),
    D9D_KEY_END,
};
static const d9d_table text_file_table = TABLE("file", text_file_keys, "a file beside the weights");
static const d9d_key config_field_keys[] = {
    TEXT("name", "its name"),
    FIELD("rule", ENUM, D9D_REQUIRED,
          "read; one value: others would be refused; ignored: it changes no result; refused",
          .names = rules),
    D9D_KEY_END,
};
static const d9d_table config_field_table =
    TABLE("field", config_field_keys, "a field of config.json");
static const d9d_key a_config_field = {.kind = D9D_KIND_TABLE, .table = &config_field_table};
static const d9d_key model_keys[] = {
    FORMAT(model_ids),
    TEXT("path", "as given"),
    NULLABLE("model_type", STR, "of config.json; null: it is no text"),
    NULLABLE("family", STR, "the section of model_provider that reads it; null: none"),
    NULLABLE("class", STR, "class of transformers, without its suffix"),
    NULLABLE("head", ENUM, "what follows the final norm", .names = heads),
    NULLABLE("tied", BOOL, "the head is the embedding"),
    SIZE("layers", "decoder layers"),
    SIZE("hidden_size", "width of the residual stream"),
    SIZE("heads", "query heads"),
    SIZE("kv_heads", "key and value heads"),
    SIZE("head_dim", "features of a head; null: of several kinds"),
    SIZE("experts", "of a mixture"),
    SIZE("experts_per_token", "of them for each token"),
    SIZE("vocab_size", "ids of the vocabulary"),
    SIZE("max_positions", "longest sequence"),
    SIZE("parameters", "numbers in all tensors of the model"),
    SIZE("active_parameters", "those that a token meets"),
    NULLABLE("memory", TABLE, "bytes to hold them", .table = &memory_table),
    NULLABLE("quantised", TABLE, "what quantising saves", .table = &quantised_table),
    NULLABLE("decoded", STR, "how weights are quantised, which are decoded when they are read"),
    NULLABLE("weights", TABLE, "what is stored; null: no weights", .table = &weights_table),
    NULLABLE("tokenizer", TABLE, "null: none", .table = &text_file_table),
    NULLABLE("chat_template", TABLE, "null: none", .table = &text_file_table),
    NULLABLE("not_trainable", STR, "why it can be read, but not trained"),
    LIST("fields", &a_config_field, "what becomes of each field of config.json"),
    LIST("notes", &a_text, "what to know of a conversion"),
    LIST("refused", &a_text, "reasons to refuse it, a sentence each"),
    D9D_KEY_END,
};
const d9d_table d9di_model_format = TABLE("model", model_keys, "a model folder, described");

/* --- d9d.certificate.v1 ------------------------------------------------------------------ */

static const char *const certificate_ids[] = {"d9d.certificate.v1", NULL};
static const char *const check_results[] = {"ok", "failed", "skipped", NULL};
static const d9d_key certificate_check_keys[] = {
    TEXT("check", "its name"),
    FIELD("result", ENUM, D9D_REQUIRED, "skipped: it does not apply, or was not asked for",
          .names = check_results),
    REAL("figure", "what was measured; null: nothing"),
    REAL("limit", "what it may be at most; null: nothing was measured"),
    TEXT("detail", "what was compared, what failed, or why it was skipped"),
    D9D_KEY_END,
};
static const d9d_table certificate_check_table =
    TABLE("check", certificate_check_keys, "a property of the small model");
static const d9d_key a_certificate_check = {.kind = D9D_KIND_TABLE,
                                            .table = &certificate_check_table};
static const d9d_key certificate_keys[] = {
    FORMAT(certificate_ids),
    TEXT("version", "of the suite"),
    TEXT("source", "the family or the folder, as given"),
    TEXT("family", "the section of model_provider that reads it"),
    TEXT("task", "whose losses were certified: causal_lm, masked_lm, classification, embedding"),
    TEXT("model_type", "of config.json"),
    FIELD("shrunk", BOOL, D9D_REQUIRED, "the folder's configuration was made smaller"),
    FIELD("own_weights", BOOL, D9D_REQUIRED, "the folder's weights; false: random ones"),
    COUNT("seed", "of weights, tokens and directions"),
    COUNT("layers", "decoder layers"),
    COUNT("parameters", "numbers in all tensors of the model"),
    FIELD("config", JSON, D9D_REQUIRED, "config.json of the small model"),
    LIST("checks", &a_certificate_check, "in the order in which they ran"),
    D9D_KEY_END,
};
const d9d_table d9di_certificate_format =
    TABLE("certificate", certificate_keys, "what holds of a family, measured on a small model");

/* --- d9d.map-plan.v1 ------------------------------------------------------------------- */

static const char *const map_plan_ids[] = {"d9d.map-plan.v1", NULL};

#define TENSOR                                                                                     \
    TEXT("name", "its name"), TEXT("dtype", "its type"),                                           \
        LIST("shape", &an_index, "sizes of its dimensions"),                                       \
        COUNT("bytes", "size of its elements")
static const d9d_key plan_input_keys[] = {
    TENSOR,
    TEXT("file", "where it is; empty where only its shape is known"),
    COUNT("offset", "of its first byte in the file"),
    D9D_KEY_END,
};
static const d9d_key box_keys[] = {
    LIST("start", &an_index, "index of its first element in the output"),
    LIST("size", &an_index, "its size: how many indices of the output, in each dimension"),
    FIELD("step", LIST, "[]", "from one of these indices to the next", .elem = &an_index),
    TEXT("source", "the tensor that it is taken from"),
    COUNT("first", "number of its first element there"),
    LIST("stride", &an_index, "elements from one to the next there"),
    LIST("casts", &a_text, "types that its elements are rounded to"),
    D9D_KEY_END,
};
static const d9d_table box_table = TABLE("box", box_keys, "a piece of a source tensor");
static const d9d_key a_box = {.kind = D9D_KIND_TABLE, .table = &box_table};
static const d9d_key plan_output_keys[] = {
    TENSOR,
    FIELD("boxes", LIST, "[]", "of which boxes it is made, where asked for", .elem = &a_box),
    D9D_KEY_END,
};
static const d9d_key step_keys[] = {
    TEXT("operation", "what is done: stack(0)"),
    LIST("from", &a_text, "names that it takes"),
    LIST("to", &a_text, "names that it gives"),
    D9D_KEY_END,
};
static const d9d_table plan_input_table = TABLE("input", plan_input_keys, "a tensor of the source");
static const d9d_table plan_output_table = TABLE("output", plan_output_keys, "a tensor made");
static const d9d_table step_table = TABLE("step", step_keys, "one operation");
static const d9d_key a_plan_input = {.kind = D9D_KIND_TABLE, .table = &plan_input_table};
static const d9d_key a_plan_output = {.kind = D9D_KIND_TABLE, .table = &plan_output_table};
static const d9d_key a_step = {.kind = D9D_KIND_TABLE, .table = &step_table};
static const d9d_key group_keys[] = {
    COUNT("group", "its number"),
    COUNT("read", "bytes of the source that are read"),
    COUNT("written", "bytes of its outputs"),
    LIST("inputs", &a_plan_input, "what it takes"),
    LIST("steps", &a_step, "what is done, in order"),
    LIST("outputs", &a_plan_output, "what it gives"),
    D9D_KEY_END,
};
static const d9d_table group_table = TABLE("group", group_keys, "tensors that hang together");
static const d9d_key a_group = {.kind = D9D_KIND_TABLE, .table = &group_table};
static const d9d_key map_plan_keys[] = {
    FORMAT(map_plan_ids),
    LIST("groups", &a_group, "in order of their first steps"),
    COUNT("tensors_in", "tensors of the source"),
    COUNT("tensors_out", "tensors made"),
    COUNT("read", "bytes that are read"),
    COUNT("written", "bytes that are written"),
    COUNT("memory_bytes_per_job", "what a thread allocates at most"),
    D9D_KEY_END,
};
const d9d_table d9di_map_plan_format = TABLE("map_plan", map_plan_keys, "d9d-map plan --json");

/* --- d9d.samples.v1 --------------------------------------------------------------------------- */

static const char *const sampler_orders[] = {"sequential", "shuffled", NULL};
static const d9d_key sampler_keys[] = {
    COUNT("samples", "of the split"),
    FIELD("order", ENUM, D9D_REQUIRED, "of the samples of an epoch", .names = sampler_orders),
    COUNT("seed", "of the shuffled order"),
    REAL("weight", "share of the stream"),
    D9D_KEY_END,
};
static const d9d_table sampler_table = TABLE("dataset", sampler_keys, "a dataset of the stream");
static const d9d_key sampler_entry = {.kind = D9D_KIND_TABLE, .table = &sampler_table};

static const d9d_key samples_keys[] = {
    COUNT("step", "the optimizer step, from 1"),
    COUNT("first", "number in the stream of its first sample"),
    FIELD("count", INT, "0", "how many they are, where they follow from the sampler", .min = 0,
          .max = 0x1p63),
    FIELD(
        "sampler", LIST, "[]",
        "what makes the stream from here on: each dataset of it; at step 1, every 1024 steps, and "
        "where it changes",
        .elem = &sampler_entry),
    FIELD("samples", LIST, "[]",
          "their numbers in the split, in the order of the rows, where they do not follow from the "
          "sampler",
          .elem = &an_index),
    FIELD("datasets", LIST, "[]",
          "in a blend, the place of each one's dataset in the configuration", .elem = &an_index),
    FIELD("skipped", LIST, "[]", "those of the samples that were left out", .elem = &an_index),
    D9D_KEY_END,
};
const d9d_table d9di_samples_format =
    TABLE("samples", samples_keys, "a line of samples.jsonl: what made a step");

/* --- d9d.completions.v1 ----------------------------------------------------------------------- */

static const d9d_key completions_keys[] = {
    COUNT("step", "the optimizer step, from 1"),
    COUNT("sample", "the prompt's, in its split"),
    TEXT("prompt", "what stands before the first target, without special tokens"),
    TEXT("completion", "what was sampled, likewise"),
    TEXT("answer", "the sample's targets, likewise"),
    REAL("reward", "the weighted sum of all rewards"),
    REAL("advantage", "beside the other completions of the prompt"),
    COUNT("tokens", "of the completion"),
    FIELD("terminated", BOOL, D9D_REQUIRED, "it ended at a stop token"),
    D9D_KEY_END,
};
const d9d_table d9di_completions_format =
    TABLE("completions", completions_keys, "a line of completions.jsonl: what was sampled");

/* --- d9d.flight.v1 ---------------------------------------------------------------------------- */

static const char *const flight_ids[] = {"d9d.flight.v1", NULL};
static const char *const flight_faults[] = {"none", "mismatch", "missing", "cycle",
                                            "lost", "stuck",    NULL};
static const char *const flight_steps[] = {"waits", "queued", "done", "failed", NULL};

static const d9d_key flight_call_keys[] = {
    COUNT("number", "of all calls of the rank, from 1"),
    TEXT("group", "axes of the mesh that it joins"),
    COUNT("seq", "of the group's calls, from 1; exchanges count on their own"),
    TEXT("call", "all_reduce, all_gather, ..."),
    TEXT("dtype", "type of the elements"),
    COUNT("count", "elements"),
    TEXT("label", "what is moved", .former = "what"),
    FIELD("state", ENUM, D9D_REQUIRED, "how far it is", .names = flight_steps),
    REAL("began_s_ago", "seconds since it was made"),
    REAL("took_ms", "until it was done; null while it is not"),
    D9D_KEY_END,
};
static const d9d_table flight_call_table = TABLE("call", flight_call_keys, "a call to other ranks");
static const d9d_key a_flight_call = {.kind = D9D_KIND_TABLE, .table = &flight_call_table};
static const d9d_key flight_rank_keys[] = {
    COUNT("rank", "its number in the world"),
    TEXT("where", "its place in the mesh"),
    TEXT("node", "its node; empty without a record"),
    TEXT("process", "what can be said of its process"),
    REAL("seen_s_ago", "seconds since its last sign of life; null without a record"),
    NULLABLE("message", STR, "what its watchdog said when it ended the job", .former = "said"),
    LIST("calls", &a_flight_call, "its last calls, in order"),
    D9D_KEY_END,
};
static const d9d_table flight_rank_table = TABLE("rank", flight_rank_keys, "a rank's record");
static const d9d_key a_flight_rank = {.kind = D9D_KIND_TABLE, .table = &flight_rank_table};
static const d9d_key flight_keys[] = {
    FORMAT(flight_ids),
    FIELD("fault", ENUM, D9D_REQUIRED, "what is wrong", .names = flight_faults),
    TEXT("diagnosis", "the same for people", .former = "sentence"),
    REAL("waited_s", "seconds that the oldest call waits; 0: none does"),
    LIST("culprits", &an_index, "the ranks to blame"),
    LIST("ranks", &a_flight_rank, "all of them, in order"),
    D9D_KEY_END,
};
const d9d_table d9di_flight_format = TABLE("flight", flight_keys, "d9d-metrics flight --json");

/* --- d9d.filter.v1 ---------------------------------------------------------------------------- */

static const char *const filter_ids[] = {"d9d.filter.v1", NULL};

static const d9d_key place_keys[] = {
    TEXT("source", "path as given"),
    COUNT("line", "of it, from 1"),
    D9D_KEY_END,
};
static const d9d_table place_table = TABLE("duplicate_of", place_keys, "a document");
static const d9d_key filter_example_keys[] = {
    TEXT("source", "path as given"),
    COUNT("line", "of it, from 1"),
    TEXT("text", "its first bytes"),
    NULLABLE("duplicate_of", TABLE, "the document that stays in its place", .table = &place_table),
    D9D_KEY_END,
};
static const d9d_table filter_example_table =
    TABLE("example", filter_example_keys, "a document that was removed");
static const d9d_key a_filter_example = {.kind = D9D_KIND_TABLE, .table = &filter_example_table};
static const d9d_key filter_rule_keys[] = {
    TEXT("rule", "its name, as of d9d-shard filter --rules"),
    NULLABLE("threshold", REAL, "of its measure; null: it has none", .min = 0, .max = 1e15),
    COUNT("removed", "documents for which it was the first rule that they break"),
    LIST("examples", &a_filter_example, "the first of them"),
    D9D_KEY_END,
};
static const d9d_table filter_rule_table =
    TABLE("rule", filter_rule_keys, "a rule that was asked for");
static const d9d_key a_filter_rule = {.kind = D9D_KIND_TABLE, .table = &filter_rule_table};
static const d9d_key minhash_keys[] = {
    REAL("threshold", "Jaccard similarity of near duplicates"),
    COUNT("bands", "of a signature"),
    COUNT("rows", "hashes of a band"),
    COUNT("ngram", "words of a shingle"),
    COUNT("seed", "of the hashes"),
    D9D_KEY_END,
};
static const d9d_table minhash_table = TABLE("minhash", minhash_keys, "of near duplicates");
static const d9d_key a_path = {.kind = D9D_KIND_STR};
static const d9d_key contamination_keys[] = {
    LIST("evaluations", &a_path, "paths as given"),
    COUNT("ngram", "words of an n-gram"),
    COUNT("ngrams", "different ones"),
    COUNT("texts", "of the evaluations"),
    COUNT("too_short", "of those, with fewer words, which find nothing"),
    D9D_KEY_END,
};
static const d9d_table contamination_table =
    TABLE("contamination", contamination_keys, "n-grams of evaluations");
static const d9d_key filter_keys[] = {
    FORMAT(filter_ids),
    TEXT("version", "of d9d that made it"),
    LIST("sources", &a_path, "the inputs, in order"),
    COUNT("read", "documents"),
    COUNT("kept", "of those"),
    COUNT("read_bytes", "of all records"),
    COUNT("kept_bytes", "of those that are kept"),
    LIST("rules", &a_filter_rule, "in the order in which they are tried"),
    NULLABLE("minhash", TABLE, "how near duplicates were found; null: they stay",
             .table = &minhash_table),
    NULLABLE("contamination", TABLE, "null: no evaluations were given",
             .table = &contamination_table),
    D9D_KEY_END,
};
const d9d_table d9di_filter_format =
    TABLE("filter", filter_keys, "report.json of d9d-shard filter");

/* --- d9d.plan.v1 ------------------------------------------------------------------------------ */

static const char *const plan_ids[] = {"d9d.plan.v1", NULL};
static const char *const plan_links[] = {"node", "network", "host", NULL};

static const char *const plan_cp_methods[] = {
#define X(name, word) word,
    D9D_CP_METHODS(X)
#undef X
        NULL};

static const d9d_key plan_mesh_keys[] = {
    COUNT("pipeline_parallel", "as of the configuration"),
    COUNT("data_parallel_replicate", "as of the configuration"),
    COUNT("data_parallel_shard", "as of the configuration"),
    COUNT("context_parallel_replicate", "as of the configuration"),
    COUNT("context_parallel_shard", "as of the configuration"),
    FIELD("context_parallel_method", ENUM, "\"all_gather\"", "as of the configuration",
          .names = plan_cp_methods),
    COUNT("tensor_parallel", "as of the configuration"),
    COUNT("expert_parallel", "as of the configuration"),
    FIELD("expert_parallel_local", INT, "1", "as of the configuration", .min = 0, .max = 0x1p63),
    D9D_KEY_END,
};
static const d9d_table plan_mesh_table = TABLE("mesh", plan_mesh_keys, "degrees of parallelism");
static const d9d_key plan_work_keys[] = {
    TEXT("kind", "of kernels"),        COUNT("calls", "how many"),
    REAL("flops", "operations"),       REAL("bytes", "of memory, read and written"),
    REAL("seconds", "that they take"), D9D_KEY_END,
};
static const d9d_table plan_work_table = TABLE("work", plan_work_keys, "kernels of a kind");
static const d9d_key some_plan_work = {.kind = D9D_KIND_TABLE, .table = &plan_work_table};
static const d9d_key plan_message_keys[] = {
    TEXT("group", "axes of the mesh that it joins, or what else crosses a link"),
    TEXT("call", "all_reduce, all_gather, ..."),
    FIELD("link", ENUM, D9D_REQUIRED, "within a node, between nodes, or to the memory of the host",
          .names = plan_links),
    COUNT("calls", "how many"),
    REAL("bytes", "that the rank sends or receives, the larger"),
    REAL("seconds", "that they take, beside computation or not"),
    D9D_KEY_END,
};
static const d9d_table plan_message_table =
    TABLE("messages", plan_message_keys, "calls of one kind to other ranks");
static const d9d_key a_plan_message = {.kind = D9D_KIND_TABLE, .table = &plan_message_table};
static const d9d_key plan_stage_keys[] = {
    COUNT("rank", "the first rank of the stage"),
    COUNT("ranks", "how many are like it"),
    COUNT("weights", "bytes of its parameters"),
    COUNT("gradients", "bytes of their gradients"),
    COUNT("optimizer", "bytes of the optimizer's state"),
    COUNT("master_residual", "bytes of it that float32 master weights take beside bfloat16 ones"),
    COUNT("fsdp_buffers", "bytes of unsharded parameters and gradients, at least",
          .former = "units"),
    COUNT("activations", "bytes of what is left of the peak"),
    COUNT("scratch", "bytes that kernels borrow at the peak"),
    COUNT("peak", "bytes of the device's pool at most: all of the above"),
    COUNT("kv_cache", "bytes of it while completions are generated; 0: none are"),
    COUNT("unaccounted", "bytes that libraries take beside the pool", .former = "outside"),
    COUNT("bytes", "peak and unaccounted"),
    COUNT("bytes_experts_full",
          "of these where the rank's experts are at their capacity; 0: they have none"),
    COUNT(
        "expert_copies_weights",
        "bytes of copies of experts, included in weights, which arrive once a step; 0: no copies"),
    COUNT("expert_copies_gradients",
          "bytes of their gradients, included in gradients, which leave once a step"),
    COUNT("host_optimizer", "bytes of optimizer states in the host's memory"),
    COUNT("host_activations", "bytes of activations in the host's memory"),
    COUNT("host_copy", "bytes of host memory for asynchronous checkpoints"),
    COUNT("host_local", "bytes of host memory for local checkpoints"),
    COUNT("host_batches", "bytes of the host's memory for batches that are read ahead"),
    REAL("step_s", "seconds of a step of its own"),
    REAL("bus_wait_s", "of these, in which computation waits for activations from the host"),
    COUNT("live_activations", "forwards at once whose backward is not through", .former = "live"),
    LIST("work", &some_plan_work, "its kernels in a step"),
    LIST("messages", &a_plan_message, "its calls to others in a step"),
    D9D_KEY_END,
};
static const d9d_table plan_stage_table =
    TABLE("stage", plan_stage_keys, "the ranks of a pipeline stage");
static const d9d_key a_plan_stage = {.kind = D9D_KIND_TABLE, .table = &plan_stage_table};
static const d9d_key plan_cost_keys[] = {
    REAL("forward", "forward"),
    REAL("dgrad", "gradients of inputs", .former = "input"),
    REAL("wgrad", "gradients of weights", .former = "weight"),
    D9D_KEY_END,
};
static const d9d_table plan_cost_table = TABLE("stage_cost", plan_cost_keys, "seconds of a stage");
static const d9d_key a_plan_cost = {.kind = D9D_KIND_TABLE, .table = &plan_cost_table};
static const d9d_key plan_goodput_keys[] = {
    COUNT("nodes", "of the job"),
    REAL("node_mtbf_h", "hours between failures of a node"),
    REAL("mtbf_s", "seconds between failures of the job"),
    REAL("save_s", "seconds until a checkpoint is complete"),
    REAL("blocked_s", "seconds of these that training waits"),
    REAL("restart_s", "seconds from a failure to the first step after it"),
    NULLABLE("period_steps", INT, "between checkpoints; null: none", .min = 1, .max = 0x1p63),
    REAL("goodput", "share of the time that failures and saves leave; null without checkpoints"),
    NULLABLE("local_period_steps", INT, "between local checkpoints; null: none", .min = 1,
             .max = 0x1p63),
    REAL("local_goodput", "with those, if a host that has the copy lives; null: none"),
    COUNT("best_period_steps", "between checkpoints, for the largest goodput"),
    REAL("best_goodput", "that goodput"),
    D9D_KEY_END,
};
static const d9d_table plan_goodput_table =
    TABLE("goodput", plan_goodput_keys, "what failures of nodes leave of the time");
static const d9d_key plan_cp_keys[] = {
    FIELD("method", ENUM, D9D_REQUIRED, "of context parallelism", .names = plan_cp_methods),
    NULLABLE("refused", STR, "why the model or the mesh has no such; null: it was planned"),
    REAL("step_s", "seconds of a step; null: it was refused"),
    NULLABLE("bytes", INT, "of the rank that needs most; null: it was refused", .min = 0,
             .max = 0x1p63),
    FIELD("fits", BOOL, D9D_REQUIRED, "is the memory enough for them?"),
    D9D_KEY_END,
};
static const d9d_table plan_cp_table =
    TABLE("context_parallel_choice", plan_cp_keys, "a method as it was planned");
static const d9d_key a_plan_cp = {.kind = D9D_KIND_TABLE, .table = &plan_cp_table};
static const d9d_key plan_start_keys[] = {
    TEXT("carrier", "what carries the messages of the ranks: pmix or tcp"),
    COUNT("exchanges", "of all ranks, at the job's start and end"),
    COUNT("requests", "of a node's ranks to its PMIx server"),
    COUNT("messages", "of a rank by TCP, at most"),
    REAL("seconds", "of all of these"),
    D9D_KEY_END,
};
static const d9d_table plan_start_table =
    TABLE("start", plan_start_keys, "how the ranks find each other");
static const d9d_key plan_keys[] = {
    FORMAT(plan_ids),
    FIELD("mesh", TABLE, D9D_REQUIRED, "degrees of parallelism", .table = &plan_mesh_table),
    TEXT("device", "what each rank computes with", .former = "processor"),
    COUNT("ranks", "of the job"),
    COUNT("parameters", "of the model"),
    COUNT("frozen_parameters", "of a second model that is not trained; 0: there is none"),
    COUNT("rows", "of a micro-batch"),
    COUNT("micro_batches", "of a step, on each rank"),
    COUNT("length", "positions of a row, which time is of"),
    COUNT("longest", "positions of a row, which memory is of"),
    NULLABLE("document", INT, "positions of a packed document; null: rows are not packed", .min = 1,
             .max = 0x1p63),
    NULLABLE("steps", INT, "of the run; null: nobody said", .min = 0, .max = 0x1p63),
    REAL("step_s", "seconds of a step"),
    REAL("generation_s",
         "of them for completions that the step learns from; 0: none are generated"),
    REAL("tokens", "of a step, without padding"),
    REAL("tokens_per_hour", "of the job"),
    REAL("mfu", "the model's operations over what the processors could do; null on the CPU"),
    NULLABLE("schedule", STR, "of the pipeline; null without one"),
    REAL("bubble", "share of time in which ranks of a pipeline wait"),
    LIST("stage_costs", &a_plan_cost, "seconds of a micro-batch, of each stage of the pipeline",
         .former = "prices"),
    NULLABLE("costs", STR, "the run that has measured stage_costs; null: they are the model's"),
    COUNT("checkpoint_bytes", "of one checkpoint"),
    COUNT("export_bytes", "of the exported model"),
    COUNT("host_bytes", "of the host that needs most, all its ranks' copies and batches"),
    COUNT("host_ranks", "how many these are"),
    NULLABLE("memory", INT, "bytes that a rank may take; null: unknown", .min = 0, .max = 0x1p63),
    FIELD("fits", BOOL, D9D_REQUIRED, "is that enough for every rank?"),
    TEXT("updates", "how weights are updated, and the bytes of memory per parameter"),
    LIST("stages", &a_plan_stage, "of the pipeline, one without"),
    NULLABLE("start", TABLE, "how the ranks find each other; null: there is one",
             .table = &plan_start_table),
    NULLABLE("goodput", TABLE, "with --mtbf; null without", .table = &plan_goodput_table),
    NULLABLE("context_parallel_choice", LIST,
             "the methods among which auto has chosen; null: the configuration names one",
             .elem = &a_plan_cp),
    NULLABLE("bytes_optimizer_in_backward", INT,
             "of a plan that does not fit: bytes of the rank that needs most with "
             "trainer.optimizer_in_backward; null: it is refused, or on"),
    D9D_KEY_END,
};
const d9d_table d9di_plan_format = TABLE("plan", plan_keys, "d9d-train --plan --json");

/* --- d9d.suggest.v1 --------------------------------------------------------------------------- */

static const char *const suggest_ids[] = {"d9d.suggest.v1", NULL};
static const char *const suggest_modes[] = {"off", "full", "selective", NULL};

static const char *const schedule_tag[] = {"schedule", NULL};
static const d9d_key pipelining_keys[] = {
    FIELD("schedule", UNION, D9D_REQUIRED, "order of the micro-batches", .names = schedule_tag,
          .choices = d9d_job_pipe_schedule_choices),
    D9D_KEY_END,
};
static const d9d_table pipelining_table =
    TABLE("pipelining", pipelining_keys, "the section trainer.pipelining of a configuration");
static const d9d_key suggestion_keys[] = {
    FIELD("mesh", TABLE, D9D_REQUIRED, "degrees of parallelism", .table = &plan_mesh_table),
    COUNT("rows", "of a micro-batch"),
    FIELD("checkpointing", ENUM, D9D_REQUIRED, "of activations", .names = suggest_modes),
    NULLABLE("schedule", STR, "of the pipeline, for people; null without one"),
    NULLABLE("pipelining", TABLE,
             "the schedule as trainer.pipelining takes it; null without a pipeline, and of 0.1",
             .table = &pipelining_table),
    COUNT("bytes", "that a rank needs at most"),
    REAL("step_s", "seconds of a step"),
    REAL("tokens_per_hour", "of the job"),
    REAL("mfu", "the model's operations over what the processors could do"),
    REAL("bubble", "share of time in which ranks of a pipeline wait"),
    D9D_KEY_END,
};
static const d9d_table suggestion_table = TABLE("suggestion", suggestion_keys, "a mesh that fits");
static const d9d_key a_suggestion = {.kind = D9D_KIND_TABLE, .table = &suggestion_table};
static const d9d_key suggest_keys[] = {
    FORMAT(suggest_ids),
    TEXT("device", "what each rank computes with", .former = "processor"),
    COUNT("ranks", "of the job"),
    NULLABLE("memory", INT, "bytes that a rank may take; null: unknown", .min = 0, .max = 0x1p63),
    COUNT("meshes", "that the model and the batch allow"),
    COUNT("plans", "that were made"),
    FIELD("complete", BOOL, "true",
          "false: a signal ended the search, and a better mesh may exist"),
    LIST("suggestions", &a_suggestion, "those that fit, most tokens an hour first"),
    D9D_KEY_END,
};
const d9d_table d9di_suggest_format =
    TABLE("suggest", suggest_keys, "d9d-train --plan --suggest N --json");
