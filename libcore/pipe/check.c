/* check.c - validates a program: complete, and free of deadlock.  See d9d_program_check().
 */
#include <string.h>

#include "pipe/program_private.h"

typedef struct program_checker {
    const d9d_program *p;
    uint8_t *count; /* by program index: occurrences in lanes */
    uint8_t *done;  /* by program index: executed in the simulation */
    size_t *at;     /* [ranks] */
} program_checker;

static d9d_status fail_action(const d9d_pipe_action *a, int rank, const char *why)
{
    char text[64];

    return D9D_FAIL(D9D_EINVAL, "pipeline: rank %d: %s %s", rank,
                    d9di_pipe_action_text(a, text, sizeof(text)), why);
}

/* --- content of the lanes -------------------------------------------------------------------- */

/* The action that must precede a kind in the same lane: the forward of a backward, and so on. */
static bool has_before(const program_checker *c, const d9d_pipe_action *a)
{
    const d9d_pipe_action_kind before =
        a->kind == D9D_PIPE_WGRAD ? D9D_PIPE_DGRAD : D9D_PIPE_FORWARD;

    if (a->kind != D9D_PIPE_WGRAD && !d9di_pipe_action_has_dgrad(a->kind))
        return true;
    return c->count[d9di_program_index(c->p, before, a->stage, a->micro)] > 0;
}

static d9d_status count_lane(program_checker *c, int rank)
{
    const d9d_pipe_lane *lane = &c->p->lanes[rank];

    for (size_t i = 0; i < lane->len; i++) {
        const d9d_pipe_action *a = &lane->data[i];

        if (d9d_program_rank_of(c->p, a->stage) != rank)
            return fail_action(a, rank, "is of another rank's stage");
        if (!has_before(c, a))
            return fail_action(a, rank, "comes before its forward");
        if (c->count[d9di_program_index(c->p, a->kind, a->stage, a->micro)]++ > 0)
            return fail_action(a, rank, "is there twice");
        if (a->joined && (i + 1 == lane->len || !d9di_pipe_action_computes(a->kind)))
            return fail_action(a, rank, "is joined with no other action");
    }
    return D9D_OK;
}

static int count_of(const program_checker *c, d9d_pipe_action_kind v, int stage, int micro)
{
    return c->count[d9di_program_index(c->p, v, stage, micro)];
}

/* Check the number of actions of each kind for a stage and micro-batch. */
static d9d_status check_micro(const program_checker *c, int s, int m)
{
    const d9d_program *p = c->p;
    const int rank = d9d_program_rank_of(p, s), split = count_of(c, D9D_PIPE_DGRAD, s, m) > 0;
    const bool below = s > 0 && d9d_program_rank_of(p, s - 1) != rank;
    const bool above = s + 1 < p->stages && d9d_program_rank_of(p, s + 1) != rank;
    const int want[D9D_PIPE_ACTION_COUNT] = {
        [D9D_PIPE_FORWARD] = 1,
        [D9D_PIPE_BACKWARD] = p->backward && !split,
        [D9D_PIPE_DGRAD] = p->backward && split,
        [D9D_PIPE_WGRAD] = p->backward && split,
        [D9D_PIPE_SEND_FORWARD] = above,
        [D9D_PIPE_RECV_FORWARD] = below,
        [D9D_PIPE_SEND_BACKWARD] = p->backward && below,
        [D9D_PIPE_RECV_BACKWARD] = p->backward && above,
    };

    for (int v = 0; v < D9D_PIPE_ACTION_COUNT; v++)
        if (count_of(c, (d9d_pipe_action_kind)v, s, m) != want[v])
            return fail_action(&(d9d_pipe_action){(d9d_pipe_action_kind)v, s, m, false}, rank,
                               want[v] ? "is missing" : "must not be there");
    return D9D_OK;
}

static d9d_status check_lanes(program_checker *c)
{
    for (int r = 0; r < c->p->ranks; r++)
        D9D_TRY(count_lane(c, r));
    for (int s = 0; s < c->p->stages; s++)
        for (int m = 0; m < c->p->micros; m++)
            D9D_TRY(check_micro(c, s, m));
    return D9D_OK;
}

/* --- simulation with blocking transfers ------------------------------------------------------- */

