/* insert_p2p.c - inserts sends and receives between ranks, by simulating the program.
 *
 * When an action makes a payload for another rank, the send is appended after it and the receive to
 * the other's lane, at the same moment.  So all transfers of the job have one global order that
 * every lane agrees with.
 *
 * The moments come from one of two simulations.  Round robin: ranks take turns, one action each if
 * its inputs are ready.  By clock: actions have durations, and actions that end at one time are
 * complete before their payloads are sent.
 */
#include <string.h>

#include "pipe/program_private.h"

/* Relative durations of actions, measured for layers of Qwen3 on an H200. */
static const int64_t durations[D9D_PIPE_ACTION_COUNT] = {
    [D9D_PIPE_FORWARD] = 8, [D9D_PIPE_BACKWARD] = 19, [D9D_PIPE_DGRAD] = 12, [D9D_PIPE_WGRAD] = 7};

enum { UNKNOWN = -1 };

typedef struct p2p_inserter {
    const d9d_program *in;
    d9d_program *out;
    size_t *from, *at; /* [ranks]: start and end of the last actions in each lane of `in` */
    int64_t *made_at;  /* [2, stages, micros]: time at which a forward, or a gradient, is ready;
                          UNKNOWN: not yet */
    int64_t *now;      /* [ranks]: end of the last action */
} p2p_inserter;

static int64_t *made_time_of(const p2p_inserter *g, bool forward, int stage, int micro)
{
    const d9d_program *p = g->in;
    const size_t row = (forward ? 0 : (size_t)p->stages) + (size_t)stage;

    return &g->made_at[row * (size_t)p->micros + (size_t)micro];
}

/* Time at which an action's inputs are ready; UNKNOWN: not yet. */
static int64_t ready_time(const p2p_inserter *g, const d9d_pipe_action *a)
{
    const int from = d9di_pipe_action_source_stage(g->in, a);

    return from < 0 ? 0 : *made_time_of(g, a->kind == D9D_PIPE_FORWARD, from, a->micro);
}

/* End of the next joined actions of a rank. */
static int64_t next_end(const p2p_inserter *g, int rank)
{
    const d9d_pipe_lane *lane = &g->in->lanes[rank];
    int64_t begin = g->now[rank], sum = 0;

    if (g->at[rank] == lane->len)
        return UNKNOWN;
    for (size_t i = g->at[rank]; i < d9di_pipe_lane_group_end(lane, g->at[rank]); i++) {
        const int64_t ready = ready_time(g, &lane->data[i]);

        if (ready == UNKNOWN)
            return UNKNOWN;
        begin = ready > begin ? ready : begin;
        sum += durations[lane->data[i].kind];
    }
    return begin + sum;
}

/* --- an action ------------------------------------------------------------------------------- */

/* Append a send to this rank's lane and a receive to the other's. */
static d9d_status transfer_insert(p2p_inserter *g, int rank, const d9d_pipe_action *a)
{
    const d9d_program *p = g->in;
    const bool forward = a->kind == D9D_PIPE_FORWARD;
    const int to = forward ? a->stage + 1 : a->stage - 1;
    const d9d_pipe_action_kind send = forward ? D9D_PIPE_SEND_FORWARD : D9D_PIPE_SEND_BACKWARD;
    const d9d_pipe_action_kind recv = forward ? D9D_PIPE_RECV_FORWARD : D9D_PIPE_RECV_BACKWARD;
    int other;

    if (to < 0 || to >= p->stages)
        return D9D_OK;
    other = d9d_program_rank_of(p, to);
    if (other == rank)
        return D9D_OK;
    D9D_TRY(d9d_program_push(g->out, rank, (d9d_pipe_action){send, a->stage, a->micro, false}));
    return d9d_program_push(g->out, other, (d9d_pipe_action){recv, to, a->micro, false});
}

/* Publish what a rank's last actions have made. */
static d9d_status lane_deliver(p2p_inserter *g, int rank)
{
    const d9d_pipe_lane *lane = &g->in->lanes[rank];

    for (size_t i = g->from[rank]; i < g->at[rank]; i++)
        if (lane->data[i].kind == D9D_PIPE_FORWARD ||
            d9di_pipe_action_has_dgrad(lane->data[i].kind))
            D9D_TRY(transfer_insert(g, rank, &lane->data[i]));
    return D9D_OK;
}

