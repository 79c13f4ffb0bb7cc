/* d9d-map - checkpoint to checkpoint: convert, plan, verify, compare, make. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/model/convert.h"
#include "tool.h"

static const char *const sides[] = {"other", "d9d", "hf", NULL};
static const char *const experts[] = {"as-before", "per-expert", "fused", NULL};
static const char *const dtypes[] = {"as-before", "float32", "bfloat16", "float16", NULL};
static const d9d_dtype dtype_of[] = {D9D_F32, D9D_F32, D9D_BF16, D9D_F16};

struct opts {
    int to, experts, dtype;
    int64_t shard_size, jobs, seed;
    bool force, dot;
    const char *model;
};

static const struct opts defaults = {.shard_size = (int64_t)D9D_SHARD_BYTES};

#define MAP_OPTIONS                                                                                \
    TOOL_OPT(struct opts, to, WORD, "to", 't', "LAYOUT",                                           \
             "layout of the result: d9d, hf, or other: the one that SRC is not in (default: "      \
             "other; of init: hf)",                                                                \
             .words = sides),                                                                      \
        TOOL_OPT(struct opts, dtype, WORD, "dtype", 0, "TYPE",                                     \
                 "type of floating tensors: float32, bfloat16, float16 or as-before (default)",    \
                 .words = dtypes),                                                                 \
        TOOL_OPT(struct opts, experts, WORD, "expert-layout", 0, "LAYOUT",                         \
                 "experts in the hf layout: per-expert, fused, or as-before: as SRC, or what SRC " \
                 "was made from, has them (default)",                                              \
                 .words = experts)
#define WRITE_OPTIONS                                                                              \
    TOOL_OPT(struct opts, shard_size, SIZE, "shard-size", 0, "SIZE",                               \
             "bytes of tensors in a file at most (default: 4GB)", .min = 1),                       \
        TOOL_OPT(struct opts, force, FLAG, "force", 'f', NULL,                                     \
                 "replace DST if it has files; it changes at once")
#define JOBS_OPTION                                                                                \
    TOOL_OPT(struct opts, jobs, INT, "jobs", 'j', "N", "threads (default: one a processor)",       \
             .min = 1, .max = 1024)

static const tool_option convert_options[] = {MAP_OPTIONS, WRITE_OPTIONS, JOBS_OPTION, TOOL_END};
static const tool_option plan_options[] = {
    MAP_OPTIONS,
    TOOL_OPT(struct opts, dot, FLAG, "dot", 0, NULL, "print a graph for graphviz"),
    TOOL_END,
};
static const tool_option read_options[] = {JOBS_OPTION, TOOL_END};
static const tool_option init_options[] = {
    TOOL_OPT(struct opts, model, STRING, "model", 'm', "CONFIG.json",
             "the model: a config.json of HuggingFace's"),
    TOOL_OPT(struct opts, seed, INT, "seed", 's', "S", "seed of the weights (default: 0)"),
    MAP_OPTIONS,
    WRITE_OPTIONS,
    JOBS_OPTION,
    TOOL_END,
};

static void say(void *arg, const char *sentence)
{
    d9d_log_warn((const d9d_log *)arg, "%s", sentence);
}

/* The log is only read by those who are given it as an argument. */
static void *as_arg(const d9d_log *log)
{
    return (void *)(uintptr_t)log;
}

static d9d_convert_options choices(const tool_run *r, const struct opts *o)
{
    return (d9d_convert_options){.to = (d9d_convert_to)o->to,
                                 .experts = (d9d_convert_experts)o->experts,
                                 .cast = o->dtype > 0,
                                 .dtype = dtype_of[o->dtype],
                                 .shard_bytes = (uint64_t)o->shard_size,
                                 .problem = say,
                                 .arg = as_arg(r->log)};
}

