/* flight_shm.c - shared memory for a ring that is written.  See comm/watch/flight_file.h. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/watch/flight_file.h"
#include "d9d/base/hash.h"
#include "d9d/base/thread.h"

#define SHM         "/dev/shm"
#define NAME_PREFIX "d9d-flight-"

enum { SUFFIX_LEN = 6 };                /* length of mkostemp()'s suffix */
#define STALE_NS INT64_C(3600000000000) /* age at which rings of other directories are removed */

/* A hash of the directory's name, by which a restarted job finds its stale rings. */
static void dir_hash(const char *dir, char out[40])
{
    char *whole = dir[0] != '/' ? getcwd(NULL, 0) : NULL;
    d9d_buf name = {0};

    if (d9d_buf_printf(&name, "%s/%s", whole != NULL ? whole : "", dir) == D9D_OK)
        d9d_hash_hex(d9d_hash_bytes(name.data, name.len), out);
    d9d_buf_release(&name);
    free(whole);
}

/* --- creation ------------------------------------------------------------------------ */

/* Allocate the pages now: a page that cannot be allocated later would kill the process with
 * SIGBUS. */
static d9di_flight_ring *map_shared(int fd)
{
    void *p = MAP_FAILED;

    if (posix_fallocate(fd, 0, sizeof(d9di_flight_ring)) == 0)
        p = mmap(NULL, sizeof(d9di_flight_ring), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p != MAP_FAILED ? p : NULL;
}

static d9di_flight_ring *create_named(void)
{
    char path[D9DI_FLIGHT_SHM_PATH_MAX] = SHM "/" NAME_PREFIX "XXXXXX";
    const int fd = mkostemp(path, O_CLOEXEC);
    d9di_flight_ring *r;

    if (fd < 0)
        return NULL;
    r = map_shared(fd);
    (void)close(fd);
    if (r == NULL)
        (void)unlink(path);
    else
        memcpy(r->header.shm_path, path, sizeof(path));
    return r;
}

/* The descriptor stays open so that others can open it through /proc. */
static d9di_flight_ring *create_memfd(void)
{
    const int fd = memfd_create(NAME_PREFIX, MFD_CLOEXEC);
    d9di_flight_ring *r = fd >= 0 ? map_shared(fd) : NULL;

    if (r != NULL)
        (void)snprintf(r->header.shm_path, sizeof(r->header.shm_path), "/proc/%lld/fd/%d",
                       (long long)getpid(), fd);
    else if (fd >= 0)
        (void)close(fd);
    return r;
}

static d9di_flight_ring *create_private(void)
{
    void *p = mmap(NULL, sizeof(d9di_flight_ring), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return p != MAP_FAILED ? p : NULL;
}

/* --- rings of other processes -------------------------------------------------------- */

static bool is_named(const char *path)
{
    const char *name = path + sizeof(SHM);

    return strncmp(path, SHM "/" NAME_PREFIX, sizeof(SHM "/" NAME_PREFIX) - 1) == 0 &&
           strlen(name) == sizeof(NAME_PREFIX) - 1 + SUFFIX_LEN && strchr(name, '/') == NULL;
}

/* A damaged file may contain any path: only those that the create functions make are opened. */
static int open_peer_ring(const char *path)
{
    int pid, number, end = 0;
    const bool nameless = sscanf(path, "/proc/%9d/fd/%9d%n", &pid, &number, &end) == 2 && end > 0 &&
                          path[end] == '\0';
    struct stat s;
    int fd;

    if (!nameless && !is_named(path))
        return -1;
    fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | (nameless ? 0 : O_NOFOLLOW));
    if (fd >= 0 && (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode) || s.st_uid != geteuid() ||
                    s.st_size != (off_t)sizeof(d9di_flight_ring))) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

const d9di_flight_ring *d9di_flight_ring_attach(const char *path)
{
    const int fd = open_peer_ring(path);
    void *p = MAP_FAILED;

    if (fd < 0)
        return NULL;
    p = mmap(NULL, sizeof(d9di_flight_ring), PROT_READ, MAP_SHARED, fd, 0);
    (void)close(fd);
    return p != MAP_FAILED ? p : NULL;
}

void d9di_flight_ring_detach(const d9di_flight_ring *r)
{
    if (r != NULL)
        (void)munmap((void *)(uintptr_t)r, sizeof(*r));
}

int d9di_flight_ring_lock(const char *path)
{
    const int fd = is_named(path) ? open_peer_ring(path) : -1;

    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    if (fd >= 0)
        (void)close(fd);
    return -1;
}

bool d9di_flight_ring_read(const char *path, d9di_flight_ring *out)
{
    const d9di_flight_ring *r = d9di_flight_ring_attach(path);

    if (r == NULL)
        return false;
    d9di_flight_ring_copy(r, out);
    out->header.max_lag = 0;
    d9di_flight_ring_detach(r);
    return true;
}

/* Copy word by word while another thread stores: an intended race. */
__attribute__((no_sanitize("thread"))) static void copy_u64_atomic(void *dst, const void *src,
                                                                   size_t n)
{
    const uint64_t *from = src;
    uint64_t *to = dst;

    for (size_t i = 0; i < n / sizeof(*to); i++)
        to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

_Static_assert(sizeof(d9di_flight_ring) % 8 == 0 && D9DI_FLIGHT_HEADER_BYTES % 8 == 0,
               "whole words");

void d9di_flight_ring_copy(const d9di_flight_ring *r, d9di_flight_ring *out)
{
    copy_u64_atomic(out, r, D9DI_FLIGHT_HEADER_BYTES);
    for (int i = 0; i < D9DI_FLIGHT_CALLS; i++) {
        const d9di_flight_call *x = &r->call[i];
        const int64_t number = __atomic_load_n(&x->number, __ATOMIC_ACQUIRE);

        copy_u64_atomic(&out->call[i], x, sizeof(*x));
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (__atomic_load_n(&x->number, __ATOMIC_RELAXED) != number)
            out->call[i].number = 0;
    }
}

/* --- stale rings --------------------------------------------------------------------- */

static bool is_stale(const char *path, const char *host, const char *dir)
{
    const d9di_flight_ring *r = d9di_flight_ring_attach(path);
    const d9di_flight_header *h = r != NULL ? &r->header : NULL;
    bool stale = false;

    if (h != NULL && memcmp(h->magic, D9DI_FLIGHT_MAGIC, sizeof(h->magic)) == 0 &&
        strncmp(h->host, host, sizeof(h->host)) == 0 &&
        d9di_flight_process_is_gone(h->pid, h->started, NULL))
        stale = strncmp(h->dir_hash, dir, sizeof(h->dir_hash)) == 0 ||
                d9d_clock_ns() - h->heartbeat > STALE_NS;
    d9di_flight_ring_detach(r);
    return stale;
}

static void remove_stale_rings(const char *dir)
{
    d9di_flight_process self;
    d9d_fs_names names;
    d9d_arena a = {0};
    d9d_err_copy first;

    d9d_err_save(&first, D9D_OK);
    d9di_flight_process_self(&self);
    if (d9d_fs_list(SHM, &a, &names) != D9D_OK)
        names.n = 0;
    for (size_t i = 0; i < names.n; i++) {
        const char *path = d9d_fs_join(&a, SHM, names.name[i]);

        if (path != NULL && is_named(path) && is_stale(path, self.host, dir))
            (void)unlink(path);
    }
    d9d_arena_release(&a);
    (void)d9d_err_restore(&first);
}

/* --- creation and release ------------------------------------------------------------ */

d9d_status d9di_flight_ring_create(const char *dir, d9di_flight_ring **out)
{
    static d9di_flight_ring *(*const makers[])(void) = {create_named, create_memfd, create_private};
    char hash[40] = "";
    d9di_flight_ring *r = NULL;

    if (dir != NULL) {
        dir_hash(dir, hash);
        remove_stale_rings(hash);
    }
    for (size_t i = dir != NULL ? 0 : 1; i < sizeof(makers) / sizeof(makers[0]) && r == NULL; i++)
        r = makers[i]();
    if (r == NULL)
        return D9D_FAIL(D9D_ENOMEM, "mesh: no memory for the flight recorder");
    memcpy(r->header.dir_hash, hash, sizeof(hash));
    *out = r;
    return D9D_OK;
}

void d9di_flight_ring_unlink(const d9di_flight_ring *r)
{
    if (is_named(r->header.shm_path))
        (void)unlink(r->header.shm_path);
}

void d9di_flight_ring_release(d9di_flight_ring *r, bool keep)
{
    int fd;

    if (r == NULL)
        return;
    if (sscanf(r->header.shm_path, "/proc/%*d/fd/%d", &fd) == 1)
        (void)close(fd);
    else if (!keep)
        d9di_flight_ring_unlink(r);
    (void)munmap(r, sizeof(*r));
}
