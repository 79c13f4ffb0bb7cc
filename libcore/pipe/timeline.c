/* timeline.c - see d9d/pipe/timeline.h. */
#include "d9d/pipe/timeline.h"

#include <math.h>

#include "pipe/program_private.h"

typedef struct clock_work {
    const d9d_program *p;
    const d9d_pipe_prices *prices;
    d9d_timeline *t;
    double *end; /* by cell of FORWARD and BACKWARD: when it was done; NaN before */
    double *now; /* [ranks] */
    size_t *at;  /* [ranks] */
    int *live;   /* [ranks] */
} clock_work;

static double price_of(const clock_work *w, const d9d_action *a)
{
    const d9d_stage_price *s = &w->prices->stages[a->stage];
    const double prices[D9D_VERB_COUNT] = {[D9D_FORWARD] = s->forward,
                                           [D9D_BACKWARD] = s->input + s->weight,
                                           [D9D_INPUT] = s->input,
                                           [D9D_WEIGHT] = s->weight};

    return prices[a->verb];
}

/* When what an action needs is here; NaN while it has not been made. */
static double ready_at(const clock_work *w, const d9d_action *a)
{
    const int from = d9di_feeder(w->p, a);
    const d9d_verb made = a->verb == D9D_FORWARD ? D9D_FORWARD : D9D_BACKWARD;
    const bool here =
        from < 0 || d9d_program_rank_of(w->p, from) == d9d_program_rank_of(w->p, a->stage);

    if (from < 0)
        return 0;
    return w->end[d9di_cell(w->p, made, from, a->micro)] + (here ? 0 : w->prices->transfer);
}

/* Beginning of a group of joined actions; NaN while one cannot begin. */
static double begin_of(const clock_work *w, int rank, size_t first, size_t end)
{
    double begin = w->now[rank];

    for (size_t i = first; i < end; i++) {
        const double ready = ready_at(w, &w->p->lanes[rank].data[i]);

        if (isnan(ready))
            return NAN;
        begin = ready > begin ? ready : begin;
    }
    return begin;
}

/* The longest, and of the others what is not hidden beside it. */
static double duration_of(const clock_work *w, int rank, size_t first, size_t end)
{
    double sum = 0, longest = 0;

    for (size_t i = first; i < end; i++) {
        const double price = price_of(w, &w->p->lanes[rank].data[i]);

        sum += price;
        longest = price > longest ? price : longest;
    }
    return longest + (sum - longest) * (1 - w->prices->overlap);
}

static void account(clock_work *w, int rank, const d9d_action *a, d9d_span span)
{
    if (a->verb == D9D_FORWARD || d9di_is_input_half(a->verb))
        w->end[d9di_cell(w->p, a->verb == D9D_FORWARD ? D9D_FORWARD : D9D_BACKWARD, a->stage,
                         a->micro)] = span.end;
    if (a->verb == D9D_FORWARD && (w->p->backward || w->live[rank] == 0) &&
        ++w->live[rank] > w->t->live[rank])
        w->t->live[rank] = w->live[rank];
    if (a->verb == D9D_BACKWARD || a->verb == D9D_WEIGHT)
        w->live[rank]--;
}

static bool play_one(clock_work *w, int rank)
{
    const d9d_lane *lane = &w->p->lanes[rank];
    const size_t first = w->at[rank];
    size_t end;
    d9d_span span;

    if (first == lane->len)
        return false;
    end = d9di_group_end(lane, first);
    span.begin =
        d9di_verb_computes(lane->data[first].verb) ? begin_of(w, rank, first, end) : w->now[rank];
    if (isnan(span.begin))
        return false;
    span.end = span.begin + duration_of(w, rank, first, end);
    w->t->busy[rank] += span.end - span.begin;
    w->now[rank] = span.end;
    for (size_t i = first; i < end; i++) {
        w->t->spans[rank][i] = span;
        account(w, rank, &lane->data[i], span);
    }
    w->at[rank] = end;
    return true;
}

static d9d_status play(clock_work *w)
{
    double busy = 0;

    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < w->p->ranks; r++)
            while (play_one(w, r))
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

static d9d_status take_room(clock_work *w)
{
    const size_t ranks = (size_t)w->p->ranks, cells = d9di_cells(w->p);
    d9d_timeline *t = w->t;

    t->spans = calloc(ranks, sizeof(*t->spans));
    t->busy = calloc(ranks, sizeof(*t->busy));
    t->live = calloc(ranks, sizeof(*t->live));
    w->end = malloc(cells * sizeof(*w->end));
    w->now = calloc(ranks, sizeof(*w->now));
    w->at = calloc(ranks, sizeof(*w->at));
    w->live = calloc(ranks, sizeof(*w->live));
    if (!t->spans || !t->busy || !t->live || !w->end || !w->now || !w->at || !w->live)
        return D9D_FAIL(D9D_ENOMEM, "pipeline: timeline of %d ranks", w->p->ranks);
    for (size_t i = 0; i < cells; i++)
        w->end[i] = NAN;
    for (size_t r = 0; r < ranks; r++) {
        t->spans[r] = calloc(w->p->lanes[r].len + 1, sizeof(d9d_span));
        if (t->spans[r] == NULL)
            return D9D_FAIL(D9D_ENOMEM, "pipeline: timeline of rank %zu", r);
    }
    return D9D_OK;
}

d9d_status d9d_timeline_make(const d9d_program *p, const d9d_pipe_prices *prices, d9d_timeline *out)
{
    d9d_timeline t = {.ranks = p->ranks};
    clock_work w = {.p = p, .prices = prices, .t = &t};
    d9d_status st = take_room(&w);

    if (st == D9D_OK)
        st = play(&w);
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
