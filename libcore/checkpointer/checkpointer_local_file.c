/* checkpointer_local_file.c - files of local checkpoints, and the search for them.  See
 * checkpointer/checkpointer_local.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpointer/checkpointer_local_private.h"
#include "d9d/base/fs.h"
#include "d9d/comm/exchange.h"

static const char magic[8] = "d9dlocal";

const char *d9di_checkpointer_local_dir(void)
{
    const char *dir = getenv("D9D_LOCAL_DIR");

    return dir != NULL && dir[0] != '\0' ? dir : "/dev/shm";
}

d9d_status d9di_checkpointer_local_check_dir(void)
{
    const char *dir = d9di_checkpointer_local_dir();

    if (d9d_fs_is_dir(dir) && faccessat(AT_FDCWD, dir, W_OK | X_OK, AT_EACCESS) == 0)
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "%s: is no folder that can be written to; local checkpoints go where "
                    "D9D_LOCAL_DIR says, or to /dev/shm",
                    dir);
}

bool d9di_checkpointer_local_header_is_valid(const d9di_checkpointer_local_header *h)
{
    return memcmp(h->magic, magic, sizeof(magic)) == 0;
}

/* Whoever dies while it is written leaves what was written before it. */
void d9di_checkpointer_local_header_validate(d9di_checkpointer_local_header *h)
{
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(h->magic, magic, sizeof(magic));
}

/* By members, as a struct has bytes between them. */
static uint64_t header_hash(const d9di_checkpointer_local_header *h)
{
    const d9d_checkpointer_state *s = &h->state;
    const uint64_t members[] = {(uint64_t)h->rank,
                                (uint64_t)h->ranks,
                                h->job,
                                h->layout,
                                h->bytes,
                                (uint64_t)s->step,
                                (uint64_t)s->samples,
                                (uint64_t)s->tokens,
                                s->seed,
                                d9d_hash_u64(&s->config, sizeof(s->config)),
                                d9d_hash_u64(&s->dataset, sizeof(s->dataset)),
                                s->finite,
                                (uint64_t)s->parent,
                                d9d_hash_u64(&s->origin, sizeof(s->origin))};

    return d9d_hash_u64(members, sizeof(members));
}

uint64_t d9di_checkpointer_local_checksum(const d9di_checkpointer_local_file *f,
                                          const d9di_checkpointer_local_header *h)
{
    const d9d_checksum_array all = {f->data + D9DI_CHECKPOINTER_LOCAL_DATA,
                                    (int64_t)(f->size - D9DI_CHECKPOINTER_LOCAL_DATA)};
    uint64_t sum = header_hash(h);
    const d9d_status st = d9d_kernels_cpu()->reduce->checksum(NULL, &sum, &all, 1);

    (void)st; /* which cannot fail */
    return sum;
}

/* --- files ------------------------------------------------------------------------------------ */

