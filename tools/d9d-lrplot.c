/* d9d-lrplot - plot the learning rate of a training configuration. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "d9d/plot/chart.h"
#include "d9d/sched/lr_table.h"
#include "tool.h"

enum { MAX_POINTS = 20000 };

struct lrplot_opts {
    int64_t steps;
    const char *out;
    bool table, log_y;
    tool_list set;
};

static const tool_option options[] = {
    TOOL_OPT(struct lrplot_opts, steps, INT, "steps", 'n', "N",
             "steps of the run (default: those of the phases, or 1000 and twice those where a "
             "phase is a share of the run)",
             .min = 1, .max = D9D_LR_TABLE_STEPS_MAX),
    TOOL_OPT(struct lrplot_opts, out, STRING, "out", 'o', "FILE",
             "draw into FILE, which ends in .svg, .png or .pdf"),
    TOOL_OPT(struct lrplot_opts, table, FLAG, "table", 't', NULL, "print step, tab, learning rate"),
    TOOL_OPT(struct lrplot_opts, log_y, FLAG, "log", 0, NULL,
             "a logarithmic scale of the learning rate"),
    TOOL_OPT(struct lrplot_opts, set, LIST, "set", 0, "KEY=VALUE",
             "override a.b.c of the configuration; VALUE is JSON or a word; may be repeated"),
    TOOL_END,
};

static d9d_status put_table_row(const tool_run *r, const d9d_lr_table *v, int64_t k, d9d_buf *line)
{
    if (r->json)
        D9D_TRY(
            d9d_buf_printf(line, "%s{\"step\": %" PRId64 ", \"lr\": ", k > 0 ? ",\n " : "[", k));
    else
        D9D_TRY(d9d_buf_printf(line, "%" PRId64 "\t", k));
    D9D_TRY(d9d_json_put_f64(line, d9d_lr_table_at(v, k)));
    return d9d_buf_printf(line, "%s%s", r->json ? "}" : "\n",
                          r->json && k + 1 == v->steps ? "]\n" : "");
}

static d9d_status print_table(const tool_run *r, const d9d_lr_table *v)
{
    d9d_buf line = {0};
    d9d_status st = D9D_OK;

    for (int64_t k = 0; k < v->steps && st == D9D_OK; k++) {
        line.len = 0;
        st = put_table_row(r, v, k, &line);
        tool_put(&line);
    }
    d9d_buf_release(&line);
    return st;
}

static d9d_status draw_chart(tool_run *r, const struct lrplot_opts *o, const d9d_chart *chart)
{
    const tool_screen s = tool_screen_get();
    const d9d_chart_text_style style = {s.columns, s.rows < 24 ? s.rows : 20, s.utf8, s.colour};
    const d9d_figure figure = {.charts = chart, .n = 1};
    d9d_buf text = {0};
    d9d_status st;

    if (o->out != NULL) {
        D9D_TRY(d9d_figure_write(&figure, o->out));
        d9d_log_info(r->log, "wrote %s", o->out);
        return D9D_OK;
    }
    st = d9d_chart_text(chart, &style, &text);
    if (st == D9D_OK)
        tool_put(&text);
    d9d_buf_release(&text);
    return st;
}

static d9d_status plot_table(tool_run *r, const struct lrplot_opts *o, const d9d_lr_table *v)
{
    const int64_t n = v->steps < MAX_POINTS ? v->steps : MAX_POINTS;
    double *x = d9d_arena_alloc(&r->arena, (size_t)n * sizeof(*x));
    double *y = d9d_arena_alloc(&r->arena, (size_t)n * sizeof(*y));
    const d9d_chart_series series = {v->is_lr ? "lr" : "multiplier", x, y, (size_t)n};
    const d9d_chart chart = {.title = v->is_lr ? "Learning rate" : "Learning-rate multiplier",
                             .x_label = "step",
                             .series = &series,
                             .n_series = 1,
                             .log_y = o->log_y};

    if (x == NULL || y == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %" PRId64 " points", n);
    for (int64_t i = 0; i < n; i++) {
        const int64_t k =
            n > 1 ? (int64_t)((double)i * (double)(v->steps - 1) / (double)(n - 1)) : 0;

        x[i] = (double)k;
        y[i] = d9d_lr_table_at(v, k);
    }
    return draw_chart(r, o, &chart);
}

static d9d_status load_table(tool_run *r, const struct lrplot_opts *o, d9d_plugins **plugins,
                             d9d_lr_table *out)
{
    const char *name = tool_input_name(r->args[0]);
    const d9d_table *table;
    json_t *doc;
    d9d_status st;

    D9D_TRY(tool_config_read(r->args[0], &d9d_lr_table_section, &o->set, &doc));
    D9D_TRY_OR(st, d9d_plugins_open(doc, name, plugins), out);
    D9D_TRY_OR(st, d9d_plugins_table(*plugins, &d9d_lr_table_section, &table), out);
    st = d9d_lr_table_load(table, doc, name, o->steps, r->log, out);
out:
    json_decref(doc);
    return st;
}

static d9d_status run_lrplot(tool_run *r, const void *options_of_run)
{
    const struct lrplot_opts *o = options_of_run;
    d9d_plugins *plugins = NULL;
    d9d_image_kind kind;
    d9d_lr_table v = {.lr = NULL};
    d9d_status st;

    if (o->out != NULL)
        D9D_TRY(d9d_image_kind_of(o->out, &kind));
    st = load_table(r, o, &plugins, &v);
    if (st == D9D_OK)
        st = o->table || r->json ? print_table(r, &v) : plot_table(r, o, &v);
    d9d_lr_table_release(&v);
    d9d_plugins_close(plugins);
    return st;
}

int main(int argc, char **argv)
{
    static const tool_command commands[] = {
        {.operands = "CONFIG.json",
         .min = 1,
         .max = 1,
         .about = "CONFIG.json is a configuration of d9d-train, of which only lr_scheduler and "
                  "optimizer.lr are read, or an lr_scheduler section alone; - is standard input.",
         .options = options,
         .size = sizeof(struct lrplot_opts),
         .run = run_lrplot},
        {.run = NULL},
    };
    static const tool lrplot = {"d9d-lrplot", "Plot the learning rate of a run, step by step.",
                                commands};

    return tool_main(&lrplot, argc, argv);
}
