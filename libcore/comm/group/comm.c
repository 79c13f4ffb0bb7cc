/* comm.c - the calls of a process group: check, record, submit to the backend.  See
 * d9d/comm/comm.h. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/watch/flight_file.h"

const char *d9di_comm_coll_name(d9di_comm_coll v)
{
    static const char *const texts[] = {
#define X(name, text) text,
        D9DI_COLL_MAP(X)
#undef X
    };

    return texts[v];
}

d9d_status d9di_comm_call_fail(const d9d_comm *c, const d9di_comm_call *k, const char *fmt, ...)
{
    char why[512];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    return D9D_FAIL(D9D_ECOMM, "%s: %s of %s: %s", c->name, d9di_comm_coll_name(k->coll), k->label,
                    why);
}

/* --- groups -------------------------------------------------------------------------- */

int d9d_comm_rank(const d9d_comm *c)
{
    return c == NULL ? 0 : c->rank;
}
int d9d_comm_size(const d9d_comm *c)
{
    return c == NULL ? 1 : c->size;
}
int d9d_comm_world_rank(const d9d_comm *c, int i)
{
    return c == NULL ? 0 : c->world[i];
}
const char *d9d_comm_name(const d9d_comm *c)
{
    return c == NULL ? "single" : c->name;
}

void d9di_comm_suspend(d9d_comm *c)
{
    d9di_symm_buffer_close(c);
    if (c->p2p_ring != NULL)
        c->ops->p2p_ring->close(c, c->p2p_ring);
    c->p2p_ring = NULL;
    if (c->ops->close != NULL && c->self != NULL)
        c->ops->close(c);
    c->self = NULL;
}

void d9di_comm_close(d9d_comm *c)
{
    if (c == NULL)
        return;
    d9di_comm_suspend(c);
    D9D_VEC_RELEASE(&c->msgs);
    D9D_VEC_RELEASE(&c->pending);
    free(c->world);
    free(c->sent);
    free(c->name);
    free(c);
}

/* Creating a group is recorded as its first call, so that the watchdog sees ranks that do not
 * come. */
static d9d_status create_group(const d9di_comm_backend *backend, d9d_comm *c)
{
    const d9di_comm_call k = {
        .coll = D9DI_COLL_ALLGATHER_BYTES, .t = D9D_U8, .label = "the group, to make it"};
    d9di_flight_call *x;
    d9d_status st;

    c->calls++;
    x = d9di_flight_ring_call_begin(c, &k);
    st = backend->group_create(backend->self, c);
    d9di_flight_ring_call_end(x,
                              st == D9D_OK ? D9DI_FLIGHT_CALL_COMPLETED : D9DI_FLIGHT_CALL_FAILED);
    return st;
}

static d9d_status open_p2p_ring(d9d_comm *c)
{
    return c->p2p_ring_wanted && c->ops->p2p_ring != NULL
               ? c->ops->p2p_ring->create(c, &c->p2p_ring)
               : D9D_OK;
}

d9d_status d9di_comm_resume(const d9di_comm_backend *backend, d9d_comm *c)
{
    D9D_TRY(backend->group_create != NULL ? create_group(backend, c) : D9D_OK);
    return open_p2p_ring(c);
}

