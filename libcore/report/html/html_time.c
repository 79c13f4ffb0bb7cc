/* html_time.c - where the time of each run went, and what the plan had said. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/report/report.h"
#include "report/html/html_page.h"

/* --- where the time went ---------------------------------------------------------------------- */

typedef enum time_part {
    TIME_COMPUTE,
    TIME_DATA,
    TIME_BUBBLE,
    TIME_EVALUATION,
    TIME_SAVE,
    TIME_AGAIN,
    TIME_DOWN,
    TIME_PARTS
} time_part;

static const struct {
    const char *label, *about;
} time_parts[TIME_PARTS] = {
    [TIME_COMPUTE] = {"computing", "steps, without the next two"},
    [TIME_DATA] = {"waiting for data", "of the steps, data_ms"},
    [TIME_BUBBLE] = {"pipeline bubble", "of the steps, the mean over ranks"},
    [TIME_EVALUATION] = {"evaluations", ""},
    [TIME_SAVE] = {"saving checkpoints", "what blocked the training"},
    [TIME_AGAIN] = {"steps done again", "lost at restarts"},
    [TIME_DOWN] = {"between end and restart", "where both are in the record"},
};

/* Seconds of a column that is in milliseconds per step, over all steps. */
static double step_seconds(const d9d_run_reader *r, const char *key, const char *factor)
{
    const double *ms = d9d_run_reader_values(r, key);
    const double *f = factor != NULL ? d9d_run_reader_values(r, factor) : NULL;
    const double *steps = d9d_run_reader_values(r, "step_ms");
    double sum = 0;
    int64_t from = r->begin;

    for (size_t i = 0; ms != NULL && steps != NULL && i < r->n; i++) {
        if (!isfinite(steps[i]))
            continue;
        if (isfinite(ms[i]) && (factor == NULL || (f != NULL && isfinite(f[i]))))
            sum += 1e-3 * ms[i] * (f != NULL ? f[i] : 1) * (double)(r->step[i] - from);
        from = r->step[i];
    }
    return sum;
}

static double evaluation_seconds(const d9d_run_reader *r)
{
    double sum = 0;

    for (size_t e = 0; e < r->n_evaluations; e++) {
        char key[256];
        const double *ms;

        (void)snprintf(key, sizeof(key), "%s/ms", r->evaluations[e]);
        ms = d9d_run_reader_values(r, key);
        for (size_t i = 0; ms != NULL && i < r->n; i++)
            sum += isfinite(ms[i]) ? 1e-3 * ms[i] : 0;
    }
    return sum;
}

static void add_event_seconds(const d9d_run_reader *r, double part[TIME_PARTS])
{
    double ended = (double)NAN;

    for (size_t i = 0; i < r->n_events; i++) {
        const d9d_run_reader_event *e = &r->events[i];

        if (isfinite(e->blocked_ms)) /* of both kinds of saves */
            part[TIME_SAVE] += 1e-3 * e->blocked_ms;
        if (e->kind == D9D_RUN_READER_RESTART) {
            part[TIME_AGAIN] += e->discarded_s;
            part[TIME_DOWN] += isfinite(e->time - ended) ? fmax(0, e->time - ended) : 0;
        }
        ended = e->kind == D9D_RUN_READER_END ? e->time : (double)NAN;
    }
}

static void take_time(const d9d_run_reader *r, double part[TIME_PARTS])
{
    const double steps = step_seconds(r, "step_ms", NULL);

    memset(part, 0, TIME_PARTS * sizeof(*part));
    part[TIME_DATA] = step_seconds(r, "data_ms", NULL);
    part[TIME_BUBBLE] = step_seconds(r, "pipeline_ms", "bubble");
    part[TIME_COMPUTE] = fmax(0, steps - part[TIME_DATA] - part[TIME_BUBBLE]);
    part[TIME_EVALUATION] = evaluation_seconds(r);
    add_event_seconds(r, part);
}

static double total_of(const double part[TIME_PARTS])
{
    double sum = 0;

    for (int i = 0; i < TIME_PARTS; i++)
        sum += part[i];
    return sum;
}

