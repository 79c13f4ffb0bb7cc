/* timeline.c - see d9d/pipe/timeline.h. */
#include "d9d/pipe/timeline.h"

#include <math.h>

#include "pipe/program_private.h"

typedef struct timeline_sim {
    const d9d_program *p;
    const d9d_pipe_costs *costs;
    d9d_timeline *t;
    double *end; /* by program index of FORWARD and BACKWARD: end time; NaN: not yet */
    double *now; /* [ranks] */
    size_t *at;  /* [ranks] */
    int *live;   /* [ranks] */
} timeline_sim;

static double action_cost(const timeline_sim *w, const d9d_pipe_action *a)
{
    const d9d_stage_costs *s = &w->costs->stages[a->stage];
    const double prices[D9D_PIPE_ACTION_COUNT] = {[D9D_PIPE_FORWARD] = s->forward,
                                                  [D9D_PIPE_BACKWARD] = s->dgrad + s->wgrad,
                                                  [D9D_PIPE_DGRAD] = s->dgrad,
                                                  [D9D_PIPE_WGRAD] = s->wgrad};

    return prices[a->kind];
}

/* Time at which an action's inputs are ready; NaN: not yet. */
static double ready_time(const timeline_sim *w, const d9d_pipe_action *a)
{
    const int from = d9di_pipe_action_source_stage(w->p, a);
    const d9d_pipe_action_kind made =
        a->kind == D9D_PIPE_FORWARD ? D9D_PIPE_FORWARD : D9D_PIPE_BACKWARD;
    const bool here =
        from < 0 || d9d_program_rank_of(w->p, from) == d9d_program_rank_of(w->p, a->stage);

    if (from < 0)
        return 0;
    return w->end[d9di_program_index(w->p, made, from, a->micro)] + (here ? 0 : w->costs->transfer);
}

/* Begin of a group of joined actions; NaN: one of them is not ready. */
static double group_begin(const timeline_sim *w, int rank, size_t first, size_t end)
{
    double begin = w->now[rank];

    for (size_t i = first; i < end; i++) {
        const double ready = ready_time(w, &w->p->lanes[rank].data[i]);

        if (isnan(ready))
            return NAN;
        begin = ready > begin ? ready : begin;
    }
    return begin;
}

/* Duration of a group: the longest action, and the parts of the others that overlap does not hide.
 */
static double group_duration(const timeline_sim *w, int rank, size_t first, size_t end)
{
    double sum = 0, longest = 0;

    for (size_t i = first; i < end; i++) {
        const double price = action_cost(w, &w->p->lanes[rank].data[i]);

        sum += price;
        longest = price > longest ? price : longest;
    }
    return longest + (sum - longest) * (1 - w->costs->overlap);
}

static void action_account(timeline_sim *w, int rank, const d9d_pipe_action *a,
                           d9d_timeline_span span)
{
    if (a->kind == D9D_PIPE_FORWARD || d9di_pipe_action_has_dgrad(a->kind))
        w->end[d9di_program_index(
            w->p, a->kind == D9D_PIPE_FORWARD ? D9D_PIPE_FORWARD : D9D_PIPE_BACKWARD, a->stage,
            a->micro)] = span.end;
    if (a->kind == D9D_PIPE_FORWARD && (w->p->backward || w->live[rank] == 0) &&
        ++w->live[rank] > w->t->live[rank])
        w->t->live[rank] = w->live[rank];
    if (a->kind == D9D_PIPE_BACKWARD || a->kind == D9D_PIPE_WGRAD)
        w->live[rank]--;
}

static bool group_simulate(timeline_sim *w, int rank)
{
    const d9d_pipe_lane *lane = &w->p->lanes[rank];
    const size_t first = w->at[rank];
    size_t end;
    d9d_timeline_span span;

    if (first == lane->len)
        return false;
    end = d9di_pipe_lane_group_end(lane, first);
    span.begin = d9di_pipe_action_computes(lane->data[first].kind)
                     ? group_begin(w, rank, first, end)
                     : w->now[rank];
    if (isnan(span.begin))
        return false;
    span.end = span.begin + group_duration(w, rank, first, end);
    w->t->busy[rank] += span.end - span.begin;
    w->now[rank] = span.end;
    for (size_t i = first; i < end; i++) {
        w->t->spans[rank][i] = span;
        action_account(w, rank, &lane->data[i], span);
    }
    w->at[rank] = end;
    return true;
}

static d9d_status lanes_simulate(timeline_sim *w)
{
    double busy = 0;

    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < w->p->ranks; r++)
            while (group_simulate(w, r))
                moved = true;
    }
    for (int r = 0; r < w->p->ranks; r++) {
        if (w->at[r] < w->p->lanes[r].len)
            return D9D_FAIL(D9D_EINVAL, "pipeline: rank %d waits for ever", r);
        w->t->total = w->now[r] > w->t->total ? w->now[r] : w->t->total;
        busy += w->t->busy[r];
    }
    if (w->t->total > 0)
        w->t->bubble = 1 - busy / (w->t->total * w->p->ranks);
    return D9D_OK;
}

static d9d_status timeline_alloc(timeline_sim *w)
{
    const size_t ranks = (size_t)w->p->ranks, n_actions = d9di_program_index_count(w->p);
    d9d_timeline *t = w->t;

    t->spans = calloc(ranks, sizeof(*t->spans));
    t->busy = calloc(ranks, sizeof(*t->busy));
    t->live = calloc(ranks, sizeof(*t->live));
    w->end = malloc(n_actions * sizeof(*w->end));
    w->now = calloc(ranks, sizeof(*w->now));
    w->at = calloc(ranks, sizeof(*w->at));
    w->live = calloc(ranks, sizeof(*w->live));
    if (!t->spans || !t->busy || !t->live || !w->end || !w->now || !w->at || !w->live)
        return D9D_FAIL(D9D_ENOMEM, "pipeline: timeline of %d ranks", w->p->ranks);
    for (size_t i = 0; i < n_actions; i++)
        w->end[i] = NAN;
    for (size_t r = 0; r < ranks; r++) {
        t->spans[r] = calloc(w->p->lanes[r].len + 1, sizeof(d9d_timeline_span));
        if (t->spans[r] == NULL)
            return D9D_FAIL(D9D_ENOMEM, "pipeline: timeline of rank %zu", r);
    }
    return D9D_OK;
}

d9d_status d9d_timeline_make(const d9d_program *p, const d9d_pipe_costs *prices, d9d_timeline *out)
{
    d9d_timeline t = {.ranks = p->ranks};
    timeline_sim w = {.p = p, .costs = prices, .t = &t};
    d9d_status st = timeline_alloc(&w);

    if (st == D9D_OK)
        st = lanes_simulate(&w);
    free(w.end);
    free(w.now);
    free(w.at);
    free(w.live);
    if (st == D9D_OK)
        *out = t;
    else
        d9d_timeline_release(&t);
    return st;
}

void d9d_timeline_release(d9d_timeline *t)
{
    for (int r = 0; r < t->ranks && t->spans != NULL; r++)
        free(t->spans[r]);
    free(t->spans);
    free(t->busy);
    free(t->live);
    *t = (d9d_timeline){0};
}
