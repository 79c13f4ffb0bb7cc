/* symm_buffer_host.c - staging buffers of CPU ranks on one host: a memfd of each rank that the
 * others map, if all ranks have D9D_P2P=force in their environment. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm_private.h"

typedef struct symm_buffers {
    d9d_comm *comm;
    uint64_t bytes;      /* of one buffer */
    uint32_t n_barriers; /* barriers so far */
    char *base[];        /* [size], each rank's signals, then its two buffers */
} symm_buffers;

enum { SPIN_POLLS = 1000 }; /* polls of a signal before sleeping between them */
enum {
    SIGNAL_STRIDE = 64,
    PAGE = 4096
}; /* bytes from one signal to the next; buffers are page-aligned */

/* The number of barriers that `from` has signaled to `to`. */
static uint32_t *signal_of(const symm_buffers *r, int to, int from)
{
    return (uint32_t *)(void *)(r->base[to] + (size_t)from * SIGNAL_STRIDE);
}

static uint64_t signals_bytes(const symm_buffers *r)
{
    return ((uint64_t)r->comm->size * SIGNAL_STRIDE + PAGE - 1) / PAGE * PAGE;
}

static uint64_t mapping_bytes(const symm_buffers *r)
{
    return signals_bytes(r) + 2 * r->bytes;
}

/* A rank's memfd as it is sent.  Device and inode tell it from a file of another container. */
typedef struct memfd_info {
    int64_t pid, fd, device, file;
} memfd_info;

static bool map_memfd(symm_buffers *r, int rank, int fd)
{
    void *p = mmap(NULL, mapping_bytes(r), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    r->base[rank] = p == MAP_FAILED ? NULL : p;
    return r->base[rank] != NULL;
}

/* Create this rank's memfd; -1 on failure. */
static int create_local(symm_buffers *r, memfd_info *out)
{
    const int fd = memfd_create("d9d symmetric buffer", MFD_CLOEXEC);
    struct stat s;

    memset(out, 0, sizeof(*out));
    if (fd < 0 || ftruncate(fd, (off_t)mapping_bytes(r)) != 0 || fstat(fd, &s) != 0 ||
        !map_memfd(r, r->comm->rank, fd)) {
        if (fd >= 0)
            (void)close(fd);
        return -1;
    }
    out->pid = getpid();
    out->fd = fd;
    out->device = (int64_t)s.st_dev;
    out->file = (int64_t)s.st_ino;
    return fd;
}

static bool open_peer(symm_buffers *r, int rank, const memfd_info *theirs)
{
    char path[64];
    struct stat s;
    bool fine;
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/%lld/fd/%lld", (long long)theirs->pid,
                   (long long)theirs->fd);
    fd = theirs->pid > 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
    fine = fd >= 0 && fstat(fd, &s) == 0 && (int64_t)s.st_dev == theirs->device &&
           (int64_t)s.st_ino == theirs->file && map_memfd(r, rank, fd);
    if (fd >= 0)
        (void)close(fd);
    return fine;
}

static bool open_peers(symm_buffers *r, const d9d_comm_blob *all)
{
    bool fine = r->base[r->comm->rank] != NULL;

    for (int i = 0; i < r->comm->size && fine; i++) {
        memfd_info theirs;

        if (i == r->comm->rank)
            continue;
        fine = all[i].n == sizeof(theirs);
        if (fine)
            memcpy(&theirs, all[i].data, sizeof(theirs));
        fine = fine && open_peer(r, i, &theirs);
    }
    return fine;
}

static void buffers_unmap(symm_buffers *r)
{
    for (int i = 0; i < r->comm->size; i++)
        if (r->base[i] != NULL)
            (void)munmap(r->base[i], mapping_bytes(r));
    free(r);
}

/* The memory lives while any rank maps it. */
static d9d_status buffers_create(d9d_comm *c, uint64_t bytes, void **out)
{
    symm_buffers *r = calloc(1, sizeof(*r) + (size_t)c->size * sizeof(*r->base));
    d9d_arena a = {0};
    d9d_comm_blob *all = d9d_arena_alloc(&a, (size_t)c->size * sizeof(*all));
    bool fine = false;
    d9d_status st;
    memfd_info local;
    int fd = -1;

    if (r == NULL || all == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for staging buffers", c->name);
        goto out;
    }
    r->comm = c;
    r->bytes = bytes;
    fd = create_local(r, &local);
    D9D_TRY_OR(st, d9d_comm_allgather_bytes(c, "symm_buffer", &local, sizeof(local), &a, all), out);
    st = d9di_comm_all_true(c, "symm_buffer", open_peers(r, all), &fine);
out:
    if (fd >= 0)
        (void)close(fd); /* all have opened it, or failed */
    d9d_arena_release(&a);
    if (st == D9D_OK && fine)
        *out = r;
    else if (r != NULL)
        buffers_unmap(r);
    return st;
}

static void *buffer_ptr(const void *self, int which, int rank)
{
    const symm_buffers *r = self;

    return r->base[rank] + signals_bytes(r) + (size_t)which * r->bytes;
}

static d9d_status signal_peer(void *self, d9d_stream s, int to)
{
    const symm_buffers *r = self;

    (void)s;
    __atomic_store_n(signal_of(r, to, r->comm->rank), r->n_barriers + 1, __ATOMIC_RELEASE);
    return D9D_OK;
}

/* Wait for a peer's signal; the watchdog ends a process that waits too long. */
static void wait_peer(const symm_buffers *r, int from)
{
    const struct timespec nap = {0, 50000};
    uint32_t *word = signal_of(r, r->comm->rank, from);

    for (int i = 0; (int32_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - r->n_barriers) < 0; i++)
        if (i >= SPIN_POLLS)
            (void)nanosleep(&nap, NULL);
}

static d9d_status copy_host(d9d_comm *c, d9d_stream s, void *dst, const void *src, uint64_t n)
{
    (void)c, (void)s;
    memcpy(dst, src, n);
    return D9D_OK;
}

d9d_status d9di_symm_buffer_barrier_host(d9d_comm *c, const d9di_comm_call *k)
{
    symm_buffers *r = k->peer_memory;

    for (int i = 1; i < c->size && !k->signaled; i++)
        D9D_TRY(signal_peer(r, k->stream, (c->rank + i) % c->size));
    r->n_barriers++;
    for (int i = 0; i < k->n_gets; i++) {
        wait_peer(r, k->gets[i].from);
        D9D_TRY(copy_host(c, k->stream, k->gets[i].dst, k->gets[i].src, k->gets[i].n));
    }
    for (int i = 1; i < c->size; i++)
        wait_peer(r, (c->rank + i) % c->size);
    return D9D_OK;
}

static void buffers_close(void *self)
{
    buffers_unmap(self);
}

const d9di_symm_buffer_ops d9di_symm_buffer_host = {buffers_create, buffer_ptr, signal_peer,
                                                    copy_host, buffers_close};
