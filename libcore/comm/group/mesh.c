/* mesh.c - opening a mesh, its groups, its watchdog and flight recorder.  See d9d/comm/mesh.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/bootstrap_private.h"
#include "comm/mesh_axes.h"
#include "comm/watch/flight_file.h"
#include "comm/watch/watchdog.h"

struct group {
    unsigned axes;
    int number; /* 0, or the number of a dup */
    d9d_comm *comm;
};

struct d9d_mesh {
    d9d_parallel_degrees degrees;
    d9d_bootstrap *bootstrap;
    d9d_mesh_opts opts;
    d9di_comm_wait_observer waits;
    d9di_comm_backend backend; /* ops are NULL in a world of one */
    d9d_comm *world;
    bool failed, check;
    d9di_flight_ring *ring; /* NULL in a world of one */
    d9di_local_peers *local_peers;
    d9di_watchdog *watchdog;
    D9D_VEC(struct group) groups;
};

/* In a build without CUDA there is no comm_nccl.c. */
#ifndef D9D_CUDA
d9d_status d9di_comm_backend_nccl(d9d_bootstrap *bootstrap, d9d_stream stream,
                                  d9di_comm_backend *out)
{
    (void)bootstrap, (void)stream, (void)out;
    return D9D_FAIL(D9D_ENOTSUP, "several ranks on GPUs need NCCL, and this build has no CUDA");
}
#endif

typedef struct backend {
    const char *name;
    d9d_status (*open)(d9d_bootstrap *bootstrap, d9d_stream stream, d9di_comm_backend *out);
    bool recorded; /* use the flight recorder and the watchdog: this backend has several ranks */
} backend;

static const backend backends[] = {{"cpu", d9di_comm_backend_mpi, true},
                                   {"cuda", d9di_comm_backend_nccl, true},
                                   {"sim", d9di_comm_backend_sim, false}};

enum { BACKENDS = sizeof(backends) / sizeof(backends[0]) };

/* --- without communication ----------------------------------------------------------- */

int d9d_parallel_degrees_index(const d9d_parallel_degrees *d, unsigned axes, int64_t rank)
{
    return (int)d9di_mesh_axes_place(d, axes, rank).index;
}

const d9d_parallel_degrees *d9d_mesh_degrees(const d9d_mesh *m)
{
    return &m->degrees;
}
d9d_bootstrap *d9d_mesh_bootstrap(const d9d_mesh *m)
{
    return m->bootstrap;
}
int d9d_mesh_rank(const d9d_mesh *m)
{
    return d9d_bootstrap_rank(m->bootstrap);
}
int d9d_mesh_size(const d9d_mesh *m)
{
    return d9d_bootstrap_size(m->bootstrap);
}
int d9d_mesh_index(const d9d_mesh *m, unsigned axes)
{
    return d9d_parallel_degrees_index(&m->degrees, axes, d9d_mesh_rank(m));
}
int d9d_mesh_count(const d9d_mesh *m, unsigned axes)
{
    return (int)d9di_mesh_axes_place(&m->degrees, axes, d9d_mesh_rank(m)).count;
}
char *d9d_mesh_text(const d9d_mesh *m, char *buf, size_t n)
{
    return d9di_mesh_axes_text(&m->degrees, d9d_mesh_rank(m), buf, n);
}

/* --- groups ------------------------------------------------------------------------------ */

/* The ranks of this rank's group, in order. */
static void list_members(const d9d_mesh *m, unsigned axes, int *world)
{
    const int64_t group = d9di_mesh_axes_place(&m->degrees, axes, d9d_mesh_rank(m)).group;
    int n = 0;

    for (int r = 0; r < d9d_mesh_size(m); r++)
        if (d9di_mesh_axes_place(&m->degrees, axes, r).group == group)
            world[n++] = r;
}

static d9d_status create_group(d9d_mesh *m, unsigned axes, d9d_comm **out)
{
    const d9di_mesh_place place = d9di_mesh_axes_place(&m->degrees, axes, d9d_mesh_rank(m));
    int *world = calloc((size_t)place.count, sizeof(*world));
    char name[128];
    d9d_status st;

    if (world == NULL)
        return D9D_FAIL(D9D_ENOMEM, "mesh: no memory for %lld ranks", (long long)place.count);
    list_members(m, axes, world);
    st = d9di_comm_open(
        &m->backend,
        &(d9di_comm_members){.name = d9di_mesh_axes_name(axes, name, sizeof(name)),
                             .world = world,
                             .rank = (int)place.index,
                             .size = (int)place.count,
                             .tag = (int)m->groups.len,
                             .failed = &m->failed,
                             .check = m->check,
                             .opts = &m->opts,
                             .waits = &m->waits,
                             .ring = m->ring,
                             .group =
                                 m->ring != NULL ? d9di_flight_ring_add_group(m->ring, axes) : -1},
        out);
    free(world);
    return st;
}

d9d_status d9d_mesh_group(d9d_mesh *m, unsigned axes, d9d_comm **out)
{
    return d9d_mesh_group_dup(m, axes, 0, out);
}

