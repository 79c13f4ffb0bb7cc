/* metrics_spikes.c - d9d-metrics spikes. */
#include "d9d/report/report.h"
#include "metrics_commands.h"

struct spikes_opts {
    const char *key;
    double deviations;
    int64_t window;
    tool_list datasets;
};

static const struct spikes_opts defaults = {.key = "loss", .deviations = 6, .window = 64};
static const tool_option options[] = {
    TOOL_OPT(struct spikes_opts, key, STRING, "key", 'k', "NAME",
             "the column to judge (default: loss)"),
    TOOL_OPT(struct spikes_opts, deviations, REAL, "deviations", 'd', "X",
             "how far above the usual a step must be (default: 6)", .min = 1e-3, .max = 1e9),
    TOOL_OPT(struct spikes_opts, window, INT, "window", 'w', "N",
             "records before a step that say what is usual (default: 64)",
             .min = D9D_REPORT_SPIKES_MIN_WINDOW, .max = 1e6),
    TOOL_OPT(struct spikes_opts, datasets, COMMAS, "dataset", 0, "DIR,...",
             "where the run's datasets are now"),
    TOOL_END};

static d9d_status spikes_text(const d9d_run_reader_list *runs, const d9d_report_spikes_opts *opts)
{
    d9d_buf out = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < runs->n && st == D9D_OK; i++) {
        if (runs->n > 1)
            st = d9d_buf_printf(&out, "%s%s:\n", i > 0 ? "\n" : "", runs->run[i]->name);
        if (st == D9D_OK)
            st = d9d_report_spikes(runs->run[i], opts, &out);
    }
    if (st == D9D_OK)
        tool_put(&out);
    d9d_buf_release(&out);
    return st;
}

static d9d_status run_spikes(tool_run *r, const void *given)
{
    const struct spikes_opts *o = given;
    const d9d_report_spikes_opts opts = {.key = o->key,
                                         .deviations = o->deviations,
                                         .window = (size_t)o->window,
                                         .datasets = o->datasets.item,
                                         .n_datasets = o->datasets.n};
    d9d_run_reader_list runs;
    json_t *v;
    d9d_status st;

    D9D_TRY(d9d_run_reader_list_open(r->args, (size_t)r->n_args, r->log, &runs));
    st = d9d_run_reader_list_check_columns(&runs, &o->key, 1);
    if (st == D9D_OK && !r->json)
        st = spikes_text(&runs, &opts);
    else if (st == D9D_OK)
        st = d9d_report_spikes_json(&runs, &opts, &v);
    if (st == D9D_OK && r->json)
        st = tool_put_json(v);
    d9d_run_reader_list_close(&runs);
    return st;
}

const tool_command metrics_spikes = {
    .name = "spikes",
    .operands = "RUN...",
    .min = 1,
    .max = -1,
    .options = options,
    .size = sizeof(struct spikes_opts),
    .defaults = &defaults,
    .run = run_spikes,
    .about = "Steps whose loss stands out, and the documents that made them, where "
             "trainer.logging.documents recorded these."};
