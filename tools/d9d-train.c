/* d9d-train - train a model from a JSON configuration. */
#include <math.h>

#include "d9d/base/num_format.h"
#include "d9d/plan/plan.h"
#include "d9d/train/selftest.h"
#include "d9d/train/train.h"
#include "tool.h"
#include "train_plan.h"

static d9d_status job_run(const void *config, const json_t *doc, const d9d_job *where,
                          void *summary)
{
    d9d_train_config settled = *(const d9d_train_config *)config;

    D9D_TRY(d9d_plan_settle_cp_method(where, &settled));
    return d9d_train(&settled, doc, where, summary);
}

static json_t *summary_json(const void *summary)
{
    const d9d_train_summary *s = summary;

    return json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "run_dir",
                     d9d_json_str(s->run_dir), "first_step", (json_int_t)s->first_step, "steps",
                     (json_int_t)s->steps, "total_steps", (json_int_t)s->total_steps, "tokens",
                     (json_int_t)s->tokens, "samples", (json_int_t)s->samples, "first_loss",
                     tool_json_real(s->first_loss), "last_loss", tool_json_real(s->last_loss),
                     "export", d9d_json_str(s->export_dir));
}

static d9d_status summary_text(const void *summary, d9d_buf *b)
{
    const d9d_train_summary *s = summary;

    D9D_TRY(d9d_buf_printf(b, "%s: %lld of %lld step%s, %lld token%s", s->run_dir,
                           (long long)s->steps, (long long)s->total_steps,
                           D9D_PLURAL(s->total_steps), (long long)s->tokens,
                           D9D_PLURAL(s->tokens)));
    if (isfinite(s->last_loss))
        D9D_TRY(d9d_buf_printf(b, ", loss %.4f to %.4f", s->first_loss, s->last_loss));
    if (s->export_dir[0] != '\0')
        D9D_TRY(d9d_buf_printf(b, "; model in %s", s->export_dir));
    return d9d_buf_append(b, "\n", 1);
}

static d9d_status selftest_run(const void *config, const json_t *doc, const d9d_job *where,
                               void *summary)
{
    d9d_train_config settled = *(const d9d_train_config *)config;

    D9D_TRY(d9d_plan_settle_cp_method(where, &settled));
    return d9d_selftest(&settled, doc, where, summary);
}

static json_t *selftest_json(const void *summary)
{
    return d9d_selftest_json(summary);
}

static d9d_status selftest_text(const void *summary, d9d_buf *b)
{
    return d9d_selftest_print(summary, b);
}

struct train_opts {
    tool_job_options job;
    bool selftest;
    train_plan_options plan;
};
static const struct train_opts defaults = {.job = {.device = "auto"}};
static const tool_option options[] = {
    TOOL_JOB_OPTIONS(struct train_opts, job),
    TOOL_OPT(
        struct train_opts, selftest, FLAG, "selftest", 0, NULL,
        "a few steps on the ranks of this job, and the same on one: print the differences, and "
        "exit 1 where they are more than rounding"),
    TRAIN_PLAN_OPTIONS(struct train_opts, plan),
    TOOL_END,
};

static d9d_status run_train(tool_run *r, const void *given)
{
    static const tool_job selftest = {
        .table = &d9d_train_config_table,
        .schema_id = "d9d.train.v1",
        .config_size = sizeof(d9d_train_config),
        .summary_size = sizeof(d9d_selftest_summary),
        .run = selftest_run,
        .json = selftest_json,
        .text = selftest_text,
        .prints_everify = true,
    };
    static const tool_job job = {
        .table = &d9d_train_config_table,
        .schema_id = "d9d.train.v1",
        .config_size = sizeof(d9d_train_config),
        .summary_size = sizeof(d9d_train_summary),
        .run = job_run,
        .json = summary_json,
        .text = summary_text,
    };

    const struct train_opts *o = given;

    D9D_TRY(train_plan_options_check(&o->plan, o->selftest));
    if (o->plan.plan)
        return train_plan(r, &o->job, &o->plan);
    return tool_job_run(r, o->selftest ? &selftest : &job, &o->job);
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
     .size = sizeof(defaults),
     .defaults = &defaults,
     .run = run_train},
    {.run = NULL},
};

static const tool program = {"d9d-train", "Train a language model.", commands};

int main(int argc, char **argv)
{
    return tool_main(&program, argc, argv);
}
