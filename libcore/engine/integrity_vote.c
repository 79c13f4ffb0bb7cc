/* integrity_vote.c - whose checksums differ from those of the other replicas.  See
 * engine/integrity.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/integrity.h"

/* A rank's checksum of an array. */
typedef struct ballot {
    uint64_t key, sum;
    int rank;
    size_t at; /* in the rank's list */
} ballot;

static int by_key_and_sum(const void *a, const void *b)
{
    const ballot *x = a, *y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    if (x->sum != y->sum)
        return x->sum < y->sum ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* What is found of a rank. */
typedef struct finding {
    size_t minorities, ties; /* arrays */
    size_t first_minority, first_tie;
    int copies, others; /* of the first minority, or else the first tie */
} finding;

static ballot *ballots_collect(const d9di_integrity_rank *ranks, int n_ranks, size_t *n)
{
    size_t at = 0;
    ballot *all;

    *n = 0;
    for (int r = 0; r < n_ranks; r++)
        *n += ranks[r].n;
    all = calloc(*n + 1, sizeof(*all));
    for (int r = 0; all != NULL && r < n_ranks; r++)
        for (size_t i = 0; i < ranks[r].n; i++)
            all[at++] = (ballot){ranks[r].entries[i].key, ranks[r].entries[i].sum, r, i};
    if (all != NULL)
        qsort(all, *n, sizeof(*all), by_key_and_sum);
    return all;
}

static size_t run_end(const ballot *b, size_t n, size_t i, bool same_sum)
{
    const size_t first = i;

    while (i < n && b[i].key == b[first].key && (!same_sum || b[i].sum == b[first].sum))
        i++;
    return i;
}

static void note(finding *f, const ballot *b, bool tied, int copies, int others)
{
    size_t *count = tied ? &f->ties : &f->minorities;
    size_t *first = tied ? &f->first_tie : &f->first_minority;

    if (*count == 0 || b->at < *first) {
        *first = b->at;
        if (!tied || f->minorities == 0) {
            f->copies = copies;
            f->others = others;
        }
    }
    (*count)++;
}

/* The vote on one array, whose ballots are b [n]. */
static void count_votes(const ballot *b, size_t n, finding *findings)
{
    size_t most = 0, winners = 0;

    for (size_t i = 0, end; i < n; i = end) {
        end = run_end(b, n, i, true);
        winners = end - i > most ? 1 : winners + (end - i == most);
        most = end - i > most ? end - i : most;
    }
    if (most == n)
        return;
    for (size_t i = 0, end; i < n; i = end) {
        end = run_end(b, n, i, true);
        for (size_t k = i; k < end; k++)
            if (winners > 1 || end - i < most)
                note(&findings[b[k].rank], &b[k], winners > 1, (int)n, (int)most);
    }
}

static void add_suspect(d9di_integrity_verdict *v, const d9di_integrity_rank *r, int rank,
                        const finding *f)
{
    const size_t i = v->n_ranks;

    if (i == D9DI_INTEGRITY_RANKS)
        return;
    v->rank[i] = rank;
    (void)snprintf(v->node[i], sizeof(v->node[i]), "%s", r->node);
    (void)snprintf(v->where[i], sizeof(v->where[i]), "%s", r->where);
    if (v->n_ranks++ > 0)
        return;
    (void)snprintf(v->name, sizeof(v->name), "%s",
                   r->entries[v->tied ? f->first_tie : f->first_minority].name);
    v->n_arrays = v->tied ? f->ties : f->minorities;
    v->copies = f->copies;
    v->others = f->others;
}

d9d_status d9di_integrity_vote(const d9di_integrity_rank *ranks, int n_ranks,
                               d9di_integrity_verdict *out)
{
    size_t n;
    ballot *all = ballots_collect(ranks, n_ranks, &n);
    finding *findings = calloc((size_t)n_ranks + 1, sizeof(*findings));
    d9d_status st = D9D_OK;

    *out = (d9di_integrity_verdict){.tied = true};
    if (all == NULL || findings == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "no memory for the checksums of %d ranks", n_ranks);
        goto out;
    }
    for (size_t i = 0, end; i < n; i = end) {
        end = run_end(all, n, i, false);
        count_votes(all + i, end - i, findings);
    }
    for (int r = 0; r < n_ranks; r++)
        out->tied = out->tied && findings[r].minorities == 0;
    for (int r = 0; r < n_ranks; r++)
        if ((out->tied ? findings[r].ties : findings[r].minorities) > 0)
            add_suspect(out, &ranks[r], r, &findings[r]);
out:
    free(findings);
    free(all);
    return st;
}
