/* test_expert_placement.c - which experts have copies: every slot is legal, no rank's largest load
 * rises, and the same loads give the same copies. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/op/op.h"
#include "d9d/parallel/expert_placement.h"
#include "support/unit.h"

enum { MAX_EXPERTS = 256, MAX_RANKS = 64 };

typedef struct shape {
    int ranks;
    int64_t experts, slots;
} shape;

static const shape shapes[] = {{2, 2, 1},    {2, 8, 1},   {2, 8, 4},    {3, 6, 1},
                               {4, 8, 2},    {4, 64, 3},  {8, 64, 8},   {8, 256, 2},
                               {16, 128, 1}, {64, 64, 1}, {64, 256, 4}, {5, 35, 7}};

static void assert_near(double got, double want, double tolerance)
{
    assert_true(fabs(got - want) <= tolerance);
}

static double draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(*state >> 40) / (1 << 24);
}

/* Loads whose skew grows with `kind`: even ones, uniform ones, heavy tails, a single hot expert. */
static void loads_make(const shape *s, int kind, uint64_t *state, double *load)
{
    for (int64_t e = 0; e < s->experts; e++) {
        const double u = draw(state);

        load[e] = kind == 0   ? 100
                  : kind == 1 ? (double)(int)(100 * u)
                  : kind == 2 ? u * u * u * u
                              : 0;
    }
    if (kind == 3)
        load[(int64_t)(draw(state) * (double)s->experts)] = 1000;
}

static double largest(const double *x, int n)
{
    double most = 0;

    for (int i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

/* Own experts have no slot, no rank has an expert twice, and empty slots come last. */
static void check_legal(const d9d_expert_placement *p)
{
    const int64_t per = p->experts / p->ranks;

    for (int r = 0; r < p->ranks; r++)
        for (int64_t s = 0; s < p->slots; s++) {
            const int32_t e = p->expert[r * p->slots + s];

            assert_true(e >= -1 && e < p->experts);
            assert_true(e < 0 || e / per != r);
            if (s > 0 && e >= 0)
                assert_true(p->expert[r * p->slots + s - 1] >= 0 &&
                            p->expert[r * p->slots + s - 1] < e);
        }
}

/* Loads of ranks from the tokens of each lane, by the definition. */
static void twin_loads(const d9d_expert_placement *p, const double *load, double *rank)
{
    memset(rank, 0, (size_t)p->ranks * sizeof(*rank));
    for (int64_t e = 0; e < p->experts; e++) {
        int holder[MAX_RANKS + 1] = {(int)(e / (p->experts / p->ranks))}, n = 1;

        for (int64_t i = 0; i < p->ranks * p->slots; i++)
            if (p->expert[i] == e)
                holder[n++] = (int)(i / p->slots);
        for (int l = 0; l < D9D_EXPERT_LANES; l++)
            rank[holder[l % n]] += load[e] / D9D_EXPERT_LANES;
    }
}

static void check_loads(const shape *s, const double *load)
{
    int32_t slot[MAX_EXPERTS], again[MAX_EXPERTS];
    double before[MAX_RANKS], after[MAX_RANKS], twin[MAX_RANKS], sum = 0;
    d9d_expert_placement p = {s->ranks, s->experts, s->slots, slot};

    memset(slot, -1, sizeof(slot));
    d9d_expert_placement_loads(&p, load, before);
    assert_ok(d9d_expert_placement_choose(&p, load));
    memcpy(again, slot, sizeof(again));
    check_legal(&p);
    d9d_expert_placement_loads(&p, load, after);
    twin_loads(&p, load, twin);
    for (int r = 0; r < s->ranks; r++) {
        assert_near(after[r], twin[r], 1e-9 * (1 + twin[r]));
        sum += after[r];
    }
    assert_true(largest(after, s->ranks) <= largest(before, s->ranks) * (1 + 1e-12));
    if (sum > 0)
        assert_near(d9d_expert_placement_imbalance(&p, load),
                    largest(after, s->ranks) * s->ranks / sum, 1e-9);
    assert_ok(d9d_expert_placement_choose(&p, load)); /* whatever was there before */
    assert_memory_equal(again, slot, sizeof(again));
}

static void is_legal_and_never_worse(void **state)
{
    double load[MAX_EXPERTS];
    uint64_t random = 7;

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int round = 0; round < 40; round++) {
            loads_make(&shapes[i], round % 4, &random, load);
            check_loads(&shapes[i], load);
        }
}

/* The drawing of the header. */
static void places_the_hottest_first(void **state)
{
    static const double load[] = {9, 1, 2, 1, 1, 1};
    int32_t slot[3];
    d9d_expert_placement p = {3, 6, 1, slot};

    (void)state;
    assert_ok(d9d_expert_placement_choose(&p, load));
    assert_int_equal(slot[0], 2);
    assert_int_equal(slot[1], 0);
    assert_int_equal(slot[2], 0);
    assert_int_equal(d9d_expert_placement_copies(&p), 3);
    assert_near(d9d_expert_placement_imbalance(&p, load), 1.01875, 1e-12);
}

/* Even loads, no loads, and an expert that many ranks may share. */
static void copies_only_what_helps(void **state)
{
    static const double even[] = {1, 1, 1, 1, 1, 1, 1, 1}, none[8] = {0},
                        one[] = {0, 0, 0, 0, 0, 8, 0, 0};
    int32_t slot[8];
    d9d_expert_placement p = {4, 8, 2, slot};

    (void)state;
    assert_ok(d9d_expert_placement_choose(&p, even));
    assert_int_equal(d9d_expert_placement_copies(&p), 0);
    assert_ok(d9d_expert_placement_choose(&p, none));
    assert_int_equal(d9d_expert_placement_copies(&p), 0);
    assert_near(d9d_expert_placement_imbalance(&p, none), 1, 0);
    assert_ok(d9d_expert_placement_choose(&p, one));
    assert_int_equal(d9d_expert_placement_copies(&p), 3);
    assert_near(d9d_expert_placement_imbalance(&p, one), 1, 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_legal_and_never_worse),
        cmocka_unit_test(places_the_hottest_first),
        cmocka_unit_test(copies_only_what_helps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
