/* comm_nccl.c - groups of ranks that compute on GPUs: NCCL, which is looked for at run time.
 *
 * Communicators are blocking: their calls cost the host a sixth of what others do, and a thread
 * that hangs in one ends with the process.  Calls are queued on the caller's stream; an event
 * behind each tells the watchdog when the GPU has passed it.  What is only moved is moved as
 * bytes; where parts differ in size, a gather is a group of broadcasts and a scatter of reductions.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/environment.h"
#include "d9d/kernels/cuda.h"
#include "comm/watch/flight_file.h"

d9d_status d9di_cuda_copy(d9d_stream s, void *dst, const void *src, size_t n)
{
    const cudaError_t e =
        cudaMemcpyAsync(dst, src, n, cudaMemcpyDeviceToDevice, d9d_cuda_stream_queue(s));

    return e == cudaSuccess ? D9D_OK
                            : D9D_FAIL(D9D_ECUDA, "alone: copy: %s", cudaGetErrorString(e));
}

#if !__has_include(<nccl.h>)

d9d_status d9di_net_nccl(d9d_boot *boot, d9d_stream stream, d9di_net *out)
{
    (void)boot, (void)stream, (void)out;
    return D9D_FAIL(D9D_ENOTSUP, "several ranks on GPUs need NCCL, whose header nccl.h was not "
                                 "there when this was built");
}

#else

#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>

enum { PENDING = 256, STAGE_LEAST = 64 << 10, STAGE_KEPT = 1 << 20 };

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
    d9d_boot *boot;
    int gpu;
    ncclComm_t world;
    pthread_mutex_t lock; /* of the list of groups */
    struct group *groups;
};

/* A call that the GPU has not passed yet, as far as is known. */
struct pending {
    d9di_flight_call *call;
    int64_t number;
    cudaEvent_t event;
};

struct group {
    struct nccl *net;
    struct group *next;
    ncclComm_t comm;
    d9d_stream queue;
    cudaEvent_t forked, joined;
    void *stage, *pinned; /* of words */
    size_t staged;
    pthread_mutex_t lock; /* of what follows: the group's thread adds, the watchdog takes */
    struct pending pending[PENDING];
    unsigned made, done; /* those between are pending */
};

static const struct nccl *lib_of(const d9d_comm *c)
{
    return c->net;
}

static cudaStream_t queue_of(const d9d_comm *c, const d9di_call *k)
{
    const struct group *g = c->self;

    return d9d_cuda_stream_queue(k->stream != NULL ? k->stream : g->queue);
}

static d9d_status settle(const d9d_comm *c, const d9di_call *k, ncclResult_t rc)
{
    const struct nccl *n = lib_of(c);
    const struct group *g = c->self;

    return rc == ncclSuccess ? D9D_OK
                             : d9di_call_fail(c, k, "NCCL: %s: %s", n->ncclGetErrorString(rc),
                                              n->ncclGetLastError(g->comm));
}

static d9d_status cuda_fail(const d9d_comm *c, const d9di_call *k, cudaError_t e)
{
    return d9di_call_fail(c, k, "CUDA: %s", cudaGetErrorString(e));
}

/* --- calls ------------------------------------------------------------------------------ */

static ncclDataType_t type_of(d9d_dtype t)
{
    switch (t) {
    case D9D_F32: return ncclFloat32;
    case D9D_BF16: return ncclBfloat16;
    case D9D_F64: return ncclFloat64;
    case D9D_I32: return ncclInt32;
    default: return ncclInt64; /* d9di_reducible() lets no other through */
    }
}

static ncclRedOp_t op_of(d9d_comm_op op)
{
    return op == D9D_COMM_MAX ? ncclMax : ncclSum;
}

static bool even(const int64_t *counts, int n)
{
    for (int r = 1; r < n; r++)
        if (counts[r] != counts[0])
            return false;
    return true;
}

static d9d_status all_reduce(d9d_comm *c, const d9di_call *k)
{
    const struct nccl *n = lib_of(c);
    const struct group *g = c->self;

    return settle(c, k,
                  n->ncclAllReduce(k->dst, k->dst, (size_t)k->n, type_of(k->t), op_of(k->op),
                                   g->comm, queue_of(c, k)));
}

