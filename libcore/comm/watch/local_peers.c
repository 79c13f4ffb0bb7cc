/* local_peers.c - see comm/watch/local_peers.h. */
#include <stdlib.h>
#include <string.h>

#include "comm/watch/local_peers.h"

struct neighbour {
    int rank;
    int64_t pid, started;
    const d9di_ring *ring; /* NULL: cannot be seen */
    bool salvaged;
};

struct d9di_neighbours {
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

d9d_status d9di_neighbours_open(const d9di_whereabouts *all, int size, int self,
                                d9di_neighbours **out)
{
    d9di_neighbours *n = malloc(sizeof(*n) + (size_t)size * sizeof(*n->list));

    *out = NULL;
    if (n == NULL)
        return D9D_FAIL(D9D_ENOMEM, "mesh: no memory for %d ranks", size);
    *n = (d9di_neighbours){.n = 0};
    for (int r = 0; r < size; r++)
        if (r != self && is_here(&all[r].self, &all[self].self))
            n->list[n->n++] = (struct neighbour){.rank = r,
                                                 .pid = all[r].self.pid,
                                                 .started = all[r].self.started,
                                                 .ring = d9di_ring_attach(all[r].memory)};
    if (n->n > 0)
        *out = n;
    else
        free(n);
    return D9D_OK;
}

void d9di_neighbours_close(d9di_neighbours *n)
{
    for (int i = 0; n != NULL && i < n->n; i++)
        d9di_ring_detach(n->list[i].ring);
    free(n);
}

static bool has_died(const struct neighbour *x, char *state)
{
    return d9di_process_gone(x->pid, x->started, state) && x->ring != NULL &&
           d9di_ring_state(x->ring) == D9DI_FLIGHT_RUNS;
}

d9di_trouble d9di_neighbours_look(const d9di_neighbours *n)
{
    d9di_trouble t = {0};
    char state;

    for (int i = 0; i < n->n; i++)
        if (has_died(&n->list[i], &state))
            t.died = true;
        else
            t.stopped |= state == 'T';
    return t;
}

const d9di_ring *d9di_neighbours_ring(const d9di_neighbours *n, int rank)
{
    for (int i = 0; n != NULL && i < n->n; i++)
        if (n->list[i].rank == rank)
            return n->list[i].ring;
    return NULL;
}

void d9di_neighbours_salvage(d9di_neighbours *n, const char *dir)
{
    char state;

    for (int i = 0; n != NULL && i < n->n; i++) {
        struct neighbour *x = &n->list[i];

        if (!x->salvaged && has_died(x, &state))
            x->salvaged = d9di_store_salvage(dir, x->ring) == D9D_OK;
    }
}
