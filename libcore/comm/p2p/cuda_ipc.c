/* cuda_ipc.c - peer memory: GPUs of one host map each other's memory by CUDA IPC handles.
 *
 * An IPC handle names a whole allocation, so the offset in it is sent too.  Ranks exchange their
 * handles, open them, and agree whether all could.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_private.h"
#include "d9d/comm/mesh.h"
#include "d9d/kernels/cuda.h"

/* A function of the CUDA driver; it takes the runtime's streams and addresses. */
typedef int stream_signal_fn(cudaStream_t s, unsigned long long at, uint32_t value, unsigned flags);

/* The last array has the signals: how many barriers each peer has signaled to this rank. */
struct d9d_peer_memory {
    d9d_comm *comm;
    char *label;
    size_t n;
    void **local;     /* [n] */
    const void **ptr; /* [ranks, n] */
    void **imported;  /* [ranks, n], handles to close; NULL: none */
    int32_t *dummy;   /* on the GPU, for barriers without signals */
    stream_signal_fn *wait, *write;
    uint32_t n_barriers; /* barriers so far */
    bool in_use;         /* peers may be reading */
    bool has_signals;    /* the streams of all ranks support signals */
    bool owned;          /* unmap frees all local arrays; else the signals only */
};

enum { SIGNAL_STRIDE = 256 }; /* bytes from one signal to the next */

/* --- signals ------------------------------------------------------------------------- */

/* A driver function; NULL if this driver lacks it. */
static stream_signal_fn *find_driver_fn(const char *name)
{
    void *at = d9d_cuda_driver_function(name);
    stream_signal_fn *f;

    memcpy(&f, &at, sizeof(f));
    return f;
}

static int stream_signal(stream_signal_fn *f, d9d_stream s, const void *word, uint32_t value)
{
    return f == NULL ? (int)cudaErrorNotSupported
                     : f(d9d_cuda_stream_handle(s), (unsigned long long)(uintptr_t)word, value, 0);
}

int d9di_peer_signal_write(const d9d_peer_memory *x, d9d_stream s, const void *word, uint32_t value)
{
    return stream_signal(x->write, s, word, value);
}

int d9di_peer_signal_wait(const d9d_peer_memory *x, d9d_stream s, const void *word, uint32_t value)
{
    return stream_signal(x->wait, s, word, value);
}

bool d9di_peer_has_signals(const d9d_peer_memory *x)
{
    return x->has_signals;
}

/* The signal that rank `from` writes at rank `to`. */
static const char *signal_of(const d9d_peer_memory *x, int to, int from)
{
    return (const char *)x->ptr[(size_t)to * x->n + x->n - 1] + (size_t)from * SIGNAL_STRIDE;
}

/* Write every signal once, as barriers will, to test that the streams can. */
static bool write_test_signals(const d9d_peer_memory *x, d9d_stream s)
{
    const int me = x->comm->rank;
    bool well = d9di_peer_signal_wait(x, s, signal_of(x, me, me), 0) == 0;

    for (int r = 0; r < x->comm->size && well; r++)
        well = d9di_peer_signal_write(x, s, signal_of(x, r, me), 1) == 0;
    return cudaStreamSynchronize(d9d_cuda_stream_handle(s)) == cudaSuccess && well;
}

static bool check_test_signals(const d9d_peer_memory *x)
{
    bool well = true;

    for (int r = 0; r < x->comm->size && well; r++) {
        uint32_t word = 0;

        well = cudaMemcpy(&word, signal_of(x, x->comm->rank, r), sizeof(word),
                          cudaMemcpyDeviceToHost) == cudaSuccess &&
               word == 1;
    }
    return well;
}

static d9d_status probe_signals(d9d_peer_memory *x)
{
    d9d_comm *c = x->comm;

    D9D_TRY(d9di_comm_all_true(c, x->label, write_test_signals(x, d9d_comm_stream(c)),
                               &x->has_signals));
    if (x->has_signals)
        D9D_TRY(d9di_comm_all_true(c, x->label, check_test_signals(x), &x->has_signals));
    x->n_barriers = 1;
    (void)cudaGetLastError(); /* an unsupported function is not an error */
    return D9D_OK;
}