static d9d_status finish(tool_run *r, d9d_convert *c, const struct opts *o, const char *dst)
{
    const d9d_map_plan *p = d9d_convert_plan(c);
    d9d_status st = d9d_convert_run(c, dst, o->force, (int)o->jobs, r->log);

    if (st == D9D_OK && r->json)
        st = tool_put_json(json_pack("{s:s, s:I, s:I}", "path", dst, "tensors",
                                     (json_int_t)d9d_plan_output_count(p), "bytes",
                                     (json_int_t)d9d_plan_bytes(p)));
    else if (st == D9D_OK)
        d9d_log_info(r->log, "wrote %s: %zu tensors, %" PRIu64 " bytes", dst,
                     d9d_plan_output_count(p), d9d_plan_bytes(p));
    d9d_convert_close(c);
    return st;
}

static d9d_status convert(tool_run *r, const void *options)
{
    const struct opts *o = options;
    const d9d_convert_options opt = choices(r, o);
    d9d_convert *c;

    D9D_TRY(d9d_convert_open(r->args[0], &opt, &c));
    return finish(r, c, o, r->args[1]);
}

static d9d_status init(tool_run *r, const void *options)
{
    const struct opts *o = options;
    const d9d_convert_options opt = choices(r, o);
    d9d_convert *c;

    if (o->model == NULL)
        return D9D_FAIL(D9D_ECONFIG, "init needs --model CONFIG.json");
    D9D_TRY(d9d_convert_random(o->model, (uint64_t)o->seed, &opt, &c));
    return finish(r, c, o, r->args[0]);
}

static d9d_status plan(tool_run *r, const void *options)
{
    const struct opts *o = options;
    const d9d_convert_options opt = choices(r, o);
    d9d_buf text = {0};
    d9d_convert *c;
    d9d_status st;

    D9D_TRY(d9d_convert_open(r->args[0], &opt, &c));
    st = d9d_plan_print(d9d_convert_plan(c), o->dot ? "dot" : r->json ? "json" : "text", &text);
    if (st == D9D_OK)
        tool_put(&text);
    d9d_buf_release(&text);
    d9d_convert_close(c);
    return st;
}

/* --- verify ------------------------------------------------------------------------- */

struct findings {
    json_t *list; /* with --json, else NULL */
};

static void put_finding(void *arg, const char *sentence)
{
    const struct findings *f = arg;

    if (f->list != NULL)
        (void)json_array_append_new(f->list, json_string(sentence));
    else
        printf("%s\n", sentence);
}

static d9d_status verify(tool_run *r, const void *options)
{
    const struct opts *o = options;
    struct findings f = {r->json ? json_array() : NULL};
    d9d_verify_report report = {0};
    d9d_status st =
        d9d_checkpoint_verify(r->args[0], (int)o->jobs, r->log, put_finding, &f, &report);

    if (st != D9D_OK && st != D9D_EVERIFY) {
        json_decref(f.list);
        return st;
    }
    if (r->json)
        (void)tool_put_json(json_pack("{s:s, s:I, s:I, s:I, s:b, s:o}", "path", r->args[0], "files",
                                      (json_int_t)report.files, "tensors",
                                      (json_int_t)report.tensors, "bytes", (json_int_t)report.bytes,
                                      "hashed", report.hashed, "findings", f.list));
    else if (st == D9D_OK)
        printf("%s: %" PRIu64 " files, %" PRIu64 " tensors, %" PRIu64 " bytes are sound%s\n",
               r->args[0], report.files, report.tensors, report.bytes,
               report.hashed ? "" : "; no manifest.json, so no hashes were compared");
    return st;
}

/* --- diff --------------------------------------------------------------------------------- */

struct diffs {
    json_t *list; /* with --json, else NULL */
    uint64_t equal;
};

static const char *const kinds[] = {"equal", "values", "dtype", "shape", "only in A", "only in B"};

