/* d9d-map - converts, plans, verifies, compares, describes, initialises and certifies. */
#include "d9d/convert/describe.h"
#include "map_certify.h"

static const char *const layout_names[] = {"other", "d9d", "hf", NULL};
static const char *const experts[] = {"as-before", "per-expert", "fused", NULL};
static const char *const dtype_names[] = {"as-before", "float32", "bfloat16", "float16", NULL};
static const char *const overflow_names[] = {"error", "saturate", "inf", NULL};
static const struct map_opts defaults = {.shard_size = (int64_t)D9D_SHARD_BYTES};

#define MAP_OPTIONS                                                                                \
    TOOL_OPT(struct map_opts, to, WORD, "to", 't', "LAYOUT",                                       \
             "layout of the result: d9d, hf, or other: the one that SRC is not in (default: "      \
             "other; of init: hf)",                                                                \
             .names = layout_names),                                                               \
        TOOL_OPT(struct map_opts, dtype, WORD, "dtype", 0, "TYPE",                                 \
                 "type of floating tensors: float32, bfloat16, float16 or as-before (default)",    \
                 .names = dtype_names),                                                            \
        TOOL_OPT(struct map_opts, experts, WORD, "expert-layout", 0, "LAYOUT",                     \
                 "experts in the hf layout: per-expert, fused, or as-before: as SRC, or what SRC " \
                 "was made from, has them (default)",                                              \
                 .names = experts)
#define MAPPER_OPTION                                                                              \
    TOOL_OPT(struct map_opts, mapper, STRING, "mapper", 0, "SPEC.json",                            \
             "map as this d9d.mapper.v1 description says, whatever the model"),                    \
        TOOL_OPT(struct map_opts, adapter, STRING, "adapter", 0, "DIR", "merge adapters"),         \
        TOOL_OPT(struct map_opts, into, STRING, "into", 0, "DIR",                                  \
                 "the weights go into the HuggingFace folder DIR, whose other parts DST has too")
#define PLUGIN_OPTION                                                                              \
    TOOL_OPT(struct map_opts, plugins, LIST, "plugin", 0, "LIB.so",                                \
             "a plugin whose families of models and adapters are read too; may be repeated")
#define MODEL_OPTION(text)                                                                         \
    TOOL_OPT(struct map_opts, model, STRING, "model", 'm', "CONFIG.json", text)
#define JOBS_OPTION                                                                                \
    TOOL_OPT(struct map_opts, jobs, INT, "jobs", 'j', "N", "threads (default: one a processor)",   \
             .min = 1, .max = 1024)
#define WRITE_OPTIONS                                                                              \
    TOOL_OPT(struct map_opts, overflow, WORD, "overflow", 0, "WHAT",                               \
             "what becomes of numbers that the new type has no room for: error (default), "        \
             "saturate: its largest, inf",                                                         \
             .names = overflow_names),                                                             \
        TOOL_OPT(struct map_opts, shard_size, SIZE, "shard-size", 0, "SIZE",                       \
                 "bytes of tensors in a file at most (default: 4GB)", .min = 1),                   \
        TOOL_OPT(struct map_opts, force, FLAG, "force", 'f', NULL,                                 \
                 "replace DST if it has files; it changes at once"),                               \
        JOBS_OPTION

static const tool_option convert_options[] = {
    MAP_OPTIONS,
    MAPPER_OPTION,
    MODEL_OPTION("the model of a SRC without config.json, such as a training checkpoint"),
    PLUGIN_OPTION,
    WRITE_OPTIONS,
    TOOL_END};
static const tool_option plan_options[] = {
    MAP_OPTIONS,
    MAPPER_OPTION,
    MODEL_OPTION("the model of SRC; without SRC, of a checkpoint of which only shapes are known"),
    PLUGIN_OPTION,
    TOOL_OPT(struct map_opts, dot, FLAG, "dot", 0, NULL, "print a graph for graphviz"),
    TOOL_OPT(struct map_opts, all, FLAG, "all", 'a', NULL, "every group, alike ones too"),
    TOOL_OPT(struct map_opts, boxes, FLAG, "boxes", 0, NULL, "of which boxes each output is made"),
    TOOL_END,
};
static const tool_option read_options[] = {JOBS_OPTION, TOOL_END};
static const tool_option verify_options[] = {
    TOOL_OPT(struct map_opts, no_manifest, FLAG, "no-manifest", 0, NULL,
             "DIR, made elsewhere, need not have a manifest.json"),
    JOBS_OPTION, TOOL_END};
static const tool_option describe_options[] = {PLUGIN_OPTION, TOOL_END};
static const tool_option certify_options[] = {
    TOOL_OPT(struct map_opts, golden, STRING, "golden", 0, "FOLDER", "compare with its vectors"),
    TOOL_OPT(struct map_opts, task, STRING, "task", 0, "TASK",
             "causal_lm, masked_lm, classification or embedding (default: that of its own head)"),
    TOOL_OPT(struct map_opts, seed, INT, "seed", 's', "S", "seed of the weights (default: 0)"),
    PLUGIN_OPTION, TOOL_END};
static const tool_option init_options[] = {
    MODEL_OPTION("the model: a config.json of HuggingFace's"),
    TOOL_OPT(struct map_opts, seed, INT, "seed", 's', "S", "seed of the weights (default: 0)"),
    MAP_OPTIONS,
    PLUGIN_OPTION,
    WRITE_OPTIONS,
    TOOL_END};

