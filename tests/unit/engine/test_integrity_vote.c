/* Whose checksums differ: majorities, minorities and ties, over any mesh. */
#include "support/arrays.h"

#include <stdio.h>
#include <string.h>

#include "engine/integrity.h"

enum { RANKS = 8, ARRAYS = 6 };

/* A job whose ranks have some arrays. */
typedef struct job {
    d9di_integrity_entry entries[RANKS][ARRAYS];
    d9di_integrity_rank ranks[RANKS];
    int n;
} job;

static void add(job *j, int rank, uint64_t key, uint64_t sum)
{
    d9di_integrity_rank *r = &j->ranks[rank];
    d9di_integrity_entry *e = &j->entries[rank][r->n++];

    e->key = key;
    e->sum = sum;
    (void)snprintf(e->name, sizeof(e->name), "array %d", (int)key);
    (void)snprintf(r->node, sizeof(r->node), "n%d", rank);
    (void)snprintf(r->where, sizeof(r->where), "n%d, cpu", rank);
    j->n = rank + 1 > j->n ? rank + 1 : j->n;
}

static d9di_integrity_verdict vote(job *j)
{
    d9di_integrity_verdict v;

    for (int r = 0; r < RANKS; r++)
        j->ranks[r].entries = j->entries[r];
    assert_int_equal(d9di_integrity_vote(j->ranks, j->n, &v), D9D_OK);
    return v;
}

/* HSDP: pairs of ranks have shard 7 or 8, all have array 1. */
static job hsdp(void)
{
    job j = {.n = 0};

    for (int r = 0; r < 4; r++) {
        add(&j, r, 1, 100);
        add(&j, r, 7 + (uint64_t)(r % 2), 200 + (uint64_t)(r % 2));
    }
    return j;
}

static void equal_replicas_blame_nobody(void **state)
{
    job j = hsdp(), none = {.n = 3};

    (void)state;
    assert_int_equal(vote(&j).n_ranks, 0);
    assert_int_equal(vote(&none).n_ranks, 0);
}

static void the_minority_is_named(void **state)
{
    (void)state;
    for (int culprit = 0; culprit < 4; culprit++) {
        job j = hsdp();
        d9di_integrity_verdict v;

        j.entries[culprit][0].sum = 5;
        v = vote(&j);
        assert_int_equal(v.n_ranks, 1);
        assert_false(v.tied);
        assert_int_equal(v.rank[0], culprit);
        assert_int_equal(v.node[0][1], '0' + culprit);
        assert_string_equal(v.name, "array 1");
        assert_int_equal(v.copies, 4);
        assert_int_equal(v.others, 3);
        assert_int_equal(v.n_arrays, 1);
    }
}

static void two_that_differ_are_tied(void **state)
{
    job j = hsdp();
    d9di_integrity_verdict v;

    (void)state;
    j.entries[3][1].sum = 5;
    v = vote(&j);
    assert_true(v.tied);
    assert_int_equal(v.n_ranks, 2);
    assert_int_equal(v.rank[0], 1);
    assert_int_equal(v.rank[1], 3);
    assert_string_equal(v.name, "array 8");
    assert_int_equal(v.copies, 2);
}

/* An array of which there are enough copies settles a tie of another one. */
static void a_majority_settles_ties(void **state)
{
    job j = hsdp();
    d9di_integrity_verdict v;

    (void)state;
    j.entries[3][0].sum = 5;
    j.entries[3][1].sum = 5;
    v = vote(&j);
    assert_false(v.tied);
    assert_int_equal(v.n_ranks, 1);
    assert_int_equal(v.rank[0], 3);
    assert_string_equal(v.name, "array 1");
}

static void several_culprits(void **state)
{
    job j = {.n = 0};
    d9di_integrity_verdict v;

    (void)state;
    for (int r = 0; r < RANKS; r++)
        add(&j, r, 3, r == 2 || r == 5 ? 40 + (uint64_t)r : 9);
    v = vote(&j);
    assert_int_equal(v.n_ranks, 2);
    assert_int_equal(v.rank[0], 2);
    assert_int_equal(v.rank[1], 5);
    assert_int_equal(v.others, 6);
    for (int r = 0; r < RANKS; r++)
        j.entries[r][0].sum = (uint64_t)r / 4;
    v = vote(&j);
    assert_true(v.tied);
    assert_int_equal(v.n_ranks, RANKS);
}

/* Arrays without a replica say nothing, whatever they are. */
static void single_copies_have_no_vote(void **state)
{
    job j = {.n = 0};

    (void)state;
    for (int r = 0; r < 4; r++)
        add(&j, r, 50 + (uint64_t)r, (uint64_t)r);
    assert_int_equal(vote(&j).n_ranks, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_replicas_blame_nobody),
        cmocka_unit_test(the_minority_is_named),
        cmocka_unit_test(two_that_differ_are_tied),
        cmocka_unit_test(a_majority_settles_ties),
        cmocka_unit_test(several_culprits),
        cmocka_unit_test(single_copies_have_no_vote),
    };

    return cmocka_run_group_tests_name("integrity_vote", tests, NULL, NULL);
}
