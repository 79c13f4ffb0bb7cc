/* test_program.c - pipeline schedules as text, their transfers, checker and costs.  The golden
 * programs come from the reference framework's builders. */
#include "d9d/pipe/program.h"

#include <string.h>

#include "d9d/pipe/timeline.h"
#include "support/unit.h"

/* A built-in schedule. */
#define OPTS(k, stages, zero, twice)                                                               \
    {                                                                                              \
        .kind = (k), .stages_per_rank = (stages), .zero_bubble = (zero), .deep_warmup = (twice)    \
    }

typedef struct golden {
    d9d_pipe_schedule_opts opts;
    int ranks, micros, rank;
    bool connected;
    const char *text;
} golden;

static const golden goldens[] = {
    {OPTS(D9D_PIPE_GPIPE, 1, false, false), 2, 2, 0, true,
     "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B1 0B1 0RECV_B0 0B0"},
    {OPTS(D9D_PIPE_GPIPE, 1, false, false), 2, 2, 1, true,
     "1RECV_F0 1F0 1RECV_F1 1F1 1B1 1SEND_B1 1B0 1SEND_B0"},
    {OPTS(D9D_PIPE_INFERENCE, 1, false, false), 2, 2, 0, true, "0F0 0SEND_F0 0F1 0SEND_F1"},
    {OPTS(D9D_PIPE_INFERENCE, 1, false, false), 2, 2, 1, true, "1RECV_F0 1F0 1RECV_F1 1F1"},
    {OPTS(D9D_PIPE_LOOPED_BFS, 2, false, false), 2, 2, 0, true,
     "0F0 0SEND_F0 2RECV_F0 0F1 0SEND_F1 2RECV_F1 2F0 2SEND_F0 2F1 2SEND_F1 2RECV_B1 2B1 "
     "2SEND_B1 2RECV_B0 2B0 2SEND_B0 0RECV_B1 0B1 0RECV_B0 0B0"},
    {OPTS(D9D_PIPE_LOOPED_BFS, 2, false, false), 2, 2, 1, true,
     "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 3RECV_F0 3F0 3RECV_F1 3F1 3B1 3SEND_B1 "
     "1RECV_B1 3B0 3SEND_B0 1RECV_B0 1B1 1SEND_B1 1B0 1SEND_B0"},
    {OPTS(D9D_PIPE_1F1B, 1, false, true), 2, 4, 0, true,
     "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0F2 0SEND_F2 0B0 0RECV_B1 0F3 0SEND_F3 0B1 0RECV_B2 "
     "0B2 0RECV_B3 0B3"},
    {OPTS(D9D_PIPE_1F1B, 1, false, true), 2, 4, 1, true,
     "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1RECV_F2 1F1 1B1 1SEND_B1 1RECV_F3 1F2 1B2 1SEND_B2 "
     "1F3 1B3 1SEND_B3"},
    {OPTS(D9D_PIPE_1F1B, 1, true, false), 2, 4, 0, true,
     "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0I0 0W0 0RECV_B1 0F2 0SEND_F2 0I1 0W1 0RECV_B2 0F3 "
     "0SEND_F3 0I2 0W2 0RECV_B3 0I3 0W3"},
    {OPTS(D9D_PIPE_1F1B, 1, true, false), 2, 4, 1, true,
     "1RECV_F0 1F0 1RECV_F1 1I0 1SEND_B0 1F1 1I1 1SEND_B1 1RECV_F2 1W0 1F2 1I2 1SEND_B2 "
     "1RECV_F3 1W1 1F3 1I3 1SEND_B3 1W2 1W3"},
    {OPTS(D9D_PIPE_1F1B, 2, false, true), 2, 4, 0, true,
     "0F0 0SEND_F0 2RECV_F0 0F1 0SEND_F1 2RECV_F1 2F0 2SEND_F0 2F1 2SEND_F1 2RECV_B0 0F2 "
     "0SEND_F2 2B0 2SEND_B0 2RECV_B1 0F3 0SEND_F3 2RECV_F2 2B1 2SEND_B1 0RECV_B0 2F2 2SEND_F2 "
     "2RECV_F3 0B0 0RECV_B1 2F3 2SEND_F3 0B1 2RECV_B2 2B2 2SEND_B2 2RECV_B3 2B3 2SEND_B3 "
     "0RECV_B2 0B2 0RECV_B3 0B3"},
    {OPTS(D9D_PIPE_1F1B, 2, false, true), 2, 4, 1, true,
     "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 3RECV_F0 3F0 3RECV_F1 3B0 3SEND_B0 1RECV_F2 "
     "3F1 1RECV_B0 3B1 3SEND_B1 1RECV_F3 1F2 1SEND_F2 1RECV_B1 1B0 1SEND_B0 3RECV_F2 1F3 "
     "1SEND_F3 1B1 1SEND_B1 3RECV_F3 3F2 3B2 3SEND_B2 1RECV_B2 3F3 3B3 3SEND_B3 1RECV_B3 1B2 "
     "1SEND_B2 1B3 1SEND_B3"},
    {OPTS(D9D_PIPE_ZERO_BUBBLE_V, 0, false, false), 2, 4, 0, true,
     "0F0 0SEND_F0 0F1 0SEND_F1 3RECV_F0 0F2 0SEND_F2 3F0 3RECV_F1 3I0 3SEND_B0 3W0 3F1 3I1 "
     "3SEND_B1 0RECV_B0 3W1 0F3 0SEND_F3 3RECV_F2 0I0 0W0 3F2 3I2 3SEND_B2 0RECV_B1 3W2 0I1 "
     "3RECV_F3 0W1 3F3 3I3 3SEND_B3 0RECV_B2 3W3 0I2 0RECV_B3 0W2 0I3 0W3"},
    {OPTS(D9D_PIPE_ZERO_BUBBLE_V, 0, false, false), 2, 4, 1, true,
     "1RECV_F0 1F0 1RECV_F1 2F0 2SEND_F0 1RECV_F2 1F1 2F1 2SEND_F1 2RECV_B0 2I0 2W0 1F2 "
     "2RECV_B1 1I0 1SEND_B0 1W0 1RECV_F3 2F2 2SEND_F2 2I1 2W1 1F3 2RECV_B2 1I1 1SEND_B1 1W1 "
     "2F3 2SEND_F3 2I2 2W2 2RECV_B3 1I2 1SEND_B2 2I3 1I3 1SEND_B3 1W2 2W3 1W3"},
    {OPTS(D9D_PIPE_DUAL_PIPE_V, 0, false, false), 2, 4, 0, true,
     "0F0 0SEND_F0 0F1 0SEND_F1 3RECV_F0 0F2 0SEND_F2 3F0 3RECV_F1 3I0 3SEND_B0 3W0 3F1 "
     "3RECV_F2 0RECV_B0 0F3|3B1 0SEND_F3 3SEND_B1 3F2|0B0 3RECV_F3 0RECV_B1 3B2 3SEND_B2 "
     "3F3|0B1 0RECV_B2 3B3 3SEND_B3 0I2 0RECV_B3 0W2 0I3 0W3"},
    {OPTS(D9D_PIPE_DUAL_PIPE_V, 0, false, false), 2, 4, 1, true,
     "1RECV_F0 1F0 1RECV_F1 2F0 2SEND_F0 1RECV_F2 1F1 2F1 2SEND_F1 2RECV_B0 1F2 2B0 2F2|1B0 "
     "2SEND_F2 1SEND_B0 1RECV_F3 2RECV_B1 1F3|2B1 2F3|1B1 2SEND_F3 1SEND_B1 2RECV_B2 2B2 1B2 "
     "1SEND_B2 2RECV_B3 2I3 1I3 1SEND_B3 2W3 1W3"},
    {OPTS(D9D_PIPE_1F1B, 1, false, true), 4, 8, 0, false,
     "0F0 0F1 0F2 0F3 0F4 0F5 0F6 0B0 0F7 0B1 0B2 0B3 0B4 0B5 0B6 0B7"},
    {OPTS(D9D_PIPE_1F1B, 1, false, true), 4, 8, 1, false,
     "1F0 1F1 1F2 1F3 1F4 1B0 1F5 1B1 1F6 1B2 1F7 1B3 1B4 1B5 1B6 1B7"},
    {OPTS(D9D_PIPE_1F1B, 1, false, true), 4, 8, 2, false,
     "2F0 2F1 2F2 2B0 2F3 2B1 2F4 2B2 2F5 2B3 2F6 2B4 2F7 2B5 2B6 2B7"},
    {OPTS(D9D_PIPE_1F1B, 1, false, true), 4, 8, 3, false,
     "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7"},
    {OPTS(D9D_PIPE_1F1B, 1, true, false), 4, 8, 0, false,
     "0F0 0F1 0F2 0F3 0I0 0W0 0F4 0I1 0W1 0F5 0I2 0W2 0F6 0I3 0W3 0F7 0I4 0W4 0I5 0W5 0I6 0W6 "
     "0I7 0W7"},
    {OPTS(D9D_PIPE_1F1B, 1, true, false), 4, 8, 1, false,
     "1F0 1F1 1F2 1I0 1F3 1I1 1W0 1F4 1I2 1W1 1F5 1I3 1W2 1F6 1I4 1W3 1F7 1I5 1W4 1I6 1W5 1I7 "
     "1W6 1W7"},
    {OPTS(D9D_PIPE_1F1B, 1, true, false), 4, 8, 2, false,
     "2F0 2F1 2I0 2F2 2I1 2F3 2I2 2W0 2F4 2I3 2W1 2F5 2I4 2W2 2F6 2I5 2W3 2F7 2I6 2W4 2I7 2W5 "
     "2W6 2W7"},
    {OPTS(D9D_PIPE_1F1B, 1, true, false), 4, 8, 3, false,
     "3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3F4 3I4 3W1 3F5 3I5 3W2 3F6 3I6 3W3 3F7 3I7 3W4 3W5 "
     "3W6 3W7"},
    {OPTS(D9D_PIPE_ZERO_BUBBLE_V, 0, false, false), 4, 8, 0, false,
     "0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 7F3 7I3 7W3 0F7 0I0 0W0 "
     "7F4 7I4 7W4 0I1 0W1 7F5 7I5 7W5 0I2 0W2 7F6 7I6 7W6 0I3 0W3 7F7 7I7 7W7 0I4 0W4 0I5 0W5 "
     "0I6 0W6 0I7 0W7"},
    {OPTS(D9D_PIPE_ZERO_BUBBLE_V, 0, false, false), 4, 8, 3, false,
     "3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 4I0 4W0 3F4 3I0 3W0 4F4 4I1 4W1 3F5 3I1 3W1 4F5 4I2 4W2 "
     "3F6 3I2 3W2 4F6 4I3 4W3 3F7 3I3 3W3 4F7 4I4 4W4 3I4 4I5 3I5 4I6 3I6 4I7 3I7 3W4 4W5 4W6 "
     "4W7 3W5 3W6 3W7"},
    {OPTS(D9D_PIPE_DUAL_PIPE_V, 0, false, false), 4, 8, 0, false,
     "0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 7F3 0F7|7B3 7F4|0B0 7B4 "
     "7F5|0B1 7B5 7F6|0B2 7B6 7F7|0B3 7B7 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7"},
    {OPTS(D9D_PIPE_DUAL_PIPE_V, 0, false, false), 4, 8, 3, false,
     "3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 3F4 4B0 4F4|3B0 3F5|4B1 4F5|3B1 3F6|4B2 4F6|3B2 3F7|4B3 "
     "4F7|3B3 4B4 3B4 4B5 3B5 4I6 3I6 4I7 3I7 4W6 3W6 4W7 3W7"},
};

