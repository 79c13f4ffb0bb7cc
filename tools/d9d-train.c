/* d9d-train - train a model from a JSON configuration. */
#include <math.h>

#include "d9d/loop/train.h"
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

static d9d_status print_json(const d9d_train_summary *s)
{
    return tool_put_json(json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:s}", "run_dir",
                                   s->run_dir, "first_step", (json_int_t)s->first_step, "steps",
                                   (json_int_t)s->steps, "total_steps", (json_int_t)s->total_steps,
                                   "tokens", (json_int_t)s->tokens, "samples",
                                   (json_int_t)s->samples, "first_loss", real(s->first_loss),
                                   "last_loss", real(s->last_loss), "export", s->export_dir));
}

static d9d_status print_text(const d9d_train_summary *s)
{
    d9d_buf b = {0};
    d9d_status st;

    D9D_TRY_OR(st,
               d9d_buf_printf(&b, "%s: %lld of %lld steps, %lld tokens", s->run_dir,
                              (long long)s->steps, (long long)s->total_steps, (long long)s->tokens),
               out);
    if (isfinite(s->last_loss))
        D9D_TRY_OR(st, d9d_buf_printf(&b, ", loss %.4f to %.4f", s->first_loss, s->last_loss), out);
    if (s->export_dir[0] != '\0')
        D9D_TRY_OR(st, d9d_buf_printf(&b, "; model in %s", s->export_dir), out);
    D9D_TRY_OR(st, d9d_buf_append(&b, "\n", 1), out);
    tool_put(&b);
out:
    d9d_buf_release(&b);
    return st;
}

static d9d_status train(tool_run *r, const void *options_)
{
    const struct opts *o = options_;
    d9d_train_config config;
    d9d_train_summary summary;
    json_t *doc = NULL;
    d9d_status st;

    D9D_TRY(tool_config_load(r, &d9d_train_table, "d9d.train.v1", &o->config, &doc));
    if (doc == NULL)
        return D9D_OK;
    D9D_TRY_OR(st, d9d_config_bind(&d9d_train_table, doc, r->args[0], r->log, &r->arena, &config),
               out);
    D9D_TRY_OR(st, d9d_train(&config, doc, o->device, r->log, &summary), out);
    st = r->json ? print_json(&summary) : r->quiet ? D9D_OK : print_text(&summary);
out:
    json_decref(doc);
    return st;
}

static const tool_command commands[] = {
    {.operands = "CONFIG.json",
     .min = 1,
     .max = 1,
     .about =
         "Train the model that CONFIG.json describes. Called again, a run goes on from its "
         "newest checkpoint. On SIGTERM, SIGUSR1, SIGINT or near the end of a Slurm allocation "
         "it saves and exits 75.",
     .options = options,
     .size = sizeof(struct opts),
     .defaults = &defaults,
     .run = train},
    {.run = NULL},
};

static const tool program = {"d9d-train", "Train a language model.", commands};

int main(int argc, char **argv)
{
    return tool_main(&program, argc, argv);
}