/* The peer's end of a transfer. */
static d9d_pipe_action transfer_peer(const d9d_pipe_action *a)
{
    static const struct {
        d9d_pipe_action_kind verb;
        int stage;
    } ends[D9D_PIPE_ACTION_COUNT] = {
        [D9D_PIPE_SEND_FORWARD] = {D9D_PIPE_RECV_FORWARD, 1},
        [D9D_PIPE_RECV_FORWARD] = {D9D_PIPE_SEND_FORWARD, -1},
        [D9D_PIPE_SEND_BACKWARD] = {D9D_PIPE_RECV_BACKWARD, -1},
        [D9D_PIPE_RECV_BACKWARD] = {D9D_PIPE_SEND_BACKWARD, 1},
    };

    return (d9d_pipe_action){ends[a->kind].verb, a->stage + ends[a->kind].stage, a->micro, false};
}

static bool is_next(const program_checker *c, int rank, const d9d_pipe_action *want)
{
    const d9d_pipe_lane *lane = &c->p->lanes[rank];
    const d9d_pipe_action *a = c->at[rank] < lane->len ? &lane->data[c->at[rank]] : NULL;

    return a != NULL && a->kind == want->kind && a->stage == want->stage && a->micro == want->micro;
}

static bool has_input(const program_checker *c, const d9d_pipe_action *a)
{
    const int from = d9di_pipe_action_source_stage(c->p, a);
    const bool forward = a->kind == D9D_PIPE_FORWARD;

    if (from < 0)
        return true;
    if (d9d_program_rank_of(c->p, from) != d9d_program_rank_of(c->p, a->stage))
        return c->done[d9di_program_index(c->p,
                                          forward ? D9D_PIPE_RECV_FORWARD : D9D_PIPE_RECV_BACKWARD,
                                          a->stage, a->micro)] > 0;
    return c->done[d9di_program_index(c->p, forward ? D9D_PIPE_FORWARD : D9D_PIPE_BACKWARD, from,
                                      a->micro)] > 0;
}

static void mark_done(program_checker *c, int rank, const d9d_pipe_action *a)
{
    c->done[d9di_program_index(c->p, a->kind == D9D_PIPE_DGRAD ? D9D_PIPE_BACKWARD : a->kind,
                               a->stage, a->micro)] = 1;
    c->at[rank]++;
}

/* Execute one action of a rank; a transfer together with the peer's end. */
static bool action_simulate(program_checker *c, int rank)
{
    const d9d_pipe_lane *lane = &c->p->lanes[rank];
    const d9d_pipe_action *a;
    d9d_pipe_action other;
    int there;

    if (c->at[rank] == lane->len)
        return false;
    a = &lane->data[c->at[rank]];
    if (d9di_pipe_action_computes(a->kind)) {
        if (!has_input(c, a))
            return false;
        mark_done(c, rank, a);
        return true;
    }
    other = transfer_peer(a);
    there = d9d_program_rank_of(c->p, other.stage);
    if (!is_next(c, there, &other))
        return false;
    mark_done(c, rank, a);
    mark_done(c, there, &other);
    return true;
}

static d9d_status lanes_simulate(program_checker *c)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < c->p->ranks; r++)
            while (action_simulate(c, r))
                moved = true;
    }
    for (int r = 0; r < c->p->ranks; r++)
        if (c->at[r] < c->p->lanes[r].len)
            return fail_action(&c->p->lanes[r].data[c->at[r]], r, "waits for ever");
    return D9D_OK;
}

d9d_status d9d_program_check(const d9d_program *p)
{
    program_checker c = {.p = p,
                         .count = calloc(d9di_program_index_count(p), 1),
                         .done = calloc(d9di_program_index_count(p), 1),
                         .at = calloc((size_t)p->ranks, sizeof(size_t))};
    d9d_status st =
        c.count != NULL && c.done != NULL && c.at != NULL
            ? check_lanes(&c)
            : D9D_FAIL(D9D_ENOMEM, "pipeline: %d stages of %d micro-batches", p->stages, p->micros);

    if (st == D9D_OK)
        st = lanes_simulate(&c);
    free(c.count);
    free(c.done);
    free(c.at);
    return st;
}
