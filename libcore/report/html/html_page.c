/* html_page.c - the page of several runs.  See d9d/report/html.h. */
#include "report/html/html_page.h"

#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/num_format.h"
#include "d9d/base/version.h"
#include "d9d/comm/flight.h"
#include "d9d/plot/chart.h"
#include "d9d/report/report.h"
#include "report/html/html_assets.h"
#include "report/run_sources.h"

#define MAX_CONFIG_BYTES (UINT64_C(16) << 20)

/* A part of the page: its charts, then what `write` appends.  One that is empty is left out. */
static const struct section {
    const char *id, *title;
    void (*write)(d9di_html_page *p);
} sections[] = {
    {"summary", "Summary", d9di_html_write_summary},
    {"losses", "Losses and evaluations", NULL},
    {"spikes", "Spikes", d9di_html_write_spikes},
    {"speed", "Speed", NULL},
    {"time", "Where the time went", d9di_html_write_time},
    {"optimisation", "Learning rate and gradients", NULL},
    {"experts", "Experts", d9di_html_write_experts},
    {"memory", "Memory", NULL},
    {"energy", "Energy", NULL},
    {"pipeline", "Pipeline", d9di_html_write_pipeline},
    {"values", "Own values", d9di_html_write_values},
    {"other", "Further values", NULL},
    {"restarts", "Restarts and checkpoints", d9di_html_write_restarts},
    {"configuration", "Configuration", d9di_html_write_config},
};
enum { N_SECTIONS = sizeof(sections) / sizeof(sections[0]) };

void d9di_html_run_heading(d9di_html_page *p, size_t run)
{
    if (p->n < 2)
        return;
    d9di_html_put(&p->w, "<h3><span class=\"key s%zu\"></span>", run % 8);
    d9di_html_text(&p->w, p->runs[run].label);
    d9di_html_put(&p->w, "</h3>\n");
}

/* --- reading the runs ------------------------------------------------------------------------- */

static bool name_is_shared(const d9d_run_reader_list *r, size_t run)
{
    for (size_t k = 0; k < r->n; k++)
        if (k != run && strcmp(r->run[k]->name, r->run[run]->name) == 0)
            return true;
    return false;
}

/* True if the record is that of a run directory: a file of another name may lie anywhere. */
static bool is_run_dir(const d9d_run_reader *r)
{
    const char *slash = strrchr(r->path, '/');

    return strcmp(slash != NULL ? slash + 1 : r->path, "metrics.jsonl") == 0;
}

/* A JSON file of the run directory; NULL if there is none. */
static d9d_status read_file(d9di_html_page *p, const d9d_run_reader *r, const char *name,
                            json_t **out)
{
    const char *path;

    D9D_TRY(d9di_run_sources_file_path(&p->arena, r->path, name, &path));
    return is_run_dir(r) && d9d_fs_exists(path) ? d9d_json_read(path, MAX_CONFIG_BYTES, out)
                                                : D9D_OK;
}

static d9d_status read_plan(const char *path, json_t **out)
{
    D9D_TRY(d9d_json_read(path, MAX_CONFIG_BYTES, out));
    return d9d_json_check_schema(*out, path, "plan", 1);
}

/* A run that began again and then ended well may have the files of an earlier start. */
static bool ended_well(const d9d_run_reader *r)
{
    const d9d_run_reader_event *e = r->n_events > 0 ? &r->events[r->n_events - 1] : NULL;

    return e != NULL && e->kind == D9D_RUN_READER_END && strcmp(e->word, "failed") != 0;
}

static d9d_status read_flight(d9di_html_page *p, d9di_html_run *run)
{
    const char *path;
    d9d_flight_diagnosis diagnosis;
    d9d_buf sentence = {0};
    d9d_flight *f;

    D9D_TRY(d9di_run_sources_file_path(&p->arena, run->reader->path, "flight", &path));
    if (ended_well(run->reader) || !is_run_dir(run->reader) || !d9d_fs_is_dir(path) ||
        d9d_flight_open(path, &f) != D9D_OK)
        return D9D_OK;
    if (d9d_flight_diagnose(f, &diagnosis, &sentence) == D9D_OK && sentence.len > 0)
        run->flight = d9d_arena_strdup(&p->arena, sentence.data);
    d9d_buf_release(&sentence);
    d9d_flight_close(f);
    return D9D_OK;
}

static d9d_status read_spikes(d9di_html_run *run)
{
    const d9d_report_spikes_opts opts = {.key = "loss", .deviations = 6, .window = 64};
    d9d_run_reader *one = (d9d_run_reader *)(uintptr_t)run->reader;
    const d9d_run_reader_list list = {&one, 1};
    json_t *all;

    if (d9d_run_reader_values(run->reader, "loss") == NULL)
        return D9D_OK;
    D9D_TRY(d9d_report_spikes_json(&list, &opts, &all));
    run->spikes = json_incref(json_object_get(json_array_get(all, 0), "spikes"));
    json_decref(all);
    return D9D_OK;
}

