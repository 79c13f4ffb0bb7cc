/* The blobs that ranks exchange at start must be short if there are many ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/bootstrap_private.h"
#include "d9d/comm/exchange.h"
#include "engine/rank_consistency.h"

enum { RANKS = 4096, MAX_BYTES = (16 << 20) / RANKS };

/* A job in which every other rank sends what this rank sends, within the launcher's size limit. */
typedef struct job {
    d9d_bootstrap *bootstrap;
    size_t gathers, largest;
    const void *other; /* what the last rank sends instead, `n` bytes; NULL: the same */
    size_t n;
} job;

static d9d_status gather(void *self, const void *local, size_t n, d9d_arena *a,
                         d9d_bootstrap_blob *all)
{
    job *j = self;
    char *copy = d9d_arena_alloc(a, n + 1);

    assert_non_null(copy);
    assert_true(n <= MAX_BYTES);
    j->gathers++;
    j->largest = n > j->largest ? n : j->largest;
    if (n > 0)
        memcpy(copy, local, n);
    for (int r = 0; r < RANKS; r++)
        all[r] = (d9d_bootstrap_blob){copy, n};
    if (j->other != NULL)
        all[RANKS - 1] = (d9d_bootstrap_blob){j->other, j->n};
    return D9D_OK;
}

static void job_open(job *j)
{
    *j = (job){.bootstrap = NULL};
    assert_int_equal(d9d_bootstrap_simulate(0, RANKS, &j->bootstrap), D9D_OK);
    d9di_bootstrap_set_transport(j->bootstrap, &(d9di_bootstrap_transport){gather, j});
}

static void test_long_texts_are_sent_in_several_blobs(void **state)
{
    static const size_t lengths[] = {0, 1, MAX_BYTES - 9, MAX_BYTES - 8, MAX_BYTES - 7, 100000};
    d9d_arena a = {0};
    job j;

    (void)state;
    job_open(&j);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        char *text = calloc(1, lengths[i] + 1);
        const char *received = text;

        assert_non_null(text);
        for (size_t k = 0; k < lengths[i]; k++)
            text[k] = (char)('a' + k % 23);
        assert_int_equal(d9d_bootstrap_broadcast_text(j.bootstrap, &a, &received), D9D_OK);
        assert_ptr_not_equal(received, text);
        assert_string_equal(received, text);
        free(text);
    }
    d9d_bootstrap_close(j.bootstrap);
    d9d_arena_release(&a);
}

static void test_an_empty_text_is_sent_too(void **state)
{
    const char *received = NULL;
    d9d_arena a = {0};
    job j;

    (void)state;
    job_open(&j);
    assert_int_equal(d9d_bootstrap_broadcast_text(j.bootstrap, &a, &received), D9D_OK);
    assert_null(received);
    assert_int_equal(j.gathers, 1);
    d9d_bootstrap_close(j.bootstrap);
    d9d_arena_release(&a);
}

/* 200 datasets have 6400 digits. */
static d9d_status agree(job *j)
{
    d9di_rank_consistency same = {0};

    for (uint64_t i = 0; i < 200; i++)
        d9di_rank_consistency_add(&same, "data", d9d_hash_bytes(&i, sizeof(i)));
    return d9di_rank_consistency_check(&same, j->bootstrap);
}

static void test_many_things_of_many_ranks(void **state)
{
    job j;

    (void)state;
    job_open(&j);
    assert_int_equal(agree(&j), D9D_OK);
    assert_int_equal(j.gathers, 1);
    assert_int_equal(j.largest, sizeof(d9d_hash));
    d9d_bootstrap_close(j.bootstrap);
}

/* If one differs, all ranks exchange their values in several blobs. */
static void test_details_follow_a_difference(void **state)
{
    const d9d_hash other = {0};
    job j;

    (void)state;
    job_open(&j);
    j.other = &other;
    j.n = sizeof(other);
    assert_int_equal(agree(&j), D9D_OK); /* this rank is rank 0: compares with itself */
    assert_int_equal(j.gathers, 1 + 2);
    d9d_bootstrap_close(j.bootstrap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_texts_are_sent_in_several_blobs),
        cmocka_unit_test(test_an_empty_text_is_sent_too),
        cmocka_unit_test(test_many_things_of_many_ranks),
        cmocka_unit_test(test_details_follow_a_difference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
