/* checkpointer_local_file.c - files of local checkpoints, and the search for them.  See
 * checkpointer/checkpointer_local.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpointer/checkpointer_local.h"
#include "d9d/base/fs.h"
#include "d9d/comm/exchange.h"

static const char magic[8] = "d9dlocal";

const char *d9di_checkpointer_local_dir(void)
{
    const char *dir = getenv("D9D_LOCAL_DIR");

    return dir != NULL && dir[0] != '\0' ? dir : "/dev/shm";
}

/* --- files ------------------------------------------------------------------------------------ */

bool d9di_checkpointer_local_header_read(const char *path, d9di_checkpointer_local_header *out)
{
    struct stat about;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool ok = fd >= 0 && fstat(fd, &about) == 0 && S_ISREG(about.st_mode) &&
              about.st_uid == geteuid() &&
              pread(fd, out, sizeof(*out), 0) == (ssize_t)sizeof(*out) &&
              memcmp(out->magic, magic, sizeof(magic)) == 0 &&
              out->bytes == (uint64_t)about.st_size - D9DI_CHECKPOINTER_LOCAL_DATA;

    if (fd >= 0)
        (void)close(fd);
    return ok;
}

static d9d_status file_map(d9di_checkpointer_local_file *f, int fd, size_t size)
{
    void *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (data == MAP_FAILED)
        return D9D_FAIL(D9D_EIO, "%s: %zu bytes cannot be mapped: %s", f->path, size,
                        strerror(errno));
    f->data = data;
    f->size = size;
    return D9D_OK;
}

/* One of that size keeps its contents. */
static d9d_status file_allocate(const d9di_checkpointer_local_file *f, int fd, size_t size)
{
    struct stat about;
    int rc;

    if (fstat(fd, &about) != 0)
        return D9D_FAIL(D9D_EIO, "%s: %s", f->path, strerror(errno));
    if ((size_t)about.st_size != size && ftruncate(fd, 0) != 0)
        return D9D_FAIL(D9D_EIO, "%s: %s", f->path, strerror(errno));
    rc = posix_fallocate(fd, 0, (off_t)size);
    if (rc != 0)
        return D9D_FAIL(D9D_EIO, "%s: a local checkpoint takes %zu bytes of memory there: %s",
                        f->path, size, strerror(rc));
    return D9D_OK;
}

d9d_status d9di_checkpointer_local_file_create(d9di_checkpointer_local_file *f, size_t size)
{
    const int fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    d9d_status st;

    if (fd < 0)
        return D9D_FAIL(D9D_EIO, "%s: a local checkpoint cannot be made there: %s", f->path,
                        strerror(errno));
    st = file_allocate(f, fd, size);
    if (st == D9D_OK)
        st = file_map(f, fd, size);
    else
        (void)unlink(f->path);
    (void)close(fd);
    return st;
}

