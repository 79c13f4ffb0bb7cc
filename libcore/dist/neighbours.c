/* neighbours.c - see dist/neighbours.h. */
#include <stdlib.h>
#include <string.h>

#include "dist/neighbours.h"

struct neighbour {
    int rank;
    int64_t pid, started;
};

struct d9di_neighbours {
    const char *dir;
    int64_t job;
    int n;
    struct neighbour list[];
};

/* Hosts may have one name and, as containers, processes of their own: only who is seen now can be
 * missed later. */
static bool is_here(const d9di_presence *x, const d9di_presence *self)
{
    return strcmp(x->host, self->host) == 0 && x->started != 0 &&
           !d9di_process_gone(x->pid, x->started, NULL);
}

d9d_status d9di_neighbours_open(const d9di_presence *all, int size, int self, const char *dir,
                                int64_t job, d9di_neighbours **out)
{
    d9di_neighbours *n = malloc(sizeof(*n) + (size_t)size * sizeof(*n->list));

    *out = NULL;
    if (n == NULL)
        return D9D_FAIL(D9D_ENOMEM, "mesh: no memory for %d ranks", size);
    *n = (d9di_neighbours){.dir = dir, .job = job};
    for (int r = 0; r < size; r++)
        if (r != self && is_here(&all[r], &all[self]))
            n->list[n->n++] = (struct neighbour){r, all[r].pid, all[r].started};
    if (n->n > 0)
        *out = n;
    else
        free(n);
    return D9D_OK;
}

void d9di_neighbours_close(d9di_neighbours *n)
{
    free(n);
}

d9di_trouble d9di_neighbours_look(const d9di_neighbours *n)
{
    d9di_trouble t = {0};
    char state;

    for (int i = 0; i < n->n; i++)
        if (!d9di_process_gone(n->list[i].pid, n->list[i].started, &state))
            t.stopped |= state == 'T';
        else if (d9di_ring_is(n->dir, n->list[i].rank, n->job, D9DI_FLIGHT_RUNS))
            t.died = true;
    return t;
}