/* An array as it is sent to the peers; all zeros if it cannot be exported. */
typedef struct exported {
    cudaIpcMemHandle_t handle;
    uint64_t offset;
    int32_t fine;
} exported;

/* --- exporting ----------------------------------------------------------------------- */

/* The offset of p in its allocation, from the driver. */
static bool find_offset(const void *p, uint64_t *offset)
{
    typedef int range_fn(unsigned long long *base, size_t *size, unsigned long long p);
    void *range = d9d_cuda_driver_function("cuMemGetAddressRange");
    unsigned long long base = 0;
    range_fn *call;
    size_t size;

    if (range == NULL)
        return false;
    memcpy(&call, &range, sizeof(call));
    if (call(&base, &size, (unsigned long long)(uintptr_t)p) != 0)
        return false;
    *offset = (uint64_t)(uintptr_t)p - base;
    return true;
}

static void export_handle(void *ptr, exported *out)
{
    *out = (exported){.fine = 0};
    if (!find_offset(ptr, &out->offset))
        return;
    out->fine = cudaIpcGetMemHandle(&out->handle, (char *)ptr - out->offset) == cudaSuccess;
}

/* --- importing ----------------------------------------------------------------------- */

static bool import_handle(d9d_peer_memory *x, size_t at, const exported *theirs)
{
    if (!theirs->fine)
        return false;
    if (cudaIpcOpenMemHandle(&x->imported[at], theirs->handle, cudaIpcMemLazyEnablePeerAccess) !=
        cudaSuccess) {
        x->imported[at] = NULL;
        return false;
    }
    x->ptr[at] = (const char *)x->imported[at] + theirs->offset;
    return true;
}

static bool import_handles(d9d_peer_memory *x, const d9d_comm_blob *all, const exported *local)
{
    const int me = x->comm->rank;

    for (int r = 0; r < x->comm->size; r++)
        for (size_t i = 0; i < x->n; i++) {
            const size_t at = (size_t)r * x->n + i;
            exported theirs;

            x->ptr[at] = x->local[i];
            if (r == me && local[i].fine)
                continue;
            if (r == me || all[r].n != x->n * sizeof(theirs))
                return false;
            memcpy(&theirs, (const char *)all[r].data + i * sizeof(theirs), sizeof(theirs));
            if (!import_handle(x, at, &theirs))
                return false;
        }
    return true;
}