d9d_status d9di_checkpointer_local_file_map(d9di_checkpointer_local_file *f)
{
    const int fd = open(f->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct stat about;
    d9d_status st;

    if (fd < 0 || fstat(fd, &about) != 0)
        st = D9D_FAIL(D9D_EIO, "%s: %s", f->path, strerror(errno));
    else
        st = file_map(f, fd, (size_t)about.st_size);
    if (fd >= 0)
        (void)close(fd);
    return st;
}

void d9di_checkpointer_local_file_unmap(d9di_checkpointer_local_file *f)
{
    if (f->data != NULL)
        (void)munmap(f->data, f->size);
    f->data = NULL;
}

/* --- the search ------------------------------------------------------------------------------- */

/* A file that a rank sees. */
typedef struct sighting {
    int64_t step;
    int32_t rank, ranks;
    uint64_t job;
    char name[96];
} sighting;

typedef D9D_VEC(sighting) sightings;

static d9d_status see(const char *dir, const char *name, uint64_t job, d9d_arena *a, sightings *out)
{
    d9di_checkpointer_local_header h;
    const char *path = d9d_fs_join(a, dir, name);
    sighting s = {0};

    if (path == NULL || strlen(name) >= sizeof(s.name) ||
        !d9di_checkpointer_local_header_read(path, &h) || h.job != job)
        return D9D_OK;
    s.step = h.state.step;
    s.rank = h.rank;
    s.ranks = h.ranks;
    s.job = h.job;
    memcpy(s.name, name, strlen(name));
    return D9D_VEC_PUSH(out, s);
}

static d9d_status look(const char *id, uint64_t job, d9d_arena *a, sightings *out)
{
    const char *dir = d9di_checkpointer_local_dir(), *begin = d9d_arena_printf(a, "d9d-%s-", id);
    d9d_fs_names names;

    if (begin == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: names of local checkpoints", dir);
    if (id[0] == '\0' || !d9d_fs_is_dir(dir))
        return D9D_OK;
    D9D_TRY(d9d_fs_list(dir, a, &names));
    for (size_t i = 0; i < names.n; i++)
        if (strncmp(names.name[i], begin, strlen(begin)) == 0)
            D9D_TRY(see(dir, names.name[i], job, a, out));
    return D9D_OK;
}

/* The s-th sighting of rank r's blob. */
static sighting sighting_at(const d9d_bootstrap_blob *all, int r, size_t i)
{
    sighting s;

    memcpy(&s, (const char *)all[r].data + i * sizeof(s), sizeof(s));
    s.name[sizeof(s.name) - 1] = '\0';
    return s;
}

/* Sets the places of all ranks' states of that step: a rank's own host first.  False if one has
 * none. */
static bool places_set(const d9d_bootstrap_blob *all, int ranks, int64_t step, d9d_arena *a,
                       d9di_checkpointer_local_place *place)
{
    for (int r = 0; r < ranks; r++)
        place[r] = (d9di_checkpointer_local_place){.holder = -1};
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < all[r].n / sizeof(sighting); i++) {
            const sighting s = sighting_at(all, r, i);

            if (s.step != step || s.ranks != ranks || s.rank < 0 || s.rank >= ranks ||
                (place[s.rank].holder >= 0 && r != s.rank))
                continue;
            place[s.rank].holder = r;
            place[s.rank].file = d9d_arena_strdup(a, s.name);
        }
    for (int r = 0; r < ranks; r++)
        if (place[r].holder < 0 || place[r].file == NULL)
            return false;
    return true;
}

static d9d_status choose(const d9d_bootstrap_blob *all, int ranks, d9d_arena *a,
                         d9di_checkpointer_local_found *out)
{
    d9di_checkpointer_local_place *place = d9d_arena_alloc(a, (size_t)ranks * sizeof(*place));

    if (place == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the local checkpoints of %d ranks", ranks);
    out->place = place;
    for (int64_t limit = INT64_MAX;;) { /* newest first */
        int64_t step = -1;

        for (int r = 0; r < ranks; r++)
            for (size_t i = 0; i < all[r].n / sizeof(sighting); i++) {
                const int64_t s = sighting_at(all, r, i).step;

                step = s < limit && s > step ? s : step;
            }
        if (step < 0 || places_set(all, ranks, step, a, place)) {
            out->step = step;
            return D9D_OK;
        }
        limit = step;
    }
}

d9d_status d9di_checkpointer_local_find(d9d_bootstrap *bootstrap, const char *id, uint64_t job,
                                        d9d_arena *a, d9di_checkpointer_local_found *out)
{
    sightings seen = {0};
    d9d_bootstrap_blob *all;
    d9d_status st;

    *out = (d9di_checkpointer_local_found){.step = -1};
    D9D_TRY_OR(st, d9d_bootstrap_agree_status(bootstrap, look(id, job, a, &seen)), out);
    D9D_TRY_OR(
        st,
        d9d_bootstrap_allgather_arena(bootstrap, seen.data, seen.len * sizeof(*seen.data), a, &all),
        out);
    st = d9d_bootstrap_agree_status(bootstrap, choose(all, d9d_bootstrap_size(bootstrap), a, out));
out:
    D9D_VEC_RELEASE(&seen);
    return st;
}