static d9d_status read_runs(d9di_html_page *p, const d9d_report_html_opts *opts)
{
    const d9d_run_reader_list *r = p->list;

    p->runs = d9d_arena_alloc(&p->arena, (r->n + 1) * sizeof(*p->runs));
    if (p->runs == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a page of %zu runs", r->n);
    if (opts->n_plans > 0 && opts->n_plans != r->n)
        return D9D_FAIL(D9D_ECONFIG, "%zu plans are given for %zu run%s; each run needs its own",
                        opts->n_plans, r->n, D9D_PLURAL(r->n));
    p->n = r->n;
    for (size_t k = 0; k < r->n; k++) {
        d9di_html_run *run = &p->runs[k];

        run->reader = r->run[k];
        run->label = name_is_shared(r, k) ? r->run[k]->path : r->run[k]->name;
        D9D_TRY(read_file(p, run->reader, "config.json", &run->config));
        D9D_TRY(read_file(p, run->reader, "manifest.json", &run->manifest));
        D9D_TRY(opts->n_plans > 0 ? read_plan(opts->plans[k], &run->plan) : D9D_OK);
        D9D_TRY(read_flight(p, run));
        D9D_TRY(read_spikes(run));
    }
    return d9di_html_charts_collect(r, &p->charts);
}

static void page_release(d9di_html_page *p)
{
    for (size_t k = 0; k < p->n; k++) {
        json_decref(p->runs[k].config);
        json_decref(p->runs[k].manifest);
        json_decref(p->runs[k].plan);
        json_decref(p->runs[k].spikes);
    }
    d9di_html_charts_release(&p->charts);
    d9d_arena_release(&p->arena);
}

/* --- the parts of the page -------------------------------------------------------------------- */

static const char **labels_of(d9di_html_page *p)
{
    const char **labels = d9d_arena_alloc(&p->arena, (p->n + 1) * sizeof(*labels));

    for (size_t k = 0; labels != NULL && k < p->n; k++)
        labels[k] = p->runs[k].label;
    return labels;
}

/* Without JavaScript the loss is a picture. */
static void put_loss_image(d9di_html_page *p)
{
    d9d_chart_series *s = d9d_arena_alloc(&p->arena, (p->n + 1) * sizeof(*s));
    const d9d_chart chart = {.title = "loss", .x_label = "step", .series = s, .n_series = p->n};
    const d9d_figure figure = {.charts = &chart, .n = 1, .width = 640, .height = 320};

    for (size_t k = 0; s != NULL && k < p->n; k++) {
        const d9d_run_reader *r = p->runs[k].reader;
        const double *y = d9d_run_reader_values(r, "loss");
        double *x = d9d_arena_alloc(&p->arena, (r->n + 1) * sizeof(*x));

        s[k] = (d9d_chart_series){.name = p->runs[k].label, .x = x, .y = y};
        for (size_t i = 0; x != NULL && y != NULL && i < r->n; i++) {
            x[i] = (double)r->step[i];
            s[k].n = i + 1;
        }
    }
    d9di_html_put(&p->w, "<noscript>\n<div class=\"lanes scroll\">");
    if (s != NULL && p->w.st == D9D_OK)
        p->w.st = d9d_figure_render(&figure, D9D_IMAGE_SVG, p->w.out);
    d9di_html_put(&p->w, "</div>\n</noscript>\n");
}

static void put_section(d9di_html_page *p, const struct section *s, const char *const *labels)
{
    const size_t begin = p->w.out->len;
    size_t body;

    d9di_html_put(&p->w, "<section id=\"%s\" aria-labelledby=\"h-%s\">\n<h2 id=\"h-%s\">%s</h2>\n",
                  s->id, s->id, s->id, s->title);
    body = p->w.out->len;
    d9di_html_charts_put(&p->w, &p->charts, s->id, p->list, labels);
    if (p->w.out->len > body && strcmp(s->id, "losses") == 0)
        put_loss_image(p);
    if (s->write != NULL && p->w.st == D9D_OK)
        s->write(p);
    if (p->w.out->len == body)
        p->w.out->len = begin;
    else
        d9di_html_put(&p->w, "</section>\n");
}

/* Links to the sections that have something. */
static void put_nav(d9di_html_page *p, const size_t *lengths)
{
    d9di_html_put(&p->w, "<nav aria-label=\"Sections\">\n<ul>\n");
    for (size_t i = 0; i < N_SECTIONS; i++)
        if (lengths[i] > 0)
            d9di_html_put(&p->w, "<li><a href=\"#%s\">%s</a></li>\n", sections[i].id,
                          sections[i].title);
    d9di_html_put(&p->w, "</ul>\n</nav>\n");
}

static void put_title(d9di_html_page *p)
{
    if (p->n == 1)
        d9di_html_text(&p->w, p->runs[0].label);
    else
        d9di_html_put(&p->w, "%zu run%s compared", p->n, D9D_PLURAL(p->n));
}

static void put_head(d9di_html_page *p)
{
    d9di_html_put(&p->w, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                         "<meta name=\"viewport\" content=\"width=device-width, "
                         "initial-scale=1\"/>\n"
                         "<meta name=\"color-scheme\" content=\"light dark\"/>\n<title>");
    put_title(p);
    d9di_html_put(&p->w, " - d9d</title>\n<style>/*<![CDATA[*/\n%s/*]]>*/</style>\n</head>\n",
                  d9di_report_css);
}

/* Up to MARKS_MAX of n marks, which lie evenly over all; the first and the last are among them. */
enum { MARKS_MAX = 1000 };

static size_t mark_count(size_t n)
{
    return n < MARKS_MAX ? n : MARKS_MAX;
}

static size_t mark_at(size_t i, size_t n)
{
    return n <= MARKS_MAX ? i : i * (n - 1) / (MARKS_MAX - 1);
}

static void put_restart_marks(d9di_html_page *p, const d9d_run_reader *r)
{
    size_t n = 0, seen = 0, put = 0;

    for (size_t i = 0; i < r->n_events; i++)
        n += r->events[i].kind == D9D_RUN_READER_RESTART;
    for (size_t i = 0; i < r->n_events && put < mark_count(n); i++) {
        if (r->events[i].kind != D9D_RUN_READER_RESTART || seen++ != mark_at(put, n))
            continue;
        d9di_html_put(&p->w, "%s%lld", put++ > 0 ? "," : "", (long long)r->events[i].step);
    }
}

/* Lists of steps that charts mark. */
static void put_marks(d9di_html_page *p, const d9di_html_run *run)
{
    const size_t n = json_array_size(run->spikes);

    d9di_html_put(&p->w, ",\"restarts\":[");
    put_restart_marks(p, run->reader);
    d9di_html_put(&p->w, "],\"spikes\":[");
    for (size_t i = 0; i < mark_count(n); i++)
        d9di_html_put(&p->w, "%s%lld", i > 0 ? "," : "",
                      (long long)json_integer_value(
                          json_object_get(json_array_get(run->spikes, mark_at(i, n)), "step")));
    d9di_html_put(&p->w, "]");
}

static void put_data(d9di_html_page *p)
{
    d9di_html_put(&p->w, "<script type=\"application/json\" id=\"data\">\n{\"runs\":[");
    for (size_t k = 0; k < p->n; k++) {
        d9di_html_put(&p->w, "%s\n{\"name\":", k > 0 ? "," : "");
        d9di_html_json_text(&p->w, p->runs[k].label);
        put_marks(p, &p->runs[k]);
        d9di_html_put(&p->w, "}");
    }
    d9di_html_put(&p->w, "],\n");
    d9di_html_charts_put_data(&p->w, &p->charts, p->list);
    d9di_html_put(&p->w, "}\n</script>\n<script>/*<![CDATA[*/\n%s/*]]>*/</script>\n",
                  d9di_report_js);
}

static void put_body(d9di_html_page *p, const d9d_buf *body, const size_t *lengths)
{
    d9di_html_put(&p->w, "<body>\n<header>\n<h1>");
    put_title(p);
    d9di_html_put(&p->w, "</h1>\n<div id=\"tools\" hidden=\"hidden\"></div>\n</header>\n");
    put_nav(p, lengths);
    d9di_html_put(&p->w, "<noscript><p class=\"warn\">Charts need JavaScript; the tables do "
                         "not.</p></noscript>\n<main>\n");
    if (p->w.st == D9D_OK)
        p->w.st = d9d_buf_append(p->w.out, body->data != NULL ? body->data : "", body->len);
    d9di_html_put(&p->w, "</main>\n<footer>Made by d9d-metrics report of d9d %s.</footer>\n",
                  d9d_version());
    put_data(p);
    d9di_html_put(&p->w, "</body>\n</html>\n");
}

static d9d_status write_page(d9di_html_page *p, d9d_buf *out)
{
    const char **labels = labels_of(p);
    size_t lengths[N_SECTIONS];
    d9d_buf body = {0};

    if (labels == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a page of %zu runs", p->n);
    p->w = (d9di_html_writer){.out = &body};
    for (size_t i = 0; i < N_SECTIONS && p->w.st == D9D_OK; i++) {
        const size_t before = body.len;

        put_section(p, &sections[i], labels);
        lengths[i] = body.len - before;
    }
    if (p->w.st == D9D_OK) {
        p->w.out = out;
        put_head(p);
        put_body(p, &body, lengths);
    }
    d9d_buf_release(&body);
    return p->w.st;
}

d9d_status d9d_report_html(const d9d_run_reader_list *r, const d9d_report_html_opts *opts,
                           d9d_buf *out)
{
    d9di_html_page p = {.list = r};
    d9d_status st = read_runs(&p, opts);

    if (st == D9D_OK)
        st = write_page(&p, out);
    page_release(&p);
    return st;
}

d9d_status d9d_report_write_html(const d9d_run_reader_list *r, const d9d_report_html_opts *opts,
                                 const char *path)
{
    d9d_buf page = {0};
    d9d_status st = d9d_run_reader_list_check_output(r, path);

    if (st == D9D_OK)
        st = d9d_report_html(r, opts, &page);
    if (st == D9D_OK)
        st = d9d_fs_write_atomic(path, page.data, page.len);
    d9d_buf_release(&page);
    return st;
}