static void golden_programs_to_the_letter(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(goldens) / sizeof(goldens[0]); i++) {
        const golden *g = &goldens[i];
        d9d_program p, again;
        d9d_buf text = {0}, printed = {0};

        assert_ok(d9d_program_build(&g->opts, g->ranks, g->micros, &p));
        if (g->connected)
            assert_ok(d9d_program_insert_p2p_round_robin(&p));
        assert_ok(d9d_program_print(&p, g->rank, &text));
        assert_string_equal(text.data, g->text);
        assert_ok(d9d_program_init(p.ranks, p.stages / p.ranks, p.micros, p.layout, true, &again));
        assert_ok(d9d_program_parse(&again, g->rank, g->text));
        assert_ok(d9d_program_print(&again, g->rank, &printed));
        assert_string_equal(printed.data, g->text);
        d9d_buf_release(&text);
        d9d_buf_release(&printed);
        d9d_program_release(&p);
        d9d_program_release(&again);
    }
}

static const d9d_pipe_schedule_opts schedules[] = {
    OPTS(D9D_PIPE_INFERENCE, 1, false, false),   OPTS(D9D_PIPE_GPIPE, 1, false, false),
    OPTS(D9D_PIPE_LOOPED_BFS, 1, false, false),  OPTS(D9D_PIPE_LOOPED_BFS, 3, false, false),
    OPTS(D9D_PIPE_1F1B, 1, false, false),        OPTS(D9D_PIPE_1F1B, 1, false, true),
    OPTS(D9D_PIPE_1F1B, 2, false, false),        OPTS(D9D_PIPE_1F1B, 3, false, true),
    OPTS(D9D_PIPE_1F1B, 1, true, false),         OPTS(D9D_PIPE_1F1B, 2, true, false),
    OPTS(D9D_PIPE_1F1B, 3, true, true),          OPTS(D9D_PIPE_ZERO_BUBBLE_V, 0, false, false),
    OPTS(D9D_PIPE_DUAL_PIPE_V, 0, false, false),
};

