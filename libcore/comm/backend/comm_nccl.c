/* comm_nccl.c - the GPU backend: NCCL, loaded at run time.
 *
 * Communicators are blocking: their calls cost the host a sixth of what nonblocking ones cost, and
 * a thread that hangs in one ends with the process.  Calls are enqueued on the caller's stream; an
 * event recorded after each tells the watchdog when the GPU has completed it.  Data that are only
 * moved are moved as bytes.  If shards differ in size, an all-gather is a group of broadcasts and a
 * reduce-scatter a group of reductions.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "comm/watch/flight_file.h"
#include "d9d/base/environment.h"
#include "d9d/kernels/cuda.h"

d9d_status d9di_comm_copy_cuda(d9d_stream s, void *dst, const void *src, size_t n)
{
    const cudaError_t e =
        cudaMemcpyAsync(dst, src, n, cudaMemcpyDeviceToDevice, d9d_cuda_stream_handle(s));

    return e == cudaSuccess ? D9D_OK
                            : D9D_FAIL(D9D_ECUDA, "single: copy: %s", cudaGetErrorString(e));
}

#if !__has_include(<nccl.h>)

d9d_status d9di_comm_backend_nccl(d9d_bootstrap *bootstrap, d9d_stream stream,
                                  d9di_comm_backend *out)
{
    (void)bootstrap, (void)stream, (void)out;
    return D9D_FAIL(D9D_ENOTSUP, "several ranks on GPUs need NCCL, whose header nccl.h was not "
                                 "there when this was built (NCCL_HOME says where it is)");
}

#else

#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>

enum { MAX_PENDING = 256, STAGE_MIN = 64 << 10, STAGE_MAX_KEPT = 1 << 20 };

#define NCCL_FUNCTIONS(X)                                                                          \
    X(ncclGetVersion)                                                                              \
    X(ncclGetUniqueId)                                                                             \
    X(ncclCommInitRankConfig)                                                                      \
    X(ncclCommSplit)                                                                               \
    X(ncclCommDestroy)                                                                             \
    X(ncclCommAbort)                                                                               \
    X(ncclCommGetAsyncError)                                                                       \
    X(ncclGetErrorString)                                                                          \
    X(ncclGetLastError)                                                                            \
    X(ncclAllReduce)                                                                               \
    X(ncclAllGather)                                                                               \
    X(ncclReduceScatter)                                                                           \
    X(ncclBroadcast)                                                                               \
    X(ncclReduce)                                                                                  \
    X(ncclSend)                                                                                    \
    X(ncclRecv)                                                                                    \
    X(ncclGroupStart)                                                                              \
    X(ncclGroupEnd)

struct nccl {
#define X(f) __typeof__(&f) f;
    NCCL_FUNCTIONS(X)
#undef X
    void *library;
    d9d_bootstrap *bootstrap;
    int gpu;
    ncclComm_t world;
    pthread_mutex_t lock; /* protects the list of groups */
    struct group *groups;
};

/* A call that the GPU has not completed, as far as is known. */
struct pending {
    d9di_flight_call *call;
    int64_t number;
    cudaEvent_t event;
};

struct group {
    struct nccl *backend;
    struct group *next;
    ncclComm_t comm;
    d9d_stream stream;
    cudaEvent_t wait_event, done_event;
    void *stage, *pinned; /* staging of d9d_comm_allgather_bytes() */
    size_t stage_bytes;
    pthread_mutex_t lock; /* protects what follows: the group's thread pushes, the watchdog pops */
    struct pending pending[MAX_PENDING];
    unsigned n_pushed, n_done; /* calls between the two are pending */
};

static const struct nccl *nccl_of(const d9d_comm *c)
{
    return c->backend;
}

static cudaStream_t stream_of(const d9d_comm *c, const d9di_comm_call *k)
{
    const struct group *g = c->self;

    return d9d_cuda_stream_handle(k->stream != NULL ? k->stream : g->stream);
}

static d9d_status check_nccl(const d9d_comm *c, const d9di_comm_call *k, ncclResult_t rc)
{
    const struct nccl *n = nccl_of(c);
    const struct group *g = c->self;

    return rc == ncclSuccess ? D9D_OK
                             : d9di_comm_call_fail(c, k, "NCCL: %s: %s", n->ncclGetErrorString(rc),
                                                   n->ncclGetLastError(g->comm));
}