d9d_status d9d_mesh_group_dup(d9d_mesh *m, unsigned axes, int number, d9d_comm **out)
{
    const unsigned set = d9di_mesh_axes_normalize(&m->degrees, axes);
    d9d_comm *c;

    for (size_t i = 0; i < m->groups.len; i++)
        if (m->groups.data[i].axes == set && m->groups.data[i].number == number) {
            *out = m->groups.data[i].comm;
            return D9D_OK;
        }
    if (set == 0) { /* a group of one */
        *out = NULL;
        return D9D_OK;
    }
    D9D_TRY(D9D_VEC_RESERVE(&m->groups, 1));
    D9D_TRY(create_group(m, set, &c));
    m->groups.data[m->groups.len++] = (struct group){set, number, c};
    *out = c;
    return D9D_OK;
}

/* --- opening and closing ------------------------------------------------------------------ */

static d9d_status find_backend(const char *name, const backend **out)
{
    for (int i = 0; i < BACKENDS; i++) {
        *out = &backends[i];
        if (strcmp(backends[i].name, name) == 0)
            return D9D_OK;
    }
    return D9D_FAIL(D9D_EINVAL, "mesh: no backend \"%s\" between ranks", name);
}

/* A failure that all ranks have at once, such as a full disk, is reported by one of them. */
void d9d_mesh_abandon(d9d_mesh *m)
{
    d9d_err_copy why;

    if (m == NULL)
        return;
    m->failed = true;
    d9d_err_save(&why, D9D_ECOMM); /* the look-up may overwrite the error record */
    if (d9di_watchdog_report_failure(m->watchdog))
        d9di_bootstrap_set_failure_reported(m->bootstrap);
    (void)d9d_err_restore(&why);
}

void d9d_mesh_close(d9d_mesh *m)
{
    if (m == NULL)
        return;
    d9di_bootstrap_set_transport(m->bootstrap, NULL);
    for (size_t i = m->groups.len; i-- > 0;)
        d9di_comm_close(m->groups.data[i].comm);
    D9D_VEC_RELEASE(&m->groups);
    d9di_watchdog_set_backend(m->watchdog, NULL);
    if (m->backend.close != NULL)
        m->backend.close(m->backend.self, m->failed);
    if (m->watchdog != NULL) {
        d9di_watchdog_stop(m->watchdog, m->failed ? D9DI_FLIGHT_FAILED : D9DI_FLIGHT_CLOSED);
    } else {
        d9di_local_peers_close(m->local_peers);
        d9di_flight_ring_release(m->ring, false);
    }
    free(m);
}

/* The first exchange of the ranks.  Rank 0's time of day distinguishes jobs in one directory; if
 * one rank asks for checks of calls, all check; and the address of each process and its ring. */
struct hello {
    int64_t time, check;
    d9di_local_peers_address address;
};

static d9d_status exchange_hello(d9d_bootstrap *bootstrap, const d9di_flight_ring *ring,
                                 d9d_arena *a, struct hello *all)
{
    const char *wish = getenv("D9D_COMM_CHECK");
    const int size = d9d_bootstrap_size(bootstrap);
    d9d_bootstrap_blob *blob = d9d_arena_alloc(a, (size_t)size * sizeof(*blob));
    struct hello local = {.check = wish != NULL && strcmp(wish, "0") != 0};
    struct timespec t = {0};

    if (blob == NULL)
        return D9D_FAIL(D9D_ENOMEM, "mesh: out of memory");
    (void)clock_gettime(CLOCK_REALTIME, &t);
    local.time = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    d9di_flight_process_self(&local.address.self);
    memcpy(local.address.shm_path, ring->header.shm_path, sizeof(local.address.shm_path));
    D9D_TRY(d9d_bootstrap_allgather(bootstrap, &local, sizeof(local), a, blob));
    for (int r = 0; r < size; r++) {
        if (blob[r].n != sizeof(*all))
            return D9D_FAIL(D9D_ECOMM, "mesh: rank %d sent a record of %zu bytes, not %zu", r,
                            blob[r].n, sizeof(*all));
        memcpy(&all[r], blob[r].data, sizeof(*all));
    }
    return D9D_OK;
}

static d9d_status open_local_peers(d9d_mesh *m, d9d_arena *a, const struct hello *all)
{
    const int size = d9d_bootstrap_size(m->bootstrap);
    d9di_local_peers_address *where = d9d_arena_alloc(a, (size_t)size * sizeof(*where));

    if (where == NULL)
        return D9D_FAIL(D9D_ENOMEM, "mesh: out of memory");
    for (int r = 0; r < size; r++)
        where[r] = all[r].address;
    return d9di_local_peers_open(where, size, d9d_bootstrap_rank(m->bootstrap), &m->local_peers);
}

