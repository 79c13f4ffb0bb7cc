/* train_rerun_verdict.c - who is to blame for a step that is not repeatable.  See
 * train/train_integrity.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/comm/exchange.h"
#include "train/train_integrity.h"

enum {
    FIRST = D9DI_TRAIN_INTEGRITY_FIRST,
    SECOND = D9DI_TRAIN_INTEGRITY_SECOND,
    THIRD = D9DI_TRAIN_INTEGRITY_THIRD,
    LOSS = D9DI_TRAIN_RERUN_LOSS,
    OWN = D9DI_TRAIN_RERUN_OWN,
    REDUCED = D9DI_TRAIN_RERUN_REDUCED
};

/* --- what a rank says of its runs ------------------------------------------------------------- */

static size_t first_difference(const uint64_t *a, const uint64_t *b, size_t n)
{
    size_t i = 0;

    while (i < n && a[i] == b[i])
        i++;
    return i;
}

unsigned d9di_train_rerun_differences(const d9di_train_integrity *it, const d9di_train_run *run,
                                      int a, int b)
{
    const d9di_train_integrity_capture *x = &it->runs[a], *y = &it->runs[b];
    const size_t n = it->engine->params.n;
    unsigned d = 0;

    if (memcmp(x->losses, y->losses, (size_t)run->n_micro * sizeof(*x->losses)) != 0)
        d |= LOSS;
    if (first_difference(x->own, y->own, n) < n)
        d |= OWN;
    return first_difference(x->reduced, y->reduced, n) < n ? d | REDUCED : d;
}

uint64_t d9di_train_rerun_digest(const d9di_train_integrity *it, const d9di_train_run *run, int i)
{
    const d9di_train_integrity_capture *x = &it->runs[i];
    const uint64_t part[2] = {d9d_hash_u64(x->losses, (size_t)run->n_micro * sizeof(*x->losses)),
                              d9d_hash_u64(x->own, it->engine->params.n * sizeof(*x->own))};

    return d9d_hash_u64(part, sizeof(part));
}

typedef struct statement {
    uint32_t differs, with_first, with_second; /* of runs 1 and 2; 3 and 1; 3 and 2 */
    uint32_t unused;
    uint64_t first, peer, peer_again; /* digests */
    char node[D9DI_INTEGRITY_NODE], where[D9DI_INTEGRITY_NODE], name[D9DI_INTEGRITY_NODE];
} statement;

static statement statement_make(const d9di_train_integrity *it, const d9di_train_run *run)
{
    const d9di_train_integrity_capture *r = it->runs;
    const d9d_params *params = &it->engine->params;
    statement s = {.differs = d9di_train_rerun_differences(it, run, FIRST, SECOND),
                   .with_first = d9di_train_rerun_differences(it, run, THIRD, FIRST),
                   .with_second = d9di_train_rerun_differences(it, run, THIRD, SECOND),
                   .first = d9di_train_rerun_digest(it, run, FIRST),
                   .peer = d9di_train_rerun_digest(it, run, D9DI_TRAIN_INTEGRITY_PEER),
                   .peer_again = d9di_train_rerun_digest(it, run, D9DI_TRAIN_INTEGRITY_PEER_AGAIN)};
    size_t at = first_difference(r[FIRST].own, r[SECOND].own, params->n);

    if (at == params->n)
        at = first_difference(r[FIRST].reduced, r[SECOND].reduced, params->n);
    if (at < params->n)
        (void)d9d_num_format(s.name, sizeof(s.name), "the gradient of %.200s", params->p[at]->name);
    else
        (void)snprintf(s.name, sizeof(s.name), "the loss");
    d9di_integrity_where(it->engine, s.node, s.where);
    return s;
}

static d9d_status gather_statements(const d9di_train_integrity *it, const d9di_train_run *run,
                                    d9d_arena *a, statement **out)
{
    d9d_bootstrap *bootstrap = run->where->bootstrap;
    const int ranks = d9d_bootstrap_size(bootstrap);
    const statement own = statement_make(it, run);
    d9d_bootstrap_blob *blobs;
    d9d_status st = D9D_OK;

    *out = d9d_arena_alloc(a, (size_t)ranks * sizeof(**out));
    if (*out == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "no memory for what %d ranks say", ranks);
    D9D_TRY(d9d_bootstrap_agree_status(bootstrap, st));
    D9D_TRY(d9d_bootstrap_allgather_arena(bootstrap, &own, sizeof(own), a, &blobs));
    for (int r = 0; r < ranks; r++) {
        (*out)[r] = (statement){0};
        if (blobs[r].n == sizeof(**out))
            memcpy(&(*out)[r], blobs[r].data, sizeof(**out));
    }
    return D9D_OK;
}

/* --- sentences -------------------------------------------------------------------------------- */

/* The suspects: ranks with blame[rank] > 0.  A wrong value of one rank reaches others of its
 * pipeline or tensor-parallel group, so several are "one or the other". */
typedef struct suspects {
    const statement *all;
    int ranks;
    int *blame;
} suspects;

static d9d_status format_suspects(const suspects *s, d9d_buf *b)
{
    bool any = false;

    for (int r = 0; r < s->ranks; r++)
        if (s->blame[r] > 0) {
            D9D_TRY(d9d_buf_printf(b, "%srank %d (%s)", any ? " or " : "", r, s->all[r].where));
            any = true;
        }
    return D9D_OK;
}

static int first_suspect(const suspects *s)
{
    int r = 0;

    while (r < s->ranks - 1 && s->blame[r] == 0)
        r++;
    return r;
}

