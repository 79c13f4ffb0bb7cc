/* comm_sim.c - the simulated backend for plans: one rank exists; calls add their cost and return.
 *
 * If arrays are real (d9d/kernels/sim.h), a rank receives its own data, as if all ranks sent the
 * same.  The cost model is that of ring algorithms: each rank passes on what it has to its
 * neighbour until all have it, over the network if the group spans nodes.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/comm_private.h"
#include "d9d/kernels/sim.h"

/* The simulated processor whose clock a call advances. */
static d9d_stream call_stream(const d9d_comm *c, const d9di_comm_call *k)
{
    return k->stream != NULL ? k->stream : (d9d_stream)c->backend;
}

static d9d_sim_link call_link(const d9d_comm *c, const d9di_comm_call *k)
{
    const int node = d9d_sim_get_chip(d9d_sim_of_stream(call_stream(c, k)))->per_node;

    for (int i = 1; i < c->size; i++)
        if (c->world[i] / node != c->world[0] / node)
            return D9D_SIM_LINK_NETWORK;
    return D9D_SIM_LINK_NODE;
}

/* Add the time of a transfer of these elements from or to this rank. */
static d9d_status charge_transfer(d9d_comm *c, const d9di_comm_call *k, double elements,
                                  d9d_dtype t)
{
    return d9d_sim_transfer(call_stream(c, k), c->name, d9di_comm_coll_name(k->coll),
                            call_link(c, k), elements * (double)d9d_dtype_size(t));
}

static double sum_except(const int64_t *counts, int n, int except)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += i != except ? (double)counts[i] : 0;
    return sum;
}

static double max_f64(double a, double b)
{
    return a > b ? a : b;
}

/* Fill dst with this rank's data from every rank, if the arrays are real.  `src` may be its place
 * in dst. */
static void echo_local(const d9d_comm *c, const d9di_comm_call *k)
{
    const size_t size = d9d_dtype_size(k->t);
    char *at = k->dst;

    if (k->t != D9D_I32 && k->coll != D9DI_COLL_ALLGATHER_BYTES)
        return;
    if (!d9d_sim_is_real(k->dst) || !d9d_sim_is_real(k->src))
        return;
    for (int i = 0; i < c->size; i++) {
        const int64_t n = k->recv[i] < k->recv[c->rank] ? k->recv[i] : k->recv[c->rank];

        memmove(at, k->src, (size_t)n * size);
        at += (size_t)k->recv[i] * size;
    }
}

static d9d_status sim_all_reduce(d9d_comm *c, const d9di_comm_call *k)
{
    return charge_transfer(c, k, 2.0 * (double)k->n * (c->size - 1) / c->size, k->t);
}
static d9d_status sim_all_gather(d9d_comm *c, const d9di_comm_call *k)
{
    echo_local(c, k);
    return charge_transfer(c, k, sum_except(k->recv, c->size, c->rank), k->t);
}
static d9d_status sim_reduce_scatter(d9d_comm *c, const d9di_comm_call *k)
{
    return charge_transfer(c, k, sum_except(k->send, c->size, c->rank), k->t);
}
static d9d_status sim_all_to_all(d9d_comm *c, const d9di_comm_call *k)
{
    return charge_transfer(
        c, k, max_f64(sum_except(k->send, c->size, c->rank), sum_except(k->recv, c->size, c->rank)),
        k->t);
}
static d9d_status sim_broadcast(d9d_comm *c, const d9di_comm_call *k)
{
    return charge_transfer(c, k, (double)k->n, k->t);
}

static d9d_status sim_send_recv(d9d_comm *c, const d9di_comm_call *k)
{
    double bytes[2] = {0, 0}; /* sent, received */

    for (int64_t i = 0; i < k->n; i++)
        bytes[k->msgs[i].receive] += (double)k->msgs[i].n * (double)d9d_dtype_size(k->msgs[i].t);
    return charge_transfer(c, k, max_f64(bytes[0], bytes[1]), D9D_U8);
}

/* --- staging buffers: if one GPU node has all ranks; their memory is outside the pool  */

static d9d_status symm_buffer_create(d9d_comm *c, uint64_t bytes, void **out)
{
    static const char none;
    const d9di_comm_call k = {.coll = D9DI_COLL_PEER_BARRIER};
    const bool gpu = d9d_sim_get_chip(d9d_sim_of_stream(call_stream(c, &k)))->is_gpu;

    (void)bytes;
    *out = gpu && call_link(c, &k) == D9D_SIM_LINK_NODE && d9di_peer_is_allowed(true)
               ? (void *)(uintptr_t)&none
               : NULL;
    return D9D_OK;
}

/* One address for all, which is never read. */
static void *symm_buffer_ptr(const void *symm, int which, int rank)
{
    (void)symm, (void)which, (void)rank;
    return (void *)(uintptr_t)D9D_SIM_FAKE_BASE;
}

