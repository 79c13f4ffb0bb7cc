/* connect.c - sends and receives between ranks, by playing the program: spec 16.6.
 *
 * Ranks take turns, one action each, if what it needs has been made.  When an action makes
 * something that another rank wants, the send goes behind it and the receive to the other's lane,
 * both at that moment: so all transfers of the job have one order that every lane agrees with.
 */
#include <string.h>

#include "pipe/program_private.h"

typedef struct player {
    const d9d_program *in;
    d9d_program *out;
    size_t *at; /* [ranks]: next action of each lane of `in` */
    bool *done; /* by cell: what every rank has done, receives included */
} player;

static bool is_ready(const player *g, const d9d_action *a)
{
    const d9d_program *p = g->in;
    const int from = d9di_feeder(p, a);
    d9d_verb got, made;

    if (from < 0)
        return true;
    if (a->verb == D9D_FORWARD) {
        got = D9D_RECV_FORWARD;
        made = D9D_FORWARD;
    } else {
        got = D9D_RECV_BACKWARD;
        made = D9D_BACKWARD; /* or its input half: d9di_cell() of both is set */
    }
    if (d9d_program_rank_of(p, from) != d9d_program_rank_of(p, a->stage))
        return g->done[d9di_cell(p, got, a->stage, a->micro)];
    return g->done[d9di_cell(p, made, from, a->micro)];
}

/* Of something made for another rank: a send here, a receive there. */
static d9d_status transfer(player *g, int rank, const d9d_action *a)
{
    const d9d_program *p = g->in;
    const bool forward = a->verb == D9D_FORWARD;
    const int to = forward ? a->stage + 1 : a->stage - 1;
    const d9d_verb send = forward ? D9D_SEND_FORWARD : D9D_SEND_BACKWARD;
    const d9d_verb recv = forward ? D9D_RECV_FORWARD : D9D_RECV_BACKWARD;
    int other;

    if ((!forward && !d9di_is_input_half(a->verb)) || to < 0 || to >= p->stages)
        return D9D_OK;
    other = d9d_program_rank_of(p, to);
    if (other == rank)
        return D9D_OK;
    D9D_TRY(d9d_program_push(g->out, rank, (d9d_action){send, a->stage, a->micro, false}));
    D9D_TRY(d9d_program_push(g->out, other, (d9d_action){recv, to, a->micro, false}));
    g->done[d9di_cell(p, recv, to, a->micro)] = true;
    return D9D_OK;
}

/* The next action of a rank, with those joined to it; *moved says whether it could. */
static d9d_status play_one(player *g, int rank, bool *moved)
{
    const d9d_lane *lane = &g->in->lanes[rank];
    const size_t first = g->at[rank];
    size_t end;

    if (first == lane->len)
        return D9D_OK;
    end = d9di_group_end(lane, first);
    for (size_t i = first; i < end; i++)
        if (!is_ready(g, &lane->data[i]))
            return D9D_OK;
    for (size_t i = first; i < end; i++)
        D9D_TRY(d9d_program_push(g->out, rank, lane->data[i]));
    for (size_t i = first; i < end; i++) {
        const d9d_action *a = &lane->data[i];

        g->done[d9di_cell(g->in, d9di_is_input_half(a->verb) ? D9D_BACKWARD : a->verb, a->stage,
                          a->micro)] = true;
        D9D_TRY(transfer(g, rank, a));
    }
    g->at[rank] = end;
    *moved = true;
    return D9D_OK;
}

static d9d_status stuck(const player *g)
{
    char text[64];

    for (int r = 0; r < g->in->ranks; r++)
        if (g->at[r] < g->in->lanes[r].len)
            return D9D_FAIL(D9D_EINVAL, "pipeline: deadlock: rank %d waits for ever before %s", r,
                            d9di_action_text(&g->in->lanes[r].data[g->at[r]], text, sizeof(text)));
    return D9D_OK;
}

static d9d_status play(player *g)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < g->in->ranks; r++)
            D9D_TRY(play_one(g, r, &moved));
    }
    return stuck(g);
}

d9d_status d9d_program_connect(d9d_program *p)
{
    d9d_program connected;
    player g = {.in = p, .out = &connected};
    d9d_status st;

    D9D_TRY(d9d_program_init(p->ranks, p->stages / p->ranks, p->micros, p->layout, p->backward,
                             &connected));
    g.at = calloc((size_t)p->ranks, sizeof(*g.at));
    g.done = calloc(d9di_cells(p), sizeof(*g.done));
    st =
        g.at != NULL && g.done != NULL
            ? play(&g)
            : D9D_FAIL(D9D_ENOMEM, "pipeline: %d stages of %d micro-batches", p->stages, p->micros);
    free(g.at);
    free(g.done);
    if (st == D9D_OK) { /* the new lanes for the old */
        const d9d_program old = *p;

        *p = connected;
        connected = old;
    }
    d9d_program_release(&connected);
    return st;
}