static void put_json_diff(struct diffs *d, const d9d_tensor_diff *t)
{
    json_t *v = json_pack("{s:s, s:s}", "name", t->name, "kind", kinds[t->kind]);

    if (v != NULL && t->kind == D9D_DIFF_VALUES) {
        (void)json_object_set_new(v, "different", json_integer((json_int_t)t->n_different));
        /* JSON has no NaN: null. */
        (void)json_object_set_new(v, "max_abs",
                                  t->max_abs == t->max_abs ? json_real(t->max_abs) : json_null());
    }
    (void)json_array_append_new(d->list, v);
}

static void put_diff(void *arg, const d9d_tensor_diff *t)
{
    struct diffs *d = arg;
    char a[D9D_ST_DESCRIBE] = "-", b[D9D_ST_DESCRIBE] = "-";

    d->equal += t->kind == D9D_DIFF_EQUAL;
    if (d->list != NULL) {
        put_json_diff(d, t);
        return;
    }
    if (t->kind == D9D_DIFF_EQUAL)
        return;
    if (t->a != NULL)
        (void)d9d_st_describe(t->a, a);
    if (t->b != NULL)
        (void)d9d_st_describe(t->b, b);
    printf("%s: %s", t->name, kinds[t->kind]);
    if (t->kind == D9D_DIFF_VALUES)
        printf(": %" PRIu64 " elements differ, by %g at most", t->n_different, t->max_abs);
    if (t->kind != D9D_DIFF_VALUES || strcmp(a, b) != 0)
        printf(": %s, %s", a, b);
    printf("\n");
}

static d9d_status diff(tool_run *r, const void *options)
{
    const struct opts *o = options;
    struct diffs d = {.list = r->json ? json_array() : NULL};
    uint64_t n;
    d9d_status st =
        d9d_checkpoint_diff(r->args[0], r->args[1], (int)o->jobs, r->log, put_diff, &d, &n);

    if (st != D9D_OK) {
        json_decref(d.list);
        return st;
    }
    if (r->json)
        D9D_TRY(tool_put_json(json_pack("{s:I, s:I, s:o}", "equal", (json_int_t)d.equal,
                                        "different", (json_int_t)n, "tensors", d.list)));
    else
        printf("%" PRIu64 " tensors equal, %" PRIu64 " different\n", d.equal, n);
    if (n > 0)
        return D9D_FAIL(D9D_EVERIFY, "%s and %s: %" PRIu64 " of %" PRIu64 " tensors differ",
                        r->args[0], r->args[1], n, n + d.equal);
    return D9D_OK;
}

#define COMMAND(word, args, n, opts_, fn, text)                                                    \
    {                                                                                              \
        .name = (word), .operands = (args), .min = (n), .max = (n), .about = text,                 \
        .options = (opts_), .size = sizeof(struct opts), .defaults = &defaults, .run = fn          \
    }

int main(int argc, char **argv)
{
    static const tool_command commands[] = {
        COMMAND(NULL, "SRC DST", 2, convert_options, convert,
                "Convert the checkpoint directory SRC into DST.  The model family is found from "
                "config.json.  DST appears whole or not at all, with config.json rewritten, a "
                "manifest, and every other file of SRC copied."),
        COMMAND("plan", "SRC", 1, plan_options, plan,
                "Print what a conversion of SRC would do: every group of tensors with its inputs, "
                "operations, outputs and bytes.  Only headers are read."),
        COMMAND("verify", "DIR", 1, read_options, verify,
                "Check DIR: headers, index, hashes if there is a manifest, and that every number "
                "is finite.  One line a finding; exit 1 if there is any."),
        COMMAND("diff", "A B", 2, read_options, diff,
                "Compare two checkpoint directories tensor by tensor.  One line a difference; "
                "exit 1 if there is any."),
        COMMAND("init", "DST", 1, init_options, init,
                "Make a checkpoint with random weights: ones in norms, normal with the deviation "
                "initializer_range elsewhere.  A weight depends on the seed, the tensor and the "
                "element alone."),
        {.run = NULL},
    };
    static const tool map = {"d9d-map", "Convert, inspect, compare and make checkpoints.",
                             commands};

    return tool_main(&map, argc, argv);
}
