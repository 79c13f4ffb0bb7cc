/* test_bootstrap_tree.c - exchanges over a tree of connections, and how it is connected. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/bootstrap_hello.h"
#include "support/unit.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LARGE = 256 };
#else
enum { LARGE = 4096 };
#endif

/* --- ranks as threads ------------------------------------------------------------------------- */

struct world;
typedef d9d_status (*act)(struct world *w, int rank);

struct world {
    int size;
    act run;
    d9di_bootstrap_tree **tree; /* [size] */
    d9d_status *st;             /* [size] */
    char (*message)[256];
    void *arg;
};

struct seat {
    struct world *w;
    int rank;
};

static void *sit(void *arg)
{
    struct seat *s = arg;

    s->w->st[s->rank] = s->w->run(s->w, s->rank);
    (void)snprintf(s->w->message[s->rank], sizeof(s->w->message[0]), "%s",
                   s->w->st[s->rank] == D9D_OK ? "" : d9d_err_message());
    return NULL;
}

static void world_open(struct world *w, int size, void *arg)
{
    *w = (struct world){.size = size, .arg = arg};
    w->tree = calloc((size_t)size, sizeof(*w->tree));
    w->st = calloc((size_t)size, sizeof(*w->st));
    w->message = calloc((size_t)size, sizeof(*w->message));
    assert_true(w->tree != NULL && w->st != NULL && w->message != NULL);
}

static void world_close(struct world *w)
{
    for (int r = 0; r < w->size; r++)
        d9di_bootstrap_tree_free(w->tree[r]);
    free(w->tree);
    free(w->st);
    free(w->message);
}

/* All ranks do it at once. */
static void world_run(struct world *w, act run)
{
    pthread_t *thread = calloc((size_t)w->size, sizeof(*thread));
    struct seat *seat = calloc((size_t)w->size, sizeof(*seat));
    pthread_attr_t attr;

    assert_true(thread != NULL && seat != NULL);
    w->run = run;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, 256 << 10), 0);
    for (int r = 0; r < w->size; r++) {
        seat[r] = (struct seat){w, r};
        assert_int_equal(pthread_create(&thread[r], &attr, sit, &seat[r]), 0);
    }
    for (int r = 0; r < w->size; r++)
        assert_int_equal(pthread_join(thread[r], NULL), 0);
    (void)pthread_attr_destroy(&attr);
    free(thread);
    free(seat);
}

static void expect_all(const struct world *w, d9d_status want)
{
    for (int r = 0; r < w->size; r++)
        if (w->st[r] != want)
            fail_msg("rank %d of %d: %s: %s", r, w->size, d9d_status_name(w->st[r]), w->message[r]);
}

/* Connected by socket pairs. */
static void world_connect(struct world *w)
{
    for (int r = 0; r < w->size; r++)
        assert_int_equal(d9di_bootstrap_tree_create(r, w->size, &w->tree[r]), D9D_OK);
    for (int r = 1; r < w->size; r++) {
        const int parent = d9di_bootstrap_tree_parent(r);
        int end[2];

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, end), 0);
        d9di_bootstrap_tree_attach(w->tree[r], parent, "above", end[0]);
        d9di_bootstrap_tree_attach(w->tree[parent], r, "below", end[1]);
    }
}

/* --- shape ------------------------------------------------------------------------------------ */

static void test_shape(void **state)
{
    (void)state;
    for (int size = 1; size < 300; size += size < 70 ? 1 : 37) {
        int *parents = calloc((size_t)size, sizeof(*parents));

        assert_non_null(parents);
        for (int r = 0; r < size; r++)
            for (int i = 0, child; (child = d9di_bootstrap_tree_child(r, size, i)) >= 0; i++) {
                assert_true(child > r && child < size);
                assert_int_equal(d9di_bootstrap_tree_parent(child), r);
                parents[child]++;
            }
        assert_int_equal(parents[0], 0);
        for (int r = 1; r < size; r++)
            assert_int_equal(parents[r], 1);
        free(parents);
    }
    assert_int_equal(d9di_bootstrap_tree_parent(0), -1);
    assert_int_equal(d9di_bootstrap_tree_child(0, 1 << 30, 29), 1 << 29);
    assert_int_equal(d9di_bootstrap_tree_child(0, 1 << 30, 30), -1);
}

/* --- exchanges -------------------------------------------------------------------------------- */

enum { ROUNDS = 4, MOST = 70 };

/* A length from 0 and bytes, which tell rank and round. */
static size_t make_message(int rank, int round, unsigned char *out)
{
    const size_t n = (size_t)((rank * 37 + round * 11) % MOST);

    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)(rank * 7 + round + (int)i);
    return n;
}