/* Excludes the node of all suspects.  If they are on several it is unknown which is to blame. */
static void exclude_node(const d9di_train_run *run, const suspects *s, const char *sentence)
{
    const char *node = s->all[first_suspect(s)].node;

    for (int r = 0; r < s->ranks; r++)
        if (s->blame[r] > 0 && strcmp(s->all[r].node, node) != 0)
            return;
    d9di_train_integrity_exclude(run, node, sentence);
}

static d9d_status fail_suspects(const d9di_train_integrity *it, const d9di_train_run *run,
                                const suspects *s, d9d_status st, const char *sentence)
{
    if (st == D9D_OK && run->rank == 0)
        exclude_node(run, s, sentence);
    return st == D9D_OK ? d9di_train_integrity_fail(it, run, sentence) : st;
}

/* Gathers, asks `judge`, and fails on all ranks. */
typedef d9d_status judge_fn(const d9di_train_integrity *it, const d9di_train_run *run, suspects *s,
                            int64_t step);

static d9d_status gather_and_judge(const d9di_train_integrity *it, const d9di_train_run *run,
                                   int64_t step, judge_fn *judge)
{
    const int ranks = d9d_bootstrap_size(run->where->bootstrap);
    suspects s = {.ranks = ranks, .blame = calloc((size_t)ranks, sizeof(*s.blame))};
    d9d_arena a = {0};
    statement *all;
    d9d_status st = gather_statements(it, run, &a, &all);

    s.all = all;
    if (st == D9D_OK)
        st = s.blame != NULL ? judge(it, run, &s, step)
                             : D9D_FAIL(D9D_ENOMEM, "no memory for what %d ranks say", ranks);
    free(s.blame);
    d9d_arena_release(&a);
    return d9d_bootstrap_agree_status(run->where->bootstrap, st);
}

/* --- repetitions on the same rank ------------------------------------------------------------- */

static const char *third_run(const statement *s)
{
    if (s->with_first == 0)
        return "the second was wrong, says a third";
    return s->with_second == 0 ? "the first was wrong, says a third" : "a third gave another one";
}

static d9d_status judge_repetitions(const d9di_train_integrity *it, const d9di_train_run *run,
                                    suspects *s, int64_t step)
{
    unsigned any = 0, what;
    const statement *first;
    d9d_buf b = {0};
    d9d_status st;

    for (int r = 0; r < s->ranks; r++)
        any |= s->all[r].differs;
    what = (any & (LOSS | OWN)) != 0 ? LOSS | OWN : REDUCED;
    for (int r = 0; r < s->ranks; r++)
        s->blame[r] = (s->all[r].differs & what) != 0;
    first = &s->all[first_suspect(s)];
    D9D_TRY_OR(st, d9d_buf_printf(&b, "step %lld: ", (long long)step), out);
    D9D_TRY_OR(st, format_suspects(s, &b), out);
    D9D_TRY_OR(
        st,
        d9d_buf_printf(&b, ": %s was another one when computed again%s (%s); nothing was updated",
                       first->name, what == REDUCED ? ", though every rank's own was the same" : "",
                       third_run(first)),
        out);
    st = fail_suspects(it, run, s, st, b.data);
out:
    d9d_buf_release(&b);
    return st;
}

d9d_status d9di_train_rerun_fail(const d9di_train_integrity *it, const d9di_train_run *run,
                                 int64_t step)
{
    return gather_and_judge(it, run, step, judge_repetitions);
}

/* --- repetitions on another rank -------------------------------------------------------------- */

/* The rank whose samples `rank` computes too: its data-parallel index is the next one. */
static int peer_of(const d9d_parallel_degrees *d, int ranks, int rank)
{
    const unsigned others = D9D_AXES_WORLD & ~D9D_AXES_DP;
    const int dp = (int)(d->data_parallel_replicate * d->data_parallel_shard);
    const int index = (d9d_parallel_degrees_index(d, D9D_AXES_DP, rank) + 1) % dp;

    for (int r = 0; r < ranks; r++)
        if (d9d_parallel_degrees_index(d, D9D_AXES_DP, r) == index &&
            d9d_parallel_degrees_index(d, others, r) == d9d_parallel_degrees_index(d, others, rank))
            return r;
    return rank;
}

/* A pair that disagrees blames both.  If the peer's repetition agrees the second time, it was wrong
 * the first time.  The ranks that are blamed most are suspects. */
static void blame_pairs(suspects *s, const d9d_parallel_degrees *d)
{
    int most = 0;

    for (int r = 0; r < s->ranks; r++) {
        const int peer = peer_of(d, s->ranks, r);

        if (s->all[r].peer == s->all[peer].first)
            continue;
        s->blame[r]++;
        if (s->all[r].peer_again == s->all[peer].first)
            s->blame[r]++;
        else
            s->blame[peer]++;
    }
    for (int r = 0; r < s->ranks; r++)
        most = s->blame[r] > most ? s->blame[r] : most;
    for (int r = 0; r < s->ranks; r++)
        s->blame[r] = s->blame[r] == most;
}

static d9d_status judge_pairs(const d9di_train_integrity *it, const d9di_train_run *run,
                              suspects *s, int64_t step)
{
    d9d_buf b = {0};
    d9d_status st;

    blame_pairs(s, &run->c->mesh);
    D9D_TRY_OR(st, d9d_buf_printf(&b, "step %lld: ", (long long)step), out);
    D9D_TRY_OR(st, format_suspects(s, &b), out);
    D9D_TRY_OR(st,
               d9d_buf_printf(&b, ": another rank computes other losses or gradients from the same "
                                  "weights and samples; nothing was updated"),
               out);
    st = fail_suspects(it, run, s, st, b.data);
out:
    d9d_buf_release(&b);
    return st;
}

d9d_status d9di_train_rerun_fail_peer(const d9di_train_integrity *it, const d9di_train_run *run,
                                      int64_t step)
{
    return gather_and_judge(it, run, step, judge_pairs);
}