/* A bar whose parts have the widths of their shares. */
static void put_bar(d9di_html_writer *w, const char *label, const double part[TIME_PARTS],
                    double total)
{
    d9di_html_put(w, "<div class=\"bar\" role=\"img\" aria-label=\"");
    d9di_html_text(w, label);
    d9di_html_put(w, ": shares of the time, as in the table\">");
    for (int i = 0; i < TIME_PARTS; i++)
        if (part[i] >= 0.001 * total)
            d9di_html_put(w, "<span class=\"p%d\" style=\"width:%.2f%%\" title=\"%s\"></span>", i,
                          100 * part[i] / total, time_parts[i].label);
    d9di_html_put(w, "</div>\n");
}

static void put_time_row(d9di_html_page *p, int i, const double (*part)[TIME_PARTS])
{
    bool any = false;

    for (size_t k = 0; k < p->n; k++)
        any |= part[k][i] > 0;
    if (!any)
        return;
    d9di_html_put(&p->w, "<tr><th scope=\"row\"><span class=\"key p%d\"></span>%s", i,
                  time_parts[i].label);
    if (time_parts[i].about[0] != '\0')
        d9di_html_put(&p->w, " <small>%s</small>", time_parts[i].about);
    d9di_html_put(&p->w, "</th>");
    for (size_t k = 0; k < p->n; k++) {
        char s[D9DI_HTML_VALUE_SIZE], share[D9DI_HTML_VALUE_SIZE];
        const double total = total_of(part[k]);

        d9di_html_put(
            &p->w, "<td class=\"n\">%s <small>%s</small></td>",
            d9di_html_format(part[k][i], D9DI_HTML_SECONDS, s),
            d9di_html_format(total > 0 ? part[k][i] / total : (double)NAN, D9DI_HTML_SHARE, share));
    }
    d9di_html_row_end(&p->w);
}

void d9di_html_write_time(d9di_html_page *p)
{
    double(*part)[TIME_PARTS] = d9d_arena_alloc(&p->arena, (p->n + 1) * sizeof(*part));
    double all = 0;

    if (part == NULL) {
        p->w.st = D9D_FAIL(D9D_ENOMEM, "no memory for the times of %zu runs", p->n);
        return;
    }
    for (size_t k = 0; k < p->n; k++) {
        take_time(p->runs[k].reader, part[k]);
        all += total_of(part[k]);
    }
    if (!(all > 0))
        return;
    for (size_t k = 0; k < p->n; k++) {
        d9di_html_run_heading(p, k);
        put_bar(&p->w, p->runs[k].label, part[k], total_of(part[k]));
    }
    d9di_html_table_begin(&p->w, "Where the time went");
    d9di_html_put(&p->w, "<thead><tr><th scope=\"col\">part</th>");
    for (size_t k = 0; k < p->n; k++) {
        d9di_html_put(&p->w, "<th scope=\"col\">");
        d9di_html_text(&p->w, p->runs[k].label);
        d9di_html_put(&p->w, "</th>");
    }
    d9di_html_put(&p->w, "</tr></thead>\n<tbody>\n");
    for (int i = 0; i < TIME_PARTS; i++)
        put_time_row(p, i, (const double(*)[TIME_PARTS])part);
    d9di_html_put(&p->w, "</tbody>\n");
    d9di_html_table_end(&p->w);
    if (p->w.st == D9D_OK)
        d9di_html_write_plan(p);
}

/* --- the plan --------------------------------------------------------------------------------- */

/* What a plan says and what the run measured. */
typedef struct plan_values {
    double planned, measured;
} plan_values;

/* The most that a rank of any stage needs. */
static double planned_bytes(const json_t *plan)
{
    const json_t *stages = json_object_get(plan, "stages");
    double most = (double)NAN;

    for (size_t i = 0; i < json_array_size(stages); i++)
        most = fmax(most, d9di_html_member(json_array_get(stages, i), "bytes"));
    return most;
}

/* The mean over the records that have it. */
static double mean_of(const d9d_run_reader *r, const char *key)
{
    const double *v = d9d_run_reader_values(r, key);
    double sum = 0;
    size_t n = 0;

    for (size_t i = 0; v != NULL && i < r->n; i++)
        if (isfinite(v[i])) {
            sum += v[i];
            n++;
        }
    return n > 0 ? sum / (double)n : (double)NAN;
}

