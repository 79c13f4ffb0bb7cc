/* cuda_ipc.c - GPUs of one host that read each other's memory: CUDA's handles between processes.
 *
 * A handle is of a whole allocation, so a place in it goes along.  Ranks tell each other what they
 * share, open it, and agree on whether all could.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/comm/mesh.h"
#include "d9d/kernels/cuda.h"
#include "comm/comm_private.h"

/* Of the driver; streams and addresses are as the runtime's. */
typedef int stream_word_fn(cudaStream_t s, unsigned long long at, uint32_t value, unsigned flags);

/* The last array is of words: how many fences each of the others has told this rank of. */
struct d9d_comm_shared {
    d9d_comm *comm;
    char *what;
    size_t n;
    void **mine;     /* [n] */
    const void **at; /* [ranks, n] */
    void **opened;   /* [ranks, n], what is to be closed; NULL where nothing is */
    int32_t *word;   /* on the GPU, for fences of ranks that have no words */
    stream_word_fn *wait, *write;
    uint32_t fences; /* come to so far */
    bool used;       /* others may be reading */
    bool speaks;     /* by words */
    bool owned;      /* all of mine goes with it; else the words alone */
};

enum { WORD = 256 }; /* bytes from one word to the next */

/* --- words ------------------------------------------------------------------------------------ */