static d9d_status cuda_fail(const d9d_comm *c, const d9di_comm_call *k, cudaError_t e)
{
    return d9di_comm_call_fail(c, k, "CUDA: %s", cudaGetErrorString(e));
}

/* --- calls ------------------------------------------------------------------------------ */

static ncclDataType_t nccl_dtype(d9d_dtype t)
{
    switch (t) {
    case D9D_F32: return ncclFloat32;
    case D9D_BF16: return ncclBfloat16;
    case D9D_F64: return ncclFloat64;
    case D9D_I32: return ncclInt32;
    default: return ncclInt64; /* d9di_host_reduce_supports() excludes others */
    }
}

static ncclRedOp_t nccl_op(d9d_comm_op op)
{
    return op == D9D_COMM_MAX ? ncclMax : ncclSum;
}

static bool counts_are_even(const int64_t *counts, int n)
{
    for (int r = 1; r < n; r++)
        if (counts[r] != counts[0])
            return false;
    return true;
}

static d9d_status nccl_all_reduce(d9d_comm *c, const d9di_comm_call *k)
{
    const struct nccl *n = nccl_of(c);
    const struct group *g = c->self;

    return check_nccl(c, k,
                      n->ncclAllReduce(k->dst, k->dst, (size_t)k->n, nccl_dtype(k->t),
                                       nccl_op(k->op), g->comm, stream_of(c, k)));
}

/* End a group of calls; returns the first error of any of them. */
static ncclResult_t nccl_group_end(const struct nccl *n, ncclResult_t rc)
{
    const ncclResult_t nccl_calls_end = n->ncclGroupEnd();

    return rc != ncclSuccess ? rc : nccl_calls_end;
}

static ncclResult_t nccl_all_gather_bytes(const d9d_comm *c, char *dst, const void *src,
                                          const int64_t *counts, size_t e, cudaStream_t s)
{
    const struct nccl *n = nccl_of(c);
    const struct group *g = c->self;
    ncclResult_t rc;

    if (counts_are_even(counts, c->size))
        return n->ncclAllGather(src, dst, (size_t)counts[0] * e, ncclUint8, g->comm, s);
    rc = n->ncclGroupStart();
    for (int r = 0; r < c->size && rc == ncclSuccess; r++) {
        const size_t bytes = (size_t)counts[r] * e;

        if (bytes > 0)
            rc = n->ncclBroadcast(r == c->rank ? src : dst, dst, bytes, ncclUint8, r, g->comm, s);
        dst += bytes;
    }
    return nccl_group_end(n, rc);
}

static d9d_status nccl_all_gather(d9d_comm *c, const d9di_comm_call *k)
{
    return check_nccl(
        c, k,
        nccl_all_gather_bytes(c, k->dst, k->src, k->recv, d9d_dtype_size(k->t), stream_of(c, k)));
}

static d9d_status nccl_reduce_scatter(d9d_comm *c, const d9di_comm_call *k)
{
    const struct nccl *n = nccl_of(c);
    const struct group *g = c->self;
    const ncclDataType_t t = nccl_dtype(k->t);
    cudaStream_t s = stream_of(c, k);
    const char *src = k->src;
    ncclResult_t rc;

    if (counts_are_even(k->send, c->size))
        return check_nccl(
            c, k,
            n->ncclReduceScatter(src, k->dst, (size_t)k->send[0], t, nccl_op(k->op), g->comm, s));
    rc = n->ncclGroupStart();
    for (int r = 0; r < c->size && rc == ncclSuccess; r++) {
        if (k->send[r] > 0)
            rc = n->ncclReduce(src, k->dst, (size_t)k->send[r], t, nccl_op(k->op), r, g->comm, s);
        src += (size_t)k->send[r] * d9d_dtype_size(k->t);
    }
    return check_nccl(c, k, nccl_group_end(n, rc));
}

