/* plan_start.c - what it costs the ranks of a planned job to find each other. */
#include "plan/plan_private.h"

/* Exchanges of all ranks through the bootstrap, at a job's start and end: tests/multirank/plan.bats
 * counts them. */
enum { EXCHANGES = 27 };

/* Seconds of a PMIx server for a request of a rank, as measured with Open MPI 4; and of a small TCP
 * message between nodes. */
#define REQUEST_S 40e-6
#define MESSAGE_S 50e-6

/* Levels of a binary tree of n. */
static int levels(int64_t n)
{
    int k = 0;

    while (((int64_t)1 << k) < n)
        k++;
    return k;
}

/* The ranks of a node ask its server, which answers one after the other; servers meet first.
 * By TCP a message goes up the tree and down again (comm/bootstrap_tree.h). */
void d9di_plan_set_start(d9d_plan *p)
{
    const int64_t per_node = p->chip->per_node < p->ranks ? p->chip->per_node : p->ranks,
                  nodes = (p->ranks + per_node - 1) / per_node;
    const double fence_s = 2 * levels(nodes) * MESSAGE_S;
    d9d_plan_start *s = &p->start;

    *s = (d9d_plan_start){0};
    if (p->ranks < 2)
        return;
    s->exchanges = EXCHANGES;
    s->tcp = d9d_bootstrap_connects((int)p->ranks);
    s->requests = per_node * (s->tcp ? 1 : p->ranks * EXCHANGES);
    s->messages = s->tcp ? EXCHANGES * 2 * (levels(p->ranks) + 1) : 0;
    s->seconds = (s->tcp ? 1 : EXCHANGES) * fence_s + (double)s->requests * REQUEST_S +
                 (s->tcp ? EXCHANGES * 2 * levels(p->ranks) * MESSAGE_S : 0);
}