/* A group of calls: the end says what is wrong with any of them. */
static ncclResult_t end_group(const struct nccl *n, ncclResult_t rc)
{
    const ncclResult_t end = n->ncclGroupEnd();

    return rc != ncclSuccess ? rc : end;
}

static ncclResult_t gather(const d9d_comm *c, char *dst, const void *src, const int64_t *counts,
                           size_t e, cudaStream_t s)
{
    const struct nccl *n = lib_of(c);
    const struct group *g = c->self;
    ncclResult_t rc;

    if (even(counts, c->size))
        return n->ncclAllGather(src, dst, (size_t)counts[0] * e, ncclUint8, g->comm, s);
    rc = n->ncclGroupStart();
    for (int r = 0; r < c->size && rc == ncclSuccess; r++) {
        const size_t bytes = (size_t)counts[r] * e;

        if (bytes > 0)
            rc = n->ncclBroadcast(r == c->rank ? src : dst, dst, bytes, ncclUint8, r, g->comm, s);
        dst += bytes;
    }
    return end_group(n, rc);
}

static d9d_status all_gather(d9d_comm *c, const d9di_call *k)
{
    return settle(c, k, gather(c, k->dst, k->src, k->recv, d9d_dtype_size(k->t), queue_of(c, k)));
}

static d9d_status reduce_scatter(d9d_comm *c, const d9di_call *k)
{
    const struct nccl *n = lib_of(c);
    const struct group *g = c->self;
    const ncclDataType_t t = type_of(k->t);
    const cudaStream_t s = queue_of(c, k);
    const char *src = k->src;
    ncclResult_t rc;

    if (even(k->send, c->size))
        return settle(
            c, k,
            n->ncclReduceScatter(src, k->dst, (size_t)k->send[0], t, op_of(k->op), g->comm, s));
    rc = n->ncclGroupStart();
    for (int r = 0; r < c->size && rc == ncclSuccess; r++) {
        if (k->send[r] > 0)
            rc = n->ncclReduce(src, k->dst, (size_t)k->send[r], t, op_of(k->op), r, g->comm, s);
        src += (size_t)k->send[r] * d9d_dtype_size(k->t);
    }
    return settle(c, k, end_group(n, rc));
}

/* What stays here goes along, beside what goes. */
static d9d_status all_to_all(d9d_comm *c, const d9di_call *k)
{
    const struct nccl *n = lib_of(c);
    const struct group *g = c->self;
    const size_t e = d9d_dtype_size(k->t);
    const cudaStream_t s = queue_of(c, k);
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
    return settle(c, k, end_group(n, rc));
}

static d9d_status broadcast(d9d_comm *c, const d9di_call *k)
{
    const struct group *g = c->self;
    const size_t bytes = (size_t)k->n * d9d_dtype_size(k->t);

    return settle(c, k,
                  lib_of(c)->ncclBroadcast(k->dst, k->dst, bytes, ncclUint8, k->root, g->comm,
                                           queue_of(c, k)));
}

static d9d_status exchange(d9d_comm *c, const d9di_call *k)
{
    const struct nccl *n = lib_of(c);
    const struct group *g = c->self;
    const cudaStream_t s = queue_of(c, k);
    ncclResult_t rc = n->ncclGroupStart();

    for (int64_t i = 0; i < k->n && rc == ncclSuccess; i++) {
        const d9di_p2p_msg *p = &k->pieces[i];
        const size_t bytes = (size_t)p->n * d9d_dtype_size(p->t);

        if (bytes > 0)
            rc = p->receive ? n->ncclRecv(p->data, bytes, ncclUint8, p->peer, g->comm, s)
                            : n->ncclSend(p->data, bytes, ncclUint8, p->peer, g->comm, s);
    }
    return settle(c, k, end_group(n, rc));
}

/* --- posted ones: an event behind each -------------------------------------------------- */

