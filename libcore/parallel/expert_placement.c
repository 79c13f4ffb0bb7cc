/* expert_placement.c - see d9d/parallel/expert_placement.h. */
#include "d9d/parallel/expert_placement.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/op/op.h"

/* Share of holder i of n: the lanes that are i modulo n. */
static double lane_share(int i, int n)
{
    return (double)((D9D_EXPERT_LANES - i + n - 1) / n) / D9D_EXPERT_LANES;
}

static int owner_of(const d9d_expert_placement *p, int64_t expert)
{
    return (int)(expert / (p->experts / p->ranks));
}

/* The slot of an expert on a rank, or -1. */
static int64_t slot_find(const d9d_expert_placement *p, int rank, int64_t expert)
{
    for (int64_t i = rank * p->slots; i < (rank + 1) * p->slots; i++)
        if (p->expert[i] == expert)
            return i;
    return -1;
}

/* The holders of an expert, in the order in which lanes choose them; their number. */
static int holders_list(const d9d_expert_placement *p, int64_t expert, int *rank)
{
    int n = 0;

    rank[n++] = owner_of(p, expert);
    for (int r = 0; r < p->ranks && n < D9D_EXPERT_LANES; r++)
        if (slot_find(p, r, expert) >= 0)
            rank[n++] = r;
    return n;
}

/* Adds an expert's load to its holders'. */
static void expert_add(const d9d_expert_placement *p, int64_t expert, double load, double *rank)
{
    int of[D9D_EXPERT_LANES];
    const int n = holders_list(p, expert, of);

    for (int i = 0; i < n; i++)
        rank[of[i]] += load * lane_share(i, n);
}

void d9d_expert_placement_loads(const d9d_expert_placement *p, const double *load, double *rank)
{
    memset(rank, 0, (size_t)p->ranks * sizeof(*rank));
    for (int64_t e = 0; e < p->experts; e++)
        expert_add(p, e, load[e], rank);
}

double d9d_expert_placement_imbalance(const d9d_expert_placement *p, const double *load)
{
    double *rank = malloc((size_t)p->ranks * sizeof(*rank));
    double sum = 0, most = 0;

    if (rank == NULL)
        return NAN;
    d9d_expert_placement_loads(p, load, rank);
    for (int r = 0; r < p->ranks; r++) {
        sum += rank[r];
        most = rank[r] > most ? rank[r] : most;
    }
    free(rank);
    return sum > 0 ? most * p->ranks / sum : 1;
}

int64_t d9d_expert_placement_copies(const d9d_expert_placement *p)
{
    int64_t n = 0;

    for (int64_t i = 0; i < p->ranks * p->slots; i++)
        n += p->expert[i] >= 0;
    return n;
}

/* --- choosing ------------------------------------------------------------------------------ */

typedef struct chooser {
    d9d_expert_placement *p;
    const double *load;
    double *rank;  /* [ranks] loads with the copies so far */
    int *holders;  /* [E] */
    bool *full;    /* [E]: no rank can take a copy */
    int64_t *slot; /* [ranks slots] of the copies, in the order in which they were made */
    int64_t n;
} chooser;

/* The expert with the largest load per holder that may have another, or -1. */
static int64_t hottest(const chooser *c)
{
    double most = 0;
    int64_t best = -1;

    for (int64_t e = 0; e < c->p->experts; e++) {
        const double each = c->full[e] ? 0 : c->load[e] / c->holders[e];

        if (each > most) {
            most = each;
            best = e;
        }
    }
    return best;
}

/* The rank with the least load that may take a copy, or -1. */
static int coolest(const chooser *c, int64_t expert)
{
    int best = -1;

    for (int r = 0; r < c->p->ranks && c->holders[expert] < D9D_EXPERT_LANES; r++)
        if (r != owner_of(c->p, expert) && slot_find(c->p, r, expert) < 0 &&
            slot_find(c->p, r, -1) >= 0 && (best < 0 || c->rank[r] < c->rank[best]))
            best = r;
    return best;
}

static double largest(const chooser *c)
{
    double most = 0;

    for (int r = 0; r < c->p->ranks; r++)
        most = c->rank[r] > most ? c->rank[r] : most;
    return most;
}

static void copy_make(chooser *c, int64_t expert, int rank)
{
    d9d_expert_placement *p = c->p;
    const int64_t slot = slot_find(p, rank, -1);

    expert_add(p, expert, -c->load[expert], c->rank);
    p->expert[slot] = (int32_t)expert;
    expert_add(p, expert, c->load[expert], c->rank);
    c->holders[expert]++;
    c->slot[c->n++] = slot;
}

/* Makes all copies that slots allow, and takes back those after the best moment. */
static void copies_make(chooser *c)
{
    double best = largest(c);
    int64_t e, keep = 0;

    while ((e = hottest(c)) >= 0) {
        const int r = coolest(c, e);

        c->full[e] = r < 0;
        if (r < 0)
            continue;
        copy_make(c, e, r);
        if (largest(c) < best * (1 - 1e-9)) {
            best = largest(c);
            keep = c->n;
        }
    }
    while (c->n > keep)
        c->p->expert[c->slot[--c->n]] = -1;
}

/* -1 comes last. */
static int compare_slots(const void *a, const void *b)
{
    const uint32_t x = (uint32_t)(*(const int32_t *)a), y = (uint32_t)(*(const int32_t *)b);

    return x < y ? -1 : x > y;
}

d9d_status d9d_expert_placement_choose(d9d_expert_placement *p, const double *load)
{
    const size_t slots = (size_t)(p->ranks * p->slots), experts = (size_t)p->experts;
    chooser c = {.p = p,
                 .load = load,
                 .rank = malloc((size_t)p->ranks * sizeof(*c.rank)),
                 .holders = malloc(experts * sizeof(*c.holders)),
                 .full = calloc(experts, sizeof(*c.full)),
                 .slot = malloc(slots * sizeof(*c.slot))};
    const bool well = c.rank != NULL && c.holders != NULL && c.full != NULL && c.slot != NULL;

    if (well) {
        memset(p->expert, -1, slots * sizeof(*p->expert));
        for (size_t e = 0; e < experts; e++)
            c.holders[e] = 1;
        d9d_expert_placement_loads(p, load, c.rank);
        copies_make(&c);
        for (int r = 0; r < p->ranks; r++)
            qsort(p->expert + r * p->slots, (size_t)p->slots, sizeof(*p->expert), compare_slots);
    }
    free(c.rank);
    free(c.holders);
    free(c.full);
    free(c.slot);
    return well ? D9D_OK
                : D9D_FAIL(D9D_ENOMEM, "copies of experts: no memory for the loads of %d ranks",
                           p->ranks);
}
