/* comm_sim.c - groups of ranks of which one is there: calls are counted, and come back at once.
 *
 * A rank hears what it says itself, as if all others were like it, where the arrays are real
 * (d9d/kernels/sim.h).  Time is that of rings: each rank sends what it has to its neighbour until
 * all have it, over the network if the group spans nodes.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/comm_private.h"
#include "d9d/kernels/sim.h"

/* Of the world: the processor that calls are counted on. */
static d9d_stream stream_of(const d9d_comm *c, const d9di_call *k)
{
    return k->stream != NULL ? k->stream : (d9d_stream)c->net;
}

static d9d_paper_link link_of(const d9d_comm *c, const d9di_call *k)
{
    const int node = d9d_paper_chip_of(d9d_paper_of(stream_of(c, k)))->node;

    for (int i = 1; i < c->size; i++)
        if (c->world[i] / node != c->world[0] / node)
            return D9D_PAPER_NET;
    return D9D_PAPER_NODE;
}

/* So many bytes leave this rank, or come. */
static d9d_status say(d9d_comm *c, const d9di_call *k, double elements, d9d_dtype t)
{
    return d9d_paper_say(stream_of(c, k), c->name, d9di_verb_text(k->verb), link_of(c, k),
                         elements * (double)d9d_dtype_size(t));
}

static double sum_but(const int64_t *counts, int n, int but)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += i != but ? (double)counts[i] : 0;
    return sum;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* What this rank says, from every rank, where it may be read: numbers for the host.  `src` may be
 * its place in dst. */
static void echo(const d9d_comm *c, const d9di_call *k)
{
    const size_t size = d9d_dtype_size(k->t);
    char *at = k->dst;

    if (k->t != D9D_I32 && k->verb != D9DI_WORDS)
        return;
    if (!d9d_paper_is_real(k->dst) || !d9d_paper_is_real(k->src))
        return;
    for (int i = 0; i < c->size; i++) {
        const int64_t n = k->recv[i] < k->recv[c->rank] ? k->recv[i] : k->recv[c->rank];

        memmove(at, k->src, (size_t)n * size);
        at += (size_t)k->recv[i] * size;
    }
}

static d9d_status all_reduce(d9d_comm *c, const d9di_call *k)
{
    return say(c, k, 2.0 * (double)k->n * (c->size - 1) / c->size, k->t);
}
static d9d_status all_gather(d9d_comm *c, const d9di_call *k)
{
    echo(c, k);
    return say(c, k, sum_but(k->recv, c->size, c->rank), k->t);
}
static d9d_status reduce_scatter(d9d_comm *c, const d9di_call *k)
{
    return say(c, k, sum_but(k->send, c->size, c->rank), k->t);
}
static d9d_status all_to_all(d9d_comm *c, const d9di_call *k)
{
    return say(c, k, larger(sum_but(k->send, c->size, c->rank), sum_but(k->recv, c->size, c->rank)),
               k->t);
}
static d9d_status broadcast(d9d_comm *c, const d9di_call *k)
{
    return say(c, k, (double)k->n, k->t);
}

static d9d_status exchange(d9d_comm *c, const d9di_call *k)
{
    double bytes[2] = {0, 0}; /* sent, received */

    for (int64_t i = 0; i < k->n; i++)
        bytes[k->pieces[i].receive] +=
            (double)k->pieces[i].n * (double)d9d_dtype_size(k->pieces[i].t);
    return say(c, k, larger(bytes[0], bytes[1]), D9D_U8);
}

/* --- rooms: where a GPU's node has all ranks; their memory is outside the pool
 * -------------------- */

static d9d_status rooms_make(d9d_comm *c, uint64_t bytes, void **out)
{
    static const char none;
    const d9di_call k = {.verb = D9DI_FENCE};
    const bool gpu = d9d_paper_chip_of(d9d_paper_of(stream_of(c, &k)))->gpu;

    (void)bytes;
    *out = gpu && link_of(c, &k) == D9D_PAPER_NODE && d9di_may_share(true)
               ? (void *)(uintptr_t)&none
               : NULL;
    return D9D_OK;
}

