/* test_program_order.c - the order of transfers if all transfers of a rank in one direction (hidden
 * states or gradients) share a stream: a late one delays those after it. */
#include "d9d/pipe/program.h"

#include <string.h>

#include "d9d/pipe/timeline.h"
#include "pipe/program_private.h"
#include "support/unit.h"

enum { DOWN, UP, WAYS, NOT_YET = -1 };

/* State of a simulation: when each result was computed and has arrived, by direction, stage and
 * micro-batch. */
typedef struct simulation {
    const d9d_program *p;
    const double *takes; /* by verb */
    double *made, *sent, *came;
    double now[16], stream[16][WAYS];
    size_t at[16], posted[16][WAYS]; /* per rank: next action, and next transfer of each stream */
} simulation;

static size_t result_index(const simulation *x, int way, int stage, int micro)
{
    return (size_t)((way * x->p->stages + stage) * x->p->micros + micro);
}

static int way_of(const d9d_pipe_action *a)
{
    return a->kind == D9D_PIPE_FORWARD || a->kind == D9D_PIPE_SEND_FORWARD ||
                   a->kind == D9D_PIPE_RECV_FORWARD
               ? DOWN
               : UP;
}

/* When the inputs of an action are available. */
static double input_of(const simulation *x, int rank, const d9d_pipe_action *a)
{
    const int from = d9di_pipe_action_source_stage(x->p, a);
    size_t i;

    if (from < 0)
        return 0;
    i = result_index(x, way_of(a), from, a->micro);
    return d9d_program_rank_of(x->p, from) == rank ? x->made[i] : x->came[i];
}

static bool compute(simulation *x, int rank)
{
    const d9d_pipe_lane *lane = &x->p->lanes[rank];
    size_t first = x->at[rank], end;
    double begin = x->now[rank], sum = 0;

    while (first < lane->len && !d9di_pipe_action_computes(lane->data[first].kind))
        first++;
    if (first == lane->len)
        return false;
    end = d9di_pipe_lane_group_end(lane, first);
    for (size_t i = first; i < end; i++) {
        const double here = input_of(x, rank, &lane->data[i]);

        if (here == NOT_YET)
            return false;
        begin = here > begin ? here : begin;
        sum += x->takes[lane->data[i].kind];
    }
    x->now[rank] = begin + sum;
    x->at[rank] = end;
    for (size_t i = first; i < end; i++)
        if (lane->data[i].kind != D9D_PIPE_WGRAD)
            x->made[result_index(x, way_of(&lane->data[i]), lane->data[i].stage,
                                 lane->data[i].micro)] = x->now[rank];
    return true;
}

/* The next transfer of a stream, in the order of the rank's actions. */
static bool transfer(simulation *x, int rank, int way)
{
    const d9d_pipe_lane *lane = &x->p->lanes[rank];
    size_t *at = &x->posted[rank][way];
    const d9d_pipe_action *a;
    bool sends;
    double when;
    size_t i;

    while (*at < lane->len &&
           (d9di_pipe_action_computes(lane->data[*at].kind) || way_of(&lane->data[*at]) != way))
        ++*at;
    if (*at == lane->len)
        return false;
    a = &lane->data[*at];
    sends = a->kind == D9D_PIPE_SEND_FORWARD || a->kind == D9D_PIPE_SEND_BACKWARD;
    i = result_index(x, way,
                     sends         ? a->stage
                     : way == DOWN ? a->stage - 1
                                   : a->stage + 1,
                     a->micro);
    when = sends ? x->made[i] : x->sent[i];
    if (when == NOT_YET)
        return false;
    x->stream[rank][way] = when > x->stream[rank][way] ? when : x->stream[rank][way];
    *(sends ? &x->sent[i] : &x->came[i]) = x->stream[rank][way];
    ++*at;
    return true;
}

static double *unknown(size_t n)
{
    double *t = malloc(n * sizeof(*t));

    assert_non_null(t);
    for (size_t i = 0; i < n; i++)
        t[i] = NOT_YET;
    return t;
}

/* When the last rank ends. */
static double total_of(const d9d_program *p, const double *takes)
{
    const size_t n = (size_t)(WAYS * p->stages * p->micros);
    simulation x = {
        .p = p, .takes = takes, .made = unknown(n), .sent = unknown(n), .came = unknown(n)};
    double total = 0;

    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < p->ranks; r++)
            for (int way = 0; way < WAYS; way++)
                moved = compute(&x, r) || transfer(&x, r, way) || moved;
    }
    for (int r = 0; r < p->ranks; r++) {
        for (size_t i = x.at[r]; i < p->lanes[r].len; i++)
            assert_false(d9di_pipe_action_computes(p->lanes[r].data[i].kind));
        total = x.now[r] > total ? x.now[r] : total;
    }
    free(x.made);
    free(x.sent);
    free(x.came);
    return total;
}