/* NULL: this driver has none. */
static stream_word_fn *find(const char *name)
{
    enum cudaDriverEntryPointQueryResult found;
    void *at = NULL;
    stream_word_fn *f;

    if (cudaGetDriverEntryPointByVersion(name, &at, 12000, cudaEnableDefault, &found) !=
            cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return NULL;
    memcpy(&f, &at, sizeof(f));
    return f;
}

static int on_word(stream_word_fn *f, d9d_stream s, const void *word, uint32_t value)
{
    return f == NULL ? (int)cudaErrorNotSupported
                     : f(d9d_cuda_stream_queue(s), (unsigned long long)(uintptr_t)word, value, 0);
}

int d9di_word_write(const d9d_comm_shared *x, d9d_stream s, const void *word, uint32_t value)
{
    return on_word(x->write, s, word, value);
}

int d9di_word_wait(const d9d_comm_shared *x, d9d_stream s, const void *word, uint32_t value)
{
    return on_word(x->wait, s, word, value);
}

bool d9di_shared_speaks(const d9d_comm_shared *x)
{
    return x->speaks;
}

/* What rank `from` writes at rank `to`. */
static const char *word_of(const d9d_comm_shared *x, int to, int from)
{
    return (const char *)x->at[(size_t)to * x->n + x->n - 1] + (size_t)from * WORD;
}

/* Each writes into its words, as fences will. */
static bool greet(const d9d_comm_shared *x, d9d_stream s)
{
    const int me = x->comm->rank;
    bool well = d9di_word_wait(x, s, word_of(x, me, me), 0) == 0;

    for (int r = 0; r < x->comm->size && well; r++)
        well = d9di_word_write(x, s, word_of(x, r, me), 1) == 0;
    return cudaStreamSynchronize(d9d_cuda_stream_queue(s)) == cudaSuccess && well;
}

static bool was_greeted(const d9d_comm_shared *x)
{
    bool well = true;

    for (int r = 0; r < x->comm->size && well; r++) {
        uint32_t word = 0;

        well = cudaMemcpy(&word, word_of(x, x->comm->rank, r), sizeof(word),
                          cudaMemcpyDeviceToHost) == cudaSuccess &&
               word == 1;
    }
    return well;
}

static d9d_status try_words(d9d_comm_shared *x)
{
    d9d_comm *c = x->comm;

    D9D_TRY(d9di_comm_all(c, x->what, greet(x, d9d_comm_queue(c)), &x->speaks));
    if (x->speaks)
        D9D_TRY(d9di_comm_all(c, x->what, was_greeted(x), &x->speaks));
    x->fences = 1;
    (void)cudaGetLastError(); /* what cannot be is no failure */
    return D9D_OK;
}

/* What a rank says of an array; all zeros where it cannot be shared. */
typedef struct said {
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

static void say(void *mine, said *out)
{
    *out = (said){.fine = 0};
    if (!find_base(mine, &out->offset))
        return;
    out->fine = cudaIpcGetMemHandle(&out->handle, (char *)mine - out->offset) == cudaSuccess;
}

/* --- what is there ------------------------------------------------------------------------ */

static bool open_one(d9d_comm_shared *x, size_t at, const said *theirs)
{
    if (!theirs->fine)
        return false;
    if (cudaIpcOpenMemHandle(&x->opened[at], theirs->handle, cudaIpcMemLazyEnablePeerAccess) !=
        cudaSuccess) {
        x->opened[at] = NULL;
        return false;
    }
    x->at[at] = (const char *)x->opened[at] + theirs->offset;
    return true;
}

static bool open_all(d9d_comm_shared *x, const d9d_comm_word *all, const said *mine)
{
    const int me = x->comm->rank;

    for (int r = 0; r < x->comm->size; r++)
        for (size_t i = 0; i < x->n; i++) {
            const size_t at = (size_t)r * x->n + i;
            said theirs;

            x->at[at] = x->mine[i];
            if (r == me && mine[i].fine)
                continue;
            if (r == me || all[r].n != x->n * sizeof(theirs))
                return false;
            memcpy(&theirs, (const char *)all[r].data + i * sizeof(theirs), sizeof(theirs));
            if (!open_one(x, at, &theirs))
                return false;
        }
    return true;
}

static d9d_status exchange(d9d_comm_shared *x, d9d_arena *a, bool *fine)
{
    d9d_comm *c = x->comm;
    d9d_comm_word *all = d9d_arena_alloc(a, (size_t)c->size * sizeof(*all));
    said *here = d9d_arena_alloc(a, x->n * sizeof(*here));

    if (all == NULL || here == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: no memory for %zu handles", c->name, x->what, x->n);
    for (size_t i = 0; i < x->n; i++)
        say(x->mine[i], &here[i]);
    D9D_TRY(d9d_comm_gather_words(c, x->what, here, x->n * sizeof(*here), a, all));
    *fine = open_all(x, all, here) && cudaMalloc((void **)&x->word, 4) == cudaSuccess &&
            cudaMemset(x->word, 0, 4) == cudaSuccess;
    (void)cudaGetLastError(); /* what cannot be shared is no failure */
    D9D_TRY(d9di_comm_all(c, x->what, *fine, fine));
    return *fine ? try_words(x) : D9D_OK;
}

/* NULL where there is no memory: then it cannot be shared. */
static void *make_words(const d9d_comm *c)
{
    const size_t bytes = (size_t)c->size * WORD;
    void *p = NULL;

    if (cudaMalloc(&p, bytes) != cudaSuccess || cudaMemset(p, 0, bytes) != cudaSuccess ||
        cudaDeviceSynchronize() != cudaSuccess) {
        (void)cudaFree(p);
        p = NULL;
    }
    (void)cudaGetLastError();
    return p;
}

static d9d_status create(d9d_comm *c, const char *what, void *const *mine, size_t n,
                         d9d_comm_shared **out)
{
    const size_t all = (size_t)c->size * (n + 1);
    d9d_comm_shared *x = calloc(1, sizeof(*x));

    *out = x;
    if (x == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: out of memory", c->name, what);
    *x = (d9d_comm_shared){.comm = c,
                           .what = strdup(what),
                           .n = n + 1,
                           .wait = find("cuStreamWaitValue32"),
                           .write = find("cuStreamWriteValue32"),
                           .mine = calloc(n + 1, sizeof(*x->mine)),
                           .at = calloc(all, sizeof(*x->at)),
                           .opened = calloc(all, sizeof(*x->opened))};
    if (x->what == NULL || x->mine == NULL || x->at == NULL || x->opened == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: out of memory", c->name, what);
    for (size_t i = 0; i < n; i++)
        x->mine[i] = mine[i];
    x->mine[n] = make_words(c);
    return D9D_OK;
}

d9d_status d9di_cuda_share(d9d_comm *c, const char *what, void *const *mine, size_t n,
                           d9d_comm_shared **out)
{
    d9d_comm_shared *x;
    d9d_arena a = {0};
    bool fine = false;
    d9d_status st = create(c, what, mine, n, &x);

    if (st == D9D_OK)
        st = exchange(x, &a, &fine);
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
        for (size_t i = x->owned ? 0 : x->n - 1; x->mine != NULL && i < x->n; i++)
            (void)cudaFree(x->mine[i]);
        (void)cudaFree(x->word);
    }
    free(x->opened);
    free(x->at);
    free(x->mine);
    free(x->what);
    free(x);
}

/* --- using it ------------------------------------------------------------------------------ */

static d9d_status settle(const d9d_comm *c, const char *what, int rc)
{
    return rc == 0 ? D9D_OK
                   : D9D_FAIL(D9D_ECUDA, "%s: %s: CUDA: %s", c->name, what,
                              cudaGetErrorString((cudaError_t)rc));
}

static d9d_status tell(const d9d_comm_shared *x, d9d_stream s, int to)
{
    return settle(x->comm, x->what,
                  d9di_word_write(x, s, word_of(x, to, x->comm->rank), x->fences + 1));
}

static d9d_status await(const d9d_comm_shared *x, d9d_stream s, int from)
{
    return settle(x->comm, x->what,
                  d9di_word_wait(x, s, word_of(x, x->comm->rank, from), x->fences));
}

static d9d_status copy(d9d_comm *c, d9d_stream s, void *dst, const void *src, uint64_t n)
{
    return settle(c, "copy",
                  (int)cudaMemcpyAsync(dst, src, n, cudaMemcpyDefault, d9d_cuda_stream_queue(s)));
}

/* Ranks without words come together all at once. */
static d9d_status come(d9d_comm_shared *x, const d9di_call *k)
{
    d9d_comm *c = x->comm;

    if (!x->speaks)
        return c->wire->run[D9DI_ALL_REDUCE](c, &(d9di_call){.verb = D9DI_ALL_REDUCE,
                                                             .t = D9D_I32,
                                                             .op = D9D_COMM_MAX,
                                                             .what = k->what,
                                                             .stream = k->stream,
                                                             .dst = x->word,
                                                             .src = x->word,
                                                             .n = 1});
    for (int i = 1; i < c->size && !k->told; i++)
        D9D_TRY(tell(x, k->stream, (c->rank + i) % c->size));
    x->fences++;
    return D9D_OK;
}

d9d_status d9di_cuda_fence(d9d_comm *c, const d9di_call *k)
{
    d9d_comm_shared *x = k->fenced;

    D9D_TRY(come(x, k));
    for (int i = 0; i < k->n_takes; i++) {
        const d9di_take *p = &k->takes[i];

        if (x->speaks)
            D9D_TRY(await(x, k->stream, p->from));
        D9D_TRY(copy(c, k->stream, p->dst, p->src, p->n));
        D9D_TRY(d9d_comm_point_set(c, p->there));
    }
    for (int i = 1; i < c->size && x->speaks; i++)
        D9D_TRY(await(x, k->stream, (c->rank + i) % c->size));
    return D9D_OK;
}

d9d_status d9d_comm_shared_fence(d9d_comm_shared *x, d9d_stream s)
{
    return d9di_comm_go(
        x->comm,
        &(d9di_call){.verb = D9DI_FENCE, .t = D9D_U8, .what = x->what, .stream = s, .fenced = x});
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
        D9D_TRY(copy(x->comm, s, (char *)dst + (size_t)before * e, x->at[(size_t)from * x->n + i],
                     (size_t)counts[from] * e));
    }
    return D9D_OK;
}

void *d9di_shared_at(const d9d_comm_shared *x, int rank)
{
    return (void *)(uintptr_t)x->at[(size_t)rank * x->n];
}

/* --- rooms: two arrays that are shared, and go with it
 * -------------------------------------------- */

/* What the pool keeps for later comes back to the driver where that has too little.  NULL: none. */
static void *take(const d9d_comm *c, uint64_t bytes)
{
    void *p = NULL;

    if (cudaMalloc(&p, bytes) == cudaSuccess)
        return p;
    (void)cudaGetLastError();
    if (c->how != NULL && c->how->trim != NULL)
        c->how->trim(c->how->trim_arg);
    return cudaMalloc(&p, bytes) == cudaSuccess ? p : NULL;
}

static d9d_status rooms_make(d9d_comm *c, uint64_t bytes, void **out)
{
    d9d_comm_shared *x = NULL;
    void *mine[2] = {NULL, NULL};
    d9d_status st;

    for (int i = 0; i < 2; i++)
        mine[i] = take(c, bytes); /* NULL: then they cannot be shared */
    (void)cudaGetLastError();
    st = d9d_comm_share(c, "rooms", mine, 2, &x);
    if (x != NULL)
        x->owned = true;
    for (int i = 0; i < 2 && x == NULL && !*c->failed; i++)
        (void)cudaFree(mine[i]);
    *out = x;
    return st;
}

static void *rooms_at(const void *self, int turn, int rank)
{
    const d9d_comm_shared *x = self;

    return (void *)(uintptr_t)x->at[(size_t)rank * x->n + (size_t)turn];
}

static d9d_status rooms_tell(void *self, d9d_stream s, int to)
{
    const d9d_comm_shared *x = self;

    return x->speaks ? tell(x, s, to) : d9d_comm_fork(x->comm, s);
}

static void rooms_close(void *self)
{
    d9d_comm_unshare(self);
}

const d9di_rooms_ops d9di_rooms_cuda = {rooms_make, rooms_at, rooms_tell, copy, rooms_close};