/* All in one place, which nobody reads. */
static void *rooms_at(const void *rooms, int turn, int rank)
{
    (void)rooms, (void)turn, (void)rank;
    return (void *)(uintptr_t)D9D_PAPER_UNREAL;
}

static d9d_status rooms_tell(void *rooms, d9d_stream s, int to)
{
    (void)rooms, (void)s, (void)to;
    return D9D_OK;
}

static d9d_status rooms_copy(d9d_comm *c, d9d_stream s, void *dst, const void *src, uint64_t n)
{
    const d9di_call k = {.verb = D9DI_FENCE, .stream = s};

    if (dst == rooms_at(NULL, 0, 0))
        return D9D_OK; /* to its own room, beside the rest */
    (void)src;
    return say(c, &k, (double)n, D9D_U8);
}

static void rooms_close(void *rooms)
{
    (void)rooms;
}

static d9d_status fence(d9d_comm *c, const d9di_call *k)
{
    if (k->n_takes == 0)
        return say(c, k, 0, D9D_U8);
    for (int i = 0; i < k->n_takes; i++) {
        D9D_TRY(say(c, k, (double)k->takes[i].n, D9D_U8));
        D9D_TRY(d9d_comm_point_set(c, k->takes[i].there));
    }
    return D9D_OK;
}

/* In the host's memory, before and behind the steps. */
static d9d_status words(d9d_comm *c, const d9di_call *k)
{
    echo(c, k);
    return D9D_OK;
}

/* --- beside the computation: where the chip can ---------------------------------------------- */

static d9d_stream queue(d9d_comm *c)
{
    return c->self;
}
static d9d_status fork_queue(d9d_comm *c, d9d_stream s)
{
    if (c->self != NULL)
        d9d_paper_wait(c->self, d9d_paper_now(s));
    return D9D_OK;
}
static d9d_status join_queue(d9d_comm *c, d9d_stream s)
{
    if (c->self != NULL)
        d9d_paper_wait(s, d9d_paper_now(c->self));
    return D9D_OK;
}

/* A point is a time. */
static d9d_status point_set(d9d_comm *c, d9d_comm_point **at)
{
    double *when = (double *)*at;

    if (c->self == NULL)
        return D9D_OK;
    if (when == NULL)
        when = malloc(sizeof(*when));
    if (when == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a point", c->name);
    *when = d9d_paper_now(c->self);
    *at = (d9d_comm_point *)when;
    return D9D_OK;
}
static d9d_status join_at(d9d_comm *c, d9d_comm_point *at, d9d_stream s)
{
    (void)c;
    d9d_paper_wait(s, *(const double *)at);
    return D9D_OK;
}
static void point_free(d9d_comm_point *at)
{
    free(at);
}

static d9d_status open_group(void *self, d9d_comm *c)
{
    d9d_paper *paper = d9d_paper_of(self);
    d9d_stream own = NULL;

    if (d9d_paper_chip_of(paper)->gpu)
        D9D_TRY(d9d_paper_add_stream(paper, &own));
    c->self = own;
    c->check = false; /* nobody is there to make another call */
    return D9D_OK;
}

d9d_status d9di_net_paper(d9d_boot *boot, d9d_stream stream, d9di_net *out)
{
    static const d9di_rooms_ops rooms = {rooms_make, rooms_at, rooms_tell, rooms_copy, rooms_close};
    static const d9di_wire wire = {
        .run = {[D9DI_ALL_REDUCE] = all_reduce,
                [D9DI_ALL_GATHER] = all_gather,
                [D9DI_REDUCE_SCATTER] = reduce_scatter,
                [D9DI_ALL_TO_ALL] = all_to_all,
                [D9DI_BROADCAST] = broadcast,
                [D9DI_EXCHANGE] = exchange,
                [D9DI_WORDS] = words,
                [D9DI_FENCE] = fence},
        .rooms = &rooms,
        .queue = queue,
        .fork = fork_queue,
        .join = join_queue,
        .point_set = point_set,
        .join_at = join_at,
        .point_free = point_free,
    };

    (void)boot;
    *out = (d9di_net){.wire = &wire, .self = stream, .group = open_group};
    return D9D_OK;
}
