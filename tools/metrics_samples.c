/* metrics_samples.c - d9d-metrics samples. */
#include "metrics_commands.h"

#include "d9d/report/samples.h"

struct samples_opts {
    int64_t step;
    bool text;
    tool_list datasets;
};

static const tool_option options[] = {
    TOOL_OPT(struct samples_opts, step, INT, "step", 's', "N", "the step", .min = 1, .max = 1e15,
             .required = true),
    TOOL_OPT(struct samples_opts, text, FLAG, "text", 0, NULL,
             "show each sample as text, what is trained in brackets"),
    TOOL_OPT(struct samples_opts, datasets, COMMAS, "dataset", 'd', "DIR,...",
             "where the run's datasets are now"),
    TOOL_END};

static d9d_status run_samples(tool_run *r, const void *given)
{
    const struct samples_opts *o = given;
    const d9d_report_samples_opts opts = {.run = r->args[0],
                                          .step = o->step,
                                          .text = o->text,
                                          .datasets = o->datasets.item,
                                          .n_datasets = o->datasets.n};
    d9d_buf out = {0};
    json_t *v;
    d9d_status st;

    if (r->json) {
        D9D_TRY(d9d_report_samples_json(&opts, &v));
        return tool_put_json(v);
    }
    st = d9d_report_samples(&opts, &out);
    if (st == D9D_OK)
        tool_put(&out);
    d9d_buf_release(&out);
    return st;
}

const tool_command metrics_samples = {.name = "samples",
                                      .operands = "RUN",
                                      .min = 1,
                                      .max = 1,
                                      .about = "Say which samples made a step, and show them.",
                                      .options = options,
                                      .size = sizeof(struct samples_opts),
                                      .run = run_samples};
