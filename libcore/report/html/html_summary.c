/* html_summary.c - the first section: how far each run is, its losses, speed and memory. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "d9d/report/report.h"
#include "report/html/html_page.h"

static const struct summary_row {
    const char *key, *label;
    d9di_html_unit unit;
} summary_rows[] = {
    {"last_step", "step", D9DI_HTML_STEP},
    {"tokens", "tokens", D9DI_HTML_COUNT},
    {"samples", "samples", D9DI_HTML_COUNT},
    {"first_loss", "first loss", D9DI_HTML_NUMBER},
    {"last_loss", "last loss", D9DI_HTML_NUMBER},
    {"min_loss", "least loss", D9DI_HTML_NUMBER},
    {"min_loss_step", "at step", D9DI_HTML_STEP},
    {"tokens_per_s", "tokens per second (median)", D9DI_HTML_COUNT},
    {"mfu", "MFU (median)", D9DI_HTML_SHARE},
    {"seconds", "time of the steps", D9DI_HTML_SECONDS},
    {"mem_bytes", "device memory, highest", D9DI_HTML_BYTES},
    {"restarts", "restarts", D9DI_HTML_STEP},
};
enum { N_SUMMARY_ROWS = sizeof(summary_rows) / sizeof(summary_rows[0]) };

static bool any_run_has(const json_t *summaries, const char *key)
{
    for (size_t k = 0; k < json_array_size(summaries); k++)
        if (!isnan(d9di_html_member(json_array_get(summaries, k), key)))
            return true;
    return false;
}

static const char *state_of(const d9d_run_reader *r)
{
    static const struct {
        const char *end, *words;
    } rows[] = {
        {"done", "done"}, {"saved", "stopped and saved, to be resumed"}, {"failed", "failed"}};

    for (size_t i = 0; r->end != NULL && i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strcmp(rows[i].end, r->end) == 0)
            return rows[i].words;
    return r->end != NULL ? r->end : "goes on, or was killed";
}

static const char *manifest_text(const d9di_html_run *run, const char *key)
{
    return json_string_value(json_object_get(run->manifest, key));
}

static void put_manifest_row(d9di_html_page *p, const char *key, const char *label)
{
    bool any = false;

    for (size_t k = 0; k < p->n; k++)
        any |= manifest_text(&p->runs[k], key) != NULL;
    if (!any)
        return;
    d9di_html_row_begin(&p->w, label);
    for (size_t k = 0; k < p->n; k++)
        d9di_html_words(&p->w, manifest_text(&p->runs[k], key));
    d9di_html_row_end(&p->w);
}

/* "1.234 at step 500". */
static void put_at_step(d9di_html_writer *w, double v, double step)
{
    char value[D9DI_HTML_VALUE_SIZE], at[D9DI_HTML_VALUE_SIZE];

    d9di_html_put(w, "<td class=\"n\">%s", d9di_html_format(v, D9DI_HTML_NUMBER, value));
    if (!isnan(v))
        d9di_html_put(w, " <small>at step %s</small>", d9di_html_format(step, D9DI_HTML_STEP, at));
    d9di_html_put(w, "</td>");
}

static void put_evaluation_row(d9di_html_page *p, const json_t *summaries, const char *key,
                               const char *which, const char *step_key)
{
    char label[160];
    bool any = false;

    for (size_t k = 0; k < p->n; k++)
        any |= !isnan(d9di_html_member(
            json_object_get(json_object_get(json_array_get(summaries, k), "evaluation"), key),
            which));
    if (!any)
        return;
    (void)snprintf(label, sizeof(label), "%s %s", which, key);
    d9di_html_row_begin(&p->w, label);
    for (size_t k = 0; k < p->n; k++) {
        const json_t *e =
            json_object_get(json_object_get(json_array_get(summaries, k), "evaluation"), key);

        put_at_step(&p->w, d9di_html_member(e, which), d9di_html_member(e, step_key));
    }
    d9di_html_row_end(&p->w);
}

/* Each key once, in the order of the first run that has it. */
static void put_evaluations(d9di_html_page *p, const json_t *summaries)
{
    json_t *seen = json_object(), *v;
    const char *key;

    for (size_t k = 0; k < p->n; k++) {
        json_t *of = json_object_get(json_array_get(summaries, k), "evaluation");

        json_object_foreach(of, key, v)
        {
            if (json_object_get(seen, key) != NULL)
                continue;
            d9d_json_set(&seen, key, json_true());
            put_evaluation_row(p, summaries, key, "last", "last_step");
            put_evaluation_row(p, summaries, key, "best", "best_step");
        }
    }
    json_decref(seen);
}

static void put_summary(d9di_html_page *p, const json_t *summaries)
{
    d9di_html_writer *w = &p->w;

    d9di_html_table_begin(w, "Summary");
    d9di_html_put(w, "<thead><tr><th scope=\"col\">run</th>");
    for (size_t k = 0; k < p->n; k++) {
        d9di_html_put(w, "<th scope=\"col\"><span class=\"key s%zu\"></span>", k % 8);
        d9di_html_text(w, p->runs[k].label);
        d9di_html_put(w, "</th>");
    }
    d9di_html_put(w, "</tr></thead>\n<tbody>\n");
    put_manifest_row(p, "description", "description");
    d9di_html_row_begin(w, "state");
    for (size_t k = 0; k < p->n; k++)
        d9di_html_words(w, state_of(p->runs[k].reader));
    d9di_html_row_end(w);
    for (size_t i = 0; i < N_SUMMARY_ROWS; i++) {
        if (!any_run_has(summaries, summary_rows[i].key))
            continue;
        d9di_html_row_begin(w, summary_rows[i].label);
        for (size_t k = 0; k < p->n; k++)
            d9di_html_value(w, d9di_html_member(json_array_get(summaries, k), summary_rows[i].key),
                            summary_rows[i].unit);
        d9di_html_row_end(w);
    }
    put_evaluations(p, summaries);
    put_manifest_row(p, "started", "last start");
    put_manifest_row(p, "version", "version of d9d");
    put_manifest_row(p, "slurm_job", "Slurm job");
    d9di_html_put(w, "</tbody>\n");
    d9di_html_table_end(w);
}

void d9di_html_write_summary(d9di_html_page *p)
{
    json_t *summaries = NULL;

    if (p->w.st == D9D_OK)
        p->w.st = d9d_report_summary_json(p->list, &summaries);
    if (p->w.st == D9D_OK)
        put_summary(p, summaries);
    json_decref(summaries);
}
