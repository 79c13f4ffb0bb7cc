/* flight_store.c - the file of a ring, DIR/rank-N.bin.  See comm/watch/flight_file.h. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/watch/flight_file.h"
#include "d9d/comm/flight.h"

static d9d_status store_path(const char *dir, int rank, char path[PATH_MAX])
{
    if (snprintf(path, PATH_MAX, "%s/rank-%d.bin", dir, rank) >= PATH_MAX)
        return D9D_FAIL(D9D_EINVAL, "%s: too long a path", dir);
    return D9D_OK;
}

/* True for a file of the flight recorder, of any version, complete or empty from a process that
 * ended before its first write.  Any other file of this name is neither replaced nor removed. */
static bool is_ring(const char *path)
{
    static const char nothing[sizeof(D9DI_FLIGHT_MAGIC) - 1];
    char magic[sizeof(D9DI_FLIGHT_MAGIC) - 1] = {0};
    d9d_file f = {.fd = -1};
    uint64_t size = 0;
    bool is =
        d9d_file_open_regular(path, &f, &size) == D9D_OK && (size == 0 || size >= sizeof(magic));

    if (is && size > 0)
        is = d9d_file_read_at(&f, magic, sizeof(magic), 0) == D9D_OK;
    is = is && (memcmp(magic, D9DI_FLIGHT_MAGIC, sizeof(magic) - 1) == 0 ||
                memcmp(magic, nothing, sizeof(magic)) == 0);
    d9d_file_release(&f);
    return is;
}

bool d9d_flight_remove(const char *dir, int rank)
{
    char path[PATH_MAX];

    return store_path(dir, rank, path) == D9D_OK && is_ring(path) && unlink(path) == 0;
}

d9d_status d9di_flight_store_open(const char *dir, int rank, d9di_flight_store *out)
{
    d9di_flight_store s = {.file.fd = -1};
    char path[PATH_MAX];
    d9d_status st;

    D9D_TRY(store_path(dir, rank, path));
    D9D_TRY(d9d_fs_mkdirs(dir));
    if (access(path, F_OK) == 0 && !is_ring(path))
        return D9D_FAIL(D9D_EPATH, "%s: is no record of a rank; move it away", path);
    (void)unlink(path); /* a reader of an older job's file keeps it */
    D9D_TRY_OR(st, d9d_file_open_rw(path, &s.file), out);
    s.written = calloc(1, sizeof(*s.written));
    if (s.written == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for a ring", path);
        goto out;
    }
    st = d9d_file_resize(&s.file, sizeof(*s.written));
out:
    if (st == D9D_OK)
        *out = s;
    else
        d9di_flight_store_close(&s);
    return st;
}

/* Write the calls that differ, from the first to the last of them. */
static d9d_status write_calls(d9di_flight_store *s, const d9di_flight_ring *now)
{
    const size_t size = sizeof(*now->call);
    int first = 0, end = D9DI_FLIGHT_CALLS;

    while (first < end && memcmp(&s->written->call[first], &now->call[first], size) == 0)
        first++;
    while (end > first && memcmp(&s->written->call[end - 1], &now->call[end - 1], size) == 0)
        end--;
    if (first == end)
        return D9D_OK;
    return d9d_file_write_at(&s->file, &now->call[first], (size_t)(end - first) * size,
                             D9DI_FLIGHT_HEADER_BYTES + (uint64_t)first * size);
}

d9d_status d9di_flight_store_write(d9di_flight_store *s, const d9di_flight_ring *r)
{
    d9di_flight_ring *now = malloc(sizeof(*now));
    d9d_status st;

    if (now == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a ring", s->file.path);
    d9di_flight_ring_copy(r, now);
    D9D_TRY_OR(st, write_calls(s, now), out);
    D9D_TRY_OR(st, d9d_file_write_at(&s->file, now, D9DI_FLIGHT_HEADER_BYTES, 0), out);
    D9D_TRY_OR(st, d9d_file_sync(&s->file), out);
    memcpy(s->written, now, sizeof(*now));
out:
    free(now);
    return st;
}

static d9d_status salvage_ring(const char *dir, const d9di_flight_ring *r)
{
    d9di_flight_store s = {.file.fd = -1, .written = calloc(1, sizeof(*r))};
    d9di_flight_ring *ring = malloc(sizeof(*ring));
    d9di_flight_header h = {.job = r->header.job};
    char path[PATH_MAX];
    d9d_status st;

    D9D_TRY_OR(st, store_path(dir, r->header.rank, path), out);
    if (s.written == NULL || ring == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for a ring", path);
        goto out;
    }
    D9D_TRY_OR(st, d9d_file_open_rw(path, &s.file), out);
    if (d9d_file_read_at(&s.file, &h, sizeof(h), 0) == D9D_OK && h.job != r->header.job)
        goto out;
    D9D_TRY_OR(st, d9d_file_resize(&s.file, sizeof(*ring)), out);
    memcpy(ring, r, sizeof(*ring));
    ring->header.max_lag = 0;
    memset(s.written, 0xff, sizeof(*s.written)); /* so that everything differs and is written */
    st = d9di_flight_store_write(&s, ring);
out:
    d9di_flight_store_close(&s);
    free(ring);
    return st;
}

d9d_status d9di_flight_store_salvage(const char *dir, const d9di_flight_ring *r)
{
    const char *path = r->header.shm_path;
    const bool named = strncmp(path, "/proc/", 6) != 0;
    const int fd = named ? d9di_flight_ring_lock(path) : -1;
    d9d_status st;

    if (named && fd < 0)
        return access(path, F_OK) != 0 ? D9D_OK : D9D_FAIL(D9D_EIO, "%s: another has it", path);
    st = salvage_ring(dir, r);
    if (fd >= 0 && st == D9D_OK)
        (void)unlink(path);
    if (fd >= 0)
        (void)close(fd);
    return st;
}

void d9di_flight_store_close(d9di_flight_store *s)
{
    d9d_file_release(&s->file);
    free(s->written);
    s->written = NULL;
}

bool d9di_flight_store_read_state(const char *dir, int rank, int64_t job, d9di_flight_state *out)
{
    char path[PATH_MAX];
    d9di_flight_header h;
    d9d_file f = {.fd = -1};
    bool found;

    found = store_path(dir, rank, path) == D9D_OK && d9d_file_open(path, &f) == D9D_OK &&
            d9d_file_read_at(&f, &h, sizeof(h), 0) == D9D_OK && h.job == job;
    if (found)
        *out = (d9di_flight_state)h.state;
    d9d_file_release(&f);
    return found;
}
