/* html_charts.c - which charts a page has.  See report/html/html_charts.h. */
#include "report/html/html_charts.h"

#include <math.h>
#include <string.h>

#include "report/rows.h"

typedef enum match_kind {
    MATCH_KEY,        /* a training column of this name */
    MATCH_WORD,       /* a training column whose name contains this word */
    MATCH_LOSS,       /* the loss of an evaluation */
    MATCH_EVALUATION, /* a metric of an evaluation */
    MATCH_OWN,        /* an own value */
    MATCH_DETAIL,     /* what else has a slash: layers, experts, classes, counts of evaluations */
    MATCH_ANY
} match_kind;

/* The first row that matches a column says where it is drawn; without a section, nowhere.  Rows of
 * one title share a chart; without a title it is the column's name. */
static const struct chart_rule {
    match_kind match;
    const char *word;
    const char *section, *title, *unit;
    bool log, smooth;
} rules[] = {
    {MATCH_KEY, "loss", "losses", "Loss", "number", false, true},
    {MATCH_LOSS, NULL, "losses", "Loss", "number", false, true},
    {MATCH_EVALUATION, NULL, "losses", NULL, "number", false, false},
    {MATCH_OWN, NULL, "values", NULL, "number", false, true},
    {MATCH_DETAIL, NULL, NULL, NULL, NULL, false, false},
    {MATCH_KEY, "tokens_per_s", "speed", "Tokens per second", "count", false, true},
    {MATCH_KEY, "mfu", "speed", "Model FLOP utilisation (MFU)", "share", false, true},
    {MATCH_KEY, "step_ms", "speed", "Time of a step", "ms", false, true},
    {MATCH_KEY, "data_ms", "speed", "Waiting for data, of a step", "ms", false, true},
    {MATCH_KEY, "lr", "optimisation", "Learning rate", "number", false, false},
    {MATCH_KEY, "grad_norm", "optimisation", "Gradient norm", "number", true, true},
    {MATCH_KEY, "expert_imbalance", "experts", "Most loaded expert over the mean, worst layer",
     "number", false, true},
    {MATCH_KEY, "expert_entropy", "experts", "Entropy of the loads, worst layer (1 is even)",
     "number", false, true},
    {MATCH_KEY, "expert_dropped", "experts", "Share of choices beyond the experts' capacity",
     "share", false, true},
    {MATCH_KEY, "expert_rank_imbalance", "experts", "Busiest rank over the mean, worst layer",
     "number", false, true},
    {MATCH_KEY, "expert_rank_imbalance_without", "experts",
     "Busiest rank over the mean, had experts no copies", "number", false, true},
    {MATCH_KEY, "expert_copies", "experts", "Copies of experts in a layer", "number", false, true},
    {MATCH_WORD, "router_", "experts", NULL, "number", false, true},
    {MATCH_KEY, "mem_bytes", "memory", "Device memory, highest so far", "bytes", false, false},
    {MATCH_KEY, "host_bytes", "memory", "Host memory of what is offloaded", "bytes", false, false},
    {MATCH_KEY, "pipeline_ms", "pipeline", "Time of the pipeline, of a step", "ms", false, true},
    {MATCH_KEY, "bubble", "pipeline", "Pipeline bubble", "share", false, true},
    {MATCH_KEY, "joules", "energy", "Energy of a rank between records (joules)", "number", false,
     true},
    {MATCH_KEY, "tokens_per_joule", "energy", "Tokens per joule of a rank", "number", false, true},
    {MATCH_WORD, "joule", "energy", NULL, "number", false, true},
    {MATCH_WORD, "energy", "energy", NULL, "number", false, true},
    {MATCH_WORD, "power", "energy", NULL, "number", false, true},
    {MATCH_WORD, "watt", "energy", NULL, "number", false, true},
    {MATCH_KEY, "tokens", NULL, NULL, NULL, false, false},
    {MATCH_KEY, "samples", NULL, NULL, NULL, false, false},
    {MATCH_ANY, NULL, "other", NULL, "number", false, true},
};
enum { N_RULES = sizeof(rules) / sizeof(rules[0]) };

static bool matches(const struct chart_rule *rule, const d9d_run_reader_column *column,
                    bool evaluation)
{
    const char *name = column->name;
    const char *slash = strrchr(name, '/');

    switch (rule->match) {
    case MATCH_KEY: return strcmp(name, rule->word) == 0;
    case MATCH_WORD: return strstr(name, rule->word) != NULL;
    case MATCH_LOSS: return evaluation && strcmp(slash, "/loss") == 0;
    case MATCH_EVALUATION: return evaluation;
    case MATCH_OWN: return column->is_own;
    case MATCH_DETAIL: return slash != NULL;
    default: return true;
    }
}

