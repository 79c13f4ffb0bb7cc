/* metrics_eval.c - d9d-metrics eval. */
#include "metrics_commands.h"

#include "d9d/report/eval_predictions.h"

struct eval_opts {
    tool_list metrics;
    const char *prediction, *target, *weight;
};

static const struct eval_opts defaults = {.prediction = "prediction", .target = "target"};
static const tool_option options[] = {
    TOOL_OPT(struct eval_opts, metrics, LIST, "metric", 'm', "NAME[,KEY=VALUE...]",
             "what to compute, such as f1,problem=multiclass,num_classes=3; a JSON object is taken "
             "too; may be repeated",
             .required = true),
    TOOL_OPT(struct eval_opts, prediction, STRING, "prediction", 'p', "KEY",
             "where a line has its prediction (default: prediction)"),
    TOOL_OPT(struct eval_opts, target, STRING, "target", 'y', "KEY",
             "where it has its target (default: target; \"\": nowhere)"),
    TOOL_OPT(struct eval_opts, weight, STRING, "weight", 'w', "KEY",
             "where it has its weight (default: nowhere, all count alike)"),
    TOOL_END};

static const char *metric_key(const char *word)
{
    return word != NULL && word[0] != '\0' ? word : NULL;
}

static d9d_status show_result(const tool_run *r, json_t *result)
{
    d9d_buf out = {0};
    d9d_status st;

    if (r->json)
        return tool_put_json(result);
    st = d9d_eval_predictions_text(result, &out);
    if (st == D9D_OK)
        tool_put(&out);
    d9d_buf_release(&out);
    json_decref(result);
    return st;
}

static d9d_status run_eval(tool_run *r, const void *options_given)
{
    const struct eval_opts *o = options_given;
    const d9d_eval_predictions_opts opts = {
        .metrics = o->metrics.item,
        .n_metrics = o->metrics.n,
        .prediction = o->prediction,
        .target = metric_key(o->target),
        .weight = metric_key(o->weight),
        .paths = (const char *const *)r->args,
        .n_paths = (size_t)r->n_args,
        .log = r->log,
    };
    json_t *result;

    D9D_TRY(d9d_eval_predictions(&opts, &result));
    return show_result(r, result);
}

const tool_command metrics_eval = {
    .name = "eval",
    .operands = "PREDICTIONS.jsonl...",
    .min = 1,
    .max = -1,
    .options = options,
    .size = sizeof(struct eval_opts),
    .defaults = &defaults,
    .run = run_eval,
    .about = "Metrics of predictions, a JSON object a line; \"-\" is standard input."};
