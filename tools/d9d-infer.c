/* d9d-infer - log-probabilities, perplexity and generation from a JSON configuration. */
#include "d9d/base/num_format.h"
#include "d9d/infer/infer.h"
#include "tool.h"

static d9d_status job_run(const void *config, const json_t *doc, const d9d_job *where,
                          void *summary)
{
    return d9d_infer(config, doc, where, summary);
}

/* With the values of the configuration's metrics. */
static json_t *add_metrics(json_t *v, const d9d_infer_task_summary *s)
{
    for (size_t i = 0; i < s->n_metrics; i++)
        d9d_json_set(&v, s->metrics[i].name, tool_json_real(s->metrics[i].value));
    return v;
}

static json_t *summary_json(const void *summary)
{
    const d9d_infer_task_summary *s = summary;

    if (s->output != D9D_INFER_TASK_SCORES)
        return add_metrics(json_pack("{s:I, s:I, s:I, s:o}", "samples", (json_int_t)s->samples,
                                     "first_sample", (json_int_t)s->first_sample, "tokens",
                                     (json_int_t)s->tokens, "tokens_per_s",
                                     tool_json_real(s->tokens_per_s)),
                           s);
    return add_metrics(
        json_pack("{s:I, s:I, s:I, s:o, s:o, s:o}", "samples", (json_int_t)s->samples,
                  "first_sample", (json_int_t)s->first_sample, "tokens", (json_int_t)s->tokens,
                  "loss", tool_json_real(s->loss), "perplexity", tool_json_real(s->perplexity),
                  "tokens_per_s", tool_json_real(s->tokens_per_s)),
        s);
}

static d9d_status summary_text(const void *summary, d9d_buf *b)
{
    const d9d_infer_task_summary *s = summary;

    for (size_t i = 0; i < s->n_metrics; i++)
        D9D_TRY(d9d_buf_printf(b, "%s%s %.6g%s", i > 0 ? ", " : "", s->metrics[i].name,
                               s->metrics[i].value, i + 1 == s->n_metrics ? "\n" : ""));
    if (s->output != D9D_INFER_TASK_SCORES)
        return d9d_buf_printf(b, "%lld token%s of %lld sample%s, %.6g tokens/s\n",
                              (long long)s->tokens, D9D_PLURAL(s->tokens),
                              (long long)(s->samples - s->counted_from),
                              D9D_PLURAL(s->samples - s->counted_from), s->tokens_per_s);
    return d9d_buf_printf(b, "perplexity %.6g, loss %.6f over %lld token%s of %lld sample%s\n",
                          s->perplexity, s->loss, (long long)s->tokens, D9D_PLURAL(s->tokens),
                          (long long)(s->samples - s->counted_from),
                          D9D_PLURAL(s->samples - s->counted_from));
}

struct infer_opts {
    tool_job_options job;
};
static const struct infer_opts infer_defaults = {.job = {.device = "auto"}};
static const tool_option infer_options[] = {TOOL_JOB_OPTIONS(struct infer_opts, job), TOOL_END};

static d9d_status run_infer(tool_run *r, const void *given)
{
    const struct infer_opts *o = given;
    static const tool_job job = {
        .table = &d9d_infer_config_table,
        .schema_id = "d9d.infer.v1",
        .config_size = sizeof(d9d_infer_config),
        .summary_size = sizeof(d9d_infer_task_summary),
        .run = job_run,
        .json = summary_json,
        .text = summary_text,
    };

    return tool_job_run(r, &job, &o->job);
}

static const tool_command commands[] = {
    {.operands = "CONFIG.json",
     .min = 1,
     .max = 1,
     .about = "Run the task of CONFIG.json over a dataset: logprobs writes the log-probability of "
              "every target, perplexity prints one number, generate writes what follows each "
              "prompt, fill_mask the likeliest tokens behind masks, classification each text's "
              "probabilities, embedding and hidden_states a .npy.",
     .options = infer_options,
     .size = sizeof(infer_defaults),
     .defaults = &infer_defaults,
     .run = run_infer},
    {.run = NULL},
};

static const tool program = {"d9d-infer", "Run a language model over a dataset.", commands};

int main(int argc, char **argv)
{
    return tool_main(&program, argc, argv);
}
