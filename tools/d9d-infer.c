/* d9d-infer - log-probabilities and perplexity from a JSON configuration. */
#include <math.h>

#include "d9d/loop/infer.h"
#include "tool.h"

struct opts {
    tool_config_options config;
    const char *device;
};

static const struct opts defaults = {.device = "auto"};

static const tool_option options[] = {
    TOOL_CONFIG_OPTIONS(struct opts, config),
    TOOL_OPT(struct opts, device, STRING, "device", 'd', "NAME",
             "cpu, cuda, cuda:N or auto (the GPU if there is one)"),
    TOOL_END,
};

static json_t *real(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static d9d_status print_json(const d9d_infer_summary *s)
{
    return tool_put_json(json_pack(
        "{s:I, s:I, s:I, s:o, s:o, s:o}", "samples", (json_int_t)s->samples, "first_sample",
        (json_int_t)s->first_sample, "tokens", (json_int_t)s->tokens, "loss", real(s->loss),
        "perplexity", real(s->perplexity), "tokens_per_s", real(s->tokens_per_s)));
}

static d9d_status print_text(const d9d_infer_summary *s)
{
    d9d_buf b = {0};
    d9d_status st;

    D9D_TRY_OR(st,
               d9d_buf_printf(&b, "perplexity %.6g, loss %.6f over %lld tokens of %lld samples\n",
                              s->perplexity, s->loss, (long long)s->tokens,
                              (long long)(s->samples - s->first_sample)),
               out);
    tool_put(&b);
out:
    d9d_buf_release(&b);
    return st;
}

static d9d_status infer(tool_run *r, const void *options_)
{
    const struct opts *o = options_;
    d9d_infer_config config;
    d9d_infer_summary summary;
    json_t *doc = NULL;
    d9d_status st;

    D9D_TRY(tool_config_load(r, &d9d_infer_table, "d9d.infer.v1", &o->config, &doc));
    if (doc == NULL)
        return D9D_OK;
    D9D_TRY_OR(st, d9d_config_bind(&d9d_infer_table, doc, r->args[0], r->log, &r->arena, &config),
               out);
    D9D_TRY_OR(st, d9d_infer(&config, doc, o->device, r->log, &summary), out);
    st = r->json ? print_json(&summary) : r->quiet ? D9D_OK : print_text(&summary);
out:
    json_decref(doc);
    return st;
}

static const tool_command commands[] = {
    {.operands = "CONFIG.json",
     .min = 1,
     .max = 1,
     .about = "Run the task of CONFIG.json over a dataset: logprobs writes the log-probability of "
              "every target, perplexity prints one number.",
     .options = options,
     .size = sizeof(struct opts),
     .defaults = &defaults,
     .run = infer},
    {.run = NULL},
};

static const tool program = {"d9d-infer", "Run a language model over a dataset.", commands};

int main(int argc, char **argv)
{
    return tool_main(&program, argc, argv);
}
