/* build_v.c - the two schedules over a V of stages: rank r has stages r and 2P - 1 - r. */
#include "pipe/program_private.h"

/* One rank's lane while it is built; side 0 goes down the V, side 1 comes back. */
typedef struct builder {
    d9d_program *p;
    int rank;
    int stage[2];
    int forward[2], input[2], weight[2]; /* next micro-batch of each */
    int limit;                           /* micro-batches from here on are not pushed */
    d9d_lane late;                       /* dual_pipe_v: weight halves that were put off */
    size_t first_late;
} builder;

static builder begin(d9d_program *p, int rank)
{
    return (builder){.p = p,
                     .rank = rank,
                     .stage = {d9d_program_stage_of(p, rank, 0), d9d_program_stage_of(p, rank, 1)},
                     .limit = p->micros};
}

static d9d_status push(builder *b, d9d_verb verb, int side, int micro, bool joined)
{
    if (micro >= b->limit)
        return D9D_OK;
    return d9d_program_push(b->p, b->rank, (d9d_action){verb, b->stage[side], micro, joined});
}

static d9d_status forward(builder *b, int side)
{
    return push(b, D9D_FORWARD, side, b->forward[side]++, false);
}
static d9d_status input(builder *b, int side)
{
    return push(b, D9D_INPUT, side, b->input[side]++, false);
}
static d9d_status weight(builder *b, int side)
{
    return push(b, D9D_WEIGHT, side, b->weight[side]++, false);
}

/* --- ZBV ------------------------------------------------------------------------------------ */

static d9d_status both_halves(builder *b, int side)
{
    D9D_TRY(input(b, side));
    return weight(b, side);
}

/* As many forwards as fill the V, then forwards and backwards of its two sides in turn. */
static d9d_status zbv_fill(builder *b, int micros)
{
    const int rank = b->rank, ranks = b->p->ranks;

    for (int i = 0; i < 2 * (ranks - rank) - 1; i++)
        D9D_TRY(forward(b, 0));
    for (int i = 0; i < rank; i++) {
        D9D_TRY(forward(b, 1));
        D9D_TRY(forward(b, 0));
    }
    for (int i = 0; i < ranks - rank; i++) {
        D9D_TRY(forward(b, 1));
        D9D_TRY(both_halves(b, 1));
    }
    while (b->forward[1] < b->forward[0] || b->forward[0] < micros) {
        if (b->forward[0] < micros)
            D9D_TRY(forward(b, 0));
        D9D_TRY(both_halves(b, 0));
        D9D_TRY(forward(b, 1));
        D9D_TRY(both_halves(b, 1));
    }
    return D9D_OK;
}

static d9d_status zbv_drain(builder *b)
{
    for (int i = 0; i < b->rank; i++) {
        D9D_TRY(input(b, 0));
        D9D_TRY(input(b, 1));
    }
    for (int i = 0; i < b->p->ranks - b->rank; i++)
        D9D_TRY(both_halves(b, 0));
    for (int side = 1; side >= 0; side--)
        while (b->weight[side] < b->input[side])
            D9D_TRY(weight(b, side));
    return D9D_OK;
}

/* Built for as many micro-batches as fill the V at least; those that do not exist are left out. */
d9d_status d9di_build_zero_bubble_v(const d9d_pipe_how *how, d9d_program *p)
{
    const int fill = 2 * p->ranks - 1, micros = p->micros > fill ? p->micros : fill;

    (void)how;
    for (int r = 0; r < p->ranks; r++) {
        builder b = begin(p, r);

        D9D_TRY(zbv_fill(&b, micros));
        D9D_TRY(zbv_drain(&b));
    }
    return D9D_OK;
}

/* --- DualPipeV ------------------------------------------------------------------------------- */

static d9d_status backward(builder *b, int side)
{
    return push(b, D9D_BACKWARD, side, b->input[side]++, false);
}

static d9d_status input_alone(builder *b, int side)
{
    const d9d_action w = {D9D_WEIGHT, b->stage[side], b->input[side], false};

    if (D9D_VEC_PUSH(&b->late, w) != D9D_OK)
        return D9D_FAIL(D9D_ENOMEM, "pipeline: an action of rank %d", b->rank);
    return input(b, side);
}

static d9d_status late_weight(builder *b)
{
    if (b->first_late == b->late.len)
        return D9D_OK;
    return d9d_program_push(b->p, b->rank, b->late.data[b->first_late++]);
}

/* The forward of one side beside the backward of the other. */
static d9d_status beside(builder *b, int side)
{
    D9D_TRY(push(b, D9D_FORWARD, side, b->forward[side]++, true));
    return backward(b, 1 - side);
}

static d9d_status dual_fill(builder *b)
{
    const int rank = b->rank, ranks = b->p->ranks;

    for (int i = 0; i < 2 * (ranks - rank - 1); i++)
        D9D_TRY(forward(b, 0));
    for (int i = 0; i < rank + 1; i++) {
        D9D_TRY(forward(b, 0));
        D9D_TRY(forward(b, 1));
    }
    for (int i = 0; i < ranks - rank - 1; i++) {
        D9D_TRY(input_alone(b, 1));
        D9D_TRY(late_weight(b));
        D9D_TRY(forward(b, 1));
    }
    return D9D_OK;
}

static d9d_status dual_steady(builder *b)
{
    const int rank = b->rank, ranks = b->p->ranks;

    for (int i = 0; i < b->p->micros - 2 * ranks + rank + 1; i++) {
        if (i == 0 && rank == ranks - 1) { /* nobody has given the other side anything yet */
            D9D_TRY(forward(b, 0));
            D9D_TRY(backward(b, 1));
        } else {
            D9D_TRY(beside(b, 0));
        }
        D9D_TRY(beside(b, 1));
    }
    for (int i = 0; i < ranks - rank - 1; i++) {
        D9D_TRY(backward(b, 1));
        D9D_TRY(beside(b, 1));
    }
    return D9D_OK;
}

/* From half-way on the weight halves are put off, to where the rank would wait. */
static d9d_status dual_drain(builder *b)
{
    const int n = b->rank + 1;
    bool split = false;

    for (int i = 0; i < n; i++) {
        split = split || (i == n / 2 && b->rank % 2 == 1);
        D9D_TRY(split ? input_alone(b, 1) : backward(b, 1));
        split = split || (i == n / 2 && b->rank % 2 == 0);
        D9D_TRY(split ? input_alone(b, 0) : backward(b, 0));
    }
    for (int i = 0; i < b->p->ranks - b->rank - 1; i++) {
        D9D_TRY(late_weight(b));
        D9D_TRY(input_alone(b, 0));
    }
    for (int i = 0; i < n; i++)
        D9D_TRY(late_weight(b));
    return D9D_OK;
}

static d9d_status dual_rank(d9d_program *p, int rank)
{
    builder b = begin(p, rank);
    d9d_status st = dual_fill(&b);

    if (st == D9D_OK)
        st = dual_steady(&b);
    if (st == D9D_OK)
        st = dual_drain(&b);
    D9D_VEC_RELEASE(&b.late);
    return st;
}

d9d_status d9di_build_dual_pipe_v(const d9d_pipe_how *how, d9d_program *p)
{
    (void)how;
    if (p->micros < 2 * p->ranks)
        return D9D_FAIL(D9D_ECONFIG,
                        "pipeline: dual_pipe_v on %d ranks needs %d micro-batches at least, and "
                        "there are %d",
                        p->ranks, 2 * p->ranks, p->micros);
    for (int r = 0; r < p->ranks; r++)
        D9D_TRY(dual_rank(p, r));
    return D9D_OK;
}