/* Prints the findings also if the status is a failure because of them. */
static d9d_status put_report(d9d_buf *text, d9d_status st)
{
    tool_put_sanitized(text);
    d9d_buf_release(text);
    return st;
}

/* Opens the conversion that is to be planned. */
static d9d_status open_for_plan(const tool_run *r, const struct map_opts *o, d9d_plugins *plugins,
                                d9d_convert **out)
{
    const char *src = r->n_args > 0 ? r->args[0] : NULL;
    d9d_convert_opts opt;

    D9D_TRY(map_convert_opts(r, o, plugins, &opt));
    return src == NULL ? d9d_convert_open_shapes(o->model, &opt, out)
                       : d9d_convert_open(src, &opt, out);
}

static d9d_status run_plan(tool_run *r, const void *options)
{
    const struct map_opts *o = options;
    const char *format = o->dot ? "dot" : r->json ? "json" : "text";
    const unsigned flags = (o->all ? D9D_MAP_PLAN_ALL : 0) | (o->boxes ? D9D_MAP_PLAN_BOXES : 0);
    d9d_plugins *plugins = NULL;
    d9d_convert *c = NULL;
    d9d_buf text = {0};
    d9d_status st;

    if (r->n_args == 0 && o->model == NULL)
        return D9D_FAIL(D9D_ECONFIG, "plan needs SRC or --model CONFIG.json");
    D9D_TRY(map_plugins_open(o, &plugins));
    st = open_for_plan(r, o, plugins, &c);
    if (st == D9D_OK) {
        st = put_report(&text, d9d_map_plan_print(d9d_convert_plan(c), format, flags, &text));
        d9d_convert_close(c);
    }
    d9d_plugins_close(plugins);
    return st;
}

static d9d_status run_verify(tool_run *r, const void *options)
{
    const struct map_opts *o = options;
    const d9d_checkpoint_verify_opts opt = {
        .jobs = (int)o->jobs, .log = r->log, .no_manifest = o->no_manifest};
    d9d_buf text = {0};

    return put_report(&text, d9d_checkpoint_verify_print(r->args[0], &opt, r->json, &text));
}

static d9d_status run_describe(tool_run *r, const void *options)
{
    const struct map_opts *o = options;
    const d9d_table *const *choices;
    d9d_plugins *plugins = NULL;
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY(map_plugins_open(o, &plugins));
    st = d9d_plugins_models(plugins, &choices);
    if (st == D9D_OK)
        st = put_report(&text, d9d_describe_print(r->args[0], choices, r->json, &text));
    d9d_plugins_close(plugins);
    return st;
}

static d9d_status run_diff(tool_run *r, const void *options)
{
    const struct map_opts *o = options;
    d9d_buf text = {0};

    return put_report(&text, d9d_checkpoint_diff_print(r->args[0], r->args[1], (int)o->jobs, r->log,
                                                       r->json, &text));
}

#define COMMAND(word, args, lo, hi, opts_, fn, text)                                               \
    {                                                                                              \
        .name = (word), .operands = (args), .min = (lo), .max = (hi), .about = text,               \
        .options = (opts_), .size = sizeof(struct map_opts), .defaults = &defaults, .run = fn      \
    }

int main(int argc, char **argv)
{
    static const tool_command commands[] = {
        COMMAND(NULL, "SRC DST", 2, 2, convert_options, map_convert,
                "Convert the checkpoint directory SRC into DST.  The model family is found from "
                "config.json, unless --mapper says what to do.  DST appears whole or not at all, "
                "with config.json rewritten, a manifest, and the other files of the model copied."),
        COMMAND("plan", "[SRC]", 0, 1, plan_options, run_plan,
                "Print what a conversion of SRC would do: every group of tensors with its inputs, "
                "operations, outputs and bytes.  Only headers are read."),
        COMMAND("verify", "DIR", 1, 1, verify_options, run_verify,
                "Check DIR: that every file is as manifest.json says and there is no other, "
                "headers, index, and that every number is finite.  One line a finding; exit 1 if "
                "there is any."),
        COMMAND("diff", "A B", 2, 2, read_options, run_diff,
                "Compare two checkpoint directories by tensors.  One line each; exit 1 if any."),
        COMMAND("describe", "DIR", 1, 1, describe_options, run_describe,
                "Say what the model folder DIR is, or a config.json: family, parameters, types and "
                "bytes, memory, tokenizer; what becomes of each field of config.json; and every "
                "reason to refuse it.  Exit 1 if there is any."),
        COMMAND("init", "DST", 1, 1, init_options, map_convert,
                "Make a checkpoint with random weights: ones in norms, normal with the deviation "
                "initializer_range elsewhere.  Seed, tensor and element alone decide a weight."),
        COMMAND("certify", "FAMILY|DIR", 1, 1, certify_options, map_certify,
                "Make a small model of FAMILY, or of the folder DIR, and print what holds of it.  "
                "Exit 1 if a check fails."),
        {.run = NULL},
    };
    static const tool map = {"d9d-map", "Convert, inspect, compare and make checkpoints.",
                             commands};

    return tool_main(&map, argc, argv);
}