static d9d_status open_flight_recorder(d9d_mesh *m)
{
    d9d_arena a = {0};
    struct hello *all =
        d9d_arena_alloc(&a, (size_t)d9d_bootstrap_size(m->bootstrap) * sizeof(*all));
    d9d_status st;

    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "mesh: out of memory");
    D9D_TRY_OR(st, d9di_flight_ring_create(m->opts.flight_dir, &m->ring), out);
    D9D_TRY_OR(st, exchange_hello(m->bootstrap, m->ring, &a, all), out);
    for (int r = 0; r < d9d_bootstrap_size(m->bootstrap); r++)
        m->check = m->check || all[r].check != 0;
    d9di_flight_ring_init(m->ring, m->bootstrap, &m->degrees, all[0].time);
    D9D_TRY_OR(st, open_local_peers(m, &a, all), out);
    st = d9di_watchdog_start(m->ring, m->bootstrap, &m->opts, m->local_peers, &m->watchdog);
out:
    d9d_arena_release(&a);
    return st;
}

/* The bootstrap's all-gather as a call of the world group. */
static d9d_status allgather_on_world(void *self, const void *local, size_t n, d9d_arena *a,
                                     d9d_bootstrap_blob *all)
{
    const d9d_mesh *m = self;
    d9d_comm_blob *blobs = d9d_arena_alloc(a, (size_t)d9d_mesh_size(m) * sizeof(*blobs));

    if (blobs == NULL)
        return D9D_FAIL(D9D_ENOMEM, "mesh: out of memory");
    D9D_TRY(d9d_comm_allgather_bytes(m->world, "bootstrap all-gather", local, n, a, blobs));
    for (int r = 0; r < d9d_mesh_size(m); r++)
        all[r] = (d9d_bootstrap_blob){blobs[r].data, blobs[r].n};
    return D9D_OK;
}

/* Route the bootstrap's exchanges through the world group from here on. */
static void use_world_transport(d9d_mesh *m)
{
    if (m->ring != NULL)
        d9di_bootstrap_set_transport(m->bootstrap,
                                     &(d9di_bootstrap_transport){allgather_on_world, m});
}

static d9d_status open_world(d9d_mesh *m, const char *name, d9d_stream stream)
{
    const backend *b;

    D9D_TRY(find_backend(name, &b));
    /* A rank that fails here must not leave the others waiting. */
    if (b->recorded)
        D9D_TRY(d9d_bootstrap_agree_status(m->bootstrap, open_flight_recorder(m)));
    d9di_watchdog_set_initializing(m->watchdog, true);
    D9D_TRY(d9d_bootstrap_agree_status(m->bootstrap, b->open(m->bootstrap, stream, &m->backend)));
    d9di_watchdog_set_initializing(m->watchdog, false);
    d9di_watchdog_set_backend(m->watchdog, &m->backend);
    D9D_TRY(d9d_bootstrap_agree_status(m->bootstrap, d9d_mesh_group(m, D9D_AXES_WORLD, &m->world)));
    use_world_transport(m);
    return D9D_OK;
}

d9d_status d9d_mesh_open(d9d_bootstrap *bootstrap, const d9d_parallel_degrees *degrees,
                         const char *backend_name, d9d_stream stream, const d9d_mesh_opts *opts,
                         d9d_mesh **out)
{
    d9d_mesh *m = NULL;
    d9d_status st;

    D9D_TRY(d9d_parallel_degrees_check(degrees, d9d_bootstrap_size(bootstrap)));
    m = calloc(1, sizeof(*m));
    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "mesh: out of memory");
    m->degrees = *degrees;
    m->bootstrap = bootstrap;
    m->opts = *opts;
    if (d9d_bootstrap_size(bootstrap) > 1)
        D9D_TRY_OR(st, open_world(m, backend_name, stream), out);
    *out = m;
    return D9D_OK;
out:
    m->failed = true;
    d9d_mesh_close(m);
    return st;
}

void d9d_mesh_suspend(d9d_mesh *m)
{
    d9di_bootstrap_set_transport(m->bootstrap, NULL);
    for (size_t i = m->groups.len; i-- > 0;)
        d9di_comm_suspend(m->groups.data[i].comm);
}

d9d_status d9d_mesh_resume(d9d_mesh *m)
{
    for (size_t i = 0; i < m->groups.len; i++)
        D9D_TRY(d9di_comm_resume(&m->backend, m->groups.data[i].comm));
    use_world_transport(m);
    return D9D_OK;
}

void d9d_mesh_set_timeout(d9d_mesh *m, double seconds, const char *timeout_name)
{
    d9di_watchdog_set_timeout(m->watchdog, seconds, timeout_name);
}

void d9d_mesh_observe_waits(d9d_mesh *m, d9d_stream stream, void (*fn)(void *self, bool begins),
                            void *self)
{
    m->waits = (d9di_comm_wait_observer){.fn = fn, .self = self, .stream = stream};
}

/* --- rank 0 first -------------------------------------------------------------------- */

d9d_status d9d_mesh_root_first_begin(d9d_mesh *m)
{
    return d9d_mesh_rank(m) == 0 ? D9D_OK : d9d_comm_barrier(m->world, "rank 0 goes first");
}
d9d_status d9d_mesh_root_first_end(d9d_mesh *m)
{
    return d9d_mesh_rank(m) == 0 ? d9d_comm_barrier(m->world, "rank 0 goes first") : D9D_OK;
}
