/* pipeline_stats.c - see engine/pipeline_stats.h.
 *
 * The numbers of a rank: 1; for each rank of the pipeline its compute time and the total time in
 * seconds; for each stage the times of forward, dgrad and wgrad.  A rank fills only its own; the
 * rest is 0.
 */
#include "engine/pipeline_stats.h"

#include <string.h>

#include "d9d/pipe/program.h"

enum { RANK_WIDTH = 2, STAGE_WIDTH = 3 };

static double *rank_at(double *v, int64_t rank)
{
    return v + 1 + rank * RANK_WIDTH;
}

static double *stage_at(const d9di_pipeline_stats *b, double *v, int64_t stage)
{
    return v + 1 + (int64_t)b->engine->exec.program.ranks * RANK_WIDTH + stage * STAGE_WIDTH;
}

int64_t d9di_pipeline_stats_width(const d9di_engine *e)
{
    const d9d_program *p = &e->exec.program;

    return p->ranks > 1 ? 1 + (int64_t)p->ranks * RANK_WIDTH + (int64_t)p->stages * STAGE_WIDTH : 0;
}

d9d_status d9di_pipeline_stats_open(d9di_engine *e, int64_t n_micro, d9d_arena *a,
                                    d9di_pipeline_stats *out)
{
    d9di_pipeline_stats b = {.engine = e,
                             .n = d9di_pipeline_stats_width(e),
                             .micros = n_micro,
                             .step = {-1, -1},
                             .reported = {-1, -1}};
    char *schedule_text = d9d_arena_alloc(a, D9D_PIPE_SCHEDULE_TEXT);

    b.local = d9d_arena_alloc(a, (size_t)(b.n + 1) * sizeof(double));
    b.values = d9d_arena_alloc(a, (size_t)(b.n + 1) * sizeof(double));
    b.times = d9d_arena_alloc(a, (size_t)e->exec.program.stages * sizeof(*b.times));
    if (b.local == NULL || b.values == NULL || b.times == NULL || schedule_text == NULL)
        return D9D_FAIL(D9D_ENOMEM, "pipeline: no memory for %lld numbers of a step",
                        (long long)b.n);
    b.record.schedule = d9d_pipe_schedule_format(&e->pipe.opts, schedule_text);
    *out = b;
    for (int i = 0; i < 2 && b.n > 0; i++)
        D9D_TRY(d9d_stage_timer_create(e->dev, &out->stage_timer[i]));
    return D9D_OK;
}

void d9di_pipeline_stats_release(d9di_pipeline_stats *b)
{
    for (int i = 0; i < 2; i++)
        d9d_stage_timer_free(b->stage_timer[i]);
    *b = (d9di_pipeline_stats){0};
}

/* Fills this rank's numbers from the timer of its step. */
static d9d_status fill_local(d9di_pipeline_stats *b, const d9d_stage_timer *m)
{
    const d9di_engine *e = b->engine;
    const d9d_program *p = &e->exec.program;
    double *own = rank_at(b->local, e->pipe.rank);

    D9D_TRY(d9d_stage_timer_read(m, p->stages, b->times, &own[0], &own[1]));
    b->local[0] = 1;
    for (size_t k = 0; k < e->n_stages; k++) {
        const int s = e->stages[k].model->stage.index;
        const d9d_stage_costs price = d9d_stage_times_cost(&b->times[s], p, s);

        memcpy(stage_at(b, b->local, s),
               &(double[STAGE_WIDTH]){price.forward, price.dgrad, price.wgrad},
               STAGE_WIDTH * sizeof(double));
    }
    return D9D_OK;
}

d9d_status d9di_pipeline_stats_begin(d9di_pipeline_stats *b, int64_t step)
{
    const int k = (int)(step % 2);

    if (b->n == 0)
        return D9D_OK;
    memset(b->local, 0, (size_t)b->n * sizeof(double));
    b->reported[k] = -1;
    if (b->step[k] >= 0 && d9d_stage_timer_is_done(b->stage_timer[k])) {
        b->reported[k] = b->step[k];
        D9D_TRY(fill_local(b, b->stage_timer[k]));
    }
    b->step[k] = step;
    b->engine->exec.stage_timer = b->stage_timer[k];
    return D9D_OK;
}

/* Means over the ranks that share a stage, in milliseconds. */
void d9di_pipeline_stats_receive(d9di_pipeline_stats *b, int64_t step, const double *sums)
{
    const int64_t reported_step = b->reported[step % 2];
    d9d_track_pipeline_record *h = &b->record;
    double busy = 0, scale;
    double *v = b->values;

    if (b->n == 0 || reported_step < 0 || sums[0] != (double)d9d_comm_size(b->engine->world))
        return;
    h->step = reported_step + 1;
    h->micro_batches = b->micros;
    h->ranks = (size_t)b->engine->exec.program.ranks;
    h->stages = (size_t)b->engine->exec.program.stages;
    scale = 1e3 * (double)h->ranks / sums[0];
    h->step_ms = 0;
    for (size_t r = 0; r < h->ranks; r++) {
        const double play = scale * sums[1 + r * RANK_WIDTH + 1];

        v[r] = scale * sums[1 + r * RANK_WIDTH];
        busy += v[r];
        h->step_ms = play > h->step_ms ? play : h->step_ms;
    }
    h->bubble = h->step_ms > 0 ? 1 - busy / (h->step_ms * (double)h->ranks) : 0;
    for (size_t i = 0; i < h->stages * STAGE_WIDTH; i++)
        v[h->ranks + i % STAGE_WIDTH * h->stages + i / STAGE_WIDTH] =
            scale * sums[1 + h->ranks * RANK_WIDTH + i];
    h->compute_ms = v;
    h->forward_ms = v + h->ranks;
    h->dgrad_ms = h->forward_ms + h->stages;
    h->wgrad_ms = h->dgrad_ms + h->stages;
    b->has_record = true;
}

bool d9di_pipeline_stats_poll(d9di_pipeline_stats *b, d9d_track_pipeline_record *out)
{
    if (!b->has_record)
        return false;
    b->has_record = false;
    *out = b->record;
    return true;
}