static d9d_status post(d9d_comm *c, const d9di_call *k, void **out)
{
    const struct group *g = c->self;
    cudaEvent_t behind;
    cudaError_t e = cudaEventCreateWithFlags(&behind, cudaEventDisableTiming);
    d9d_status st;

    if (e != cudaSuccess)
        return cuda_fail(c, k, e);
    if (c->mail != NULL && c->wire->mail->reaches(c, k->pieces->peer))
        st = c->wire->mail->move(c, c->mail, k, k->stream != NULL ? k->stream : g->queue);
    else
        st = exchange(c, k);
    if (st == D9D_OK && (e = cudaEventRecord(behind, queue_of(c, k))) != cudaSuccess)
        st = cuda_fail(c, k, e);
    if (st == D9D_OK)
        *out = behind;
    else
        (void)cudaEventDestroy(behind);
    return st;
}

static bool has_passed(d9d_comm *c, void *posted)
{
    (void)c;
    return cudaEventQuery(posted) != cudaErrorNotReady;
}

static d9d_status finish(d9d_comm *c, const d9di_call *k, void *posted)
{
    const cudaError_t e = cudaStreamWaitEvent(queue_of(c, k), posted, 0);

    (void)cudaEventDestroy(posted);
    return e == cudaSuccess ? D9D_OK : cuda_fail(c, k, e);
}

/* --- words ------------------------------------------------------------------------------ */

static void drop_stage(struct group *g)
{
    (void)cudaFree(g->stage);
    (void)cudaFreeHost(g->pinned);
    g->stage = g->pinned = NULL;
    g->staged = 0;
}

static cudaError_t make_stage(struct group *g, size_t bytes)
{
    size_t want = g->staged < STAGE_LEAST ? STAGE_LEAST : g->staged;
    cudaError_t e;

    while (want < bytes)
        want *= 2;
    if (want == g->staged)
        return cudaSuccess;
    drop_stage(g);
    e = cudaMalloc(&g->stage, want);
    if (e == cudaSuccess)
        e = cudaHostAlloc(&g->pinned, want, cudaHostAllocDefault);
    if (e == cudaSuccess)
        g->staged = want;
    return e;
}

/* The host's bytes go by way of the GPU.  What only the words of a start need is not kept
 * for good: it is memory that no plan knows of. */
static d9d_status words(d9d_comm *c, const d9di_call *k)
{
    struct group *g = c->self;
    const cudaStream_t s = queue_of(c, k);
    size_t sum = 0, from = 0;
    cudaError_t e;

    for (int r = 0; r < c->size; r++) {
        from = r == c->rank ? sum : from;
        sum += (size_t)k->recv[r];
    }
    e = make_stage(g, sum);
    if (e != cudaSuccess)
        return cuda_fail(c, k, e);
    if (k->recv[c->rank] > 0)
        memcpy((char *)g->pinned + from, k->src, (size_t)k->recv[c->rank]);
    e = cudaMemcpyAsync(g->stage, g->pinned, sum, cudaMemcpyHostToDevice, s);
    if (e != cudaSuccess)
        return cuda_fail(c, k, e);
    D9D_TRY(settle(c, k, gather(c, g->stage, (char *)g->stage + from, k->recv, 1, s)));
    e = cudaMemcpyAsync(g->pinned, g->stage, sum, cudaMemcpyDeviceToHost, s);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(s);
    if (e != cudaSuccess)
        return cuda_fail(c, k, e);
    memcpy(k->dst, g->pinned, sum);
    if (g->staged > STAGE_KEPT)
        drop_stage(g);
    return D9D_OK;
}

/* --- beside the computation --------------------------------------------------------------- */

static d9d_stream own_queue(d9d_comm *c)
{
    return ((struct group *)c->self)->queue;
}

static d9d_status queue_status(const d9d_comm *c, cudaError_t e)
{
    return e == cudaSuccess ? D9D_OK
                            : D9D_FAIL(D9D_ECUDA, "%s: queue: %s", c->name, cudaGetErrorString(e));
}

/* What is queued on `to` from here on comes after what is queued on `from`. */
static d9d_status order(const d9d_comm *c, d9d_stream from, d9d_stream to, cudaEvent_t point)
{
    cudaError_t e = cudaEventRecord(point, d9d_cuda_stream_queue(from));

    if (e == cudaSuccess)
        e = cudaStreamWaitEvent(d9d_cuda_stream_queue(to), point, 0);
    return queue_status(c, e);
}

