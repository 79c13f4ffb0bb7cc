/* plan_pipe.c - simulates a plan's pipeline schedule with its stage costs.  See d9d/plan/plan.h. */
#include <stdio.h>

#include "d9d/plot/pipeline_chart.h"
#include "plan/plan_private.h"

static d9d_status run_timeline(const d9d_plan *p, int64_t micros, d9d_program *program,
                               d9d_timeline *t)
{
    const d9d_pipe_costs prices = {.stages = p->stage_costs, .transfer = p->transfer_s};
    d9d_status st;

    D9D_TRY(d9d_program_build(&p->pipe, (int)p->mesh.pipeline_parallel, (int)micros, program));
    st = d9d_program_insert_p2p(program);
    if (st == D9D_OK)
        st = d9d_timeline_make(program, &prices, t);
    if (st != D9D_OK)
        d9d_program_release(program);
    return st;
}

/* A number of micro-batches that represents more, since a pipeline repeats in its steady state.
 * Nothing is assumed about a plugin's schedule. */
static int64_t representative_micro_batches(const d9d_plan *p)
{
    enum { MIN_MICRO_BATCHES = 256, PER_STAGE = 16 };
    const int64_t ranks = p->mesh.pipeline_parallel, n = p->micro_batches;
    const int64_t max_micros =
        PER_STAGE * ranks > MIN_MICRO_BATCHES ? PER_STAGE * ranks : MIN_MICRO_BATCHES;

    if (n > D9D_PIPE_MAX_MICROS) /* a larger number is refused with its value */
        return n < INT32_MAX ? n : INT32_MAX;
    return n < max_micros || p->pipe.custom != NULL ? n : n - (n - max_micros) / ranks * ranks;
}

/* Adds `by` times the duration of this many micro-batches. */
static d9d_status add_timeline(d9d_plan *p, int64_t micros, double by, double *total, double *busy)
{
    d9d_program program;
    d9d_timeline t;

    D9D_TRY(run_timeline(p, micros, &program, &t));
    *total += by * t.total;
    *busy += by * t.total * (1 - t.bubble);
    for (size_t i = 0; i < p->n_stages; i++)
        p->stages[i].live += (int)(by * t.live[i]);
    d9d_timeline_release(&t);
    d9d_program_release(&program);
    return D9D_OK;
}

/* The pipeline's duration, plus the cost once per step. */
d9d_status d9di_plan_simulate_pipe(d9d_plan *p, double once_s)
{
    const int64_t ranks = p->mesh.pipeline_parallel, few = representative_micro_batches(p);
    const double more = (double)((p->micro_batches - few) / ranks);
    double total = 0, busy = 0;

    for (size_t i = 0; i < p->n_stages; i++)
        p->stages[i].live = 0;
    D9D_TRY(add_timeline(p, few, 1 - more, &total, &busy));
    if (more > 0)
        D9D_TRY(add_timeline(p, few + ranks, more, &total, &busy));
    p->bubble = total > 0 ? 1 - busy / total : 0;
    p->step_s = total + once_s;
    return D9D_OK;
}

/* With very many micro-batches, draws a representative number. */
d9d_status d9d_plan_write_timeline(const d9d_plan *p, const char *path)
{
    const int64_t few = representative_micro_batches(p);
    char title[D9D_PIPE_SCHEDULE_TEXT + 64];
    d9d_program program;
    d9d_timeline t;
    d9d_status st;

    if (p->n_stages < 2)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: there is no pipeline to draw, mesh.pipeline_parallel is 1", path);
    D9D_TRY(run_timeline(p, few, &program, &t));
    (void)snprintf(title, sizeof(title),
                   few < p->micro_batches ? "%s, part of %lld micro-batches" : "%s", p->schedule,
                   (long long)p->micro_batches);
    st = d9d_pipeline_chart_write(&program, &t, title, path);
    d9d_timeline_release(&t);
    d9d_program_release(&program);
    return st;
}
