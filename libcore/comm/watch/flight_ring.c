/* flight_ring.c - writing call records into a ring.  See comm/watch/flight_file.h. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/watch/flight_file.h"
#include "d9d/base/hash.h"
#include "d9d/base/thread.h"

_Static_assert(sizeof(d9di_flight_call) == 128, "the ring's format");
_Static_assert(sizeof(d9di_flight_header) <= D9DI_FLIGHT_HEADER_BYTES, "the ring's format");

/* The kernel's start time of a process, or 0. */
static int64_t process_start_time(int64_t pid, char *state)
{
    char path[64], text[1024], *at;
    unsigned long long started = 0;
    size_t n;
    FILE *f;

    *state = 0;
    (void)snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)pid);
    f = fopen(path, "re");
    if (f == NULL)
        return 0;
    n = fread(text, 1, sizeof(text) - 1, f);
    (void)fclose(f);
    text[n] = '\0';
    at = strrchr(text, ')'); /* the process name before it may contain anything */
    if (at == NULL ||
        sscanf(at + 1,
               " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
               "%*s %llu",
               state, &started) != 2)
        return 0;
    return (int64_t)started;
}

bool d9di_flight_process_is_gone(int64_t pid, int64_t started, char *state)
{
    char now;
    const bool other = process_start_time(pid, &now) != started;

    if (state != NULL)
        *state = now;
    return other || now == 'Z' || now == 'X';
}

/* The pid namespace is part of the identity: containers of one host reuse pids. */
void d9di_flight_process_self(d9di_flight_process *out)
{
    char state, name[65] = "", space[32] = "", both[sizeof(name) + sizeof(space)];

    *out = (d9di_flight_process){.pid = getpid()};
    out->started = process_start_time(out->pid, &state);
    (void)gethostname(name, sizeof(name) - 1);
    (void)!readlink("/proc/self/ns/pid", space, sizeof(space) - 1);
    (void)snprintf(both, sizeof(both), "%s %s", name, space);
    d9d_hash_hex(d9d_hash_bytes(both, strlen(both)), out->host);
}

/* --- header -------------------------------------------------------------------------- */

static int64_t time_of_day(void)
{
    struct timespec t = {0};

    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void d9di_flight_ring_init(d9di_flight_ring *r, d9d_bootstrap *bootstrap,
                           const d9d_parallel_degrees *d, int64_t job)
{
    d9di_flight_header *h = &r->header;
    d9di_flight_process self;

    h->job = job;
    h->rank = d9d_bootstrap_rank(bootstrap);
    h->size = d9d_bootstrap_size(bootstrap);
    h->degrees = *d;
    d9di_flight_process_self(&self);
    h->pid = self.pid;
    h->started = self.started;
    memcpy(h->host, self.host, sizeof(h->host));
    d9di_flight_ring_heartbeat(r, d9d_clock_ns());
    h->max_lag = (int64_t)(D9DI_FLIGHT_SYNC_MS + D9DI_FLIGHT_HEARTBEAT_MS) * 1000000;
    (void)snprintf(h->node, sizeof(h->node), "%s", d9d_bootstrap_node(bootstrap));
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(h->magic, D9DI_FLIGHT_MAGIC, sizeof(h->magic));
}

void d9di_flight_ring_heartbeat(d9di_flight_ring *r, int64_t now)
{
    __atomic_store_n(&r->header.clock_offset, time_of_day() - now, __ATOMIC_RELAXED);
    __atomic_store_n(&r->header.heartbeat, now, __ATOMIC_RELAXED);
}

void d9di_flight_ring_set_state(d9di_flight_ring *r, d9di_flight_state state)
{
    d9di_flight_ring_heartbeat(r, d9d_clock_ns());
    __atomic_store_n(&r->header.state, (int32_t)state, __ATOMIC_RELEASE);
}

d9di_flight_state d9di_flight_ring_state(const d9di_flight_ring *r)
{
    return (d9di_flight_state)__atomic_load_n(&r->header.state, __ATOMIC_ACQUIRE);
}

int d9di_flight_ring_add_group(d9di_flight_ring *r, unsigned axes)
{
    if (r->header.groups == D9DI_FLIGHT_GROUPS)
        return -1;
    r->header.group[r->header.groups].axes = axes;
    return r->header.groups++;
}

/* --- calls --------------------------------------------------------------------------------- */

static int64_t sum_counts(const int64_t *counts, int n)
{
    int64_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

static int64_t call_elements(const d9d_comm *c, const d9di_comm_call *k)
{
    if (k->coll == D9DI_COLL_SEND_RECV)
        return sum_counts(&k->msgs[0].n, 1);
    if (k->recv != NULL || k->send != NULL)
        return sum_counts(k->recv != NULL ? k->recv : k->send, c->size);
    return k->n;
}

static void record_peers(const d9d_comm *c, const d9di_comm_call *k, d9di_flight_call *x)
{
    memset(x->peer, 0, sizeof(x->peer));
    for (int i = 0; k->coll == D9DI_COLL_SEND_RECV && i < k->n && i < D9DI_FLIGHT_PEERS; i++) {
        const int32_t rank = c->world[k->msgs[i].peer] + 1;

        x->peer[i] = k->msgs[i].receive ? -rank : rank;
    }
}

/* Block for ever if the watchdog is ending this process: a late completion must not be acted on. */
static void block_if_aborted(const d9di_flight_ring *r)
{
    while (d9di_flight_ring_state(r) == D9DI_FLIGHT_ABORTED)
        (void)pause();
}

static bool is_recorded(const d9d_comm *c)
{
    return c->ring != NULL && c->group >= 0 &&
           __atomic_load_n(&c->ring->header.state, __ATOMIC_RELAXED) == D9DI_FLIGHT_RUNNING;
}

d9di_flight_call *d9di_flight_ring_call_begin(d9d_comm *c, const d9di_comm_call *k)
{
    d9di_flight_ring *r = c->ring;
    d9di_flight_call *x;
    int64_t number;

    if (r != NULL)
        block_if_aborted(r);
    if (!is_recorded(c))
        return NULL;
    number = __atomic_add_fetch(&r->header.calls, 1, __ATOMIC_RELAXED);
    x = &r->call[(number - 1) % D9DI_FLIGHT_CALLS];
    __atomic_store_n(&x->number, 0, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    __atomic_store_n(&x->begin, d9d_clock_ns(), __ATOMIC_RELAXED);
    __atomic_store_n(&x->end, 0, __ATOMIC_RELAXED);
    x->seq = k->coll == D9DI_COLL_SEND_RECV ? c->p2p_calls : c->calls;
    r->header.group[c->group].seq = c->calls;
    x->n = call_elements(c, k);
    x->group = (uint8_t)c->group;
    x->coll = (uint8_t)k->coll;
    x->dtype = (uint8_t)(k->coll == D9DI_COLL_SEND_RECV ? k->msgs[0].t : k->t);
    x->op = (uint8_t)k->op;
    x->root = k->root;
    __atomic_store_n(&x->state, D9DI_FLIGHT_CALL_STARTED, __ATOMIC_RELAXED);
    record_peers(c, k, x);
    (void)strncpy(x->label, k->label, sizeof(x->label) - 1);
    __atomic_store_n(&x->number, number, __ATOMIC_RELEASE);
    return x;
}

void d9di_flight_ring_call_end(d9di_flight_call *x, d9di_flight_call_state step)
{
    if (x == NULL)
        return;
    __atomic_store_n(&x->end, d9d_clock_ns(), __ATOMIC_RELAXED);
    __atomic_store_n(&x->state, (int32_t)step, __ATOMIC_RELEASE);
}