/* With transfers that do not wait. */
static double free_total(const d9d_program *p, const double *takes)
{
    d9d_stage_costs *prices = calloc((size_t)p->stages, sizeof(*prices));
    d9d_timeline t;
    double total;

    assert_non_null(prices);
    for (int s = 0; s < p->stages; s++)
        prices[s] = (d9d_stage_costs){takes[D9D_PIPE_FORWARD], takes[D9D_PIPE_DGRAD],
                                      takes[D9D_PIPE_WGRAD]};
    assert_ok(d9d_timeline_make(p, &(d9d_pipe_costs){prices, 0, 0}, &t));
    total = t.total;
    d9d_timeline_release(&t);
    free(prices);
    return total;
}

static const d9d_pipe_schedule_opts schedules[] = {
    {.kind = D9D_PIPE_GPIPE},
    {.kind = D9D_PIPE_LOOPED_BFS, .stages_per_rank = 2},
    {.kind = D9D_PIPE_1F1B, .stages_per_rank = 1},
    {.kind = D9D_PIPE_1F1B, .stages_per_rank = 2},
    {.kind = D9D_PIPE_1F1B, .stages_per_rank = 1, .zero_bubble = true},
    {.kind = D9D_PIPE_1F1B, .stages_per_rank = 2, .zero_bubble = true},
    {.kind = D9D_PIPE_ZERO_BUBBLE_V},
    {.kind = D9D_PIPE_DUAL_PIPE_V},
};
enum { N_OPTS = sizeof(schedules) / sizeof(schedules[0]) };

/* Slowdown of a step relative to free transfers; *in_turns: with transfers in the order of the
 * actions. */
static double longer(const d9d_pipe_schedule_opts *opts, int ranks, int micros, const double *takes,
                     double *in_turns)
{
    d9d_program p, q;
    double least, total;

    assert_ok(d9d_program_build(opts, ranks, micros, &p));
    assert_ok(d9d_program_build(opts, ranks, micros, &q));
    assert_ok(d9d_program_insert_p2p(&p));
    assert_ok(d9d_program_check(&p));
    assert_ok(d9d_program_insert_p2p_round_robin(&q));
    least = free_total(&p, takes);
    total = total_of(&p, takes) / least - 1;
    *in_turns = total_of(&q, takes) / least - 1;
    d9d_program_release(&p);
    d9d_program_release(&q);
    return total;
}

/* Stages with the costs by which the order was made: no transfer waits. */
static void no_transfer_waits_for_a_stream(void **state)
{
    static const double takes[D9D_PIPE_ACTION_COUNT] = {8, 19, 12, 7};
    double turns;

    (void)state;
    for (size_t h = 0; h < N_OPTS; h++)
        for (int ranks = 2; ranks <= 8; ranks *= 2)
            for (int micros = 2 * ranks; micros <= 4 * ranks; micros *= 2)
                assert_true(longer(&schedules[h], ranks, micros, takes, &turns) < 1e-9);
}

/* Other costs: a step on 4 ranks takes at most 8 % longer, and never longer than *in_turns. */
static void little_where_stages_take_otherwise(void **state)
{
    static const double others[][D9D_PIPE_ACTION_COUNT] = {
        {6.2, 14.3, 9.6, 5.3}, {1, 2, 1, 1}, {1, 3, 2, 1}, {1, 2.2, 1.4, 0.8}, {2, 3, 2, 1}};
    double turns, max = 0, max_in_turns = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        for (size_t h = 0; h < N_OPTS; h++)
            for (int micros = 8; micros <= 16; micros *= 2) {
                const double more = longer(&schedules[h], 4, micros, others[i], &turns);

                assert_true(more <= turns + 1e-9);
                max = more > max ? more : max;
                max_in_turns = turns > max_in_turns ? turns : max_in_turns;
            }
    print_message("at most %.1f %% longer by time, %.1f %% in turns\n", 100 * max,
                  100 * max_in_turns);
    assert_true(max < 0.08 && max_in_turns > 0.2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_transfer_waits_for_a_stream),
                                       cmocka_unit_test(little_where_stages_take_otherwise)};

    return cmocka_run_group_tests_name("program_order", tests, NULL, NULL);
}