static d9d_status gather_rounds(struct world *w, int rank)
{
    d9d_bootstrap_blob *all = calloc((size_t)w->size, sizeof(*all));
    unsigned char local[MOST], want[MOST];
    d9d_status st = all == NULL ? D9D_ENOMEM : D9D_OK;

    for (int round = 0; st == D9D_OK && round < ROUNDS; round++) {
        const size_t n = make_message(rank, round, local);
        d9d_arena a = {0};

        st = d9di_bootstrap_tree_allgather(w->tree[rank], 0, local, n, &a, all);
        for (int r = 0; st == D9D_OK && r < w->size; r++) {
            const size_t m = make_message(r, round, want);

            if (all[r].n != m || memcmp(all[r].data, want, m) != 0 ||
                ((const char *)all[r].data)[m] != '\0')
                st = D9D_FAIL(D9D_ECOMM, "round %d: other bytes of rank %d", round, r);
        }
        d9d_arena_release(&a);
    }
    free(all);
    return st;
}

/* Round by round other ranks have something to say. */
static d9d_status first_rounds(struct world *w, int rank)
{
    d9d_status st = D9D_OK;

    for (int from = 0; st == D9D_OK && from <= w->size; from += 1 + w->size / 9) {
        char text[32], want[32];
        d9d_bootstrap_blob got = {0};
        d9d_arena a = {0};
        int who = -2;

        (void)snprintf(text, sizeof(text), "rank %d fails", rank);
        (void)snprintf(want, sizeof(want), "rank %d fails", from);
        st = d9di_bootstrap_tree_first(w->tree[rank], 0, text, rank >= from ? strlen(text) : 0, &a,
                                       &who, &got);
        if (st == D9D_OK &&
            (from < w->size ? who != from || got.n != strlen(want) || strcmp(got.data, want) != 0
                            : who != -1 || got.n != 0))
            st = D9D_FAIL(D9D_ECOMM, "from %d: rank %d spoke", from, who);
        d9d_arena_release(&a);
    }
    return st;
}

static void test_exchanges(void **state)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 31, 33};
    struct world w;

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        world_open(&w, sizes[i], NULL);
        world_connect(&w);
        world_run(&w, gather_rounds);
        expect_all(&w, D9D_OK);
        world_run(&w, first_rounds);
        expect_all(&w, D9D_OK);
        world_close(&w);
    }
}

static d9d_status agree_once(struct world *w, int rank)
{
    d9d_bootstrap_blob got;
    d9d_arena a = {0};
    int who;
    const d9d_status st = d9di_bootstrap_tree_first(w->tree[rank], 0, NULL, 0, &a, &who, &got);

    d9d_arena_release(&a);
    return st;
}

/* A rank sends and receives a message a link, of which the root has log2(size). */
static void test_traffic_grows_with_the_logarithm(void **state)
{
    struct rlimit files;
    struct world w;
    int size = unit_is_wrapped() ? 256 : LARGE; /* valgrind has few threads */

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    while (2 * (rlim_t)size + 64 > files.rlim_cur)
        size /= 2;
    world_open(&w, size, NULL);
    world_connect(&w);
    world_run(&w, agree_once);
    expect_all(&w, D9D_OK);
    for (int r = 0; r < size; r++) {
        const d9di_bootstrap_traffic t = d9di_bootstrap_tree_traffic(w.tree[r]);
        uint64_t links = r > 0, bound = 1;

        for (int i = 0; d9di_bootstrap_tree_child(r, size, i) >= 0; i++)
            links++;
        while ((1 << bound) < size)
            bound++;
        assert_true(links <= bound + 1);
        assert_int_equal(t.sent, links);
        assert_int_equal(t.received, links);
        assert_int_equal(t.sent_bytes, links * 8);
    }
    world_close(&w);
}

/* --- ranks that end or stand still --------------------------------------------------------------
 */

static void test_a_rank_that_ends(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, 8, NULL);
    world_connect(&w);
    d9di_bootstrap_tree_free(w.tree[5]); /* as the end of its process would */
    w.tree[5] = NULL;
    assert_int_equal(agree_once(&w, 4), D9D_ECOMM);
    assert_string_equal(d9d_err_message(), "bootstrap: rank 4 has lost its connection to rank 5 "
                                           "(below), which may have ended");
    world_close(&w);
}

static d9d_status wait_shortly(struct world *w, int rank)
{
    d9d_bootstrap_blob got;
    d9d_arena a = {0};
    int who;
    d9d_status st;

    if (rank == 6)
        return D9D_OK; /* never comes */
    st = d9di_bootstrap_tree_first(w->tree[rank], 1, NULL, 0, &a, &who, &got);
    d9d_arena_release(&a);
    return st;
}

static void test_a_rank_that_stands_still(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, 8, NULL);
    world_connect(&w);
    world_run(&w, wait_shortly);
    for (int r = 0; r < 8; r++)
        assert_int_equal(w.st[r], r == 6 ? D9D_OK : D9D_ECOMM);
    assert_string_equal(w.message[4],
                        "bootstrap: rank 4 waits since 1 s for rank 6 (below), or one behind it, "
                        "which has not come so far or stands still");
    world_close(&w);
}

/* --- from a launcher to a tree ------------------------------------------------------------------
 */

/* A launcher whose server is this process. */
struct launcher {
    pthread_barrier_t all;
    int size, broken, strangers; /* broken: a rank whose address is wrong; -1: none */
    int *published, *got;        /* [size] */
    d9di_bootstrap_invitation *sent;
};

