/* html_pipeline.c - the lanes of a pipeline's step, its ranks and stages. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "d9d/plot/pipeline_chart.h"
#include "d9d/report/report.h"
#include "report/html/html_page.h"

enum { MAX_ACTIONS = 1200 }; /* drawn on all lanes of a page: some 200 bytes each */
enum { MAX_ROWS = 512 };     /* of a table of ranks or stages */

static const json_t *newest_line(const d9d_run_reader *r)
{
    return r->n_pipelines > 0 ? r->pipeline[r->n_pipelines - 1] : NULL;
}

/* A size from a line; 0 if it is none. */
static int size_in(const json_t *line, const char *key)
{
    const json_int_t v = json_integer_value(json_object_get(line, key));

    return v > 0 && v <= D9D_PIPE_MAX_MICROS ? (int)v : 0;
}

/* --- lanes ------------------------------------------------------------------------------------ */

/* The schedule whose name for people is that of the line; false for one of a plugin. */
static bool find_schedule(const char *name, int stages_per_rank, d9d_pipe_schedule_opts *out)
{
    for (int kind = 0; kind < D9D_PIPE_SCHEDULE_COUNT; kind++)
        for (int flags = 0; flags < 4; flags++)
            for (int named = 0; named < 2; named++) {
                const d9d_pipe_schedule_opts opts = {.kind = (d9d_pipe_schedule)kind,
                                                     .stages_per_rank =
                                                         named > 0 ? stages_per_rank : 1,
                                                     .zero_bubble = (flags & 1) != 0,
                                                     .deep_warmup = (flags & 2) != 0};
                char text[D9D_PIPE_SCHEDULE_TEXT];

                if (strcmp(d9d_pipe_schedule_format(&opts, text), name) != 0 ||
                    d9d_pipe_schedule_stages_per_rank(&opts) != stages_per_rank)
                    continue;
                *out = opts;
                return true;
            }
    return false;
}

/* The program that the run has played, as far as the line tells it. */
static bool build_program(const json_t *line, d9d_program *out)
{
    const char *name = json_string_value(json_object_get(line, "schedule"));
    const size_t ranks = json_array_size(json_object_get(line, "compute_ms"));
    const size_t stages = json_array_size(json_object_get(line, "forward_ms"));
    const int micros = size_in(line, "micro_batches");
    d9d_pipe_schedule_opts opts;

    if (name == NULL || ranks == 0 || ranks > D9D_PIPE_MAX_RANKS || stages % ranks != 0 ||
        stages > D9D_PIPE_MAX_STAGES || micros == 0 ||
        (uint64_t)stages * (uint64_t)micros > 4 * MAX_ACTIONS)
        return false;
    return find_schedule(name, (int)(stages / ranks), &opts) &&
           d9d_program_build(&opts, (int)ranks, micros, out) == D9D_OK;
}

static size_t count_actions(const d9d_program *p)
{
    size_t n = 0;

    for (int r = 0; r < p->ranks; r++)
        n += p->lanes[r].len;
    return n;
}

static d9d_status draw_program(const d9d_run_reader *r, const d9d_program *program,
                               d9d_stage_costs *stages, const char *name, d9d_buf *out)
{
    d9d_pipe_costs costs = {.stages = stages};
    d9d_timeline t;
    d9d_status st;

    for (int s = 0; s < program->stages; s++)
        stages[s] = d9d_report_stage_costs(r, (size_t)s);
    D9D_TRY(d9d_timeline_make(program, &costs, &t));
    st = t.total > 0 ? d9d_pipeline_chart_render(program, &t, name, D9D_IMAGE_SVG, out) : D9D_OK;
    d9d_timeline_release(&t);
    return st;
}

static void put_lanes(d9di_html_page *p, const d9d_run_reader *r, size_t *actions)
{
    const json_t *line = newest_line(r);
    d9d_program program;
    d9d_stage_costs *stages;
    size_t n;

    if (!build_program(line, &program))
        return;
    n = count_actions(&program);
    stages = d9d_arena_alloc(&p->arena, ((size_t)program.stages + 1) * sizeof(*stages));
    if (n > *actions) {
        d9di_html_put(&p->w, "<p>A step has %zu actions, too many to draw here.</p>\n", n);
    } else if (stages != NULL && p->w.st == D9D_OK) {
        *actions -= n;
        d9di_html_put(&p->w, "<figure class=\"lanes\"><figcaption>A step, from the measured times "
                             "of the stages, without transfers</figcaption>\n<div class=\"scroll\" "
                             "tabindex=\"0\" role=\"region\" aria-label=\"Lanes of the "
                             "pipeline\">\n");
        p->w.st = draw_program(r, &program, stages,
                               json_string_value(json_object_get(line, "schedule")), p->w.out);
        d9di_html_put(&p->w, "</div></figure>\n");
    }
    d9d_program_release(&program);
}