static d9d_status symm_buffer_signal(void *symm, d9d_stream s, int to)
{
    (void)symm, (void)s, (void)to;
    return D9D_OK;
}

static d9d_status symm_buffer_copy(d9d_comm *c, d9d_stream s, void *dst, const void *src,
                                   uint64_t n)
{
    const d9di_comm_call k = {.coll = D9DI_COLL_PEER_BARRIER, .stream = s};

    if (dst == symm_buffer_ptr(NULL, 0, 0))
        return D9D_OK; /* a copy to the local buffer overlaps and costs nothing */
    (void)src;
    return charge_transfer(c, &k, (double)n, D9D_U8);
}

static void symm_buffer_close(void *symm)
{
    (void)symm;
}

static d9d_status sim_peer_barrier(d9d_comm *c, const d9di_comm_call *k)
{
    if (k->n_gets == 0)
        return charge_transfer(c, k, 0, D9D_U8);
    for (int i = 0; i < k->n_gets; i++) {
        D9D_TRY(charge_transfer(c, k, (double)k->gets[i].n, D9D_U8));
        D9D_TRY(d9d_comm_event_record(c, k->gets[i].done_event));
    }
    return D9D_OK;
}

/* In host memory, outside the steps: costs nothing. */
static d9d_status sim_allgather_bytes(d9d_comm *c, const d9di_comm_call *k)
{
    echo_local(c, k);
    return D9D_OK;
}

/* --- overlap with computation: if the chip has several streams ----------------------- */

static d9d_stream sim_stream(d9d_comm *c)
{
    return c->self;
}
static d9d_status sim_wait_stream(d9d_comm *c, d9d_stream s)
{
    if (c->self != NULL)
        d9d_sim_wait_until(c->self, d9d_sim_now(s));
    return D9D_OK;
}
static d9d_status sim_stream_wait(d9d_comm *c, d9d_stream s)
{
    if (c->self != NULL)
        d9d_sim_wait_until(s, d9d_sim_now(c->self));
    return D9D_OK;
}

/* An event is a simulated time. */
static d9d_status event_record(d9d_comm *c, d9d_comm_event **at)
{
    double *when = (double *)*at;

    if (c->self == NULL)
        return D9D_OK;
    if (when == NULL)
        when = malloc(sizeof(*when));
    if (when == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for an event", c->name);
    *when = d9d_sim_now(c->self);
    *at = (d9d_comm_event *)when;
    return D9D_OK;
}
static d9d_status stream_wait_event(d9d_comm *c, d9d_comm_event *at, d9d_stream s)
{
    (void)c;
    d9d_sim_wait_until(s, *(const double *)at);
    return D9D_OK;
}
static void event_free(d9d_comm_event *at)
{
    free(at);
}

static d9d_status group_open(void *self, d9d_comm *c)
{
    d9d_sim *sim_device = d9d_sim_of_stream(self);
    d9d_stream own = NULL;

    if (d9d_sim_get_chip(sim_device)->is_gpu)
        D9D_TRY(d9d_sim_stream_create(sim_device, &own));
    c->self = own;
    c->check = false; /* there is no other rank to compare with */
    return D9D_OK;
}

d9d_status d9di_comm_backend_sim(d9d_bootstrap *bootstrap, d9d_stream stream,
                                 d9di_comm_backend *out)
{
    static const d9di_symm_buffer_ops symm = {symm_buffer_create, symm_buffer_ptr,
                                              symm_buffer_signal, symm_buffer_copy,
                                              symm_buffer_close};
    static const d9di_comm_backend_ops sim_ops = {
        .run = {[D9DI_COLL_ALL_REDUCE] = sim_all_reduce,
                [D9DI_COLL_ALL_GATHER] = sim_all_gather,
                [D9DI_COLL_REDUCE_SCATTER] = sim_reduce_scatter,
                [D9DI_COLL_ALL_TO_ALL] = sim_all_to_all,
                [D9DI_COLL_BROADCAST] = sim_broadcast,
                [D9DI_COLL_SEND_RECV] = sim_send_recv,
                [D9DI_COLL_ALLGATHER_BYTES] = sim_allgather_bytes,
                [D9DI_COLL_PEER_BARRIER] = sim_peer_barrier},
        .symm_buffer = &symm,
        .stream = sim_stream,
        .wait_stream = sim_wait_stream,
        .stream_wait = sim_stream_wait,
        .event_record = event_record,
        .stream_wait_event = stream_wait_event,
        .event_free = event_free,
    };

    (void)bootstrap;
    *out = (d9di_comm_backend){.ops = &sim_ops, .self = stream, .group_create = group_open};
    return D9D_OK;
}