static void put_plan_row(d9di_html_writer *w, const char *label, plan_values v, d9di_html_unit unit)
{
    if (isnan(v.planned))
        return;
    d9di_html_row_begin(w, label);
    d9di_html_value(w, v.planned, unit);
    d9di_html_value(w, v.measured, unit);
    d9di_html_value(w, v.planned > 0 ? v.measured / v.planned : (double)NAN, D9DI_HTML_NUMBER);
    d9di_html_row_end(w);
}

/* Planned kernels and messages of the first stage's ranks, the longest first. */
static void put_plan_work(d9di_html_writer *w, const json_t *plan)
{
    static const char *const heads[] = {"planned, of a step", "calls", "time", NULL};
    static const struct {
        const char *list, *name, *of;
    } lists[] = {{"work", "kind", NULL}, {"messages", "call", "group"}};
    const json_t *stage = json_array_get(json_object_get(plan, "stages"), 0);

    d9di_html_put(w, "<details><summary>What the plan expects of a step</summary>\n");
    d9di_html_table_begin(w, "Planned kernels and messages");
    d9di_html_table_heads(w, heads);
    for (size_t l = 0; l < 2; l++) {
        const json_t *list = json_object_get(stage, lists[l].list);

        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *x = json_array_get(list, i);
            const char *name = json_string_value(json_object_get(x, lists[l].name));
            const char *of =
                lists[l].of != NULL ? json_string_value(json_object_get(x, lists[l].of)) : NULL;
            char label[96];

            (void)d9d_num_format(label, sizeof(label), "%.40s%s%.40s", name != NULL ? name : "?",
                                 of != NULL ? " of " : "", of != NULL ? of : "");
            d9di_html_row_begin(w, label);
            d9di_html_value(w, d9di_html_member(x, "calls"), D9DI_HTML_NUMBER);
            d9di_html_value(w, d9di_html_member(x, "seconds"), D9DI_HTML_SECONDS);
            d9di_html_row_end(w);
        }
    }
    d9di_html_table_end(w);
    d9di_html_put(w, "</details>\n");
}

static void put_plan(d9di_html_page *p, size_t k)
{
    static const char *const heads[] = {"", "planned", "measured", "measured / planned", NULL};
    const json_t *plan = p->runs[k].plan;
    const d9d_run_reader *r = p->runs[k].reader;
    const double step_s = d9di_html_member(plan, "step_s");
    d9d_report_run_summary s;
    double step_ms;

    if (p->w.st == D9D_OK)
        p->w.st = d9d_report_summarise_run(r, &s);
    if (p->w.st != D9D_OK)
        return;
    step_ms = s.last_step > 0 ? 1e3 * s.seconds / (double)s.last_step : (double)NAN;
    d9di_html_run_heading(p, k);
    d9di_html_table_begin(&p->w, "The plan beside what was measured");
    d9di_html_table_heads(&p->w, heads);
    put_plan_row(&p->w, "time of a step", (plan_values){step_s, 1e-3 * step_ms}, D9DI_HTML_SECONDS);
    put_plan_row(&p->w, "tokens per second",
                 (plan_values){d9di_html_member(plan, "tokens") / step_s, s.tokens_per_s},
                 D9DI_HTML_COUNT);
    put_plan_row(&p->w, "MFU", (plan_values){d9di_html_member(plan, "mfu"), s.mfu},
                 D9DI_HTML_SHARE);
    if (json_is_string(json_object_get(plan, "schedule")))
        put_plan_row(&p->w, "pipeline bubble",
                     (plan_values){d9di_html_member(plan, "bubble"), mean_of(r, "bubble")},
                     D9DI_HTML_SHARE);
    put_plan_row(&p->w, "device memory of a rank", (plan_values){planned_bytes(plan), s.mem_bytes},
                 D9DI_HTML_BYTES);
    d9di_html_table_end(&p->w);
    put_plan_work(&p->w, plan);
}

void d9di_html_write_plan(d9di_html_page *p)
{
    for (size_t k = 0; k < p->n; k++)
        if (p->runs[k].plan != NULL)
            put_plan(p, k);
}