/* The local share is copied in the same group as the messages. */
static d9d_status nccl_all_to_all(d9d_comm *c, const d9di_comm_call *k)
{
    const struct nccl *n = nccl_of(c);
    const struct group *g = c->self;
    const size_t e = d9d_dtype_size(k->t);
    cudaStream_t s = stream_of(c, k);
    const char *src = k->src;
    char *dst = k->dst;
    ncclResult_t rc = n->ncclGroupStart();

    for (int r = 0; r < c->size && rc == ncclSuccess; r++) {
        const size_t out = (size_t)k->send[r] * e, in = (size_t)k->recv[r] * e;

        if (out > 0)
            rc = n->ncclSend(src, out, ncclUint8, r, g->comm, s);
        if (in > 0 && rc == ncclSuccess)
            rc = n->ncclRecv(dst, in, ncclUint8, r, g->comm, s);
        src += out;
        dst += in;
    }
    return check_nccl(c, k, nccl_group_end(n, rc));
}

static d9d_status nccl_broadcast(d9d_comm *c, const d9di_comm_call *k)
{
    const struct group *g = c->self;
    const size_t bytes = (size_t)k->n * d9d_dtype_size(k->t);

    return check_nccl(c, k,
                      nccl_of(c)->ncclBroadcast(k->dst, k->dst, bytes, ncclUint8, k->root, g->comm,
                                                stream_of(c, k)));
}

static d9d_status nccl_send_recv(d9d_comm *c, const d9di_comm_call *k)
{
    const struct nccl *n = nccl_of(c);
    const struct group *g = c->self;
    cudaStream_t s = stream_of(c, k);
    ncclResult_t rc = n->ncclGroupStart();

    for (int64_t i = 0; i < k->n && rc == ncclSuccess; i++) {
        const d9di_comm_msg *p = &k->msgs[i];
        const size_t bytes = (size_t)p->n * d9d_dtype_size(p->t);

        if (bytes > 0)
            rc = p->receive ? n->ncclRecv(p->data, bytes, ncclUint8, p->peer, g->comm, s)
                            : n->ncclSend(p->data, bytes, ncclUint8, p->peer, g->comm, s);
    }
    return check_nccl(c, k, nccl_group_end(n, rc));
}

/* --- posted messages: an event recorded after each ----------------------------------- */

static d9d_status nccl_post(d9d_comm *c, const d9di_comm_call *k, void **out)
{
    const struct group *g = c->self;
    cudaEvent_t behind;
    cudaError_t e = cudaEventCreateWithFlags(&behind, cudaEventDisableTiming);
    d9d_status st;

    if (e != cudaSuccess)
        return cuda_fail(c, k, e);
    if (c->p2p_ring != NULL && c->ops->p2p_ring->connects(c, k->msgs->peer))
        st = c->ops->p2p_ring->transfer(c, c->p2p_ring, k,
                                        k->stream != NULL ? k->stream : g->stream);
    else
        st = nccl_send_recv(c, k);
    if (st == D9D_OK && (e = cudaEventRecord(behind, stream_of(c, k))) != cudaSuccess)
        st = cuda_fail(c, k, e);
    if (st == D9D_OK)
        *out = behind;
    else
        (void)cudaEventDestroy(behind);
    return st;
}

static bool nccl_test(d9d_comm *c, void *posted)
{
    (void)c;
    return cudaEventQuery(posted) != cudaErrorNotReady;
}

static d9d_status nccl_wait(d9d_comm *c, const d9di_comm_call *k, void *posted)
{
    const cudaError_t e = cudaStreamWaitEvent(stream_of(c, k), posted, 0);

    (void)cudaEventDestroy(posted);
    return e == cudaSuccess ? D9D_OK : cuda_fail(c, k, e);
}

/* --- bytes on the host --------------------------------------------------------------- */

static void stage_free(struct group *g)
{
    (void)cudaFree(g->stage);
    (void)cudaFreeHost(g->pinned);
    g->stage = g->pinned = NULL;
    g->stage_bytes = 0;
}

static cudaError_t stage_reserve(struct group *g, size_t bytes)
{
    size_t want = g->stage_bytes < STAGE_MIN ? STAGE_MIN : g->stage_bytes;
    cudaError_t e;

    while (want < bytes)
        want *= 2;
    if (want == g->stage_bytes)
        return cudaSuccess;
    stage_free(g);
    e = cudaMalloc(&g->stage, want);
    if (e == cudaSuccess)
        e = cudaHostAlloc(&g->pinned, want, cudaHostAllocDefault);
    if (e == cudaSuccess)
        g->stage_bytes = want;
    return e;
}

/* Host bytes go through GPU memory.  Large staging buffers, needed at start-up only, are freed: no
 * memory plan accounts for them. */