/* Irregular costs, so that no order is right by chance. */
static void play(const d9d_program *p, d9d_timeline *out)
{
    d9d_stage_costs *prices = calloc((size_t)p->stages, sizeof(*prices));

    assert_non_null(prices);
    for (int s = 0; s < p->stages; s++)
        prices[s] = (d9d_stage_costs){1 + s % 3, 1 + s % 2, 0.5};
    assert_ok(d9d_timeline_make(p, &(d9d_pipe_costs){prices, 0.1, 0.5}, out));
    free(prices);
}

static void every_builder_passes_the_checker(void **state)
{
    int built = 0, refused = 0;

    (void)state;
    for (size_t h = 0; h < sizeof(schedules) / sizeof(schedules[0]); h++)
        for (int ranks = 1; ranks <= 8; ranks++)
            for (int micros = 1; micros <= 32; micros++) {
                d9d_program p;
                d9d_timeline t;
                const d9d_status st = d9d_program_build(&schedules[h], ranks, micros, &p);

                if (st != D9D_OK) {
                    assert_int_equal(st, D9D_ECONFIG);
                    refused++;
                    continue;
                }
                assert_ok(d9d_program_insert_p2p(&p));
                assert_ok(d9d_program_check(&p));
                play(&p, &t);
                assert_true(t.total > 0 && t.bubble >= -1e-12 && t.bubble < 1);
                built++;
                d9d_timeline_release(&t);
                d9d_program_release(&p);
            }
    print_message("%d programs pass, %d refused\n", built, refused);
    assert_true(built > 2400);
}

