/* metrics_values.c - d9d-metrics values. */
#include "metrics_commands.h"

#include "d9d/report/report.h"

static d9d_status values_put(const tool_run *r, const d9d_run_reader *run)
{
    d9d_buf out = {0};
    json_t *v;
    d9d_status st;

    if (r->json) {
        D9D_TRY(d9d_report_values_json(run, &v));
        return tool_put_json(v);
    }
    st = d9d_report_values(run, &out);
    if (st == D9D_OK)
        tool_put(&out);
    d9d_buf_release(&out);
    return st;
}

static d9d_status run_values(tool_run *r, const void *given)
{
    d9d_run_reader *run;
    d9d_status st;

    (void)given;
    D9D_TRY(d9d_run_reader_open(r->args[0], r->log, &run));
    st = values_put(r, run);
    d9d_run_reader_close(run);
    return st;
}

const tool_command metrics_values = {
    .name = "values",
    .operands = "RUN",
    .min = 1,
    .max = 1,
    .about = "The newest scalars, histograms, texts and pictures of the run's own handlers.",
    .run = run_values};