static d9d_status add_series(d9di_html_charts *out, const struct chart_rule *rule,
                             d9di_html_series s)
{
    const char *title = rule->title != NULL ? rule->title : s.column->name;
    d9di_html_chart *c = NULL;

    for (size_t i = 0; i < out->list.len; i++)
        if (strcmp(out->list.data[i].title, title) == 0)
            c = &out->list.data[i];
    if (c == NULL) {
        D9D_TRY(D9D_VEC_PUSH(&out->list, (d9di_html_chart){.title = title,
                                                           .section = rule->section,
                                                           .unit = rule->unit,
                                                           .log = rule->log,
                                                           .smooth = rule->smooth}));
        c = &out->list.data[out->list.len - 1];
    }
    return D9D_VEC_PUSH(&c->series, s);
}

static d9d_status collect_run(const d9d_run_reader *r, size_t run, size_t rule,
                              d9di_html_charts *out)
{
    for (size_t i = 0; i < r->n_columns; i++) {
        const d9di_html_series s = {run, &r->columns[i],
                                    d9d_run_reader_evaluation_of(r, &r->columns[i]) >= 0};
        size_t k = 0;

        while (!matches(&rules[k], s.column, s.evaluation))
            k++;
        if (k == rule && rules[k].section != NULL)
            D9D_TRY(add_series(out, &rules[k], s));
    }
    return D9D_OK;
}

d9d_status d9di_html_charts_collect(const d9d_run_reader_list *r, d9di_html_charts *out)
{
    for (size_t k = 0; k < N_RULES; k++)
        for (size_t i = 0; i < r->n; i++)
            if (collect_run(r->run[i], i, k, out) != D9D_OK)
                return D9D_FAIL(D9D_ENOMEM, "no memory for the charts of %zu runs", r->n);
    return D9D_OK;
}

void d9di_html_charts_release(d9di_html_charts *c)
{
    for (size_t i = 0; i < c->list.len; i++)
        D9D_VEC_RELEASE(&c->list.data[i].series);
    D9D_VEC_RELEASE(&c->list);
}

/* --- the frames ------------------------------------------------------------------------------- */

typedef struct series_figures {
    double first, last, low, high;
    int64_t low_step, high_step;
} series_figures;

static series_figures take_figures(const d9d_run_reader *r, const d9d_run_reader_column *c)
{
    series_figures f = {(double)NAN, (double)NAN, (double)NAN, (double)NAN, -1, -1};

    for (size_t i = 0; i < r->n; i++) {
        const double v = c->values[i];

        if (!isfinite(v))
            continue;
        f.first = isnan(f.first) ? v : f.first;
        f.last = v;
        if (!(v >= f.low)) {
            f.low = v;
            f.low_step = r->step[i];
        }
        if (!(v <= f.high)) {
            f.high = v;
            f.high_step = r->step[i];
        }
    }
    return f;
}

static d9di_html_unit unit_of(const char *word)
{
    static const struct {
        const char *word;
        d9di_html_unit unit;
    } rows[] = {{"count", D9DI_HTML_COUNT}, {"bytes", D9DI_HTML_BYTES}, {"share", D9DI_HTML_SHARE}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strcmp(rows[i].word, word) == 0)
            return rows[i].unit;
    return D9DI_HTML_NUMBER;
}

static void put_figures(d9di_html_writer *w, const d9di_html_chart *c, const d9d_run_reader_list *r,
                        const char *const *labels)
{
    const char *const heads[] = {"run",     "column", "first",   "last", "least",
                                 "at step", "most",   "at step", NULL};
    const d9di_html_unit unit = unit_of(c->unit);

    d9di_html_put(w, "<details class=\"figures\"><summary>Figures</summary>\n");
    d9di_html_table_begin(w, c->title);
    d9di_html_table_heads(w, heads);
    for (size_t i = 0; i < c->series.len; i++) {
        const d9di_html_series *s = &c->series.data[i];
        const series_figures f = take_figures(r->run[s->run], s->column);

        d9di_html_row_begin(w, labels[s->run]);
        d9di_html_words(w, s->column->name);
        d9di_html_value(w, f.first, unit);
        d9di_html_value(w, f.last, unit);
        d9di_html_value(w, f.low, unit);
        d9di_html_value(w, (double)f.low_step, D9DI_HTML_STEP);
        d9di_html_value(w, f.high, unit);
        d9di_html_value(w, (double)f.high_step, D9DI_HTML_STEP);
        d9di_html_row_end(w);
    }
    d9di_html_table_end(w);
    d9di_html_put(w, "</details>\n");
}

void d9di_html_charts_put(d9di_html_writer *w, const d9di_html_charts *c, const char *section,
                          const d9d_run_reader_list *r, const char *const *labels)
{
    bool any = false;

    for (size_t i = 0; i < c->list.len; i++) {
        const d9di_html_chart *chart = &c->list.data[i];

        if (strcmp(chart->section, section) != 0)
            continue;
        d9di_html_put(w, "%s<figure class=\"chart\" data-chart=\"%zu\">\n<figcaption>",
                      any ? "" : "<div class=\"charts\">\n", i);
        d9di_html_text(w, chart->title);
        d9di_html_put(w, "</figcaption>\n<div class=\"plot\"></div>\n");
        put_figures(w, chart, r, labels);
        d9di_html_put(w, "</figure>\n");
        any = true;
    }
    if (any)
        d9di_html_put(w, "</div>\n");
}