/* Forward only, for each placement of stages. */
static void forwards_pass_on_every_layout(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 6; ranks++)
        for (int each = 1; each <= 3; each++)
            for (int v = 0; v <= (each == 2); v++)
                for (int micros = 1; micros <= 9; micros++) {
                    d9d_program p;
                    size_t n = 0;

                    assert_ok(d9d_program_forward(ranks, each, micros,
                                                  v ? D9D_PIPE_V : D9D_PIPE_LOOP, &p));
                    assert_false(p.backward);
                    assert_int_equal(p.stages, ranks * each);
                    for (int r = 0; r < ranks; r++)
                        n += p.lanes[r].len;
                    assert_int_equal(n, ranks * each * micros);
                    assert_ok(d9d_program_insert_p2p(&p));
                    assert_ok(d9d_program_check(&p));
                    d9d_program_release(&p);
                }
}

/* Maximum number of live forwards on each of four ranks, 16 micro-batches. */
static void live_activations_are_as_counted(void **state)
{
    static const struct {
        d9d_pipe_schedule_opts opts;
        int live[4];
    } cases[] = {
        {OPTS(D9D_PIPE_GPIPE, 1, false, false), {16, 16, 16, 16}},
        {OPTS(D9D_PIPE_LOOPED_BFS, 2, false, false), {32, 32, 32, 32}},
        {OPTS(D9D_PIPE_1F1B, 1, false, true), {7, 5, 3, 1}},
        {OPTS(D9D_PIPE_1F1B, 1, false, false), {4, 3, 2, 1}}, /* no more than necessary */
        {OPTS(D9D_PIPE_1F1B, 2, false, true), {11, 9, 7, 5}},
        {OPTS(D9D_PIPE_1F1B, 1, true, false), {4, 4, 4, 4}},
        {OPTS(D9D_PIPE_1F1B, 2, true, false), {8, 8, 8, 8}},
        {OPTS(D9D_PIPE_ZERO_BUBBLE_V, 0, false, false), {8, 8, 8, 8}},
        {OPTS(D9D_PIPE_DUAL_PIPE_V, 0, false, false), {9, 9, 9, 9}},
        {OPTS(D9D_PIPE_INFERENCE, 1, false, false), {1, 1, 1, 1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        d9d_program p;
        d9d_timeline t;

        assert_ok(d9d_program_build(&cases[i].opts, 4, 16, &p));
        assert_ok(d9d_program_insert_p2p(&p));
        play(&p, &t);
        for (int r = 0; r < 4; r++)
            assert_int_equal(t.live[r], cases[i].live[r]);
        d9d_timeline_release(&t);
        d9d_program_release(&p);
    }
}

/* The theoretical bubbles, with equal stages and free transfers. */
static void bubbles_are_those_of_theory(void **state)
{
    static const d9d_stage_costs thirds[8] = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1},
                                              {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
    static const struct {
        d9d_pipe_schedule_opts opts;
        double bubble;
    } cases[] = {
        {OPTS(D9D_PIPE_GPIPE, 1, false, false), 3.0 / 11},
        {OPTS(D9D_PIPE_1F1B, 1, false, false), 3.0 / 11},
        {OPTS(D9D_PIPE_1F1B, 1, true, false), 3.0 / 27},
        {OPTS(D9D_PIPE_ZERO_BUBBLE_V, 0, false, false), 0.111},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        d9d_program p;
        d9d_timeline t;

        assert_ok(d9d_program_build(&cases[i].opts, 4, 8, &p));
        assert_ok(d9d_timeline_make(&p, &(d9d_pipe_costs){thirds, 0, 0}, &t));
        print_message("%s: bubble %.4f\n", d9d_pipe_schedule_name(cases[i].opts.kind), t.bubble);
        assert_true(t.bubble <= cases[i].bubble + 1e-9);
        d9d_timeline_release(&t);
        d9d_program_release(&p);
    }
}

static void joined_actions_hide_one_another(void **state)
{
    static const d9d_stage_costs price[2] = {{2, 1, 1}, {2, 1, 1}};
    double total[2];

    (void)state;
    for (int hidden = 0; hidden < 2; hidden++) {
        d9d_program p;
        d9d_timeline t;

        assert_ok(d9d_program_init(1, 2, 1, D9D_PIPE_V, true, &p));
        p.micros = 2;
        assert_ok(d9d_program_parse(&p, 0, "0F0 1F0 1B0 0F1|0B0 1F1 1B1 0B1"));
        assert_ok(d9d_program_check(&p));
        assert_ok(d9d_timeline_make(&p, &(d9d_pipe_costs){price, 0, hidden}, &t));
        total[hidden] = t.total;
        d9d_timeline_release(&t);
        d9d_program_release(&p);
    }
    assert_float_equal(total[0], 16, 1e-12);
    assert_float_equal(total[1], 14, 1e-12);
}

/* Two ranks, two stages, one micro-batch; and what is wrong with the program. */
static void wrong_programs_are_named(void **state)
{
    static const struct {
        const char *lanes[2], *sentence;
    } cases[] = {
        {{"0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"}, NULL},
        {{"0F0 0SEND_F0 0RECV_B0 0I0 0W0", "1RECV_F0 1F0 1B0 1SEND_B0"}, NULL},
        {{"0F0 0SEND_F0 0RECV_B0", "1RECV_F0 1F0 1B0 1SEND_B0"}, "0B0 is missing"},
        {{"0F0 0SEND_F0 0RECV_B0 0I0", "1RECV_F0 1F0 1B0 1SEND_B0"}, "0W0 is missing"},
        {{"0F0 0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"}, "0F0 is there twice"},
        {{"0F0 0SEND_F0 1B0", "1RECV_F0 1F0 1SEND_B0"}, "another rank's stage"},
        {{"0F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"}, "0SEND_F0 is missing"},
        {{"0F0 0SEND_F0 0RECV_B0 0B0", "1F0 1RECV_F0 1B0 1SEND_B0"}, "waits for ever"},
        {{"0F0 0RECV_B0 0SEND_F0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"}, "waits for ever"},
        {{"0RECV_B0 0B0 0F0 0SEND_F0", "1RECV_F0 1F0 1B0 1SEND_B0"}, "comes before its forward"},
        {{"0F0 0SEND_F0 0RECV_B0|0B0", "1RECV_F0 1F0 1B0 1SEND_B0"}, "joined with no other action"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        d9d_program p;

        assert_ok(d9d_program_init(2, 1, 1, D9D_PIPE_LOOP, true, &p));
        for (int r = 0; r < 2; r++)
            assert_ok(d9d_program_parse(&p, r, cases[i].lanes[r]));
        if (cases[i].sentence == NULL)
            assert_ok(d9d_program_check(&p));
        else
            assert_fails_like(d9d_program_check(&p), D9D_EINVAL, cases[i].sentence);
        d9d_program_release(&p);
    }
}

static void words_that_are_no_action_are_named(void **state)
{
    static const char *const words[] = {"F0",  "0",       "0F",    "0X0",      "0F1",
                                        "1F0", "0F0,0B0", "0F0|",  "0F0| 0B0", "0F99999999999",
                                        "0f0", "-1F0",    "0SEND0"};
    d9d_program p;

    (void)state;
    assert_ok(d9d_program_init(1, 1, 1, D9D_PIPE_LOOP, true, &p));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        assert_fails_like(d9d_program_parse(&p, 0, words[i]), D9D_EFORMAT,
                          "is no action of 1 stages");
    d9d_program_release(&p);
}

static void impossible_numbers_are_refused(void **state)
{
    const d9d_pipe_schedule_opts one = OPTS(D9D_PIPE_1F1B, 1, false, false),
                                 dual = OPTS(D9D_PIPE_DUAL_PIPE_V, 0, false, false);
    d9d_program p;

    (void)state;
    assert_fails_like(d9d_program_build(&one, 0, 1, &p), D9D_ECONFIG, "0 ranks");
    assert_fails_like(d9d_program_build(&one, 1, 0, &p), D9D_ECONFIG, "0 micro-batches");
    assert_fails_like(d9d_program_build(&one, 4, 11, &p), D9D_ECONFIG, "multiple of 4");
    assert_fails_like(d9d_program_build(&dual, 4, 7, &p), D9D_ECONFIG, "needs 8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_programs_to_the_letter),
        cmocka_unit_test(every_builder_passes_the_checker),
        cmocka_unit_test(forwards_pass_on_every_layout),
        cmocka_unit_test(live_activations_are_as_counted),
        cmocka_unit_test(bubbles_are_those_of_theory),
        cmocka_unit_test(joined_actions_hide_one_another),
        cmocka_unit_test(wrong_programs_are_named),
        cmocka_unit_test(words_that_are_no_action_are_named),
        cmocka_unit_test(impossible_numbers_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