/* --- tables ----------------------------------------------------------------------------------- */

/* A number with a bar of its share of `most`. */
static void put_bar_value(d9di_html_writer *w, double v, double most)
{
    char text[D9DI_HTML_VALUE_SIZE];

    d9di_html_put(w,
                  "<td class=\"n\">%s<span class=\"share\"><span style=\"width:%.1f%%\"></span>"
                  "</span></td>",
                  d9di_html_format(v, D9DI_HTML_SECONDS, text),
                  most > 0 && v >= 0 ? 100 * v / most : 0.0);
}

static void put_ranks(d9di_html_writer *w, const json_t *line)
{
    static const char *const heads[] = {"rank", "computing", "share of the step's pipeline", NULL};
    const json_t *ms = json_object_get(line, "compute_ms");
    const double whole = 1e-3 * d9di_html_member(line, "pipeline_ms");

    d9di_html_table_begin(w, "Ranks of the pipeline");
    d9di_html_table_heads(w, heads);
    for (size_t i = 0; i < json_array_size(ms) && i < MAX_ROWS; i++) {
        const double v = 1e-3 * json_number_value(json_array_get(ms, i));
        char rank[32];

        (void)snprintf(rank, sizeof(rank), "%zu", i);
        d9di_html_row_begin(w, rank);
        put_bar_value(w, v, whole);
        d9di_html_value(w, v / whole, D9DI_HTML_SHARE);
        d9di_html_row_end(w);
    }
    d9di_html_table_end(w);
}

static void put_stages(d9di_html_writer *w, const d9d_run_reader *r, size_t n)
{
    static const char *const heads[] = {"stage", "forward", "dgrad", "wgrad", NULL};
    double most = 0;

    n = n < MAX_ROWS ? n : MAX_ROWS;
    for (size_t s = 0; s < n; s++) {
        const d9d_stage_costs c = d9d_report_stage_costs(r, s);

        most = fmax(most, fmax(c.forward, fmax(c.dgrad, c.wgrad)));
    }
    d9di_html_table_begin(w, "Stages of the pipeline, a micro-batch");
    d9di_html_table_heads(w, heads);
    for (size_t s = 0; s < n; s++) {
        const d9d_stage_costs c = d9d_report_stage_costs(r, s);
        char stage[32];

        (void)snprintf(stage, sizeof(stage), "%zu", s);
        d9di_html_row_begin(w, stage);
        put_bar_value(w, c.forward, most);
        put_bar_value(w, c.dgrad, most);
        put_bar_value(w, c.wgrad, most);
        d9di_html_row_end(w);
    }
    d9di_html_table_end(w);
}

void d9di_html_write_pipeline(d9di_html_page *p)
{
    size_t actions = MAX_ACTIONS;

    for (size_t k = 0; k < p->n; k++) {
        const d9d_run_reader *r = p->runs[k].reader;
        const json_t *line = newest_line(r);
        const char *schedule = json_string_value(json_object_get(line, "schedule"));

        if (line == NULL)
            continue;
        d9di_html_run_heading(p, k);
        d9di_html_put(&p->w, "<p>Schedule ");
        d9di_html_text(&p->w, schedule != NULL ? schedule : "unknown");
        d9di_html_put(&p->w, ", %d micro-batches of %d rows, at step %lld.</p>\n",
                      size_in(line, "micro_batches"), size_in(line, "rows"),
                      (long long)json_integer_value(json_object_get(line, "pipeline")));
        put_lanes(p, r, &actions);
        d9di_html_put(&p->w, "<div class=\"side\">\n");
        put_ranks(&p->w, line);
        put_stages(&p->w, r, json_array_size(json_object_get(line, "forward_ms")));
        d9di_html_put(&p->w, "</div>\n");
    }
}