static d9d_status fork_queue(d9d_comm *c, d9d_stream s)
{
    const struct group *g = c->self;

    return order(c, s, g->queue, g->forked);
}
static d9d_status join_queue(d9d_comm *c, d9d_stream s)
{
    const struct group *g = c->self;

    return order(c, g->queue, s, g->joined);
}

/* A point is an event. */
static d9d_status point_set(d9d_comm *c, d9d_comm_point **at)
{
    const struct group *g = c->self;
    cudaEvent_t event = (cudaEvent_t)*at;
    cudaError_t e = cudaSuccess;

    if (event == NULL)
        e = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    *at = (d9d_comm_point *)event;
    if (e == cudaSuccess)
        e = cudaEventRecord(event, d9d_cuda_stream_queue(g->queue));
    return queue_status(c, e);
}
static d9d_status join_at(d9d_comm *c, d9d_comm_point *at, d9d_stream s)
{
    return queue_status(c, cudaStreamWaitEvent(d9d_cuda_stream_queue(s), (cudaEvent_t)at, 0));
}
static void point_free(d9d_comm_point *at)
{
    (void)cudaEventDestroy((cudaEvent_t)at);
}

/* --- together -------------------------------------------------------------------------------- */

static d9d_status group_status(d9d_comm *c, ncclResult_t rc)
{
    const struct nccl *n = lib_of(c);
    const struct group *g = c->self;

    return rc == ncclSuccess ? D9D_OK
                             : D9D_FAIL(D9D_ECOMM, "%s: NCCL: calls together: %s: %s", c->name,
                                        n->ncclGetErrorString(rc), n->ncclGetLastError(g->comm));
}
static d9d_status begin(d9d_comm *c)
{
    return group_status(c, lib_of(c)->ncclGroupStart());
}
static d9d_status end(d9d_comm *c)
{
    return group_status(c, lib_of(c)->ncclGroupEnd());
}

/* --- what the GPU has passed ----------------------------------------------------------------- */

static void take_passed(struct group *g)
{
    for (; g->done != g->made; g->done++) {
        const struct pending *p = &g->pending[g->done % PENDING];

        if (cudaEventQuery(p->event) == cudaErrorNotReady)
            return;
        if (__atomic_load_n(&p->call->number, __ATOMIC_ACQUIRE) == p->number)
            d9di_ring_end(p->call, D9DI_STEP_DONE);
    }
}

/* A place for one more, which nobody looks at until it counts as made; where there is none the last
 * one's, whose call then counts as done: that which comes after it stands for both. */
static struct pending *take_place(struct group *g)
{
    const struct pending *last;

    if (g->made - g->done == PENDING)
        take_passed(g);
    if (g->made - g->done == PENDING) {
        last = &g->pending[--g->made % PENDING];
        if (__atomic_load_n(&last->call->number, __ATOMIC_ACQUIRE) == last->number)
            d9di_ring_end(last->call, D9DI_STEP_DONE);
    }
    return &g->pending[g->made % PENDING];
}

/* An event waits for room where a queue is full: the watchdog, which takes the lock, must not. */
static bool mark(d9d_comm *c, const d9di_call *k, d9di_flight_call *x)
{
    struct group *g = c->self;
    struct pending *p;

    if (k->verb == D9DI_WORDS)
        return false;
    (void)pthread_mutex_lock(&g->lock);
    p = take_place(g);
    (void)pthread_mutex_unlock(&g->lock);
    p->call = x;
    p->number = x->number;
    __atomic_store_n(&x->step, (int32_t)D9DI_STEP_QUEUED, __ATOMIC_RELEASE);
    (void)cudaEventRecord(p->event, queue_of(c, k)); /* if it cannot, it counts as passed */
    (void)pthread_mutex_lock(&g->lock);
    g->made++;
    (void)pthread_mutex_unlock(&g->lock);
    return true;
}