/* Execute the next action of a rank, with those joined to it, if its inputs are ready. */
static d9d_status lane_advance(p2p_inserter *g, int rank, int64_t end)
{
    const d9d_pipe_lane *lane = &g->in->lanes[rank];

    g->from[rank] = g->at[rank];
    g->at[rank] = d9di_pipe_lane_group_end(lane, g->at[rank]);
    g->now[rank] = end;
    for (size_t i = g->from[rank]; i < g->at[rank]; i++) {
        const d9d_pipe_action *a = &lane->data[i];

        D9D_TRY(d9d_program_push(g->out, rank, *a));
        if (a->kind == D9D_PIPE_FORWARD || d9di_pipe_action_has_dgrad(a->kind))
            *made_time_of(g, a->kind == D9D_PIPE_FORWARD, a->stage, a->micro) = end;
    }
    return D9D_OK;
}

/* --- the simulations ------------------------------------------------------------------------- */

static d9d_status run_round_robin(p2p_inserter *g)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < g->in->ranks; r++) {
            const int64_t end = next_end(g, r);

            if (end == UNKNOWN)
                continue;
            D9D_TRY(lane_advance(g, r, end));
            D9D_TRY(lane_deliver(g, r));
            moved = true;
        }
    }
    return D9D_OK;
}

/* Earliest end of all next actions; UNKNOWN: none is ready. */
static int64_t earliest_end(const p2p_inserter *g)
{
    int64_t first = UNKNOWN;

    for (int r = 0; r < g->in->ranks; r++) {
        const int64_t end = next_end(g, r);

        if (end != UNKNOWN && (first == UNKNOWN || end < first))
            first = end;
    }
    return first;
}

/* Durations are positive: at one time at most one action of a rank ends. */
static d9d_status run_by_clock(p2p_inserter *g)
{
    for (int64_t now; (now = earliest_end(g)) != UNKNOWN;) {
        for (int r = 0; r < g->in->ranks; r++)
            if (next_end(g, r) == now)
                D9D_TRY(lane_advance(g, r, now));
        for (int r = 0; r < g->in->ranks; r++)
            if (g->now[r] == now)
                D9D_TRY(lane_deliver(g, r));
    }
    return D9D_OK;
}

static d9d_status fail_deadlock(const p2p_inserter *g)
{
    char text[64];

    for (int r = 0; r < g->in->ranks; r++)
        if (g->at[r] < g->in->lanes[r].len)
            return D9D_FAIL(
                D9D_EINVAL, "pipeline: deadlock: rank %d waits for ever before %s", r,
                d9di_pipe_action_text(&g->in->lanes[r].data[g->at[r]], text, sizeof(text)));
    return D9D_OK;
}

static d9d_status inserter_alloc(p2p_inserter *g)
{
    const d9d_program *p = g->in;
    const size_t ranks = (size_t)p->ranks, n_results = 2 * (size_t)p->stages * (size_t)p->micros;

    g->from = calloc(ranks, sizeof(*g->from));
    g->at = calloc(ranks, sizeof(*g->at));
    g->now = calloc(ranks, sizeof(*g->now));
    g->made_at = malloc(n_results * sizeof(*g->made_at));
    if (g->from == NULL || g->at == NULL || g->now == NULL || g->made_at == NULL)
        return D9D_FAIL(D9D_ENOMEM, "pipeline: %d stages of %d micro-batches", p->stages,
                        p->micros);
    memset(g->made_at, UNKNOWN, n_results * sizeof(*g->made_at));
    return D9D_OK;
}

static d9d_status insert_p2p(d9d_program *p, d9d_status (*schedule)(p2p_inserter *g))
{
    d9d_program connected;
    p2p_inserter g = {.in = p, .out = &connected};
    d9d_status st;

    D9D_TRY(d9d_program_init(p->ranks, p->stages / p->ranks, p->micros, p->layout, p->backward,
                             &connected));
    st = inserter_alloc(&g);
    if (st == D9D_OK)
        st = schedule(&g);
    if (st == D9D_OK)
        st = fail_deadlock(&g);
    if (st == D9D_OK) { /* replace the old lanes */
        const d9d_program old = *p;

        *p = connected;
        connected = old;
    }
    free(g.from);
    free(g.at);
    free(g.now);
    free(g.made_at);
    d9d_program_release(&connected);
    return st;
}

d9d_status d9d_program_insert_p2p(d9d_program *p)
{
    return insert_p2p(p, run_by_clock);
}

d9d_status d9d_program_insert_p2p_round_robin(d9d_program *p)
{
    return insert_p2p(p, run_round_robin);
}
