/* pipeline_stats.c - see engine/pipeline_stats.h.
 *
 * A rank's numbers: 1; of each rank of the pipeline its seconds of computation and of the whole
 * play; of each stage the prices of a forward and of both backward halves.  It fills in its own.
 */
#include "engine/pipeline_stats.h"

#include <string.h>

#include "d9d/pipe/program.h"

enum { RANK = 2, STAGE = 3 };

static double *rank_at(double *v, int64_t rank)
{
    return v + 1 + rank * RANK;
}

static double *stage_at(const d9di_bubble *b, double *v, int64_t stage)
{
    return v + 1 + (int64_t)b->engine->program.ranks * RANK + stage * STAGE;
}

int64_t d9di_bubble_width(const d9di_engine *e)
{
    const d9d_program *p = &e->program;

    return p->ranks > 1 ? 1 + (int64_t)p->ranks * RANK + (int64_t)p->stages * STAGE : 0;
}

d9d_status d9di_bubble_open(d9di_engine *e, int64_t n_micro, d9d_arena *a, d9di_bubble *out)
{
    d9di_bubble b = {.engine = e,
                     .n = d9di_bubble_width(e),
                     .micros = n_micro,
                     .step = {-1, -1},
                     .told = {-1, -1}};
    char *words = d9d_arena_alloc(a, D9D_PIPE_SCHEDULE_TEXT);

    b.mine = d9d_arena_alloc(a, (size_t)(b.n + 1) * sizeof(double));
    b.values = d9d_arena_alloc(a, (size_t)(b.n + 1) * sizeof(double));
    b.work = d9d_arena_alloc(a, (size_t)e->program.stages * sizeof(*b.work));
    if (b.mine == NULL || b.values == NULL || b.work == NULL || words == NULL)
        return D9D_FAIL(D9D_ENOMEM, "pipeline: %lld numbers of a step", (long long)b.n);
    b.heard.schedule = d9d_pipe_schedule_format(&e->pipe, words);
    *out = b;
    for (int i = 0; i < 2 && b.n > 0; i++)
        D9D_TRY(d9d_meter_create(e->dev, &out->meter[i]));
    return D9D_OK;
}

void d9di_bubble_release(d9di_bubble *b)
{
    for (int i = 0; i < 2; i++)
        d9d_meter_free(b->meter[i]);
    *b = (d9di_bubble){0};
}

/* What this rank did in the step of this meter. */
static d9d_status mine_fill(d9di_bubble *b, const d9d_meter *m)
{
    const d9di_engine *e = b->engine;
    const d9d_program *p = &e->program;
    double *own = rank_at(b->mine, e->pipe_rank);

    D9D_TRY(d9d_meter_read(m, p->stages, b->work, &own[0], &own[1]));
    b->mine[0] = 1;
    for (size_t k = 0; k < e->n_stages; k++) {
        const int s = e->stages[k].model->stage.index;
        const d9d_stage_price price = d9d_stage_work_price(&b->work[s], p, s);

        memcpy(stage_at(b, b->mine, s), &(double[STAGE]){price.forward, price.input, price.weight},
               STAGE * sizeof(double));
    }
    return D9D_OK;
}

d9d_status d9di_bubble_begin(d9di_bubble *b, int64_t step)
{
    const int k = (int)(step % 2);

    if (b->n == 0)
        return D9D_OK;
    memset(b->mine, 0, (size_t)b->n * sizeof(double));
    b->told[k] = -1;
    if (b->step[k] >= 0 && d9d_meter_passed(b->meter[k])) {
        b->told[k] = b->step[k];
        D9D_TRY(mine_fill(b, b->meter[k]));
    }
    b->step[k] = step;
    b->engine->meter = b->meter[k];
    return D9D_OK;
}

/* Means over the ranks that share a stage, in milliseconds. */
void d9di_bubble_hear(d9di_bubble *b, int64_t step, const double *sums)
{
    const int64_t told = b->told[step % 2];
    d9d_pipeline_record *h = &b->heard;
    double busy = 0, scale;
    double *v = b->values;

    if (b->n == 0 || told < 0 || sums[0] != (double)d9d_comm_size(b->engine->world))
        return;
    h->step = told + 1;
    h->micro_batches = b->micros;
    h->ranks = (size_t)b->engine->program.ranks;
    h->stages = (size_t)b->engine->program.stages;
    scale = 1e3 * (double)h->ranks / sums[0];
    h->play_ms = 0;
    for (size_t r = 0; r < h->ranks; r++) {
        const double play = scale * sums[1 + r * RANK + 1];

        v[r] = scale * sums[1 + r * RANK];
        busy += v[r];
        h->play_ms = play > h->play_ms ? play : h->play_ms;
    }
    h->bubble = h->play_ms > 0 ? 1 - busy / (h->play_ms * (double)h->ranks) : 0;
    for (size_t i = 0; i < h->stages * STAGE; i++)
        v[h->ranks + i % STAGE * h->stages + i / STAGE] = scale * sums[1 + h->ranks * RANK + i];
    h->busy_ms = v;
    h->forward_ms = v + h->ranks;
    h->input_ms = h->forward_ms + h->stages;
    h->weight_ms = h->input_ms + h->stages;
    b->news = true;
}

bool d9di_bubble_take(d9di_bubble *b, d9d_pipeline_record *out)
{
    if (!b->news)
        return false;
    b->news = false;
    *out = b->heard;
    return true;
}
