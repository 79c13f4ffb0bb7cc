/* local_peers.c - liveness of the ranks on this host.  See comm/watch/local_peers.h. */
#include <stdlib.h>
#include <string.h>

#include "comm/watch/local_peers.h"

struct local_peer {
    int rank;
    int64_t pid, started;
    const d9di_flight_ring *ring; /* NULL: not visible */
    bool salvaged;
};

struct d9di_local_peers {
    int n;
    struct local_peer list[];
};

/* Two hosts may have one name, and containers have pids of their own.  A process that is not
 * visible now cannot be reported dead later. */
static bool is_on_this_host(const d9di_flight_process *x, const d9di_flight_process *self)
{
    return strcmp(x->host, self->host) == 0 && x->started != 0 &&
           !d9di_flight_process_is_gone(x->pid, x->started, NULL);
}

d9d_status d9di_local_peers_open(const d9di_local_peers_address *all, int size, int self,
                                 d9di_local_peers **out)
{
    d9di_local_peers *n = malloc(sizeof(*n) + (size_t)size * sizeof(*n->list));

    *out = NULL;
    if (n == NULL)
        return D9D_FAIL(D9D_ENOMEM, "mesh: no memory for %d ranks", size);
    *n = (d9di_local_peers){.n = 0};
    for (int r = 0; r < size; r++)
        if (r != self && is_on_this_host(&all[r].self, &all[self].self))
            n->list[n->n++] = (struct local_peer){.rank = r,
                                                  .pid = all[r].self.pid,
                                                  .started = all[r].self.started,
                                                  .ring = d9di_flight_ring_attach(all[r].shm_path)};
    if (n->n > 0)
        *out = n;
    else
        free(n);
    return D9D_OK;
}

void d9di_local_peers_close(d9di_local_peers *n)
{
    for (int i = 0; n != NULL && i < n->n; i++)
        d9di_flight_ring_detach(n->list[i].ring);
    free(n);
}

static bool has_died(const struct local_peer *x, char *state)
{
    return d9di_flight_process_is_gone(x->pid, x->started, state) && x->ring != NULL &&
           d9di_flight_ring_state(x->ring) == D9DI_FLIGHT_RUNNING;
}

d9di_local_peers_health d9di_local_peers_poll(const d9di_local_peers *n)
{
    d9di_local_peers_health t = {0};
    char state;

    for (int i = 0; i < n->n; i++)
        if (has_died(&n->list[i], &state))
            t.died = true;
        else
            t.stopped |= state == 'T';
    return t;
}

const d9di_flight_ring *d9di_local_peers_ring(const d9di_local_peers *n, int rank)
{
    for (int i = 0; n != NULL && i < n->n; i++)
        if (n->list[i].rank == rank)
            return n->list[i].ring;
    return NULL;
}

void d9di_local_peers_salvage(d9di_local_peers *n, const char *dir)
{
    char state;

    for (int i = 0; n != NULL && i < n->n; i++) {
        struct local_peer *x = &n->list[i];

        if (!x->salvaged && has_died(x, &state))
            x->salvaged = d9di_flight_store_salvage(dir, x->ring) == D9D_OK;
    }
}
