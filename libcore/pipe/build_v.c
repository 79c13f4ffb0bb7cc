/* build_v.c - schedules over a V of stages: zero bubble V (ZBV) and DualPipeV.  Rank r has stages r
 * and 2P - 1 - r.
 */
#include "pipe/program_private.h"

/* One rank's lane while it is built; side 0 goes down the V, side 1 comes back. */
typedef struct v_builder {
    d9d_program *p;
    int rank;
    int stage[2];
    int next_forward[2], next_dgrad[2], next_wgrad[2]; /* next micro-batch of each */
    int limit;              /* micro-batches from here on are not pushed */
    d9d_pipe_lane deferred; /* dual_pipe_v: deferred W */
    size_t first_deferred;
} v_builder;

static v_builder builder_init(d9d_program *p, int rank)
{
    return (v_builder){
        .p = p,
        .rank = rank,
        .stage = {d9d_program_stage_of(p, rank, 0), d9d_program_stage_of(p, rank, 1)},
        .limit = p->micros};
}

static d9d_status push_action(v_builder *b, d9d_pipe_action_kind verb, int side, int micro,
                              bool joined)
{
    if (micro >= b->limit)
        return D9D_OK;
    return d9d_program_push(b->p, b->rank, (d9d_pipe_action){verb, b->stage[side], micro, joined});
}

static d9d_status push_forward(v_builder *b, int side)
{
    return push_action(b, D9D_PIPE_FORWARD, side, b->next_forward[side]++, false);
}
static d9d_status push_dgrad(v_builder *b, int side)
{
    return push_action(b, D9D_PIPE_DGRAD, side, b->next_dgrad[side]++, false);
}
static d9d_status push_wgrad(v_builder *b, int side)
{
    return push_action(b, D9D_PIPE_WGRAD, side, b->next_wgrad[side]++, false);
}

/* --- ZBV ------------------------------------------------------------------------------------ */

static d9d_status push_both_halves(v_builder *b, int side)
{
    D9D_TRY(push_dgrad(b, side));
    return push_wgrad(b, side);
}

/* Warm-up: as many forwards as fill the V, then forwards and backwards of both sides alternate. */
static d9d_status zbv_fill(v_builder *b, int micros)
{
    const int rank = b->rank, ranks = b->p->ranks;

    for (int i = 0; i < 2 * (ranks - rank) - 1; i++)
        D9D_TRY(push_forward(b, 0));
    for (int i = 0; i < rank; i++) {
        D9D_TRY(push_forward(b, 1));
        D9D_TRY(push_forward(b, 0));
    }
    for (int i = 0; i < ranks - rank; i++) {
        D9D_TRY(push_forward(b, 1));
        D9D_TRY(push_both_halves(b, 1));
    }
    while (b->next_forward[1] < b->next_forward[0] || b->next_forward[0] < micros) {
        if (b->next_forward[0] < micros)
            D9D_TRY(push_forward(b, 0));
        D9D_TRY(push_both_halves(b, 0));
        D9D_TRY(push_forward(b, 1));
        D9D_TRY(push_both_halves(b, 1));
    }
    return D9D_OK;
}

static d9d_status zbv_drain(v_builder *b)
{
    for (int i = 0; i < b->rank; i++) {
        D9D_TRY(push_dgrad(b, 0));
        D9D_TRY(push_dgrad(b, 1));
    }
    for (int i = 0; i < b->p->ranks - b->rank; i++)
        D9D_TRY(push_both_halves(b, 0));
    for (int side = 1; side >= 0; side--)
        while (b->next_wgrad[side] < b->next_dgrad[side])
            D9D_TRY(push_wgrad(b, side));
    return D9D_OK;
}

/* Built for at least as many micro-batches as fill the V; those that do not exist are left out. */
d9d_status d9di_pipe_build_zero_bubble_v(const d9d_pipe_schedule_opts *opts, d9d_program *p)
{
    const int fill = 2 * p->ranks - 1, micros = p->micros > fill ? p->micros : fill;

    (void)opts;
    for (int r = 0; r < p->ranks; r++) {
        v_builder b = builder_init(p, r);

        D9D_TRY(zbv_fill(&b, micros));
        D9D_TRY(zbv_drain(&b));
    }
    return D9D_OK;
}

/* --- DualPipeV ------------------------------------------------------------------------------- */

