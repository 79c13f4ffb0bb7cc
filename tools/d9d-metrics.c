/* d9d-metrics - tables, curves and exports of training runs. */
#include <stdio.h>

#include "d9d/report/report.h"
#include "metrics_commands.h"

enum { FORMAT_CSV, FORMAT_TFEVENTS };

struct opts {
    tool_list keys;
    int64_t rows, idle;
    const char *key, *out;
    bool log_y;
    int format;
};

static const struct opts defaults = {.rows = 20, .idle = D9D_REPORT_FOLLOW_FOREVER, .key = "loss"};
static const char *const formats[] = {"csv", "tfevents", NULL};
#define KEYS_OPTION                                                                                \
    TOOL_OPT(struct opts, keys, COMMAS, "keys", 'k', "NAME,...", "the columns to show")
#define ROWS_OPTION                                                                                \
    TOOL_OPT(struct opts, rows, INT, "rows", 'r', "N",                                             \
             "at most N records, evenly spread (default 20; 0: all)", .max = 1e15)
#define LOG_OPTION                                                                                 \
    TOOL_OPT(struct opts, log_y, FLAG, "log", 0, NULL, "a logarithmic scale of the values")

static const tool_option show_options[] = {KEYS_OPTION, ROWS_OPTION, LOG_OPTION, TOOL_END};
static const tool_option compare_options[] = {
    TOOL_OPT(struct opts, key, STRING, "key", 'k', "NAME", "what to compare (default: loss)"),
    ROWS_OPTION, TOOL_END};
static const tool_option follow_options[] = {
    KEYS_OPTION,
    TOOL_OPT(struct opts, idle, INT, "idle", 0, "SECONDS",
             "stop when nothing was logged for so long (default: never)", .max = 1e9),
    TOOL_END};
static const tool_option plot_options[] = {
    KEYS_OPTION, LOG_OPTION,
    TOOL_OPT(struct opts, out, STRING, "out", 'o', "FILE",
             "draw into FILE, which ends in .svg, .png or .pdf", .required = true),
    TOOL_END};
static const tool_option export_options[] = {
    TOOL_OPT(struct opts, format, WORD, "to", 't', "FORMAT", "csv or tfevents", .names = formats,
             .required = true),
    TOOL_OPT(struct opts, out, STRING, "out", 'o', "PATH",
             "csv: write to this file, not to standard output; tfevents: make a directory a run "
             "in this directory"),
    TOOL_END};

static d9d_report_columns key_list(const struct opts *o)
{
    return (d9d_report_columns){o->keys.item, o->keys.n};
}

/* A command's function for open runs; text in `out` is printed to stdout. */
typedef d9d_status (*runs_fn)(tool_run *r, const struct opts *o, const d9d_run_reader_list *runs,
                              d9d_buf *out);

static d9d_status with_runs(tool_run *r, const struct opts *o, runs_fn fn)
{
    d9d_run_reader_list runs;
    d9d_buf out = {0};
    d9d_status st;

    D9D_TRY(d9d_run_reader_list_open(r->args, (size_t)r->n_args, r->log, &runs));
    d9d_run_reader_list_warn_left_out(&runs, r->log);
    st = d9d_run_reader_list_check_columns(&runs, o->keys.item, o->keys.n);
    if (st == D9D_OK && (st = fn(r, o, &runs, &out)) == D9D_OK)
        tool_put(&out);
    d9d_buf_release(&out);
    d9d_run_reader_list_close(&runs);
    return st;
}

static d9d_status show(tool_run *r, const struct opts *o, const d9d_run_reader_list *runs,
                       d9d_buf *out)
{
    const tool_screen s = tool_screen_get();
    const d9d_chart_text_style style = {s.columns, 16, s.utf8, s.colour};
    json_t *v;

    if (r->json) {
        D9D_TRY(d9d_report_records_json(runs, &v));
        return tool_put_json(v);
    }
    D9D_TRY(d9d_report_curves(runs, key_list(o), o->log_y, &style, out));
    for (size_t i = 0; i < runs->n; i++) {
        if (runs->n > 1)
            D9D_TRY(d9d_buf_printf(out, "%s%s:\n", i > 0 ? "\n" : "", runs->run[i]->name));
        D9D_TRY(d9d_report_records(runs->run[i], key_list(o), (size_t)o->rows, out));
    }
    return D9D_OK;
}