static d9d_status nccl_allgather_host(d9d_comm *c, const d9di_comm_call *k)
{
    struct group *g = c->self;
    cudaStream_t s = stream_of(c, k);
    size_t sum = 0, from = 0;
    cudaError_t e;

    for (int r = 0; r < c->size; r++) {
        from = r == c->rank ? sum : from;
        sum += (size_t)k->recv[r];
    }
    e = stage_reserve(g, sum);
    if (e != cudaSuccess)
        return cuda_fail(c, k, e);
    if (k->recv[c->rank] > 0)
        memcpy((char *)g->pinned + from, k->src, (size_t)k->recv[c->rank]);
    e = cudaMemcpyAsync(g->stage, g->pinned, sum, cudaMemcpyHostToDevice, s);
    if (e != cudaSuccess)
        return cuda_fail(c, k, e);
    D9D_TRY(check_nccl(c, k,
                       nccl_all_gather_bytes(c, g->stage, (char *)g->stage + from, k->recv, 1, s)));
    e = cudaMemcpyAsync(g->pinned, g->stage, sum, cudaMemcpyDeviceToHost, s);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(s);
    if (e != cudaSuccess)
        return cuda_fail(c, k, e);
    memcpy(k->dst, g->pinned, sum);
    if (g->stage_bytes > STAGE_MAX_KEPT)
        stage_free(g);
    return D9D_OK;
}

/* --- overlap with computation -------------------------------------------------------- */

static d9d_stream group_stream(d9d_comm *c)
{
    return ((struct group *)c->self)->stream;
}

static d9d_status check_cuda(const d9d_comm *c, cudaError_t e)
{
    return e == cudaSuccess ? D9D_OK
                            : D9D_FAIL(D9D_ECUDA, "%s: stream: %s", c->name, cudaGetErrorString(e));
}

/* Stream `to` waits for the work enqueued on `from` so far. */
static d9d_status make_stream_wait(const d9d_comm *c, d9d_stream from, d9d_stream to,
                                   cudaEvent_t point)
{
    cudaError_t e = cudaEventRecord(point, d9d_cuda_stream_handle(from));

    if (e == cudaSuccess)
        e = cudaStreamWaitEvent(d9d_cuda_stream_handle(to), point, 0);
    return check_cuda(c, e);
}

static d9d_status nccl_wait_stream(d9d_comm *c, d9d_stream s)
{
    const struct group *g = c->self;

    return make_stream_wait(c, s, g->stream, g->wait_event);
}
static d9d_status nccl_stream_wait(d9d_comm *c, d9d_stream s)
{
    const struct group *g = c->self;

    return make_stream_wait(c, g->stream, s, g->done_event);
}

/* A d9d_comm_event is a cudaEvent_t. */
static d9d_status event_record(d9d_comm *c, d9d_comm_event **at)
{
    const struct group *g = c->self;
    cudaEvent_t event = (cudaEvent_t)*at;
    cudaError_t e = cudaSuccess;

    if (event == NULL)
        e = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    *at = (d9d_comm_event *)event;
    if (e == cudaSuccess)
        e = cudaEventRecord(event, d9d_cuda_stream_handle(g->stream));
    return check_cuda(c, e);
}
static d9d_status stream_wait_event(d9d_comm *c, d9d_comm_event *at, d9d_stream s)
{
    return check_cuda(c, cudaStreamWaitEvent(d9d_cuda_stream_handle(s), (cudaEvent_t)at, 0));
}
static void event_free(d9d_comm_event *at)
{
    (void)cudaEventDestroy((cudaEvent_t)at);
}

/* --- grouped calls ------------------------------------------------------------------- */

static d9d_status check_group(d9d_comm *c, ncclResult_t rc)
{
    const struct nccl *n = nccl_of(c);
    const struct group *g = c->self;

    return rc == ncclSuccess ? D9D_OK
                             : D9D_FAIL(D9D_ECOMM, "%s: NCCL: group call: %s: %s", c->name,
                                        n->ncclGetErrorString(rc), n->ncclGetLastError(g->comm));
}
static d9d_status nccl_calls_start(d9d_comm *c)
{
    return check_group(c, nccl_of(c)->ncclGroupStart());
}
static d9d_status nccl_calls_end(d9d_comm *c)
{
    return check_group(c, nccl_of(c)->ncclGroupEnd());
}

