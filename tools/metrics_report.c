/* metrics_report.c - d9d-metrics report. */
#include "d9d/report/html.h"
#include "metrics_commands.h"

struct report_opts {
    tool_list out, plans;
};

static const tool_option options[] = {
    TOOL_OPT(struct report_opts, out, LIST, "out", 'o', "FILE", "write the page to FILE",
             .required = true),
    TOOL_OPT(struct report_opts, plans, COMMAS, "plan", 'p', "PLAN.json,...",
             "what d9d-train --plan --json had said, one file for each run"),
    TOOL_END};

static d9d_status run_report(tool_run *r, const void *given)
{
    const struct report_opts *o = given;
    const d9d_report_html_opts opts = {.plans = o->plans.item, .n_plans = o->plans.n};
    d9d_run_reader_list runs;
    d9d_status st;

    if (o->out.n > 1)
        return D9D_FAIL(D9D_ECONFIG, "--out: %zu files are given, and one page is written",
                        o->out.n);
    D9D_TRY(d9d_run_reader_list_open(r->args, (size_t)r->n_args, r->log, &runs));
    st = d9d_report_write_html(&runs, &opts, o->out.item[0]);
    if (st == D9D_OK)
        d9d_log_info(r->log, "wrote %s", o->out.item[0]);
    d9d_run_reader_list_close(&runs);
    return st;
}

const tool_command metrics_report = {
    .name = "report",
    .operands = "RUN...",
    .min = 1,
    .max = -1,
    .options = options,
    .size = sizeof(struct report_opts),
    .run = run_report,
    .about =
        "Write one HTML page about runs: curves, speed, where the time went, experts, pipeline, "
        "restarts, spikes, configuration.  It needs no server and no network."};
