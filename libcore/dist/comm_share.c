/* comm_share.c - GPUs of one host that read each other's memory: CUDA's handles between processes.
 *
 * A handle is of a whole allocation, so a place in it goes along.  Ranks tell each other what they
 * share, open it, and agree on whether all could.
 */
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/kernels/cuda.h"
#include "dist/comm_private.h"

enum { HOST = 40 };

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
    char host[HOST]; /* of this start of this host */
    cudaIpcMemHandle_t handle;
    uint64_t offset;
    int32_t fine;
} said;

/* --- what is here ------------------------------------------------------------------------ */

static void read_host(char out[HOST])
{
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? 0 : read(fd, out, HOST - 1);

    out[n < 0 ? 0 : n] = '\0';
    if (fd >= 0)
        (void)close(fd);
}

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
    const char *wish = getenv("D9D_COMM_SHARE");

    *out = (said){.fine = 0};
    if ((wish != NULL && strcmp(wish, "0") == 0) || host[0] == '\0' ||
        !find_base(mine, &out->offset))
        return;
    memcpy(out->host, host, HOST);
    out->fine = cudaIpcGetMemHandle(&out->handle, (char *)mine - out->offset) == cudaSuccess;
}

/* --- what is there ------------------------------------------------------------------------ */

static bool open_one(d9d_comm_shared *x, size_t at, const said *theirs, const char *host)
{
    if (!theirs->fine || strncmp(theirs->host, host, HOST) != 0)
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

/* Could every rank? */
static d9d_status agree(d9d_comm *c, const char *what, bool fine, d9d_arena *a, bool *out)
{
    d9d_comm_word *all = d9d_arena_alloc(a, (size_t)c->size * sizeof(*all));
    const char mine = fine ? 1 : 0;

    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: out of memory", c->name, what);
    D9D_TRY(d9d_comm_gather_words(c, what, &mine, 1, a, all));
    *out = true;
    for (int r = 0; r < c->size; r++)
        *out = *out && all[r].n == 1 && *(const char *)all[r].data == 1;
    return D9D_OK;
}

static d9d_status exchange(d9d_comm_shared *x, void *const *mine, d9d_arena *a, bool *fine)
{
    d9d_comm *c = x->comm;
    d9d_comm_word *all = d9d_arena_alloc(a, (size_t)c->size * sizeof(*all));
    said *here = d9d_arena_alloc(a, (x->n + 1) * sizeof(*here));
    char host[HOST] = "";

    if (all == NULL || here == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: no memory for %zu handles", c->name, x->what, x->n);
    read_host(host);
    for (size_t i = 0; i < x->n; i++)
        say(mine[i], host, &here[i]);
    D9D_TRY(d9d_comm_gather_words(c, x->what, here, x->n * sizeof(*here), a, all));
    *fine = open_all(x, all, here, mine) && cudaMalloc((void **)&x->word, 4) == cudaSuccess &&
            cudaMemset(x->word, 0, 4) == cudaSuccess;
    (void)cudaGetLastError(); /* what cannot be shared is no failure */
    return agree(c, x->what, *fine, a, fine);
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
    if (!*x->comm->failed)
        close_all(x);
    (void)cudaFree(x->word);
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

/* Each rank begins with its neighbour, so that no two read from one at a time. */
d9d_status d9d_comm_shared_gather(d9d_comm_shared *x, d9d_stream s, size_t i, d9d_dtype t,
                                  void *dst, const int64_t *counts)
{
    const int size = x->comm->size, me = x->comm->rank;

    for (int k = 1; k <= size; k++) {
        const int from = (me + k) % size;
        int64_t before = 0;
        cudaError_t e;

        for (int r = 0; r < from; r++)
            before += counts[r];
        e = cudaMemcpyAsync(
            (char *)dst + (uint64_t)before * d9d_dtype_size(t), x->at[(size_t)from * x->n + i],
            (size_t)counts[from] * d9d_dtype_size(t), cudaMemcpyDefault, d9d_cuda_stream_queue(s));
        if (e != cudaSuccess)
            return D9D_FAIL(D9D_ECUDA, "%s: %s: copy: %s", x->comm->name, x->what,
                            cudaGetErrorString(e));
    }
    return D9D_OK;
}