bool d9di_checkpointer_local_header_read(const char *path, d9di_checkpointer_local_header *out)
{
    struct stat about;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool ok = fd >= 0 && fstat(fd, &about) == 0 && S_ISREG(about.st_mode) &&
              about.st_uid == geteuid() &&
              pread(fd, out, sizeof(*out), 0) == (ssize_t)sizeof(*out) &&
              d9di_checkpointer_local_header_is_valid(out) &&
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

void d9di_checkpointer_local_remove_others(const char *id, int ranks)
{
    const char *dir = d9di_checkpointer_local_dir();
    d9d_arena a = {0};
    const char *begin = d9d_arena_printf(&a, "d9d-%s-", id),
               *same = d9d_arena_printf(&a, "d9d-%s-%d-", id, ranks);
    d9d_fs_names names = {0};

    if (begin != NULL && same != NULL && d9d_fs_list(dir, &a, &names) == D9D_OK)
        for (size_t i = 0; i < names.n; i++) {
            const char *path = d9d_fs_join(&a, dir, names.name[i]);

            if (path != NULL && strncmp(names.name[i], begin, strlen(begin)) == 0 &&
                strncmp(names.name[i], same, strlen(same)) != 0)
                (void)unlink(path);
        }
    d9d_arena_release(&a);
}

/* --- the search ------------------------------------------------------------------------------- */

/* A file that a rank sees. */
typedef struct sighting {
    int64_t step;
    int32_t rank, ranks;
    uint64_t job, layout, bytes;
    char name[104];
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
    s.layout = h.layout;
    s.bytes = h.bytes;
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

/* Which ranks have the same state as which: the numbers of two jobs' ranks. */
typedef struct matching {
    int then, now; /* ranks of both */
    int replicas_then, replicas_now;
    int ranks; /* of a replica in a stage */
} matching;

/* False if a job of so many ranks is not this one with another number of replicas. */
static bool matching_set(const d9di_checkpointer_local_mesh *job, int then, int now, matching *out)
{
    const int others = now / job->replicas; /* ranks of a replica in all stages */

    *out = (matching){then, now, then / others, job->replicas, job->ranks};
    return then == now || (job->replicas_vary && then > 0 && then % others == 0);
}

/* Stage and number in the replica. */
static int part_of(int rank, int replicas, int ranks)
{
    return rank / (replicas * ranks) * ranks + rank % ranks;
}

/* How well the state of rank `from`, then, seen by rank `holder` suits rank r: 0 not at all. */
static int suits(const matching *m, int from, int holder, int r)
{
    if (m->then == m->now)
        return from == r ? 1 + (holder == r) : 0;
    if (part_of(from, m->replicas_then, m->ranks) != part_of(r, m->replicas_now, m->ranks))
        return 0;
    return 1 + (from / m->ranks % m->replicas_then == r / m->ranks % m->replicas_now) +
           2 * (holder == r);
}

/* The best of what all ranks see for rank r's state.  False if nobody has it. */
static bool place_set(const d9d_bootstrap_blob *all, const matching *m, int64_t step, int r,
                      d9d_arena *a, d9di_checkpointer_local_place *place)
{
    sighting best = {.step = -1};
    int value = 0;

    for (int holder = 0; holder < m->now; holder++)
        for (size_t i = 0; i < all[holder].n / sizeof(sighting); i++) {
            const sighting s = sighting_at(all, holder, i);

            if (s.step != step || s.ranks != m->then || s.rank < 0 || s.rank >= m->then ||
                suits(m, s.rank, holder, r) <= value)
                continue;
            value = suits(m, s.rank, holder, r);
            best = s;
            place->holder = holder;
        }
    place->layout = best.layout;
    place->bytes = best.bytes;
    place->file = value > 0 ? d9d_arena_strdup(a, best.name) : NULL;
    return place->file != NULL;
}

/* Sets the places of all ranks' states of that step.  False if one has none. */
static bool places_set(const d9d_bootstrap_blob *all, const d9di_checkpointer_local_mesh *job,
                       int then, int now, int64_t step, d9d_arena *a,
                       d9di_checkpointer_local_place *place)
{
    matching m;

    if (!matching_set(job, then, now, &m))
        return false;
    for (int r = 0; r < now; r++)
        if (!place_set(all, &m, step, r, a, &place[r]))
            return false;
    return true;
}

/* The next candidate after (*step, *then): newer steps first, and of a step this job's number of
 * ranks, then larger ones.  False if there is none. */
static bool next_candidate(const d9d_bootstrap_blob *all, int now, int64_t *step, int *then)
{
    const int64_t before_step = *step;
    const int before_then = *then;
    bool found = false;

    for (int r = 0; r < now; r++)
        for (size_t i = 0; i < all[r].n / sizeof(sighting); i++) {
            const sighting s = sighting_at(all, r, i);
            const int key = s.ranks == now ? INT_MAX : s.ranks;

            if (s.step > before_step || (s.step == before_step && key >= before_then) || s.step < 0)
                continue;
            if (found && (s.step < *step || (s.step == *step && key <= *then)))
                continue;
            *step = s.step;
            *then = key;
            found = true;
        }
    return found;
}

static d9d_status choose(const d9d_bootstrap_blob *all, const d9di_checkpointer_local_mesh *job,
                         int ranks, d9d_arena *a, d9di_checkpointer_local_found *out)
{
    d9di_checkpointer_local_place *place = d9d_arena_alloc(a, (size_t)ranks * sizeof(*place));
    int64_t step = INT64_MAX;
    int then = INT_MAX;

    if (place == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the local checkpoints of %d ranks", ranks);
    out->place = place;
    while (next_candidate(all, ranks, &step, &then))
        if (places_set(all, job, then == INT_MAX ? ranks : then, ranks, step, a, place)) {
            out->step = step;
            out->ranks = then == INT_MAX ? ranks : then;
            break;
        }
    return D9D_OK;
}

d9d_status d9di_checkpointer_local_find(d9d_bootstrap *bootstrap, const char *id,
                                        const d9di_checkpointer_local_mesh *job, d9d_arena *a,
                                        d9di_checkpointer_local_found *out)
{
    sightings seen = {0};
    d9d_bootstrap_blob *all;
    d9d_status st;

    *out = (d9di_checkpointer_local_found){.step = -1};
    D9D_TRY_OR(st, d9d_bootstrap_agree_status(bootstrap, look(id, job->job, a, &seen)), out);
    D9D_TRY_OR(
        st,
        d9d_bootstrap_allgather_arena(bootstrap, seen.data, seen.len * sizeof(*seen.data), a, &all),
        out);
    st = d9d_bootstrap_agree_status(bootstrap,
                                    choose(all, job, d9d_bootstrap_size(bootstrap), a, out));
out:
    D9D_VEC_RELEASE(&seen);
    return st;
}