struct task {
    struct launcher *l;
    int rank;
};

/* Whoever listens meets another program first: one that is silent, and one that talks. */
static void visit(uint16_t port, bool talks)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char words[200];

    memset(words, 'x', sizeof(words));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (const struct sockaddr *)&to, sizeof(to)) == 0 && talks)
        (void)!send(fd, words, sizeof(words), MSG_NOSIGNAL);
    if (talks)
        (void)close(fd); /* the silent one stays until the process ends */
}

static d9d_status publish(void *self, double timeout_s, const void *local, size_t n)
{
    struct task *t = self;
    d9di_bootstrap_invitation *sent = &t->l->sent[t->rank];
    d9di_bootstrap_address *to = &sent->address;

    (void)timeout_s;
    if (n != sizeof(*sent))
        return D9D_FAIL(D9D_EINVAL, "%zu bytes", n);
    memcpy(sent, local, n);
    if (t->l->broken == t->rank)
        to->token[0] ^= 1;
    t->l->published[t->rank]++;
    for (int i = 0; i < t->l->strangers && to->port != 0; i++)
        visit(to->port, i % 2 == 1);
    (void)pthread_barrier_wait(&t->l->all);
    return D9D_OK;
}

static d9d_status get(void *self, int rank, d9d_arena *a, d9d_bootstrap_blob *out)
{
    struct task *t = self;

    t->l->got[t->rank]++;
    *out = (d9d_bootstrap_blob){
        d9d_arena_strndup(a, (const char *)&t->l->sent[rank], sizeof(t->l->sent[rank])),
        sizeof(t->l->sent[rank])};
    return out->data != NULL ? D9D_OK : D9D_ENOMEM;
}

static d9d_status join(struct world *w, int rank)
{
    struct launcher *l = w->arg;
    struct task t = {l, rank};
    const d9di_bootstrap_backend b = {.self = &t,
                                      .rank = rank,
                                      .size = l->size,
                                      .one_node = rank % 2 == 0,
                                      .node = "here",
                                      .timeout_s = l->broken >= 0 ? 1 : 0,
                                      .publish = publish,
                                      .get = get};
    d9di_bootstrap_meeting m;
    const d9d_status st = d9di_bootstrap_meet(&b, &m);

    w->tree[rank] = m.tree;
    return st == D9D_OK ? m.unconnected : st;
}

static void launcher_run(struct world *w, struct launcher *l, int size)
{
    l->size = size;
    l->published = calloc((size_t)size, sizeof(int));
    l->got = calloc((size_t)size, sizeof(int));
    l->sent = calloc((size_t)size, sizeof(*l->sent));
    assert_int_equal(pthread_barrier_init(&l->all, NULL, (unsigned)size), 0);
    world_open(w, size, l);
    world_run(w, join);
}

static void launcher_free(struct launcher *l)
{
    (void)pthread_barrier_destroy(&l->all);
    free(l->published);
    free(l->got);
    free(l->sent);
}

static void test_connects_by_one_message_of_the_launcher(void **state)
{
    static const int sizes[] = {2, 3, 8, 23};
    struct world w;

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        struct launcher l = {.broken = -1};

        launcher_run(&w, &l, sizes[i]);
        expect_all(&w, D9D_OK);
        for (int r = 0; r < sizes[i]; r++) {
            assert_int_equal(l.published[r], 1);
            assert_int_equal(l.got[r], r > 0);
        }
        world_run(&w, gather_rounds);
        expect_all(&w, D9D_OK);
        world_close(&w);
        launcher_free(&l);
    }
}

static void test_turns_strangers_away(void **state)
{
    struct launcher l = {.broken = -1, .strangers = 5};
    struct world w;

    (void)state;
    launcher_run(&w, &l, 6);
    expect_all(&w, D9D_OK);
    world_run(&w, gather_rounds);
    expect_all(&w, D9D_OK);
    world_close(&w);
    launcher_free(&l);
}

/* Then no rank is connected, and every rank knows. */
static void test_one_rank_that_cannot_be_reached(void **state)
{
    struct launcher l = {.broken = 4};
    struct world w;

    (void)state;
    launcher_run(&w, &l, 7);
    expect_all(&w, D9D_ECOMM);
    for (int r = 0; r < 7; r++)
        assert_null(w.tree[r]);
    assert_non_null(strstr(w.message[5], "rank 5 cannot reach port"));
    world_close(&w);
    launcher_free(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shape),
        cmocka_unit_test(test_exchanges),
        cmocka_unit_test(test_traffic_grows_with_the_logarithm),
        cmocka_unit_test(test_a_rank_that_ends),
        cmocka_unit_test(test_a_rank_that_stands_still),
        cmocka_unit_test(test_connects_by_one_message_of_the_launcher),
        cmocka_unit_test(test_turns_strangers_away),
        cmocka_unit_test(test_one_rank_that_cannot_be_reached),
    };

    (void)setenv("D9D_BOOTSTRAP", "tcp", 1); /* however few */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