d9d_status d9di_comm_open(const d9di_comm_backend *backend, const d9di_comm_members *m,
                          d9d_comm **out)
{
    d9d_comm *c = calloc(1, sizeof(*c));
    d9d_status st = D9D_OK;

    if (c == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a group", m->name);
    *c = (d9d_comm){.ops = backend->ops,
                    .backend = backend->self,
                    .name = strdup(m->name),
                    .rank = m->rank,
                    .size = m->size,
                    .tag = m->tag,
                    .world = calloc((size_t)m->size, sizeof(*c->world)),
                    .sent = calloc((size_t)m->size, sizeof(*c->sent)),
                    .check = m->check,
                    .opts = m->opts,
                    .waits = m->waits,
                    .failed = m->failed,
                    .ring = m->ring,
                    .group = m->group};
    if (c->name == NULL || c->world == NULL || c->sent == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for %d ranks", m->name, m->size);
    else
        memcpy(c->world, m->world, (size_t)m->size * sizeof(*c->world));
    if (st == D9D_OK)
        st = d9di_comm_resume(backend, c);
    if (st == D9D_OK)
        *out = c;
    else
        d9di_comm_close(c);
    return st;
}

/* --- calls --------------------------------------------------------------------------- */

/* Tells the observer that stream s begins or ends to wait. */
static void tell_wait(const d9d_comm *c, d9d_stream s, bool begins)
{
    if (c->waits->fn != NULL && c->waits->stream == s)
        c->waits->fn(c->waits->self, begins);
}

/* After submission: track the call, or record that it is complete or failed. */
static void finish_submit(d9d_comm *c, const d9di_comm_call *k, d9di_flight_call *x, d9d_status st)
{
    if (st != D9D_OK || x == NULL || c->ops->track == NULL || !c->ops->track(c, k, x))
        d9di_flight_ring_call_end(x, st == D9D_OK ? D9DI_FLIGHT_CALL_COMPLETED
                                                  : D9DI_FLIGHT_CALL_FAILED);
    *c->failed |= st != D9D_OK;
}

uint64_t d9di_comm_sent_bytes(const d9d_comm *c, int to)
{
    return c == NULL ? 0 : c->sent[to];
}

static void count_sent(d9d_comm *c, const d9di_comm_call *k)
{
    for (int r = 0; k->coll == D9DI_COLL_ALL_TO_ALL && r < c->size; r++)
        c->sent[r] += (uint64_t)k->send[r] * d9d_dtype_size(k->t);
    for (int64_t i = 0; k->coll == D9DI_COLL_SEND_RECV && i < k->n; i++)
        if (!k->msgs[i].receive)
            c->sent[k->msgs[i].peer] += (uint64_t)k->msgs[i].n * d9d_dtype_size(k->msgs[i].t);
}

d9d_status d9di_comm_submit(d9d_comm *c, const d9di_comm_call *k)
{
    d9di_flight_call *x;
    d9d_status st = D9D_OK;

    assert(!c->in_group || k->coll != D9DI_COLL_ALLGATHER_BYTES);
    *(k->coll == D9DI_COLL_SEND_RECV ? &c->p2p_calls : &c->calls) += 1;
    count_sent(c, k);
    x = d9di_flight_ring_call_begin(c, k);
    if (c->check && k->coll != D9DI_COLL_SEND_RECV)
        st = d9di_desync_check(c, k);
    if (st == D9D_OK && c->deferred)
        st = D9D_VEC_PUSH(&c->pending, ((d9di_comm_pending){*k, x}));
    tell_wait(c, k->stream, true);
    if (st == D9D_OK)
        st = c->ops->run[k->coll](c, k);
    tell_wait(c, k->stream, false);
    if (st != D9D_OK || !c->deferred)
        finish_submit(c, k, x, st);
    return st;
}

/* A group of one: copy src to dst, unless they are the same. */
static d9d_status copy_local(d9d_stream s, d9d_dtype t, void *dst, const void *src, int64_t n)
{
    const size_t bytes = (size_t)n * d9d_dtype_size(t);

    if (dst == src || n == 0)
        return D9D_OK;
#ifdef D9D_CUDA
    if (s != NULL)
        return d9di_comm_copy_cuda(s, dst, src, bytes);
#endif
    (void)s;
    memmove(dst, src, bytes);
    return D9D_OK;
}

static d9d_status check_reducible(const d9d_comm *c, const char *label, d9d_dtype t)
{
    if (d9di_host_reduce_supports(t))
        return D9D_OK;
    return D9D_FAIL(D9D_EINVAL, "%s: %s: there are no sums of %s between ranks", d9d_comm_name(c),
                    label, d9d_dtype_name(t));
}

d9d_status d9d_comm_all_reduce(d9d_comm *c, d9d_stream s, const char *label, d9d_dtype t, void *buf,
                               int64_t n, d9d_comm_op op)
{
    D9D_TRY(check_reducible(c, label, t));
    if (c == NULL)
        return D9D_OK;
    return d9di_comm_submit(c, &(d9di_comm_call){.coll = D9DI_COLL_ALL_REDUCE,
                                                 .t = t,
                                                 .op = op,
                                                 .label = label,
                                                 .stream = s,
                                                 .dst = buf,
                                                 .src = buf,
                                                 .n = n});
}

d9d_status d9d_comm_all_gather(d9d_comm *c, d9d_stream s, const char *label, d9d_dtype t, void *dst,
                               const void *src, const int64_t *counts)
{
    if (c == NULL)
        return copy_local(s, t, dst, src, counts[0]);
    return d9di_comm_submit(c, &(d9di_comm_call){.coll = D9DI_COLL_ALL_GATHER,
                                                 .t = t,
                                                 .label = label,
                                                 .stream = s,
                                                 .dst = dst,
                                                 .src = src,
                                                 .recv = counts});
}

d9d_status d9d_comm_reduce_scatter(d9d_comm *c, d9d_stream s, const char *label, d9d_dtype t,
                                   void *dst, const void *src, const int64_t *counts)
{
    D9D_TRY(check_reducible(c, label, t));
    if (c == NULL)
        return copy_local(s, t, dst, src, counts[0]);
    return d9di_comm_submit(c, &(d9di_comm_call){.coll = D9DI_COLL_REDUCE_SCATTER,
                                                 .t = t,
                                                 .label = label,
                                                 .stream = s,
                                                 .dst = dst,
                                                 .src = src,
                                                 .send = counts});
}

d9d_status d9d_comm_all_to_all(d9d_comm *c, d9d_stream s, const char *label, d9d_dtype t, void *dst,
                               const int64_t *recv, const void *src, const int64_t *send)
{
    if (c == NULL)
        return copy_local(s, t, dst, src, send[0]);
    return d9di_comm_submit(c, &(d9di_comm_call){.coll = D9DI_COLL_ALL_TO_ALL,
                                                 .t = t,
                                                 .label = label,
                                                 .stream = s,
                                                 .dst = dst,
                                                 .src = src,
                                                 .send = send,
                                                 .recv = recv});
}

d9d_status d9d_comm_broadcast(d9d_comm *c, d9d_stream s, const char *label, d9d_dtype t, void *buf,
                              int64_t n, int root)
{
    if (c == NULL)
        return D9D_OK;
    return d9di_comm_submit(c, &(d9di_comm_call){.coll = D9DI_COLL_BROADCAST,
                                                 .t = t,
                                                 .label = label,
                                                 .stream = s,
                                                 .dst = buf,
                                                 .src = buf,
                                                 .n = n,
                                                 .root = root});
}

/* --- point-to-point messages --------------------------------------------------------- */

static d9d_status flush_msgs(d9d_comm *c)
{
    const d9di_comm_call k = {.coll = D9DI_COLL_SEND_RECV,
                              .label = c->msgs_label,
                              .stream = c->stream,
                              .n = (int64_t)c->msgs.len,
                              .msgs = c->msgs.data};
    const d9d_status st = k.n == 0 ? D9D_OK : d9di_comm_submit(c, &k);

    c->msgs.len = 0;
    return st;
}

static d9d_status check_peer(const d9d_comm *c, const char *label, const d9di_comm_msg *p)
{
    if (c == NULL || p->peer < 0 || p->peer >= c->size || p->peer == c->rank)
        return D9D_FAIL(D9D_EINVAL, "%s: %s: a message between rank %d and rank %d of %d",
                        d9d_comm_name(c), label, d9d_comm_rank(c), p->peer, d9d_comm_size(c));
    return D9D_OK;
}

static d9d_status add_msg(d9d_comm *c, d9d_stream s, const char *label, const d9di_comm_msg *p)
{
    D9D_TRY(check_peer(c, label, p));
    if (c->msgs.len == 0) {
        (void)snprintf(c->msgs_label, sizeof(c->msgs_label), "%s", label);
        c->stream = s;
    }
    D9D_TRY(D9D_VEC_PUSH(&c->msgs, *p));
    return c->in_group ? D9D_OK : flush_msgs(c);
}

static d9di_comm_msg make_send_msg(d9d_dtype t, const void *src, int64_t n, int to)
{
    d9di_comm_msg p = {.t = t, .n = n, .peer = to};

    memcpy(&p.data, &src, sizeof(p.data)); /* const: a message that is sent is only read */
    return p;
}

d9d_status d9d_comm_send(d9d_comm *c, d9d_stream s, const char *label, d9d_dtype t, const void *src,
                         int64_t n, int to)
{
    const d9di_comm_msg p = make_send_msg(t, src, n, to);

    return add_msg(c, s, label, &p);
}

d9d_status d9d_comm_recv(d9d_comm *c, d9d_stream s, const char *label, d9d_dtype t, void *dst,
                         int64_t n, int from)
{
    return add_msg(c, s, label,
                   &(d9di_comm_msg){.t = t, .data = dst, .n = n, .peer = from, .receive = true});
}

/* Each desynchronisation check is a call before another call: calls are then submitted one by
 * one. */
d9d_status d9d_comm_group_start(d9d_comm *c)
{
    if (c == NULL)
        return D9D_OK;
    c->in_group = true;
    c->deferred = !c->check && c->ops->group_start != NULL;
    return c->deferred ? c->ops->group_start(c) : D9D_OK;
}

static d9d_status submit_pending(d9d_comm *c)
{
    d9d_stream s = c->pending.len > 0 ? c->pending.data[0].call.stream : NULL;
    d9d_status st;

    tell_wait(c, s, true);
    st = c->ops->group_end(c);
    tell_wait(c, s, false);
    c->deferred = false;
    for (size_t i = 0; i < c->pending.len; i++)
        finish_submit(c, &c->pending.data[i].call, c->pending.data[i].recorded, st);
    c->pending.len = 0;
    return st;
}

d9d_status d9d_comm_group_end(d9d_comm *c)
{
    d9d_status st, held;

    if (c == NULL)
        return D9D_OK;
    st = flush_msgs(c);
    c->in_group = false;
    held = c->deferred ? submit_pending(c) : D9D_OK;
    return st != D9D_OK ? st : held;
}

/* --- posted messages ----------------------------------------------------------------- */

d9d_status d9d_p2p_ring_enable(d9d_comm *c)
{
    if (c == NULL || c->p2p_ring_wanted)
        return D9D_OK;
    c->p2p_ring_wanted = true;
    return open_p2p_ring(c);
}

struct d9d_message {
    d9d_comm *comm;
    d9di_comm_msg msg;
    void *posted; /* the backend's state; NULL: complete */
    char label[64];
};

static d9di_comm_call message_call(const d9d_message *m, d9d_stream s)
{
    return (d9di_comm_call){
        .coll = D9DI_COLL_SEND_RECV, .label = m->label, .stream = s, .n = 1, .msgs = &m->msg};
}

/* Backends that track calls report completion; for the others, d9d_message_wait() knows it. */
static d9d_status submit_message(d9d_message *m)
{
    d9d_comm *c = m->comm;
    const d9di_comm_call k = message_call(m, d9d_comm_stream(c));
    d9di_flight_call *x = NULL;
    d9d_status st;

    if (c->ops->post == NULL)
        return d9di_comm_submit(c, &k);
    c->p2p_calls++;
    count_sent(c, &k);
    if (c->ops->track != NULL)
        x = d9di_flight_ring_call_begin(c, &k);
    st = c->ops->post(c, &k, &m->posted);
    if (st != D9D_OK || x == NULL || !c->ops->track(c, &k, x))
        d9di_flight_ring_call_end(x, st == D9D_OK ? D9DI_FLIGHT_CALL_COMPLETED
                                                  : D9DI_FLIGHT_CALL_FAILED);
    *c->failed |= st != D9D_OK;
    return st;
}

static d9d_status post_message(d9d_comm *c, const char *label, const d9di_comm_msg *p,
                               d9d_message **out)
{
    d9d_message *m;
    d9d_status st;

    D9D_TRY(check_peer(c, label, p));
    m = calloc(1, sizeof(*m));
    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: no memory for a message", c->name, label);
    m->comm = c;
    m->msg = *p;
    (void)snprintf(m->label, sizeof(m->label), "%s", label);
    st = submit_message(m);
    if (st == D9D_OK)
        *out = m;
    else
        free(m);
    return st;
}

d9d_status d9d_comm_post_send(d9d_comm *c, const char *label, d9d_dtype t, const void *src,
                              int64_t n, int to, d9d_message **out)
{
    const d9di_comm_msg p = make_send_msg(t, src, n, to);

    return post_message(c, label, &p, out);
}

d9d_status d9d_comm_post_recv(d9d_comm *c, const char *label, d9d_dtype t, void *dst, int64_t n,
                              int from, d9d_message **out)
{
    return post_message(
        c, label, &(d9di_comm_msg){.t = t, .data = dst, .n = n, .peer = from, .receive = true},
        out);
}

bool d9d_message_test(d9d_message *m)
{
    return m->posted == NULL || m->comm->ops->test(m->comm, m->posted);
}

d9d_status d9d_message_wait(d9d_message *m, d9d_stream s)
{
    d9di_flight_call *x = NULL;
    d9d_status st = D9D_OK;

    if (m == NULL)
        return D9D_OK;
    if (m->posted != NULL) {
        const d9di_comm_call k = message_call(m, s);

        if (m->comm->ops->track == NULL)
            x = d9di_flight_ring_call_begin(m->comm, &k);
        tell_wait(m->comm, s, true);
        st = m->comm->ops->wait(m->comm, &k, m->posted);
        tell_wait(m->comm, s, false);
        d9di_flight_ring_call_end(x, st == D9D_OK ? D9DI_FLIGHT_CALL_COMPLETED
                                                  : D9DI_FLIGHT_CALL_FAILED);
        *m->comm->failed |= st != D9D_OK;
    }
    free(m);
    return st;
}

void d9d_message_cancel(d9d_message *m)
{
    if (m != NULL && m->posted != NULL && m->comm->ops->cancel != NULL)
        m->comm->ops->cancel(m->comm, m->posted);
    free(m);
}

/* --- overlap with computation -------------------------------------------------------- */

d9d_stream d9d_comm_stream(d9d_comm *c)
{
    return c == NULL || c->ops->stream == NULL ? NULL : c->ops->stream(c);
}
d9d_status d9d_comm_wait_stream(d9d_comm *c, d9d_stream s)
{
    return c == NULL || c->ops->wait_stream == NULL ? D9D_OK : c->ops->wait_stream(c, s);
}
d9d_status d9d_stream_wait_comm(d9d_comm *c, d9d_stream s)
{
    d9d_status st;

    if (c == NULL || c->ops->stream_wait == NULL)
        return D9D_OK;
    tell_wait(c, s, true);
    st = c->ops->stream_wait(c, s);
    tell_wait(c, s, false);
    return st;
}

d9d_status d9d_comm_event_record(d9d_comm *c, d9d_comm_event **at)
{
    return c == NULL || c->ops->event_record == NULL ? D9D_OK : c->ops->event_record(c, at);
}
d9d_status d9d_stream_wait_event(d9d_comm *c, d9d_comm_event *at, d9d_stream s)
{
    d9d_status st;

    if (at == NULL)
        return D9D_OK;
    tell_wait(c, s, true);
    st = c->ops->stream_wait_event(c, at, s);
    tell_wait(c, s, false);
    return st;
}
void d9d_comm_event_free(d9d_comm *c, d9d_comm_event *at)
{
    if (at != NULL)
        c->ops->event_free(at);
}

d9d_status d9d_peer_map(d9d_comm *c, const char *label, void *const *local, size_t n,
                        d9d_peer_memory **out)
{
    bool near;

    *out = NULL;
    if (c == NULL || c->ops->peer_map == NULL)
        return D9D_OK;
    D9D_TRY(d9di_comm_is_single_host(c, label, &near));
    return near ? c->ops->peer_map(c, label, local, n, out) : D9D_OK;
}

#ifndef D9D_CUDA /* see cuda_ipc.c */
d9d_status d9d_peer_barrier(d9d_peer_memory *x, d9d_stream s)
{
    (void)x, (void)s;
    return D9D_OK;
}
d9d_status d9d_peer_gather(d9d_peer_memory *x, d9d_stream s, size_t i, d9d_dtype t, void *dst,
                           const int64_t *counts)
{
    (void)x, (void)s, (void)i, (void)t, (void)dst, (void)counts;
    return D9D_OK;
}
void d9d_peer_unmap(d9d_peer_memory *x)
{
    (void)x;
}
#endif

/* --- bytes on the host --------------------------------------------------------------- */

static d9d_status submit_allgather(d9d_comm *c, const char *label, void *dst, const void *src,
                                   const int64_t *counts)
{
    return d9di_comm_submit(c, &(d9di_comm_call){.coll = D9DI_COLL_ALLGATHER_BYTES,
                                                 .t = D9D_U8,
                                                 .label = label,
                                                 .dst = dst,
                                                 .src = src,
                                                 .recv = counts});
}

/* counts [size] and parts [sum + a NUL each], both from the arena. */
static d9d_status allgather_lengths(d9d_comm *c, const char *label, size_t n, d9d_arena *a,
                                    int64_t **counts)
{
    const size_t size = (size_t)c->size;
    int64_t local_bytes = (int64_t)n, *eights = d9d_arena_alloc(a, size * sizeof(*eights));

    *counts = d9d_arena_alloc(a, size * sizeof(**counts));
    if (eights == NULL || *counts == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: out of memory", c->name, label);
    for (size_t r = 0; r < size; r++)
        eights[r] = sizeof(local_bytes);
    return submit_allgather(c, label, *counts, &local_bytes, eights);
}

static d9d_status allgather_blobs(d9d_comm *c, const char *label, const void *local, size_t n,
                                  d9d_arena *a, d9d_comm_blob *all)
{
    int64_t *counts;
    uint64_t sum = 0;
    char *data, *ends, *at;

    D9D_TRY(allgather_lengths(c, label, n, a, &counts));
    for (int r = 0; r < c->size; r++)
        if (!d9d_checked_add_u64(sum, (uint64_t)counts[r], &sum))
            return D9D_FAIL(D9D_ECOMM, "%s: %s: rank %d says %lld bytes", c->name, label, r,
                            (long long)counts[r]);
    data = d9d_arena_alloc(a, sum + 1);
    ends = d9d_arena_alloc(a, sum + (size_t)c->size);
    if (data == NULL || ends == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: out of memory: %llu bytes requested", c->name, label,
                        (unsigned long long)sum);
    D9D_TRY(submit_allgather(c, label, data, n > 0 ? local : "", counts));
    at = ends; /* each followed by a NUL: the arena's bytes are zero */
    for (int r = 0; r < c->size; r++) {
        all[r] = (d9d_comm_blob){memcpy(at, data, (size_t)counts[r]), (size_t)counts[r]};
        at += counts[r] + 1;
        data += counts[r];
    }
    return D9D_OK;
}

static d9d_status copy_single_blob(const void *local, size_t n, d9d_arena *a, d9d_comm_blob *all)
{
    char *copy_local = d9d_arena_alloc(a, n + 1);

    if (copy_local == NULL)
        return D9D_FAIL(D9D_ENOMEM, "single: out of memory: %zu bytes requested", n);
    if (n > 0)
        memcpy(copy_local, local, n);
    all[0] = (d9d_comm_blob){copy_local, n};
    return D9D_OK;
}

d9d_status d9d_comm_allgather_bytes(d9d_comm *c, const char *label, const void *local, size_t n,
                                    d9d_arena *a, d9d_comm_blob *all)
{
    return c == NULL ? copy_single_blob(local, n, a, all)
                     : allgather_blobs(c, label, local, n, a, all);
}

d9d_status d9d_comm_barrier(d9d_comm *c, const char *label)
{
    d9d_arena a = {0};
    int64_t *lengths;
    d9d_status st;

    if (c == NULL)
        return D9D_OK;
    st = allgather_lengths(c, label, 0, &a, &lengths);
    d9d_arena_release(&a);
    return st;
}