static d9d_status push_backward(v_builder *b, int side)
{
    return push_action(b, D9D_PIPE_BACKWARD, side, b->next_dgrad[side]++, false);
}

static d9d_status push_dgrad_defer_wgrad(v_builder *b, int side)
{
    const d9d_pipe_action w = {D9D_PIPE_WGRAD, b->stage[side], b->next_dgrad[side], false};

    if (D9D_VEC_PUSH(&b->deferred, w) != D9D_OK)
        return D9D_FAIL(D9D_ENOMEM, "pipeline: an action of rank %d", b->rank);
    return push_dgrad(b, side);
}

static d9d_status push_deferred_wgrad(v_builder *b)
{
    if (b->first_deferred == b->deferred.len)
        return D9D_OK;
    return d9d_program_push(b->p, b->rank, b->deferred.data[b->first_deferred++]);
}

/* The forward of one side overlapped with the backward of the other. */
static d9d_status push_overlapped(v_builder *b, int side)
{
    D9D_TRY(push_action(b, D9D_PIPE_FORWARD, side, b->next_forward[side]++, true));
    return push_backward(b, 1 - side);
}

static d9d_status dual_fill(v_builder *b)
{
    const int rank = b->rank, ranks = b->p->ranks;

    for (int i = 0; i < 2 * (ranks - rank - 1); i++)
        D9D_TRY(push_forward(b, 0));
    for (int i = 0; i < rank + 1; i++) {
        D9D_TRY(push_forward(b, 0));
        D9D_TRY(push_forward(b, 1));
    }
    for (int i = 0; i < ranks - rank - 1; i++) {
        D9D_TRY(push_dgrad_defer_wgrad(b, 1));
        D9D_TRY(push_deferred_wgrad(b));
        D9D_TRY(push_forward(b, 1));
    }
    return D9D_OK;
}

static d9d_status dual_steady(v_builder *b)
{
    const int rank = b->rank, ranks = b->p->ranks;

    for (int i = 0; i < b->p->micros - 2 * ranks + rank + 1; i++) {
        if (i == 0 && rank == ranks - 1) { /* the other side has no input yet */
            D9D_TRY(push_forward(b, 0));
            D9D_TRY(push_backward(b, 1));
        } else {
            D9D_TRY(push_overlapped(b, 0));
        }
        D9D_TRY(push_overlapped(b, 1));
    }
    for (int i = 0; i < ranks - rank - 1; i++) {
        D9D_TRY(push_backward(b, 1));
        D9D_TRY(push_overlapped(b, 1));
    }
    return D9D_OK;
}

/* From half-way on W is deferred to where the rank would wait. */
static d9d_status dual_drain(v_builder *b)
{
    const int n = b->rank + 1;
    bool split = false;

    for (int i = 0; i < n; i++) {
        split = split || (i == n / 2 && b->rank % 2 == 1);
        D9D_TRY(split ? push_dgrad_defer_wgrad(b, 1) : push_backward(b, 1));
        split = split || (i == n / 2 && b->rank % 2 == 0);
        D9D_TRY(split ? push_dgrad_defer_wgrad(b, 0) : push_backward(b, 0));
    }
    for (int i = 0; i < b->p->ranks - b->rank - 1; i++) {
        D9D_TRY(push_deferred_wgrad(b));
        D9D_TRY(push_dgrad_defer_wgrad(b, 0));
    }
    for (int i = 0; i < n; i++)
        D9D_TRY(push_deferred_wgrad(b));
    return D9D_OK;
}

static d9d_status dual_rank(d9d_program *p, int rank)
{
    v_builder b = builder_init(p, rank);
    d9d_status st = dual_fill(&b);

    if (st == D9D_OK)
        st = dual_steady(&b);
    if (st == D9D_OK)
        st = dual_drain(&b);
    D9D_VEC_RELEASE(&b.deferred);
    return st;
}

d9d_status d9di_pipe_build_dual_pipe_v(const d9d_pipe_schedule_opts *opts, d9d_program *p)
{
    (void)opts;
    if (p->micros < 2 * p->ranks)
        return D9D_FAIL(D9D_ECONFIG,
                        "pipeline: dual_pipe_v on %d ranks needs %d micro-batches at least, and "
                        "there are %d",
                        p->ranks, 2 * p->ranks, p->micros);
    for (int r = 0; r < p->ranks; r++)
        D9D_TRY(dual_rank(p, r));
    return D9D_OK;
}