/* --- completion ---------------------------------------------------------------------- */

static void pending_reap(struct group *g)
{
    for (; g->n_done != g->n_pushed; g->n_done++) {
        const struct pending *p = &g->pending[g->n_done % MAX_PENDING];

        if (cudaEventQuery(p->event) == cudaErrorNotReady)
            return;
        if (__atomic_load_n(&p->call->number, __ATOMIC_ACQUIRE) == p->number)
            d9di_flight_ring_call_end(p->call, D9DI_FLIGHT_CALL_COMPLETED);
    }
}

/* A slot for one more pending call, which is ignored until it is pushed.  If all are used, the last
 * one is reused and its call counts as complete: completion of the later call implies it. */
static struct pending *pending_slot(struct group *g)
{
    const struct pending *last;

    if (g->n_pushed - g->n_done == MAX_PENDING)
        pending_reap(g);
    if (g->n_pushed - g->n_done == MAX_PENDING) {
        last = &g->pending[--g->n_pushed % MAX_PENDING];
        if (__atomic_load_n(&last->call->number, __ATOMIC_ACQUIRE) == last->number)
            d9di_flight_ring_call_end(last->call, D9DI_FLIGHT_CALL_COMPLETED);
    }
    return &g->pending[g->n_pushed % MAX_PENDING];
}

/* Record the event outside the lock: recording blocks while the stream's queue is full, and the
 * watchdog, which takes the lock, must not block. */
static bool track_call(d9d_comm *c, const d9di_comm_call *k, d9di_flight_call *x)
{
    struct group *g = c->self;
    struct pending *p;

    if (k->coll == D9DI_COLL_ALLGATHER_BYTES)
        return false;
    (void)pthread_mutex_lock(&g->lock);
    p = pending_slot(g);
    (void)pthread_mutex_unlock(&g->lock);
    p->call = x;
    p->number = x->number;
    __atomic_store_n(&x->state, (int32_t)D9DI_FLIGHT_CALL_ENQUEUED, __ATOMIC_RELEASE);
    (void)cudaEventRecord(p->event, stream_of(c, k)); /* on failure it counts as complete */
    (void)pthread_mutex_lock(&g->lock);
    g->n_pushed++;
    (void)pthread_mutex_unlock(&g->lock);
    return true;
}

/* Runs in the watchdog's thread. */
static bool nccl_poll(void *self, char *why, size_t why_n)
{
    struct nccl *n = self;
    bool well = true;

    (void)cudaSetDevice(n->gpu);
    (void)pthread_mutex_lock(&n->lock);
    for (struct group *g = n->groups; g != NULL; g = g->next) {
        ncclResult_t rc = ncclSuccess;

        (void)pthread_mutex_lock(&g->lock);
        pending_reap(g);
        (void)pthread_mutex_unlock(&g->lock);
        if (n->ncclCommGetAsyncError(g->comm, &rc) == ncclSuccess && rc != ncclSuccess &&
            rc != ncclInProgress) {
            (void)snprintf(why, why_n, "NCCL: %s: %s", n->ncclGetErrorString(rc),
                           n->ncclGetLastError(g->comm));
            well = false;
        }
    }
    (void)pthread_mutex_unlock(&n->lock);
    return well;
}

/* --- groups ---------------------------------------------------------------------------------- */

static void group_close(d9d_comm *c)
{
    struct nccl *n = c->backend;
    struct group *g = c->self, **at;

    (void)pthread_mutex_lock(&n->lock);
    for (at = &n->groups; *at != NULL && *at != g; at = &(*at)->next)
        ;
    if (*at != NULL)
        *at = g->next;
    (void)pthread_mutex_unlock(&n->lock);
    (void)cudaSetDevice(n->gpu);
    if (g->comm != NULL) {
        if (g->comm == n->world)
            n->world = NULL;
        (void)(*c->failed ? n->ncclCommAbort : n->ncclCommDestroy)(g->comm);
    }
    for (int i = 0; i < MAX_PENDING; i++)
        if (g->pending[i].event != NULL)
            (void)cudaEventDestroy(g->pending[i].event);
    if (g->wait_event != NULL)
        (void)cudaEventDestroy(g->wait_event);
    if (g->done_event != NULL)
        (void)cudaEventDestroy(g->done_event);
    stage_free(g);
    d9d_cuda_stream_free(g->stream);
    (void)pthread_mutex_destroy(&g->lock);
    free(g);
}

