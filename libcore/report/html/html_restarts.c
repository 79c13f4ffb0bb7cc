/* html_restarts.c - restarts with their causes, checkpoints, and the flight recorder. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "report/html/html_page.h"

enum { MAX_EVENTS = 200 }; /* rows of a table */

/* Why a run that begins again had stopped, by the line before. */
static const char *cause_of(const d9d_run_reader_event *end)
{
    static const struct {
        const char *word, *cause;
    } rows[] = {{"saved", "had been asked to stop, and saved"},
                {"failed", "had failed"},
                {"done", "had been done"}};

    for (size_t i = 0; end != NULL && i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strcmp(rows[i].word, end->word) == 0)
            return rows[i].cause;
    return end != NULL ? end->word : "was killed: its record has no end";
}

static void put_event(d9di_html_writer *w, const char *label, const d9d_run_reader_event *e,
                      const char *words)
{
    char time[D9DI_HTML_VALUE_SIZE];

    d9di_html_row_begin(w, label);
    d9di_html_value(w, (double)e->step, D9DI_HTML_STEP);
    d9di_html_words(w, d9di_html_format_time(e->time, time));
    d9di_html_words(w, words);
    d9di_html_row_end(w);
}

static void put_restart(d9di_html_writer *w, const d9d_run_reader_event *e,
                        const d9d_run_reader_event *end)
{
    char words[160], s[D9DI_HTML_VALUE_SIZE];

    if (e->discarded > 0)
        (void)snprintf(words, sizeof(words), "%s; %lld step%s (%s) done again", cause_of(end),
                       (long long)e->discarded, D9D_PLURAL(e->discarded),
                       d9di_html_format(e->discarded_s, D9DI_HTML_SECONDS, s));
    else
        (void)snprintf(words, sizeof(words), "%s; no step was lost", cause_of(end));
    put_event(w, "restart", e, words);
}

static bool is_save(const d9d_run_reader_event *e)
{
    return e->kind == D9D_RUN_READER_SAVE || e->kind == D9D_RUN_READER_LOCAL_SAVE;
}

/* The newest restarts and ends. */
static void put_events(d9di_html_writer *w, const d9d_run_reader *r)
{
    static const char *const heads[] = {"", "step", "time", "what", NULL};
    const d9d_run_reader_event *end = NULL;
    size_t rows = 0, left_out;

    for (size_t i = 0; i < r->n_events; i++)
        rows += !is_save(&r->events[i]);
    if (rows == 0)
        return;
    left_out = rows > MAX_EVENTS ? rows - MAX_EVENTS : 0;
    if (left_out > 0)
        d9di_html_put(w, "<p>The first %zu restart%s and ends are left out.</p>\n", left_out,
                      D9D_PLURAL(left_out));
    d9di_html_table_begin(w, "Restarts");
    d9di_html_table_heads(w, heads);
    for (size_t i = 0; i < r->n_events; i++) {
        const d9d_run_reader_event *e = &r->events[i];

        if (is_save(e))
            continue;
        if (left_out > 0)
            left_out--;
        else if (e->kind == D9D_RUN_READER_RESTART)
            put_restart(w, e, end);
        else
            put_event(w, "end", e, e->word);
        end = e->kind == D9D_RUN_READER_END ? e : NULL;
    }
    d9di_html_table_end(w);
}

static void put_saves(d9di_html_writer *w, const d9d_run_reader *r, d9d_run_reader_event_kind kind,
                      const char *title, const char *label)
{
    double blocked = 0, slowest = (double)NAN;
    int64_t n = 0, last = -1;

    for (size_t i = 0; i < r->n_events; i++) {
        const d9d_run_reader_event *e = &r->events[i];

        if (e->kind != kind)
            continue;
        n++;
        last = e->step;
        blocked += isfinite(e->blocked_ms) ? 1e-3 * e->blocked_ms : 0;
        slowest = fmax(slowest, 1e-3 * e->total_ms);
    }
    if (n == 0)
        return;
    d9di_html_table_begin(w, title);
    d9di_html_row_begin(w, label);
    d9di_html_value(w, (double)n, D9DI_HTML_STEP);
    d9di_html_row_end(w);
    d9di_html_row_begin(w, "step of the last one");
    d9di_html_value(w, (double)last, D9DI_HTML_STEP);
    d9di_html_row_end(w);
    d9di_html_row_begin(w, "training stood still for");
    d9di_html_value(w, blocked, D9DI_HTML_SECONDS);
    d9di_html_row_end(w);
    d9di_html_row_begin(w, "the slowest took");
    d9di_html_value(w, slowest, D9DI_HTML_SECONDS);
    d9di_html_row_end(w);
    d9di_html_table_end(w);
}

void d9di_html_write_restarts(d9di_html_page *p)
{
    for (size_t k = 0; k < p->n; k++) {
        const d9di_html_run *run = &p->runs[k];

        if (run->reader->n_events == 0 && run->flight == NULL)
            continue;
        d9di_html_run_heading(p, k);
        if (run->flight != NULL) {
            d9di_html_put(&p->w, "<p class=\"warn\">Flight recorder: ");
            d9di_html_text(&p->w, run->flight);
            d9di_html_put(&p->w, ".</p>\n");
        }
        put_events(&p->w, run->reader);
        put_saves(&p->w, run->reader, D9D_RUN_READER_SAVE, "Checkpoints", "checkpoints saved");
        put_saves(&p->w, run->reader, D9D_RUN_READER_LOCAL_SAVE, "Local checkpoints",
                  "local checkpoints saved");
    }
}
