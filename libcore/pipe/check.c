/* check.c - is a program whole, and does it come to its end?  See d9d_program_check(). */
#include <string.h>

#include "pipe/program_private.h"

typedef struct checker {
    const d9d_program *p;
    uint8_t *count; /* by cell: how often it stands in a lane */
    uint8_t *done;  /* by cell: while it is played */
    size_t *at;     /* [ranks] */
} checker;

static d9d_status wrong(const d9d_action *a, int rank, const char *why)
{
    char text[64];

    return D9D_FAIL(D9D_EINVAL, "pipeline: rank %d: %s %s", rank,
                    d9di_action_text(a, text, sizeof(text)), why);
}

/* --- what stands in the lanes -------------------------------------------------------------- */

/* What must stand before a verb in the same lane: the forward of a backward, and so on. */
static bool has_before(const checker *c, const d9d_action *a)
{
    const d9d_verb before = a->verb == D9D_WEIGHT ? D9D_INPUT : D9D_FORWARD;

    if (a->verb != D9D_WEIGHT && !d9di_is_input_half(a->verb))
        return true;
    return c->count[d9di_cell(c->p, before, a->stage, a->micro)] > 0;
}

static d9d_status count_lane(checker *c, int rank)
{
    const d9d_lane *lane = &c->p->lanes[rank];

    for (size_t i = 0; i < lane->len; i++) {
        const d9d_action *a = &lane->data[i];

        if (d9d_program_rank_of(c->p, a->stage) != rank)
            return wrong(a, rank, "is of another rank's stage");
        if (!has_before(c, a))
            return wrong(a, rank, "comes before what it goes back through");
        if (c->count[d9di_cell(c->p, a->verb, a->stage, a->micro)]++ > 0)
            return wrong(a, rank, "is there twice");
        if (a->joined && (i + 1 == lane->len || !d9di_verb_computes(a->verb)))
            return wrong(a, rank, "is joined with nothing");
    }
    return D9D_OK;
}

static int count_of(const checker *c, d9d_verb v, int stage, int micro)
{
    return c->count[d9di_cell(c->p, v, stage, micro)];
}

/* How many of each verb stage and micro-batch must have. */
static d9d_status check_cell(const checker *c, int s, int m)
{
    const d9d_program *p = c->p;
    const int rank = d9d_program_rank_of(p, s), split = count_of(c, D9D_INPUT, s, m) > 0;
    const bool below = s > 0 && d9d_program_rank_of(p, s - 1) != rank;
    const bool above = s + 1 < p->stages && d9d_program_rank_of(p, s + 1) != rank;
    const int want[D9D_VERB_COUNT] = {
        [D9D_FORWARD] = 1,
        [D9D_BACKWARD] = p->backward && !split,
        [D9D_INPUT] = p->backward && split,
        [D9D_WEIGHT] = p->backward && split,
        [D9D_SEND_FORWARD] = above,
        [D9D_RECV_FORWARD] = below,
        [D9D_SEND_BACKWARD] = p->backward && below,
        [D9D_RECV_BACKWARD] = p->backward && above,
    };

    for (int v = 0; v < D9D_VERB_COUNT; v++)
        if (count_of(c, (d9d_verb)v, s, m) != want[v])
            return wrong(&(d9d_action){(d9d_verb)v, s, m, false}, rank,
                         want[v] ? "is missing" : "must not be there");
    return D9D_OK;
}

static d9d_status check_lanes(checker *c)
{
    for (int r = 0; r < c->p->ranks; r++)
        D9D_TRY(count_lane(c, r));
    for (int s = 0; s < c->p->stages; s++)
        for (int m = 0; m < c->p->micros; m++)
            D9D_TRY(check_cell(c, s, m));
    return D9D_OK;
}

/* --- played with transfers that block -------------------------------------------------------- */

/* The other end of a transfer. */
static d9d_action other_end(const d9d_action *a)
{
    static const struct {
        d9d_verb verb;
        int stage;
    } ends[D9D_VERB_COUNT] = {
        [D9D_SEND_FORWARD] = {D9D_RECV_FORWARD, 1},
        [D9D_RECV_FORWARD] = {D9D_SEND_FORWARD, -1},
        [D9D_SEND_BACKWARD] = {D9D_RECV_BACKWARD, -1},
        [D9D_RECV_BACKWARD] = {D9D_SEND_BACKWARD, 1},
    };

    return (d9d_action){ends[a->verb].verb, a->stage + ends[a->verb].stage, a->micro, false};
}

static bool stands_at(const checker *c, int rank, const d9d_action *want)
{
    const d9d_lane *lane = &c->p->lanes[rank];
    const d9d_action *a = c->at[rank] < lane->len ? &lane->data[c->at[rank]] : NULL;

    return a != NULL && a->verb == want->verb && a->stage == want->stage && a->micro == want->micro;
}

static bool has_input(const checker *c, const d9d_action *a)
{
    const int from = d9di_feeder(c->p, a);
    const bool forward = a->verb == D9D_FORWARD;

    if (from < 0)
        return true;
    if (d9d_program_rank_of(c->p, from) != d9d_program_rank_of(c->p, a->stage))
        return c->done[d9di_cell(c->p, forward ? D9D_RECV_FORWARD : D9D_RECV_BACKWARD, a->stage,
                                 a->micro)] > 0;
    return c->done[d9di_cell(c->p, forward ? D9D_FORWARD : D9D_BACKWARD, from, a->micro)] > 0;
}

static void mark_done(checker *c, int rank, const d9d_action *a)
{
    c->done[d9di_cell(c->p, a->verb == D9D_INPUT ? D9D_BACKWARD : a->verb, a->stage, a->micro)] = 1;
    c->at[rank]++;
}

/* One action of a rank, with the other end's of a transfer. */
static bool play_one(checker *c, int rank)
{
    const d9d_lane *lane = &c->p->lanes[rank];
    const d9d_action *a;
    d9d_action other;
    int there;

    if (c->at[rank] == lane->len)
        return false;
    a = &lane->data[c->at[rank]];
    if (d9di_verb_computes(a->verb)) {
        if (!has_input(c, a))
            return false;
        mark_done(c, rank, a);
        return true;
    }
    other = other_end(a);
    there = d9d_program_rank_of(c->p, other.stage);
    if (!stands_at(c, there, &other))
        return false;
    mark_done(c, rank, a);
    mark_done(c, there, &other);
    return true;
}

static d9d_status play(checker *c)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < c->p->ranks; r++)
            while (play_one(c, r))
                moved = true;
    }
    for (int r = 0; r < c->p->ranks; r++)
        if (c->at[r] < c->p->lanes[r].len)
            return wrong(&c->p->lanes[r].data[c->at[r]], r, "waits for ever");
    return D9D_OK;
}

d9d_status d9d_program_check(const d9d_program *p)
{
    checker c = {.p = p,
                 .count = calloc(d9di_cells(p), 1),
                 .done = calloc(d9di_cells(p), 1),
                 .at = calloc((size_t)p->ranks, sizeof(size_t))};
    d9d_status st =
        c.count != NULL && c.done != NULL && c.at != NULL
            ? check_lanes(&c)
            : D9D_FAIL(D9D_ENOMEM, "pipeline: %d stages of %d micro-batches", p->stages, p->micros);

    if (st == D9D_OK)
        st = play(&c);
    free(c.count);
    free(c.done);
    free(c.at);
    return st;
}
