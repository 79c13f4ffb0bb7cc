/* symm_buffer_host.c - rooms of processors of one host: memory without a name that each rank opens
 * at the others' and maps, where the environment of all has D9D_COMM_SHARE=1. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm_private.h"

typedef struct rooms {
    d9d_comm *comm;
    uint64_t bytes;  /* of one of the two */
    uint32_t fences; /* come to so far */
    char *at[];      /* [size], each rank's words, then its two */
} rooms;

enum { POLLS = 1000 };           /* of a word, before sleeping between them */
enum { WORD = 64, PAGE = 4096 }; /* bytes from one word to the next; rooms begin at a page */

/* How many fences `from` has told `to` of. */
static uint32_t *word_of(const rooms *r, int to, int from)
{
    return (uint32_t *)(void *)(r->at[to] + (size_t)from * WORD);
}

static uint64_t words_bytes(const rooms *r)
{
    return ((uint64_t)r->comm->size * WORD + PAGE - 1) / PAGE * PAGE;
}

static uint64_t whole(const rooms *r)
{
    return words_bytes(r) + 2 * r->bytes;
}

/* What a rank says of its memory: another container's is another file. */
typedef struct said {
    int64_t pid, fd, device, file;
} said;

static bool map(rooms *r, int rank, int fd)
{
    void *p = mmap(NULL, whole(r), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    r->at[rank] = p == MAP_FAILED ? NULL : p;
    return r->at[rank] != NULL;
}

/* -1 where it cannot be. */
static int create(rooms *r, said *out)
{
    const int fd = memfd_create("d9d rooms", MFD_CLOEXEC);
    struct stat s;

    memset(out, 0, sizeof(*out));
    if (fd < 0 || ftruncate(fd, (off_t)whole(r)) != 0 || fstat(fd, &s) != 0 ||
        !map(r, r->comm->rank, fd)) {
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

static bool open_theirs(rooms *r, int rank, const said *theirs)
{
    char path[64];
    struct stat s;
    bool fine;
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/%lld/fd/%lld", (long long)theirs->pid,
                   (long long)theirs->fd);
    fd = theirs->pid > 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
    fine = fd >= 0 && fstat(fd, &s) == 0 && (int64_t)s.st_dev == theirs->device &&
           (int64_t)s.st_ino == theirs->file && map(r, rank, fd);
    if (fd >= 0)
        (void)close(fd);
    return fine;
}

static bool open_all(rooms *r, const d9d_comm_word *all)
{
    bool fine = r->at[r->comm->rank] != NULL;

    for (int i = 0; i < r->comm->size && fine; i++) {
        said theirs;

        if (i == r->comm->rank)
            continue;
        fine = all[i].n == sizeof(theirs);
        if (fine)
            memcpy(&theirs, all[i].data, sizeof(theirs));
        fine = fine && open_theirs(r, i, &theirs);
    }
    return fine;
}

static void unmap(rooms *r)
{
    for (int i = 0; i < r->comm->size; i++)
        if (r->at[i] != NULL)
            (void)munmap(r->at[i], whole(r));
    free(r);
}

/* Memory stays for as long as somebody has it. */
static d9d_status make(d9d_comm *c, uint64_t bytes, void **out)
{
    rooms *r = calloc(1, sizeof(*r) + (size_t)c->size * sizeof(*r->at));
    d9d_arena a = {0};
    d9d_comm_word *all = d9d_arena_alloc(&a, (size_t)c->size * sizeof(*all));
    bool fine = false;
    d9d_status st;
    said mine;
    int fd = -1;

    if (r == NULL || all == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for rooms", c->name);
        goto out;
    }
    r->comm = c;
    r->bytes = bytes;
    fd = create(r, &mine);
    D9D_TRY_OR(st, d9d_comm_gather_words(c, "rooms", &mine, sizeof(mine), &a, all), out);
    st = d9di_comm_all(c, "rooms", open_all(r, all), &fine);
out:
    if (fd >= 0)
        (void)close(fd); /* all have opened it, or never will */
    d9d_arena_release(&a);
    if (st == D9D_OK && fine)
        *out = r;
    else if (r != NULL)
        unmap(r);
    return st;
}

static void *at(const void *self, int turn, int rank)
{
    const rooms *r = self;

    return r->at[rank] + words_bytes(r) + (size_t)turn * r->bytes;
}

static d9d_status tell(void *self, d9d_stream s, int to)
{
    const rooms *r = self;

    (void)s;
    __atomic_store_n(word_of(r, to, r->comm->rank), r->fences + 1, __ATOMIC_RELEASE);
    return D9D_OK;
}

/* The watchdog ends a process that waits too long. */
static void await(const rooms *r, int from)
{
    const struct timespec nap = {0, 50000};
    uint32_t *word = word_of(r, r->comm->rank, from);

    for (int i = 0; (int32_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - r->fences) < 0; i++)
        if (i >= POLLS)
            (void)nanosleep(&nap, NULL);
}

static d9d_status copy(d9d_comm *c, d9d_stream s, void *dst, const void *src, uint64_t n)
{
    (void)c, (void)s;
    memcpy(dst, src, n);
    return D9D_OK;
}

d9d_status d9di_host_fence(d9d_comm *c, const d9di_call *k)
{
    rooms *r = k->fenced;

    for (int i = 1; i < c->size && !k->told; i++)
        D9D_TRY(tell(r, k->stream, (c->rank + i) % c->size));
    r->fences++;
    for (int i = 0; i < k->n_takes; i++) {
        await(r, k->takes[i].from);
        D9D_TRY(copy(c, k->stream, k->takes[i].dst, k->takes[i].src, k->takes[i].n));
    }
    for (int i = 1; i < c->size; i++)
        await(r, (c->rank + i) % c->size);
    return D9D_OK;
}

static void close_rooms(void *self)
{
    unmap(self);
}

const d9di_rooms_ops d9di_rooms_host = {make, at, tell, copy, close_rooms};