static d9d_status summary(tool_run *r, const struct opts *o, const d9d_run_reader_list *runs,
                          d9d_buf *out)
{
    json_t *v;

    (void)o;
    if (!r->json)
        return d9d_report_summary(runs, out);
    D9D_TRY(d9d_report_summary_json(runs, &v));
    return tool_put_json(v);
}

static d9d_status compare(tool_run *r, const struct opts *o, const d9d_run_reader_list *runs,
                          d9d_buf *out)
{
    json_t *v;

    D9D_TRY(d9d_run_reader_list_check_columns(runs, &o->key, 1));
    if (!r->json)
        return d9d_report_compare(runs, o->key, (size_t)o->rows, out);
    D9D_TRY(d9d_report_compare_json(runs, o->key, &v));
    return tool_put_json(v);
}

static d9d_status plot(tool_run *r, const struct opts *o, const d9d_run_reader_list *runs,
                       d9d_buf *out)
{
    (void)out;
    D9D_TRY(d9d_report_plot(runs, key_list(o), o->log_y, o->out));
    d9d_log_info(r->log, "wrote %s", o->out);
    return D9D_OK;
}

static d9d_status export(tool_run *r, const struct opts *o, const d9d_run_reader_list *runs,
                         d9d_buf *out)
{
    if (o->format == FORMAT_TFEVENTS && o->out == NULL)
        return D9D_FAIL(D9D_ECONFIG, "--to tfevents needs --out DIRECTORY");
    if (o->format == FORMAT_TFEVENTS) {
        D9D_TRY(d9d_report_write_events(runs, o->out));
        d9d_log_info(r->log, "wrote %zu event file%s below %s", runs->n, runs->n == 1 ? "" : "s",
                     o->out);
        return D9D_OK;
    }
    return o->out != NULL ? d9d_report_write_csv(runs, o->out) : d9d_report_csv(runs, out);
}

#define RUN_WITH_RUNS(word)                                                                        \
    static d9d_status run_##word(tool_run *r, const void *o)                                       \
    {                                                                                              \
        return with_runs(r, o, word);                                                              \
    }
RUN_WITH_RUNS(show)
RUN_WITH_RUNS(summary)
RUN_WITH_RUNS(compare)
RUN_WITH_RUNS(plot)
RUN_WITH_RUNS(export)

static d9d_status put_now(void *arg, const d9d_buf *lines)
{
    (void)arg;
    tool_put(lines);
    return fflush(stdout) == 0 ? D9D_OK : D9D_FAIL(D9D_EIO, "standard output: cannot be written");
}

static d9d_status run_follow(tool_run *r, const void *options)
{
    const struct opts *o = options;
    const d9d_report_follow_opts f = {key_list(o), r->json, o->idle, put_now, NULL};

    return d9d_report_follow(r->args[0], &f, r->log);
}

#define COMMAND(word, operand, min_operands, max_operands, opts_table, ...)                        \
    {                                                                                              \
        .name = #word, .operands = (operand), .min = (min_operands), .max = (max_operands),        \
        .options = (opts_table), .size = sizeof(struct opts), .defaults = &defaults,               \
        .run = run_##word, .about = __VA_ARGS__                                                    \
    }

int main(int argc, char **argv)
{
    const tool_command commands[] = {
        COMMAND(show, "RUN...", 1, -1, show_options, "Curves and tables of runs."),
        COMMAND(summary, "RUN...", 1, -1, NULL, "Losses, tokens, time, speed, restarts."),
        COMMAND(compare, "RUN RUN...", 2, -1, compare_options,
                "One column of several runs, step by step, and the differences from the first."),
        COMMAND(follow, "RUN", 1, 1, follow_options,
                "Print what a run logs until it ends or Ctrl-C."),
        COMMAND(plot, "RUN...", 1, -1, plot_options, "Draw curves into a file."),
        COMMAND(export, "RUN...", 1, -1, export_options,
                "Write the records as CSV or as TensorBoard event files."),
        metrics_values,
        metrics_samples,
        metrics_spikes,
        metrics_eval,
        metrics_flight,
        metrics_report,
        {.run = NULL},
    };
    const tool metrics = {
        "d9d-metrics",
        "Look at training runs, done or not.  RUN is a run directory or its metrics.jsonl.",
        commands};

    return tool_main(&metrics, argc, argv);
}
