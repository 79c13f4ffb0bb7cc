/* bootstrap_driver.c - launched by tests/multirank/bootstrap.bats:
 * `bootstrap_driver WORD [RANK]`.
 *
 *     gather    100 gathers of growing messages, each checked by every rank; prints its rank
 *     agree     RANK fails; every rank prints what was agreed on
 *     die       RANK is killed before it meets the others
 *     abort     RANK aborts the job with status 3
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/comm/bootstrap.h"

/* Message of a rank in a round: a length and bytes that tell both. */
static size_t message(int rank, int round, unsigned char *out)
{
    size_t n = (size_t)((rank * 37 + round * 11) % 300);

    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)(rank * 7 + round + (int)i);
    return n;
}

static d9d_status gather_round(d9d_bootstrap *b, int round, d9d_bootstrap_blob *all)
{
    unsigned char local[300], want[300];
    d9d_arena a = {0};
    d9d_status st =
        d9d_bootstrap_allgather(b, local, message(d9d_bootstrap_rank(b), round, local), &a, all);

    for (int r = 0; st == D9D_OK && r < d9d_bootstrap_size(b); r++) {
        size_t n = message(r, round, want);

        if (all[r].n != n || memcmp(all[r].data, want, n) != 0)
            st = D9D_FAIL(D9D_ECOMM, "round %d: rank %d gave other bytes", round, r);
    }
    d9d_arena_release(&a);
    return st;
}

static d9d_status gather(d9d_bootstrap *b, int who)
{
    d9d_bootstrap_blob *all = calloc((size_t)d9d_bootstrap_size(b), sizeof(*all));
    d9d_status st = all == NULL ? D9D_ENOMEM : D9D_OK;

    (void)who;
    for (int round = 0; st == D9D_OK && round < 100; round++)
        st = gather_round(b, round, all);
    free(all);
    return st;
}

static d9d_status agree(d9d_bootstrap *b, int who)
{
    d9d_status st = D9D_OK;

    if (d9d_bootstrap_rank(b) >= who) /* the first failure is reported */
        st = D9D_FAIL(D9D_ENOTFOUND, "no file %d", d9d_bootstrap_rank(b));
    return d9d_bootstrap_agree_status(b, st);
}

static d9d_status die(d9d_bootstrap *b, int who)
{
    if (d9d_bootstrap_rank(b) == who)
        (void)raise(SIGKILL);
    return d9d_bootstrap_agree_status(b, D9D_OK);
}

static d9d_status abort_all(d9d_bootstrap *b, int who)
{
    if (d9d_bootstrap_rank(b) == who)
        d9d_bootstrap_abort(b, 3, "the test says so");
    (void)sleep(120);
    return D9D_FAIL(D9D_ETIMEOUT, "still there after 120 s");
}

/* All ranks have printed: a launcher ends all when the first exits with a failure. */
static void meet(d9d_bootstrap *b)
{
    (void)fflush(stdout);
    (void)!d9d_bootstrap_agree_status(b, D9D_OK);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *word;
        d9d_status (*run)(d9d_bootstrap *b, int who);
    } acts[] = {{"gather", gather}, {"agree", agree}, {"die", die}, {"abort", abort_all}};
    int who = argc > 2 ? atoi(argv[2]) : 0;
    d9d_status st = D9D_EINVAL;
    d9d_bootstrap *b;

    if (d9d_bootstrap_open(&b) != D9D_OK) {
        fprintf(stderr, "%s\n", d9d_err_message());
        return 2;
    }
    for (size_t i = 0; argc > 1 && i < sizeof(acts) / sizeof(acts[0]); i++)
        if (strcmp(argv[1], acts[i].word) == 0)
            st = acts[i].run(b, who);
    printf("%d of %d on %s: %s\n", d9d_bootstrap_rank(b), d9d_bootstrap_size(b),
           d9d_bootstrap_node(b), st == D9D_OK ? "well" : d9d_err_message());
    if (argc > 1 && strcmp(argv[1], "agree") == 0)
        meet(b);
    d9d_bootstrap_close(b);
    return d9d_status_exit_code(st);
}