static d9d_status scratch_refuse(void *self, uint64_t n, void **out)
{
    (void)self, (void)n, (void)out;
    return D9D_FAIL(D9D_EINVAL, "a communication stream has no scratch memory");
}
static void free_noop(void *self, void *p, uint64_t n)
{
    (void)self, (void)p, (void)n;
}
static void log_noop(void *self, d9d_log_level level, const char *line)
{
    (void)self, (void)level, (void)line;
}

static d9d_status group_stream_create(struct group *g)
{
    const d9d_cuda_owner owner = {NULL, scratch_refuse, free_noop, log_noop};
    cudaError_t e = cudaSuccess;

    D9D_TRY(d9d_cuda_stream_create(g->backend->gpu, &owner, &(d9d_cuda_opts){.high_priority = true},
                                   &g->stream));
    for (int i = 0; i < MAX_PENDING && e == cudaSuccess; i++)
        e = cudaEventCreateWithFlags(&g->pending[i].event, cudaEventDisableTiming);
    if (e == cudaSuccess)
        e = cudaEventCreateWithFlags(&g->wait_event, cudaEventDisableTiming);
    if (e == cudaSuccess)
        e = cudaEventCreateWithFlags(&g->done_event, cudaEventDisableTiming);
    return e == cudaSuccess
               ? D9D_OK
               : D9D_FAIL(D9D_ECUDA, "cuda:%d: events: %s", g->backend->gpu, cudaGetErrorString(e));
}

/* Broadcast rank 0's ncclUniqueId to every rank. */
static d9d_status broadcast_unique_id(const struct nccl *n, ncclUniqueId *id)
{
    d9d_arena a = {0};
    d9d_bootstrap_blob *all =
        d9d_arena_alloc(&a, (size_t)d9d_bootstrap_size(n->bootstrap) * sizeof(*all));
    const bool first = d9d_bootstrap_rank(n->bootstrap) == 0;
    ncclResult_t rc = first ? n->ncclGetUniqueId(id) : ncclSuccess;
    d9d_status st = D9D_OK;

    if (all == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "NCCL: out of memory");
    else if (rc != ncclSuccess)
        st = D9D_FAIL(D9D_ECOMM, "NCCL: ncclGetUniqueId: %s", n->ncclGetErrorString(rc));
    st = d9d_bootstrap_agree_status(n->bootstrap, st);
    if (st == D9D_OK)
        st = d9d_bootstrap_allgather(n->bootstrap, id, first ? sizeof(*id) : 0, &a, all);
    if (st == D9D_OK && all[0].n != sizeof(*id))
        st = D9D_FAIL(D9D_ECOMM, "NCCL: rank 0 sent %zu bytes as its unique id", all[0].n);
    if (st == D9D_OK)
        memcpy(id, all[0].data, sizeof(*id));
    d9d_arena_release(&a);
    return st;
}

/* The first communicator is the world; the others are split from it. */
static d9d_status nccl_comm_create(struct nccl *n, const d9d_comm *c, ncclComm_t *out)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclResult_t rc;

    config.blocking = 1;
    if (n->world == NULL) {
        D9D_TRY(broadcast_unique_id(n, &id));
        rc = n->ncclCommInitRankConfig(out, c->size, id, c->rank, &config);
        if (rc == ncclSuccess)
            n->world = *out;
    } else {
        rc = n->ncclCommSplit(n->world, c->world[0], c->rank, out, &config);
    }
    return rc == ncclSuccess
               ? D9D_OK
               : D9D_FAIL(D9D_ECOMM, "%s: NCCL cannot create a communicator of %d ranks: %s: %s",
                          c->name, c->size, n->ncclGetErrorString(rc), n->ncclGetLastError(NULL));
}

