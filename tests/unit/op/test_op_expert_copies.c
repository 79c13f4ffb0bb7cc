/* test_op_expert_copies.c - routings over experts and their copies, against slow twins.  More
 * ranks: tests/multirank/experts.bats. */
#include <stdlib.h>
#include <string.h>

#include "support/moe.h"
#include "support/op_fixture.h"

enum { TOKENS = 70, K = 3, EXPERTS = 6, WIDTH = 8, PLACES = 12 };

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 16;
}

static int32_t *ints_of(const d9d_tensor *t)
{
    const int64_t n = d9d_tensor_numel(t);
    int32_t *x = calloc((size_t)n + 1, sizeof(*x));

    assert_non_null(x);
    assert_ok(
        d9d_device_download(d9d_tensor_device(t), x, d9d_tensor_data(t), (uint64_t)n * sizeof(*x)));
    return x;
}

/* Rows are numbered by (expert, token), and R counts them. */
static void check_order(const d9d_routing *r, const int32_t *want, int32_t experts)
{
    const int64_t n = d9d_tensor_numel(&r->expert);
    int32_t *expert = ints_of(&r->expert), *row = ints_of(&r->row), *offset = ints_of(&r->offset);
    int32_t *source = ints_of(&r->source), at = 0;

    assert_memory_equal(expert, want, (size_t)n * sizeof(*want));
    for (int32_t e = 0; e < experts; e++) {
        assert_int_equal(offset[e], at);
        for (int32_t i = 0; i < n; i++)
            if (want[i] == e) {
                assert_int_equal(source[at], i);
                assert_int_equal(row[i], at++);
            }
    }
    for (int64_t i = 0; i < n; i++)
        assert_true(want[i] >= 0 || row[i] == -1);
    assert_int_equal(offset[experts], at);
    assert_int_equal(r->source.shape.dim[0], at);
    free(expert);
    free(row);
    free(offset);
    free(source);
}

/* Lanes of one sequence more than the tokens, from token `first` on. */
static void lanes_set(op_fixture *f, int64_t first)
{
    int32_t lane[2 * TOKENS];
    float weight[2 * TOKENS] = {0};
    d9d_token_weights w = {.first = first};

    for (int i = 0; i < 2 * TOKENS; i++)
        lane[i] = i % TOKENS % D9D_EXPERT_LANES;
    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, D9D_SHAPE(2, TOKENS), weight, &w.weight));
    assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(2, TOKENS), lane, &w.lane));
    d9d_tape_set_token_weights(f->tape, &w);
    d9d_tensor_release(&w.weight);
    d9d_tensor_release(&w.lane);
}

static void routing_make(op_fixture *f, int32_t *expert, int32_t experts, d9d_routing *r)
{
    uint32_t random = 5;
    d9d_tensor ids;

    for (int i = 0; i < TOKENS * K; i++)
        expert[i] = (int32_t)(draw(&random) % (uint32_t)experts);
    assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(TOKENS, K), expert, &ids));
    assert_ok(moe_route(&ids, experts, r));
    d9d_tensor_release(&ids);
}

static void table_make(op_fixture *f, int32_t *table, d9d_tensor *out)
{
    uint32_t random = 9;

    for (int i = 0; i < D9D_EXPERT_LANES * WIDTH; i++)
        table[i] = i % WIDTH < EXPERTS ? (int32_t)(draw(&random) % PLACES) : -7;
    assert_ok(
        d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(D9D_EXPERT_LANES, WIDTH), table, out));
}

static void routes_by_lane(void **state)
{
    op_fixture *f = *state;
    int32_t table[D9D_EXPERT_LANES * WIDTH], expert[TOKENS * K], want[TOKENS * K];
    d9d_tensor places;
    d9d_routing r, placed;

    table_make(f, table, &places);
    routing_make(f, expert, EXPERTS, &r);
    for (int64_t first = 0; first <= TOKENS; first += 35) {
        lanes_set(f, first);
        for (int64_t i = 0; i < TOKENS * K; i++)
            want[i] = table[(first + i / K) % TOKENS % D9D_EXPERT_LANES * WIDTH + expert[i]];
        assert_ok(d9d_op_route_copies(f->tape, &r, &places, PLACES, &placed));
        check_order(&placed, want, PLACES);
        d9d_routing_release(&placed);
    }
    d9d_routing_release(&r);
    d9d_tensor_release(&places);
}

/* Half of what a rank receives has no choice there. */
static void splits_own_and_copied(void **state)
{
    enum { PER = 6, COPIES = 4 };
    static const int32_t number[PER] = {0, 1, 2, 3, 4, 5};
    op_fixture *f = *state;
    int32_t expert[TOKENS * K], own_want[TOKENS * K], copied_want[TOKENS * K];
    d9d_routing r, own, copied;
    d9d_tensor numbers, all;
    int64_t lower = 0, rows = 0;

    routing_make(f, expert, PER + COPIES, &r);
    d9d_routing_release(&r);
    for (int i = 0; i < TOKENS * K; i++) {
        expert[i] = i % 2 == 0 ? expert[i] : -1;
        own_want[i] = expert[i] < PER ? expert[i] : -1;
        copied_want[i] = expert[i] >= PER ? expert[i] - PER : -1;
        rows += expert[i] >= 0;
        lower += own_want[i] >= 0;
    }
    assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(TOKENS, K), expert, &all));
    assert_ok(moe_route(&all, 2 * PER, &r));
    d9d_tensor_release(&all);
    all = r.source;
    r.source = d9d_tensor_rows(&all, 0, rows);
    d9d_tensor_release(&all);
    r.partial = true;
    r.lower = lower;
    assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(PER), number, &numbers));
    assert_ok(d9d_op_split_copies(f->tape, &r, &numbers, COPIES, &own, &copied));
    check_order(&own, own_want, PER);
    check_order(&copied, copied_want, COPIES);
    assert_true(own.partial && copied.partial);
    d9d_routing_release(&own);
    d9d_routing_release(&copied);
    assert_refused(f, d9d_op_split_copies(f->tape, &r, &numbers, PER + 1, &own, &copied),
                   "split_copies: the numbers [6] does not fit the offsets [13]: the upper half of "
                   "the places is for copies");
    d9d_routing_release(&r);
    d9d_tensor_release(&numbers);
}

static void refuses_what_does_not_fit(void **state)
{
    op_fixture *f = *state;
    const d9d_tensor *table = op_tensor(f, D9D_I32, D9D_SHAPE(D9D_EXPERT_LANES, WIDTH)),
                     *narrow = op_tensor(f, D9D_I32, D9D_SHAPE(D9D_EXPERT_LANES, 4));
    int32_t expert[TOKENS * K];
    d9d_routing r, placed;

    routing_make(f, expert, EXPERTS, &r);
    assert_refused(f, d9d_op_route_copies(f->tape, &r, table, PLACES, &placed),
                   "route_copies: the tape has no lanes of tokens");
    lanes_set(f, 0);
    assert_refused(f, d9d_op_route_copies(f->tape, &r, narrow, PLACES, &placed),
                   "route_copies: the table [32, 4] does not fit the expert ids [70, 3]: a table "
                   "has a row for each lane and a column for each expert, and experts have no "
                   "capacity");
    lanes_set(f, 2 * TOKENS - 5);
    assert_refused(f, d9d_op_route_copies(f->tape, &r, table, PLACES, &placed),
                   "route_copies: tokens [70] does not fit lanes [2, 70]: lanes are [B, S], tokens "
                   "a slice of them");
    d9d_routing_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        op_test(routes_by_lane),
        op_test(splits_own_and_copied),
        op_test(refuses_what_does_not_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
