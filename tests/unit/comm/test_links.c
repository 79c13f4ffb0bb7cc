/* test_links.c - byte streams between ranks, which are threads here: both directions at once, ends
 * of connections, and cancelled exchanges. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/bootstrap_private.h"
#include "d9d/comm/links.h"
#include "support/unit.h"

enum { MOST = 6, LARGE = 3000001, SMALL = 7 };

/* --- ranks as threads ------------------------------------------------------------------------- */

typedef struct world world;
typedef struct seat {
    world *w;
    int rank;
    d9d_links *links;
    d9d_status st;
    char message[256];
} seat;

typedef void act(seat *s);

struct world {
    int ranks;
    const int *target;
    pthread_barrier_t met;
    const void *blob[MOST];
    size_t n[MOST];
    seat seats[MOST];
    act *run;
};

/* What a launcher does. */
static d9d_status allgather(void *self, const void *local, size_t n, d9d_arena *a,
                            d9d_bootstrap_blob *all)
{
    const seat *s = self;
    world *w = s->w;

    w->blob[s->rank] = local;
    w->n[s->rank] = n;
    (void)pthread_barrier_wait(&w->met);
    for (int r = 0; r < w->ranks; r++)
        all[r] = (d9d_bootstrap_blob){d9d_arena_strndup(a, w->blob[r], w->n[r]), w->n[r]};
    (void)pthread_barrier_wait(&w->met);
    return D9D_OK;
}

static void keep(seat *s, d9d_status st)
{
    s->st = st;
    (void)snprintf(s->message, sizeof(s->message), "%s", st == D9D_OK ? "" : d9d_err_message());
}

static void *sit(void *arg)
{
    seat *s = arg;
    const d9di_bootstrap_transport by = {allgather, s};
    d9d_bootstrap *b;

    if (d9d_bootstrap_simulate(s->rank, s->w->ranks, &b) != D9D_OK)
        abort();
    d9di_bootstrap_set_transport(b, &by);
    keep(s, d9d_links_open(b, s->w->target, 30, &s->links));
    if (s->st == D9D_OK)
        s->w->run(s);
    (void)pthread_barrier_wait(&s->w->met);
    d9d_links_close(s->links);
    d9d_bootstrap_close(b);
    return NULL;
}

static void world_run(world *w, int ranks, const int *target, act *run)
{
    pthread_t thread[MOST];

    *w = (world){.ranks = ranks, .target = target, .run = run};
    assert_int_equal(pthread_barrier_init(&w->met, NULL, (unsigned)ranks), 0);
    for (int r = 0; r < ranks; r++) {
        w->seats[r] = (seat){.w = w, .rank = r};
        assert_int_equal(pthread_create(&thread[r], NULL, sit, &w->seats[r]), 0);
    }
    for (int r = 0; r < ranks; r++)
        assert_int_equal(pthread_join(thread[r], NULL), 0);
    (void)pthread_barrier_destroy(&w->met);
}

/* --- exchanges -------------------------------------------------------------------------------- */

/* Bytes that a rank sends in a round; larger than what sockets hold, but for one rank. */
static size_t size_of(int rank, int round)
{
    return rank == 1 ? SMALL : (size_t)LARGE + (size_t)(rank * 1000 + round);
}
static unsigned char byte_of(int rank, int round, size_t i)
{
    return (unsigned char)((size_t)rank * 31 + (size_t)round * 7 + i % 251);
}

static d9d_status exchange(seat *s, int round, unsigned char *own, d9d_links_bytes *in)
{
    const int *sources;
    const int n = d9d_links_sources(s->links, &sources);
    d9d_links_bytes sent = {own, size_of(s->rank, round)};

    for (size_t i = 0; i < sent.n; i++)
        own[i] = byte_of(s->rank, round, i);
    for (int i = 0; i < n; i++)
        in[i].n = size_of(sources[i], round);
    D9D_TRY(d9d_links_exchange(s->links, &sent, in));
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < in[i].n; k++)
            if (((unsigned char *)in[i].data)[k] != byte_of(sources[i], round, k))
                return D9D_FAIL(D9D_EVERIFY, "rank %d: byte %zu of rank %d", s->rank, k,
                                sources[i]);
    return D9D_OK;
}

static void exchange_rounds(seat *s)
{
    unsigned char *own = malloc(LARGE + 10000);
    d9d_links_bytes in[MOST];

    for (int i = 0; i < MOST; i++)
        in[i].data = malloc(LARGE + 10000);
    for (int round = 0; round < 3 && s->st == D9D_OK; round++)
        keep(s, exchange(s, round, own, in));
    for (int i = 0; i < MOST; i++)
        free(in[i].data);
    free(own);
}

static void test_exchange(void **state)
{
    static const int ring[] = {1, 2, 3, 4, 0}, uneven[] = {3, 4, 5, 0, 0, 2}, none[] = {0};
    static const struct {
        int ranks;
        const int *target;
    } cases[] = {{5, ring}, {6, uneven}, {1, none}};
    world w;

    (void)state;
    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        world_run(&w, cases[k].ranks, cases[k].target, exchange_rounds);
        for (int r = 0; r < cases[k].ranks; r++)
            assert_string_equal(w.seats[r].message, "");
    }
}

/* --- faults ----------------------------------------------------------------------------------- */

static const int pair[] = {1, 0};

/* Rank 1 goes after half of what it should send. */
static void leave_early(seat *s)
{
    static char bytes[2][SMALL];
    const d9d_links_bytes sent = {bytes[s->rank], s->rank == 1 ? 3 : 0}, in = {bytes[s->rank], 0},
                          wanted = {bytes[0], SMALL};

    if (s->rank == 1) {
        keep(s, d9d_links_exchange(s->links, &sent, &in));
        d9d_links_close(s->links);
        s->links = NULL;
    } else {
        keep(s, d9d_links_exchange(s->links, &sent, &wanted));
    }
}

static void test_end_of_connection(void **state)
{
    world w;

    (void)state;
    world_run(&w, 2, pair, leave_early);
    assert_string_equal(w.seats[1].message, "");
    assert_int_equal(w.seats[0].st, D9D_ECOMM);
    assert_string_equal(w.seats[0].message,
                        "the connection with rank 1 ended, 4 bytes before all had come");
}

static void *cancel(void *arg)
{
    (void)usleep(20000);
    d9d_links_cancel(arg);
    return NULL;
}

/* Both wait for what nobody sends. */
static void wait_cancelled(seat *s)
{
    static char bytes[2][SMALL];
    const d9d_links_bytes sent = {NULL, 0}, in = {bytes[s->rank], SMALL};
    pthread_t thread;

    if (pthread_create(&thread, NULL, cancel, s->links) != 0)
        abort();
    keep(s, d9d_links_exchange(s->links, &sent, &in));
    if (s->st == D9D_ECOMM) /* and so do later ones */
        keep(s, d9d_links_exchange(s->links, &sent, &in));
    (void)pthread_join(thread, NULL);
}

static void test_cancel(void **state)
{
    world w;

    (void)state;
    world_run(&w, 2, pair, wait_cancelled);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(w.seats[r].st, D9D_ECOMM);
        assert_string_equal(w.seats[r].message, "the transfer between ranks was cancelled");
    }
    d9d_links_cancel(NULL);
    d9d_links_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_end_of_connection),
        cmocka_unit_test(test_cancel),
    };

    return cmocka_run_group_tests_name("links", tests, NULL, NULL);
}