static d9d_status exchange_handles(d9d_peer_memory *x, d9d_arena *a, bool *fine)
{
    d9d_comm *c = x->comm;
    d9d_comm_blob *all = d9d_arena_alloc(a, (size_t)c->size * sizeof(*all));
    exported *here = d9d_arena_alloc(a, x->n * sizeof(*here));

    if (all == NULL || here == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: no memory for %zu handles", c->name, x->label, x->n);
    for (size_t i = 0; i < x->n; i++)
        export_handle(x->local[i], &here[i]);
    D9D_TRY(d9d_comm_allgather_bytes(c, x->label, here, x->n * sizeof(*here), a, all));
    *fine = import_handles(x, all, here) && cudaMalloc((void **)&x->dummy, 4) == cudaSuccess &&
            cudaMemset(x->dummy, 0, 4) == cudaSuccess;
    (void)cudaGetLastError(); /* an allocation that cannot be exported is not an error */
    D9D_TRY(d9di_comm_all_true(c, x->label, *fine, fine));
    return *fine ? probe_signals(x) : D9D_OK;
}

/* NULL if out of memory: then nothing is mapped. */
static void *signals_alloc(const d9d_comm *c)
{
    const size_t bytes = (size_t)c->size * SIGNAL_STRIDE;
    void *p = NULL;

    if (cudaMalloc(&p, bytes) != cudaSuccess || cudaMemset(p, 0, bytes) != cudaSuccess ||
        cudaDeviceSynchronize() != cudaSuccess) {
        (void)cudaFree(p);
        p = NULL;
    }
    (void)cudaGetLastError();
    return p;
}

static d9d_status peer_memory_create(d9d_comm *c, const char *label, void *const *local, size_t n,
                                     d9d_peer_memory **out)
{
    const size_t all = (size_t)c->size * (n + 1);
    d9d_peer_memory *x = calloc(1, sizeof(*x));

    *out = x;
    if (x == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: out of memory", c->name, label);
    *x = (d9d_peer_memory){.comm = c,
                           .label = strdup(label),
                           .n = n + 1,
                           .wait = find_driver_fn("cuStreamWaitValue32"),
                           .write = find_driver_fn("cuStreamWriteValue32"),
                           .local = calloc(n + 1, sizeof(*x->local)),
                           .ptr = calloc(all, sizeof(*x->ptr)),
                           .imported = calloc(all, sizeof(*x->imported))};
    if (x->label == NULL || x->local == NULL || x->ptr == NULL || x->imported == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: out of memory", c->name, label);
    for (size_t i = 0; i < n; i++)
        x->local[i] = local[i];
    x->local[n] = signals_alloc(c);
    return D9D_OK;
}

d9d_status d9di_peer_map_cuda(d9d_comm *c, const char *label, void *const *local, size_t n,
                              d9d_peer_memory **out)
{
    d9d_peer_memory *x;
    d9d_arena a = {0};
    bool fine = false;
    d9d_status st = peer_memory_create(c, label, local, n, &x);

    if (st == D9D_OK)
        st = exchange_handles(x, &a, &fine);
    d9d_arena_release(&a);
    if (st == D9D_OK && fine) {
        x->in_use = true;
        *out = x;
    } else {
        d9d_peer_unmap(x);
    }
    return st;
}

/* Close the imported handles; memory may be freed when no peer has it open. */
static void close_handles(const d9d_peer_memory *x)
{
    if (x->in_use)
        (void)cudaDeviceSynchronize(); /* wait for pending reads */
    for (size_t i = 0; x->imported != NULL && i < (size_t)x->comm->size * x->n; i++)
        if (x->imported[i] != NULL)
            (void)cudaIpcCloseMemHandle(x->imported[i]);
    if (x->in_use)
        (void)!d9d_comm_barrier(x->comm, x->label);
}

void d9d_peer_unmap(d9d_peer_memory *x)
{
    if (x == NULL)
        return;
    if (!*x->comm->failed) { /* else freeing could block for ever, and the process ends soon */
        close_handles(x);
        for (size_t i = x->owned ? 0 : x->n - 1; x->local != NULL && i < x->n; i++)
            (void)cudaFree(x->local[i]);
        (void)cudaFree(x->dummy);
    }
    free(x->imported);
    free(x->ptr);
    free(x->local);
    free(x->label);
    free(x);
}

/* --- using it ------------------------------------------------------------------------------ */

static d9d_status check_cuda(const d9d_comm *c, const char *label, int rc)
{
    return rc == 0 ? D9D_OK
                   : D9D_FAIL(D9D_ECUDA, "%s: %s: CUDA: %s", c->name, label,
                              cudaGetErrorString((cudaError_t)rc));
}

static d9d_status signal_peer(const d9d_peer_memory *x, d9d_stream s, int to)
{
    return check_cuda(
        x->comm, x->label,
        d9di_peer_signal_write(x, s, signal_of(x, to, x->comm->rank), x->n_barriers + 1));
}

static d9d_status wait_peer(const d9d_peer_memory *x, d9d_stream s, int from)
{
    return check_cuda(
        x->comm, x->label,
        d9di_peer_signal_wait(x, s, signal_of(x, x->comm->rank, from), x->n_barriers));
}

static d9d_status copy(d9d_comm *c, d9d_stream s, void *dst, const void *src, uint64_t n)
{
    return check_cuda(
        c, "copy", (int)cudaMemcpyAsync(dst, src, n, cudaMemcpyDefault, d9d_cuda_stream_handle(s)));
}

/* Signal and wait for the peers; without signals, an all-reduce. */
static d9d_status arrive(d9d_peer_memory *x, const d9di_comm_call *k)
{
    d9d_comm *c = x->comm;

    if (!x->has_signals)
        return c->ops->run[D9DI_COLL_ALL_REDUCE](c, &(d9di_comm_call){.coll = D9DI_COLL_ALL_REDUCE,
                                                                      .t = D9D_I32,
                                                                      .op = D9D_COMM_MAX,
                                                                      .label = k->label,
                                                                      .stream = k->stream,
                                                                      .dst = x->dummy,
                                                                      .src = x->dummy,
                                                                      .n = 1});
    for (int i = 1; i < c->size && !k->signaled; i++)
        D9D_TRY(signal_peer(x, k->stream, (c->rank + i) % c->size));
    x->n_barriers++;
    return D9D_OK;
}

d9d_status d9di_peer_barrier_cuda(d9d_comm *c, const d9di_comm_call *k)
{
    d9d_peer_memory *x = k->peer_memory;

    D9D_TRY(arrive(x, k));
    for (int i = 0; i < k->n_gets; i++) {
        const d9di_peer_get *p = &k->gets[i];

        if (x->has_signals)
            D9D_TRY(wait_peer(x, k->stream, p->from));
        D9D_TRY(copy(c, k->stream, p->dst, p->src, p->n));
        D9D_TRY(d9d_comm_event_record(c, p->done_event));
    }
    for (int i = 1; i < c->size && x->has_signals; i++)
        D9D_TRY(wait_peer(x, k->stream, (c->rank + i) % c->size));
    return D9D_OK;
}

d9d_status d9d_peer_barrier(d9d_peer_memory *x, d9d_stream s)
{
    return d9di_comm_submit(x->comm, &(d9di_comm_call){.coll = D9DI_COLL_PEER_BARRIER,
                                                       .t = D9D_U8,
                                                       .label = x->label,
                                                       .stream = s,
                                                       .peer_memory = x});
}

/* Each rank begins with its neighbour, so that at no time two ranks read from the same one. */
d9d_status d9d_peer_gather(d9d_peer_memory *x, d9d_stream s, size_t i, d9d_dtype t, void *dst,
                           const int64_t *counts)
{
    const int size = x->comm->size, me = x->comm->rank;
    const size_t e = d9d_dtype_size(t);

    for (int k = 1; k <= size; k++) {
        const int from = (me + k) % size;
        int64_t before = 0;

        for (int r = 0; r < from; r++)
            before += counts[r];
        D9D_TRY(copy(x->comm, s, (char *)dst + (size_t)before * e, x->ptr[(size_t)from * x->n + i],
                     (size_t)counts[from] * e));
    }
    return D9D_OK;
}

void *d9di_peer_ptr(const d9d_peer_memory *x, int rank)
{
    return (void *)(uintptr_t)x->ptr[(size_t)rank * x->n];
}

/* --- staging buffers: two peer-mapped arrays, which unmap frees ---------------------- */

/* Allocate; if that fails, trim the device's memory pool and try again.  NULL: out of memory. */
static void *alloc_or_trim(const d9d_comm *c, uint64_t bytes)
{
    void *p = NULL;

    if (cudaMalloc(&p, bytes) == cudaSuccess)
        return p;
    (void)cudaGetLastError();
    if (c->opts != NULL && c->opts->trim != NULL)
        c->opts->trim(c->opts->trim_arg);
    return cudaMalloc(&p, bytes) == cudaSuccess ? p : NULL;
}

static d9d_status symm_buffer_create(d9d_comm *c, uint64_t bytes, void **out)
{
    d9d_peer_memory *x = NULL;
    void *local[2] = {NULL, NULL};
    d9d_status st;

    for (int i = 0; i < 2; i++)
        local[i] = alloc_or_trim(c, bytes); /* NULL: then nothing is mapped */
    (void)cudaGetLastError();
    st = d9d_peer_map(c, "symm_buffer", local, 2, &x);
    if (x != NULL)
        x->owned = true;
    for (int i = 0; i < 2 && x == NULL && !*c->failed; i++)
        (void)cudaFree(local[i]);
    *out = x;
    return st;
}

static void *symm_buffer_ptr(const void *self, int which, int rank)
{
    const d9d_peer_memory *x = self;

    return (void *)(uintptr_t)x->ptr[(size_t)rank * x->n + (size_t)which];
}

static d9d_status symm_buffer_signal(void *self, d9d_stream s, int to)
{
    const d9d_peer_memory *x = self;

    return x->has_signals ? signal_peer(x, s, to) : d9d_comm_wait_stream(x->comm, s);
}

static void symm_buffer_close(void *self)
{
    d9d_peer_unmap(self);
}

const d9di_symm_buffer_ops d9di_symm_buffer_cuda = {symm_buffer_create, symm_buffer_ptr,
                                                    symm_buffer_signal, copy, symm_buffer_close};