/* Of the watchdog's thread. */
static bool poll_all(void *self, char *why, size_t why_n)
{
    struct nccl *n = self;
    bool well = true;

    (void)cudaSetDevice(n->gpu);
    (void)pthread_mutex_lock(&n->lock);
    for (struct group *g = n->groups; g != NULL; g = g->next) {
        ncclResult_t rc = ncclSuccess;

        (void)pthread_mutex_lock(&g->lock);
        take_passed(g);
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

static void close_group(d9d_comm *c)
{
    struct nccl *n = c->net;
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
    for (int i = 0; i < PENDING; i++)
        if (g->pending[i].event != NULL)
            (void)cudaEventDestroy(g->pending[i].event);
    if (g->forked != NULL)
        (void)cudaEventDestroy(g->forked);
    if (g->joined != NULL)
        (void)cudaEventDestroy(g->joined);
    drop_stage(g);
    d9d_cuda_stream_free(g->queue);
    (void)pthread_mutex_destroy(&g->lock);
    free(g);
}

static d9d_status no_scratch(void *self, uint64_t n, void **out)
{
    (void)self, (void)n, (void)out;
    return D9D_FAIL(D9D_EINVAL, "a queue between ranks has no scratch memory");
}
static void give_nothing(void *self, void *p, uint64_t n)
{
    (void)self, (void)p, (void)n;
}
static void say_nothing(void *self, d9d_log_level level, const char *line)
{
    (void)self, (void)level, (void)line;
}

static d9d_status make_queue(struct group *g)
{
    const d9d_cuda_owner owner = {NULL, no_scratch, give_nothing, say_nothing};
    cudaError_t e = cudaSuccess;

    D9D_TRY(d9d_cuda_stream_create(g->net->gpu, &owner, &(d9d_cuda_options){.urgent = true},
                                   &g->queue));
    for (int i = 0; i < PENDING && e == cudaSuccess; i++)
        e = cudaEventCreateWithFlags(&g->pending[i].event, cudaEventDisableTiming);
    if (e == cudaSuccess)
        e = cudaEventCreateWithFlags(&g->forked, cudaEventDisableTiming);
    if (e == cudaSuccess)
        e = cudaEventCreateWithFlags(&g->joined, cudaEventDisableTiming);
    return e == cudaSuccess
               ? D9D_OK
               : D9D_FAIL(D9D_ECUDA, "cuda:%d: events: %s", g->net->gpu, cudaGetErrorString(e));
}

/* Rank 0's identity of the new world, on every rank. */
static d9d_status share_id(const struct nccl *n, ncclUniqueId *id)
{
    d9d_arena a = {0};
    d9d_boot_word *all = d9d_arena_alloc(&a, (size_t)d9d_boot_size(n->boot) * sizeof(*all));
    const bool first = d9d_boot_rank(n->boot) == 0;
    ncclResult_t rc = first ? n->ncclGetUniqueId(id) : ncclSuccess;
    d9d_status st = D9D_OK;

    if (all == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "NCCL: out of memory");
    else if (rc != ncclSuccess)
        st = D9D_FAIL(D9D_ECOMM, "NCCL: no identity: %s", n->ncclGetErrorString(rc));
    st = d9d_boot_agree(n->boot, st);
    if (st == D9D_OK)
        st = d9d_boot_gather(n->boot, id, first ? sizeof(*id) : 0, &a, all);
    if (st == D9D_OK && all[0].n != sizeof(*id))
        st = D9D_FAIL(D9D_ECOMM, "NCCL: rank 0 gave %zu bytes", all[0].n);
    if (st == D9D_OK)
        memcpy(id, all[0].data, sizeof(*id));
    d9d_arena_release(&a);
    return st;
}

/* The first group is the world; the others are parts of it. */
static d9d_status make_comm(struct nccl *n, const d9d_comm *c, ncclComm_t *out)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclResult_t rc;

    config.blocking = 1;
    if (n->world == NULL) {
        D9D_TRY(share_id(n, &id));
        rc = n->ncclCommInitRankConfig(out, c->size, id, c->rank, &config);
        if (rc == ncclSuccess)
            n->world = *out;
    } else {
        rc = n->ncclCommSplit(n->world, c->world[0], c->rank, out, &config);
    }
    return rc == ncclSuccess
               ? D9D_OK
               : D9D_FAIL(D9D_ECOMM, "%s: NCCL makes no group of %d ranks: %s: %s", c->name,
                          c->size, n->ncclGetErrorString(rc), n->ncclGetLastError(NULL));
}

/* What a rank has of a group by itself. */
static d9d_status prepare_group(struct nccl *n, d9d_comm *c)
{
    struct group *g = calloc(1, sizeof(*g));

    if (g == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a group", c->name);
    g->net = n;
    (void)pthread_mutex_init(&g->lock, NULL);
    c->self = g; /* closed with the comm, whatever of it there is */
    (void)cudaSetDevice(n->gpu);
    return make_queue(g);
}

/* A rank that cannot must not leave the others within the library, nor in another agreement. */
static d9d_status open_group(void *self, d9d_comm *c)
{
    struct nccl *n = self;
    struct group *g;

    D9D_TRY(d9d_boot_agree(n->boot, prepare_group(n, c)));
    g = c->self;
    D9D_TRY(make_comm(n, c, &g->comm));
    (void)pthread_mutex_lock(&n->lock);
    g->next = n->groups;
    n->groups = g;
    (void)pthread_mutex_unlock(&n->lock);
    return D9D_OK;
}

static const d9di_wire wire = {.hosts = true,
                               .shares = true,
                               .run = {[D9DI_ALL_REDUCE] = all_reduce,
                                       [D9DI_ALL_GATHER] = all_gather,
                                       [D9DI_REDUCE_SCATTER] = reduce_scatter,
                                       [D9DI_ALL_TO_ALL] = all_to_all,
                                       [D9DI_BROADCAST] = broadcast,
                                       [D9DI_EXCHANGE] = exchange,
                                       [D9DI_WORDS] = words,
                                       [D9DI_FENCE] = d9di_cuda_fence},
                               .mark = mark,
                               .queue = own_queue,
                               .fork = fork_queue,
                               .join = join_queue,
                               .point_set = point_set,
                               .join_at = join_at,
                               .point_free = point_free,
                               .begin = begin,
                               .end = end,
                               .share = d9di_cuda_share,
                               .rooms = &d9di_rooms_cuda,
                               .mail = &d9di_mail_cuda,
                               .post = post,
                               .passed = has_passed,
                               .finish = finish,
                               .close = close_group};

/* --- the library ------------------------------------------------------------------------------ */

static d9d_status load(struct nccl *n)
{
    static const char *const places[] = {"libnccl.so.2", D9D_CUDA_LIB "/libnccl.so.2"};

    for (size_t i = 0; i < sizeof(places) / sizeof(*places) && n->library == NULL; i++)
        n->library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    if (n->library == NULL)
        return D9D_FAIL(D9D_ENOTSUP,
                        "several ranks on GPUs need NCCL: libnccl.so.2 is neither on the library "
                        "path nor in %s",
                        D9D_CUDA_LIB);
#define X(f)                                                                                       \
    *(void **)&n->f = dlsym(n->library, #f);                                                       \
    if (n->f == NULL)                                                                              \
        return D9D_FAIL(D9D_ENOTSUP, "libnccl.so.2 has no function %s: it is too old", #f);
    NCCL_FUNCTIONS(X)
#undef X
    return D9D_OK;
}

/* The library stays loaded, as cuBLASLt does. */
static void close_net(void *self, bool failed)
{
    struct nccl *n = self;

    (void)failed;
    (void)pthread_mutex_destroy(&n->lock);
    free(n);
}

d9d_status d9di_net_nccl(d9d_boot *boot, d9d_stream stream, d9di_net *out)
{
    struct nccl *n = calloc(1, sizeof(*n));
    d9d_environment environment;
    d9d_status st;

    if (n == NULL)
        return D9D_FAIL(D9D_ENOMEM, "NCCL: out of memory");
    n->boot = boot;
    (void)pthread_mutex_init(&n->lock, NULL);
    (void)d9d_cuda_stream_queue(stream); /* makes its GPU the current one */
    (void)cudaGetDevice(&n->gpu);
    d9d_environment_read(D9D_ENVIRONMENT_NCCL, getenv, &environment);
    d9d_environment_apply(&environment);
    st = load(n);
    if (st == D9D_OK)
        *out = (d9di_net){
            .wire = &wire, .self = n, .group = open_group, .poll = poll_all, .close = close_net};
    else
        close_net(n, true);
    return st;
}

#endif