/* The local state of a group. */
static d9d_status group_alloc(struct nccl *n, d9d_comm *c)
{
    struct group *g = calloc(1, sizeof(*g));

    if (g == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a group", c->name);
    g->backend = n;
    (void)pthread_mutex_init(&g->lock, NULL);
    c->self = g; /* freed with the comm, even if incomplete */
    (void)cudaSetDevice(n->gpu);
    return group_stream_create(g);
}

/* A rank that fails here must not leave the others inside NCCL or in another agreement. */
static d9d_status group_open(void *self, d9d_comm *c)
{
    struct nccl *n = self;
    struct group *g;

    D9D_TRY(d9d_bootstrap_agree_status(n->bootstrap, group_alloc(n, c)));
    g = c->self;
    D9D_TRY(nccl_comm_create(n, c, &g->comm));
    (void)pthread_mutex_lock(&n->lock);
    g->next = n->groups;
    n->groups = g;
    (void)pthread_mutex_unlock(&n->lock);
    return D9D_OK;
}

static const d9di_comm_backend_ops nccl_ops = {
    .host_local = true,
    .p2p_default = true,
    .run = {[D9DI_COLL_ALL_REDUCE] = nccl_all_reduce,
            [D9DI_COLL_ALL_GATHER] = nccl_all_gather,
            [D9DI_COLL_REDUCE_SCATTER] = nccl_reduce_scatter,
            [D9DI_COLL_ALL_TO_ALL] = nccl_all_to_all,
            [D9DI_COLL_BROADCAST] = nccl_broadcast,
            [D9DI_COLL_SEND_RECV] = nccl_send_recv,
            [D9DI_COLL_ALLGATHER_BYTES] = nccl_allgather_host,
            [D9DI_COLL_PEER_BARRIER] = d9di_peer_barrier_cuda},
    .track = track_call,
    .stream = group_stream,
    .wait_stream = nccl_wait_stream,
    .stream_wait = nccl_stream_wait,
    .event_record = event_record,
    .stream_wait_event = stream_wait_event,
    .event_free = event_free,
    .group_start = nccl_calls_start,
    .group_end = nccl_calls_end,
    .peer_map = d9di_peer_map_cuda,
    .symm_buffer = &d9di_symm_buffer_cuda,
    .p2p_ring = &d9di_p2p_ring_cuda,
    .post = nccl_post,
    .test = nccl_test,
    .wait = nccl_wait,
    .close = group_close};

/* --- the library ------------------------------------------------------------------------------ */

static d9d_status nccl_load(struct nccl *n)
{
    static const char *const places[] = {"libnccl.so.2", D9D_NCCL_LIB "/libnccl.so.2"};

    for (size_t i = 0; i < sizeof(places) / sizeof(*places) && n->library == NULL; i++)
        n->library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    if (n->library == NULL)
        return D9D_FAIL(D9D_ENOTSUP,
                        "several ranks on GPUs need NCCL: libnccl.so.2 is neither on the library "
                        "path nor in %s",
                        D9D_NCCL_LIB);
#define X(f)                                                                                       \
    *(void **)&n->f = dlsym(n->library, #f);                                                       \
    if (n->f == NULL)                                                                              \
        return D9D_FAIL(D9D_ENOTSUP, "libnccl.so.2 has no function %s: it is too old", #f);
    NCCL_FUNCTIONS(X)
#undef X
    return D9D_OK;
}

/* The library stays loaded, as cuBLASLt does. */
static void nccl_close(void *self, bool failed)
{
    struct nccl *n = self;

    (void)failed;
    (void)pthread_mutex_destroy(&n->lock);
    free(n);
}

d9d_status d9di_comm_backend_nccl(d9d_bootstrap *bootstrap, d9d_stream stream,
                                  d9di_comm_backend *out)
{
    struct nccl *n = calloc(1, sizeof(*n));
    d9d_environment environment;
    d9d_status st;

    if (n == NULL)
        return D9D_FAIL(D9D_ENOMEM, "NCCL: out of memory");
    n->bootstrap = bootstrap;
    (void)pthread_mutex_init(&n->lock, NULL);
    (void)d9d_cuda_stream_handle(stream); /* makes the stream's GPU current */
    (void)cudaGetDevice(&n->gpu);
    d9d_environment_read(D9D_ENVIRONMENT_NCCL, getenv, &environment);
    d9d_environment_apply(&environment);
    st = nccl_load(n);
    if (st == D9D_OK)
        *out = (d9di_comm_backend){.ops = &nccl_ops,
                                   .self = n,
                                   .group_create = group_open,
                                   .poll = nccl_poll,
                                   .close = nccl_close};
    else
        nccl_close(n, true);
    return st;
}

#endif
