/* comm_share.c - GPUs of one host that read each other's memory: CUDA's handles between processes.
 *
 * A handle is of a whole allocation, so a place in it goes along.  Ranks tell each other what they
 * share, open it, and agree on whether all could.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/kernels/cuda.h"
#include "dist/comm_private.h"

struct d9d_comm_shared {
    d9d_comm *comm;
    char *what;
    size_t n;
    const void **at; /* [ranks, n] */
    void **opened;   /* [ranks, n], what is to be closed; NULL where nothing is */
    int32_t *word;   /* on the GPU */
    bool used;       /* others may be reading */
};

/* What a rank says of an array; all zeros where it cannot be shared. */
typedef struct said {
    char host[D9DI_HOST_MAX];
    cudaIpcMemHandle_t handle;
    uint64_t offset;
    int32_t fine;
} said;

/* --- what is here ------------------------------------------------------------------------ */

/* The driver knows where an allocation begins. */
static bool find_base(const void *p, uint64_t *offset)
{
    typedef int range_fn(unsigned long long *base, size_t *size, unsigned long long p);
    enum cudaDriverEntryPointQueryResult found;
    unsigned long long base = 0;
    void *range = NULL;
    range_fn *call;
    size_t size;

    if (cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &range, 12000, cudaEnableDefault,
                                         &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return false;
    memcpy(&call, &range, sizeof(call));
    if (call(&base, &size, (unsigned long long)(uintptr_t)p) != 0)
        return false;
    *offset = (uint64_t)(uintptr_t)p - base;
    return true;
}

static void say(void *mine, const char *host, said *out)
{
    *out = (said){.fine = 0};
    if (!d9di_may_share(true) || host[0] == '\0' || !find_base(mine, &out->offset))
        return;
    memcpy(out->host, host, sizeof(out->host));
    out->fine = cudaIpcGetMemHandle(&out->handle, (char *)mine - out->offset) == cudaSuccess;
}

/* --- what is there ------------------------------------------------------------------------ */

static bool open_one(d9d_comm_shared *x, size_t at, const said *theirs, const char *host)
{
    if (!theirs->fine || strncmp(theirs->host, host, D9DI_HOST_MAX) != 0)
        return false;
    if (cudaIpcOpenMemHandle(&x->opened[at], theirs->handle, cudaIpcMemLazyEnablePeerAccess) !=
        cudaSuccess) {
        x->opened[at] = NULL;
        return false;
    }
    x->at[at] = (const char *)x->opened[at] + theirs->offset;
    return true;
}

static bool open_all(d9d_comm_shared *x, const d9d_comm_word *all, const said *mine,
                     void *const *arrays)
{
    const int me = x->comm->rank;

    for (int r = 0; r < x->comm->size; r++)
        for (size_t i = 0; i < x->n; i++) {
            const size_t at = (size_t)r * x->n + i;
            said theirs;

            x->at[at] = arrays[i];
            if (r == me && mine[i].fine)
                continue;
            if (r == me || all[r].n != x->n * sizeof(theirs))
                return false;
            memcpy(&theirs, (const char *)all[r].data + i * sizeof(theirs), sizeof(theirs));
            if (!open_one(x, at, &theirs, mine[i].host))
                return false;
        }
    return true;
}

static d9d_status exchange(d9d_comm_shared *x, void *const *mine, d9d_arena *a, bool *fine)
{
    d9d_comm *c = x->comm;
    d9d_comm_word *all = d9d_arena_alloc(a, (size_t)c->size * sizeof(*all));
    said *here = d9d_arena_alloc(a, (x->n + 1) * sizeof(*here));
    char host[D9DI_HOST_MAX];

    if (all == NULL || here == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: no memory for %zu handles", c->name, x->what, x->n);
    d9di_host_name(host);
    for (size_t i = 0; i < x->n; i++)
        say(mine[i], host, &here[i]);
    D9D_TRY(d9d_comm_gather_words(c, x->what, here, x->n * sizeof(*here), a, all));
    *fine = open_all(x, all, here, mine) && cudaMalloc((void **)&x->word, 4) == cudaSuccess &&
            cudaMemset(x->word, 0, 4) == cudaSuccess;
    (void)cudaGetLastError(); /* what cannot be shared is no failure */
    return d9di_comm_all(c, x->what, *fine, fine);
}

static d9d_status create(d9d_comm *c, const char *what, size_t n, d9d_comm_shared **out)
{
    const size_t all = (size_t)c->size * n + 1;
    d9d_comm_shared *x = calloc(1, sizeof(*x));

    *out = x;
    if (x == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: out of memory", c->name, what);
    *x = (d9d_comm_shared){.comm = c,
                           .what = strdup(what),
                           .n = n,
                           .at = calloc(all, sizeof(*x->at)),
                           .opened = calloc(all, sizeof(*x->opened))};
    if (x->what == NULL || x->at == NULL || x->opened == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: out of memory", c->name, what);
    return D9D_OK;
}

d9d_status d9di_cuda_share(d9d_comm *c, const char *what, void *const *mine, size_t n,
                           d9d_comm_shared **out)
{
    d9d_comm_shared *x;
    d9d_arena a = {0};
    bool fine = false;
    d9d_status st = create(c, what, n, &x);

    if (st == D9D_OK)
        st = exchange(x, mine, &a, &fine);
    d9d_arena_release(&a);
    if (st == D9D_OK && fine) {
        x->used = true;
        *out = x;
    } else {
        d9d_comm_unshare(x);
    }
    return st;
}

/* Memory may go when nobody has it open any more. */
static void close_all(const d9d_comm_shared *x)
{
    if (x->used)
        (void)cudaDeviceSynchronize(); /* what is still read */
    for (size_t i = 0; x->opened != NULL && i < (size_t)x->comm->size * x->n; i++)
        if (x->opened[i] != NULL)
            (void)cudaIpcCloseMemHandle(x->opened[i]);
    if (x->used)
        (void)!d9d_comm_barrier(x->comm, x->what);
}

void d9d_comm_unshare(d9d_comm_shared *x)
{
    if (x == NULL)
        return;
    if (!*x->comm->failed) { /* else freeing could wait for ever, and the process ends soon */
        close_all(x);
        (void)cudaFree(x->word);
    }
    free(x->opened);
    free(x->at);
    free(x->what);
    free(x);
}

/* --- using it ------------------------------------------------------------------------------ */

d9d_status d9d_comm_shared_fence(d9d_comm_shared *x, d9d_stream s)
{
    return d9d_comm_all_reduce(x->comm, s, x->what, D9D_I32, x->word, 1, D9D_COMM_MAX);
}

static d9d_status copy(const d9d_comm_shared *x, d9d_stream s, void *dst, const void *src, size_t n)
{
    const cudaError_t e = cudaMemcpyAsync(dst, src, n, cudaMemcpyDefault, d9d_cuda_stream_queue(s));

    return e == cudaSuccess ? D9D_OK
                            : D9D_FAIL(D9D_ECUDA, "%s: %s: copy: %s", x->comm->name, x->what,
                                       cudaGetErrorString(e));
}

/* Each rank begins with its neighbour, so that no two read from one at a time. */
d9d_status d9d_comm_shared_gather(d9d_comm_shared *x, d9d_stream s, size_t i, d9d_dtype t,
                                  void *dst, const int64_t *counts)
{
    const int size = x->comm->size, me = x->comm->rank;
    const size_t e = d9d_dtype_size(t);

    for (int k = 1; k <= size; k++) {
        const int from = (me + k) % size;
        int64_t before = 0;

        for (int r = 0; r < from; r++)
            before += counts[r];
        D9D_TRY(copy(x, s, (char *)dst + (size_t)before * e, x->at[(size_t)from * x->n + i],
                     (size_t)counts[from] * e));
    }
    return D9D_OK;
}

void *d9di_shared_at(const d9d_comm_shared *x, int rank)
{
    return (void *)(uintptr_t)x->at[(size_t)rank * x->n];
}

/* --- rooms ----------------------------------------------------------------------------------- */

typedef struct rooms {
    void *mine[2];
    d9d_comm_shared *shared;
} rooms;

static void rooms_close(void *self)
{
    rooms *r = self;
    const bool failed = r->shared != NULL && *r->shared->comm->failed;

    d9d_comm_unshare(r->shared);
    for (int i = 0; i < 2 && !failed; i++)
        (void)cudaFree(r->mine[i]);
    free(r);
}

static d9d_status rooms_make(d9d_comm *c, uint64_t bytes, void **out)
{
    rooms *r = calloc(1, sizeof(*r));
    d9d_status st;

    if (r == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for rooms", c->name);
    for (int i = 0; i < 2; i++)
        if (cudaMalloc(&r->mine[i], bytes) != cudaSuccess)
            r->mine[i] = NULL; /* then they cannot be shared */
    (void)cudaGetLastError();
    st = d9d_comm_share(c, "rooms", r->mine, 2, &r->shared);
    if (st == D9D_OK && r->shared != NULL)
        *out = r;
    else
        rooms_close(r);
    return st;
}

static void *rooms_mine(const void *self, int turn)
{
    return ((const rooms *)self)->mine[turn];
}

static d9d_status rooms_fence(void *self, d9d_stream s, const char *what)
{
    d9d_comm_shared *x = ((rooms *)self)->shared;

    return d9d_comm_all_reduce(x->comm, s, what, D9D_I32, x->word, 1, D9D_COMM_MAX);
}

static d9d_status rooms_take(const void *self, d9d_stream s, int turn, int from, uint64_t offset,
                             void *dst, uint64_t n)
{
    const d9d_comm_shared *x = ((const rooms *)self)->shared;
    const char *theirs = x->at[(size_t)from * x->n + (size_t)turn];

    return copy(x, s, dst, theirs + offset, n);
}

const d9di_rooms_ops d9di_rooms_cuda = {rooms_make, rooms_mine, rooms_fence, rooms_take,
                                        rooms_close};
